"""The loops of the workers: wait, take one step, and go on when the store cannot be read or written."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field
from math import inf

import trio

from storage.ballast import making_room
from storage.outages import Outage
from storage.sql import StoreError


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


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A worker that takes a step again and again, until cancelled.

    Attributes:
        step: answers True when there is more to do, so that the next step follows without a wait.
        failure: the log event of steps that raised StoreError (storage/outages.py). Other errors end the loop.
        every: seconds between two steps.
        pause: instead of `every`, asked before each wait.
        wakeup: ends the wait between two steps.
        at_once: begin with a step instead of a wait.
        retry_seconds: after a failure, take the next step after this many seconds; None waits as after any other step.
        deletes: the steps free disk space, so their writes may use what is reserved for that (storage/ballast.py).
    """

    step: Callable[[], Awaitable[bool | None]]
    _: KW_ONLY
    failure: str
    every: float = inf
    pause: Callable[[], float] | None = None
    wakeup: Wakeup = field(default_factory=Wakeup)
    at_once: bool = False
    retry_seconds: float | None = None
    deletes: bool = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        with making_room() if self.deletes else nullcontext():
            await self._repeat()

    async def _repeat(self) -> None:
        is_due, outage = self.at_once, Outage(self.failure)
        while True:
            if not is_due:
                await self.wakeup.wait(self.every if self.pause is None else self.pause())
            try:
                is_due = bool(await self.step())
            except StoreError as error:
                outage.failed(error)
                is_due = self.retry_seconds is not None
                if self.retry_seconds is not None:
                    await trio.sleep(self.retry_seconds)
            else:
                outage.succeeded()
