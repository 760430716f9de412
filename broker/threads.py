"""Blocking functions that run in worker threads."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class RunInThread(Protocol):
    """Runs a blocking function beside the event loop; tests on the mock clock run it on the loop."""

    def __call__(self, sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> Awaitable[T]: ...


async def run_in_thread(sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
    """The function is abandoned when the caller is cancelled."""
    return await trio.to_thread.run_sync(sync_fn, abandon_on_cancel=True, limiter=limiter)


async def finish_in_thread(sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
    """As `run_in_thread`, but a cancelled caller waits for the end: the function works on its objects."""
    return await trio.to_thread.run_sync(sync_fn, limiter=limiter)
