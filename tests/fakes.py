"""Stand-ins for what tests must hold in their own hands: the time, and where blocking work runs."""

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")


class FakeClock:
    """Wall-clock milliseconds that move only when told."""

    def __init__(self, now_ms: int) -> None:
        self.now = now_ms

    def __call__(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds


async def run_inline(sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
    """Blocking work on the loop: on a mock clock a task that waits for a thread counts as idle."""
    await trio.lowlevel.checkpoint()
    return sync_fn()
