"""Settings of the Python interpreter and the C library for a daemon (broker/DECISIONS.md)."""

import ctypes
import gc
import sys

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 1024 * 1024

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


def give_back_large_memory() -> None:
    """Let each large block of memory be a mapping of its own, which goes back to the system when it is freed.

    glibc would keep the blocks that argon2 has freed, one for each thread that has hashed a password: 20 MiB each, and
    strangers decide how many passwords are hashed (reference 4.2). Other C libraries do not have this setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
