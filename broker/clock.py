"""Clocks are passed to the capabilities, so that tests can set the time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from storage.keys import Milliseconds


def system_now_ms() -> Milliseconds:
    return time.time_ns() // 1_000_000  # type: ignore[return-value] # each message pays for a call of `Milliseconds`


def system_steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """The wall clock in ms since the epoch, UTC; and a steady clock in ms, which nobody can set, with any beginning.

    `may_delete` says whether the wall clock may be believed when old things are deleted (broker/trusted_time.py).
    """

    now_ms: Callable[[], Milliseconds] = system_now_ms
    steady_ms: Callable[[], int] = system_steady_ms
    may_delete: Callable[[], bool] = lambda: True
