"""Loaded by the daemon of a soak: its clock can be set, and it can count its objects.

SIGUSR1 adds the seconds in the file SOAK_CLOCK to the clock; the steady clock is left alone. libfaketime does the same
for any program, but its lock makes a daemon with several threads ten times as slow. SIGUSR2 counts the objects by type,
and the memory, into the file SOAK_OBJECTS; what was there when the daemon was ready is frozen
(protocols/operation/interpreter.py), and not counted.
"""

import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from ctypes import CDLL, Structure, c_longlong, c_size_t
from types import FrameType

_MALLINFO2 = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
_real_time, _real_time_ns = time.time, time.time_ns
_ahead_seconds = [0]


def _time() -> float:
    return _real_time() + _ahead_seconds[0]


def _time_ns() -> int:
    return _real_time_ns() + _ahead_seconds[0] * 1_000_000_000


def _set_clock(_number: int, _frame: FrameType | None) -> None:
    with open(os.environ["SOAK_CLOCK"], encoding="ascii") as file:  # noqa: PTH123 - nothing more is imported
        _ahead_seconds[0] = int(file.read())


class _MallInfo2(Structure):
    """mallinfo2(3)."""

    _fields_ = [(name, c_size_t) for name in _MALLINFO2]


def _count(_number: int, _frame: FrameType | None) -> None:
    garbage = gc.collect()
    types = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    mallinfo2 = CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo2
    malloc = mallinfo2()
    sqlite3_memory_used = CDLL("libsqlite3.so.0").sqlite3_memory_used
    sqlite3_memory_used.restype = c_longlong
    found = {
        "garbage": garbage,
        "sqlite": sqlite3_memory_used(),
        "blocks": sys.getallocatedblocks(),
        "malloc": {name: getattr(malloc, name) for name in ("arena", "hblkhd", "uordblks", "fordblks")},
        "types": types,
    }
    with open(os.environ["SOAK_OBJECTS"], "a", encoding="utf-8") as file:  # noqa: PTH123 - as above
        file.write(json.dumps(found) + "\n")


if "SOAK_CLOCK" in os.environ and "serve" in sys.argv:
    time.time, time.time_ns = _time, _time_ns
    signal.signal(signal.SIGUSR1, _set_clock)
    signal.signal(signal.SIGUSR2, _count)
