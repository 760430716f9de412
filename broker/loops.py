"""The loops of the workers: wait, take one step, and go on when the store cannot be read or written."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from math import inf

import structlog
import trio

from storage.ballast import making_room
from storage.sql import StoreError

_log = structlog.get_logger(__name__)


class Wakeup:
    """Ends the wait of one worker."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float = inf) -> None:
        """Return when `set` was called since the last return, or after `seconds`."""
        with trio.move_on_after(seconds):
            await self._event.wait()
        self._event = trio.Event()


async def repeat(
    step: Callable[[], Awaitable[bool | None]],
    *,
    failure: str,
    every: float = inf,
    wakeup: Wakeup | None = None,
    at_once: bool = False,
    retry_seconds: float | None = None,
    deletes: bool = False,
) -> None:
    """Take a step again and again, until cancelled.

    Args:
        step: answers True when there is more to do, so that the next step follows without a wait.
        failure: the log event of a step that raised StoreError. Other errors end the loop.
        every: seconds between two steps.
        wakeup: ends the wait between two steps.
        at_once: begin with a step instead of a wait.
        retry_seconds: after a failure, take the next step after this many seconds; None waits as after any other step.
        deletes: the steps free disk space, so their writes may use what is reserved for that (storage/ballast.py).
    """
    with making_room() if deletes else nullcontext():
        await _repeat(step, failure, every, wakeup or Wakeup(), at_once, retry_seconds)


async def _repeat(
    step: Callable[[], Awaitable[bool | None]],
    failure: str,
    every: float,
    wakeup: Wakeup,
    is_due: bool,
    retry_seconds: float | None,
) -> None:
    while True:
        if not is_due:
            await wakeup.wait(every)
        try:
            is_due = bool(await step())
        except StoreError as error:
            _log.warning(failure, reason=str(error))
            is_due = retry_seconds is not None
            if retry_seconds is not None:
                await trio.sleep(retry_seconds)
