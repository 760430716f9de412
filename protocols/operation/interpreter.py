"""Settings of the Python interpreter and the C library for a daemon (broker/DECISIONS.md)."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import trio

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 1024 * 1024

# The event loop releases the interpreter lock at each system call, and a busy worker thread keeps the lock for this
# long. With Python's default of 5 ms, the event loop stalled; with 0.5 ms, the store's writer waited for a busy event
# loop several times in each commit.
_SWITCH_SECONDS = 0.00005

_NEW_CONTAINERS = 50_000


class LoopStatistics(msgspec.Struct, frozen=True):
    tasks: int


def loop_statistics() -> LoopStatistics:
    return LoopStatistics(trio.lowlevel.current_statistics().tasks_living)


def switch_threads_often() -> None:
    """Let a waiting thread have the interpreter lock after 0.05 ms."""
    sys.setswitchinterval(_SWITCH_SECONDS)


def collect_garbage_seldom() -> None:
    """Look for garbage when there are 50,000 more containers than before, instead of 700.

    What thousands of messages hold between two commits is in use, and is freed without the collector. With 5,000
    connections the default took 30 % of the processor time, in stops of up to half a second.
    """
    gc.set_threshold(_NEW_CONTAINERS, *gc.get_threshold()[1:])


@contextmanager
def importing(name: str) -> Iterator[None]:
    """Look for no garbage while a module is imported, and later not among what it has made: a fifth of a start."""
    if name in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_objects() -> None:
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
