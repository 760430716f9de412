"""Lifetime of the services: workers, saving at the end, and their statistics.

A capability registers each of its workers once, together with the function that saves its state and the one that reads
its statistics, so that none of the three can be forgotten.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import copy_context
from typing import Final, Protocol

import msgspec
import structlog
import trio

from storage.outages import Outage
from storage.sql import StoreError

Save = Callable[[], Awaitable[None]]
Statistics = Callable[[], object]

#: A worker that could not begin because of the store begins again after this.
_BEGIN_AGAIN_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


class WorkerLease(Protocol):
    """A right that a worker needs, such as a lease (broker/cluster/leases.py)."""

    @property
    def is_held(self) -> bool: ...
    @property
    def is_leaving(self) -> bool: ...
    def used(self) -> AbstractContextManager[None]: ...
    def until_lost(self) -> AbstractContextManager[None]: ...
    async def wait_gained(self) -> None: ...


class Run(Protocol):
    """A worker: reports that it has started, then runs until it is cancelled."""

    def __call__(self, *, task_status: trio.TaskStatus[None]) -> Awaitable[None]: ...


class _Started:
    """Tells once that a worker has started, also when it starts again and again."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell: Callable[[], None] | None = tell

    @property
    def is_told(self) -> bool:
        return self._tell is None

    def started(self, _value: None = None) -> None:
        if (tell := self._tell) is not None:
            self._tell = None
            tell()


class _Worker(msgspec.Struct, frozen=True):
    name: str
    run: Run
    save: Save | None
    lease: WorkerLease | None
    forget: Callable[[], None] | None

    async def run_while_held(self, started: "_Started") -> None:
        """Run while the lease is held; start again when it is gained again, and when what it begins with could not be
        read or written then, such as in a commit that another node has overtaken."""
        lease, outage = self.lease, Outage("worker_not_begun")
        if lease is None:
            await self.run(task_status=started)
            return

        def begun() -> None:
            outage.succeeded(worker=self.name)
            started.started()

        while True:
            is_whole = True
            while not lease.is_held:
                started.started()  # those after it start without it
                await lease.wait_gained()
            with lease.used():
                try:
                    with lease.until_lost():
                        await self.run(task_status=_Started(begun))
                        await trio.sleep_forever()
                except* StoreError as errors:
                    if not started.is_told:
                        raise
                    outage.failed(_first(errors), worker=self.name)
                    is_whole = False
                await self._end(lease)
            if not is_whole:
                await trio.sleep(_BEGIN_AGAIN_SECONDS)

    async def _end(self, lease: WorkerLease) -> None:
        """Another node goes on: with what this one stores now, if it gives the lease away."""
        try:
            if self.save is not None and lease.is_leaving:
                await self.save()
        except StoreError as error:  # the other one computes the lost state again
            _log.warning("state_not_saved", worker=self.name, reason=str(error))
        if self.forget is not None:
            self.forget()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Life:
    """The workers and statistics of every capability, in the order in which the capabilities are opened."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._statistics: dict[str, Statistics] = {}
        #: Set when other nodes are to take the place of this one: it says so to balancers, and serves as before.
        self.draining = trio.Event()
        #: Set when it moves its connections to them within `moving_seconds`: no new device is accepted, and each answer
        #: of HTTP is the last one of its connection.
        self.moving = trio.Event()
        self.moving_seconds = 0.0
        #: How many connections of each listener are not moved yet.
        self.not_moved: list[Callable[[], int]] = []
        #: Set when the daemon begins to stop: every open connection then ends in its protocol's own way.
        self.stopping = trio.Event()
        self._ended_by_stop: set[trio.CancelScope] = set()
        self._outages: dict[str, Outage] = {}

    def outage(self, failure: str) -> Outage:
        """The one that many connections share, by its event."""
        if (found := self._outages.get(failure)) is None:
            found = self._outages[failure] = Outage(failure)
        return found

    def move(self, seconds: float) -> None:
        """Move the connections to other nodes, one after the other, within this time."""
        self.moving_seconds = seconds
        self.moving.set()

    def stop(self) -> None:
        """The daemon stops. Connections that are not moved yet end now."""
        self.stopping.set()
        self.moving.set()

    def end_with_stop(self, scope: trio.CancelScope) -> None:
        """Cancel the scope when the daemon begins to stop; until `forget` it is kept. A task of its own for each
        connection that waits for this would cost more than the connection."""
        self._ended_by_stop.add(scope)
        if self.stopping.is_set():
            scope.cancel()

    def forget(self, scope: trio.CancelScope) -> None:
        """The scope has ended, or goes on when the daemon stops."""
        self._ended_by_stop.discard(scope)

    async def _end_when_stopping(self) -> None:
        await self.stopping.wait()
        for scope in tuple(self._ended_by_stop):
            scope.cancel()

    def worker(
        self,
        name: str,
        run: Run,
        *,
        lease: WorkerLease | None = None,
        save: Save | None = None,
        forget: Callable[[], None] | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        """Register a worker.

        Args:
            name: names the worker in statistics and in the log.
            run: started by `running`, after the workers that were registered earlier.
            lease: the worker runs only while this is held.
            save: writes the state that the worker holds in memory; called once, after every worker has ended, unless
                the lease is lost: another node has that state. Also when the worker has ended because its lease goes to
                another node.
            forget: called when the worker has ended because its lease is lost: what it holds in memory becomes old.
            statistics: reads the worker's statistics, without waiting.
        """
        self._workers.append(_Worker(name, run, save, lease, forget))
        if statistics is not None:
            self.observe(name, statistics)

    def observe(self, name: str, statistics: Statistics) -> None:
        """Register the statistics of a part that has no worker. Raises ValueError when the name is taken."""
        if name in self._statistics:
            raise ValueError(f"two parts have statistics called {name!r}")
        self._statistics[name] = statistics

    def statistics(self) -> Mapping[str, object]:
        """The statistics of every part, by its name."""
        return {name: read() for name, read in self._statistics.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the workers while the block lasts, then save what they hold, however the block ends."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_stopping)
                await self._start_in(nursery)
                yield
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._save_all()

    async def _start_in(self, nursery: trio.Nursery) -> None:
        """Start the workers, each when the one before has started.

        `Nursery.start` would take twice as long: it makes a nursery for each of them.
        """
        workers, context, are_started = iter(self._workers), copy_context(), trio.Event()

        def start_next() -> None:
            if (worker := next(workers, None)) is None:
                are_started.set()
            else:  # in the context of this task, not in that of the worker before
                context.run(nursery.start_soon, worker.run_while_held, _Started(start_next))

        start_next()
        await are_started.wait()

    async def _save_all(self) -> None:
        for worker in self._workers:
            if worker.save is None or (worker.lease is not None and not worker.lease.is_held):
                continue
            try:
                await worker.save()
            except StoreError as error:  # the next start computes the lost state again from the message log
                _log.warning("state_not_saved", worker=worker.name, reason=str(error))
