"""The loops of the workers: wait, take one step, and go on when the store cannot be read or written."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import inf
from typing import Generic, TypeVar

import trio

from storage.ballast import making_room
from storage.outages import Outage
from storage.sql import StoreError

K = TypeVar("K", bound=Hashable)
J = TypeVar("J")


class Wakeup:
    """Ends the wait of one worker."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float = inf) -> None:
        """Return when `set` was called since the last return, or after `seconds`."""
        if seconds == inf:  # a scope costs more than the wait
            await self._event.wait()
        else:
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


@dataclass(eq=False)
class OwnersLoop(Generic[K, J]):
    """A worker that does the oldest job of each owner: of some owners at once, in the order in which they have waited.

    Attributes:
        oldest: the oldest job of each owner that has one, with the owner.
        work: does a job, or goes on with it. After a StoreError it is asked again.
        owners_at_once: how many have a job under way.
        failure, every, wakeup, retry_seconds, deletes: as of `Loop`. `every`: between two looks for jobs.
    """

    oldest: Callable[[], Awaitable[Sequence[tuple[K, J]]]]
    work: Callable[[K, J], Awaitable[None]]
    _: KW_ONLY
    owners_at_once: int
    failure: str
    every: float
    retry_seconds: float
    wakeup: Wakeup
    deletes: bool = False

    def __post_init__(self) -> None:
        self._outage = Outage(self.failure)
        self._at_work = set[K]()
        self._begun = dict[K, float]()  # when the last job of each owner that has some was begun

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started()
            await Loop(
                partial(self._begin, nursery),
                every=self.every,
                wakeup=self.wakeup,
                at_once=True,
                failure=self.failure,
                retry_seconds=self.retry_seconds,
                deletes=self.deletes,
            ).run()

    async def _begin(self, nursery: trio.Nursery) -> None:
        found = await self.oldest()
        self._begun = {owner: self._begun.get(owner, 0.0) for owner, _ in found}
        for owner, job in sorted(found, key=lambda one: self._begun[one[0]]):
            if owner not in self._at_work and len(self._at_work) < self.owners_at_once:
                self._at_work.add(owner)
                self._begun[owner] = trio.current_time()
                nursery.start_soon(self._serve, owner, job)

    async def _serve(self, owner: K, job: J) -> None:
        try:
            await self.work(owner, job)
            self._outage.succeeded()
        except StoreError as error:
            self._outage.failed(error)
            await trio.sleep(self.retry_seconds)
        finally:
            self._at_work.discard(owner)
            self.wakeup.set()
