"""Blocking functions that run in worker threads."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class RunInThread(Protocol):
    """Runs a blocking function beside the event loop. When the caller is cancelled, the function is abandoned."""

    def __call__(self, sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> Awaitable[T]: ...


async def run_in_thread(sync_fn: Callable[[], T], /, *, limiter: trio.CapacityLimiter | None = None) -> T:
    return await trio.to_thread.run_sync(sync_fn, abandon_on_cancel=True, limiter=limiter)
