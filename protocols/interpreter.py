"""Settings of the Python interpreter that shorten the pauses of the event loop (broker/DECISIONS.md)."""

import gc
import sys

# The event loop releases the interpreter lock at each system call, and a busy worker thread keeps the lock for this
# long. With Python's default of 5 ms, the event loop stalled.
_SWITCH_SECONDS = 0.0005


def switch_threads_often() -> None:
    """Let a waiting thread have the interpreter lock after 0.5 ms."""
    sys.setswitchinterval(_SWITCH_SECONDS)


def set_aside_what_stays() -> None:
    """Exclude the objects that exist now from garbage collection: a daemon that listens keeps them until it ends."""
    gc.collect()
    gc.freeze()
