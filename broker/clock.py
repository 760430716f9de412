"""Time comes in from outside, so that tests decide what time it is."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def system_now_ms() -> int:
    return time.time_ns() // 1_000_000


def system_steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall-clock time in milliseconds since the epoch, UTC; and a steady one that nobody can set, since whenever."""

    now_ms: Callable[[], int] = system_now_ms
    steady_ms: Callable[[], int] = system_steady_ms
