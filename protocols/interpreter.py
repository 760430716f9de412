"""What the interpreter is told, so that what one thread does is not a pause for everybody (broker/DECISIONS.md)."""

import gc
import sys

# The event loop gives the interpreter lock away at each system call, and a worker thread that folds keeps it for as
# long as this. Python's own 5 ms were a stall of everybody.
_SWITCH_SECONDS = 0.0005


def switch_threads_often() -> None:
    sys.setswitchinterval(_SWITCH_SECONDS)


def set_aside_what_stays() -> None:
    """Garbage is no longer looked for among what is there now: once a daemon listens, that is there until it ends."""
    gc.collect()
    gc.freeze()
