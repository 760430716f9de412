"""The table of leases on a connection and a thread of its own: a lease is renewed while a long commit runs."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from storage.device_connections import DeviceConnectionStore
from storage.engines.port import EngineConnection, StoreEngine
from storage.facts import FactStore
from storage.leases import HeldLease, LeaseRecord, LeaseStore
from storage.mqtt_wills import MqttWillStore
from storage.worker_thread import Worker, WorkerThread

T = TypeVar("T")


class LeaseTable:
    """All but `close` raise StoreError."""

    def __init__(
        self,
        engine: StoreEngine,
        *,
        end_sessions: Callable[[str], None] = lambda _instance: None,
        look_around: Callable[[EngineConnection], tuple[tuple[str, ...], float]] = lambda _connection: ((), 0.0),
        worker: Callable[[str], Worker] = WorkerThread,
    ) -> None:
        """`end_sessions` ends what a process, by its name, has open in the store; without it, `take` waits for that.
        `look_around`: the names of the nodes that stand by, and for how many seconds a transaction has been open."""
        self._engine = engine
        self._end_sessions = end_sessions
        self._look_around = look_around
        self._thread = worker("leases")
        self._connection: EngineConnection | None = None

    async def take(
        self,
        name: str,
        node: str,
        instance: str,
        seconds: float,
        *,
        is_over: Callable[[LeaseRecord], bool] = lambda former: former.seconds_left <= 0,
        told: tuple[str, str] | None = None,
    ) -> HeldLease | None:
        """Take the lease if nobody has it, if a node of the same name has it, or if `is_over`, which is called in the
        thread of the leases; else None. It ends the transactions of the former holder. `told`: as for
        `LeaseStore.take`."""

        def work(leases: LeaseStore) -> HeldLease | None:
            former = leases.find(name)
            if former is not None and former.instance != instance:
                if former.node != node and not is_over(former):
                    return None
                if not former.is_given_back:  # otherwise it has none
                    self._end_sessions(former.instance)
            return leases.take(name, node, instance, seconds, former=former, told=told)

        return await self._run(work)

    async def renew(self, held: HeldLease, seconds: float) -> bool:
        return await self._run(lambda leases: leases.renew(held, seconds))

    async def give_back(self, held: HeldLease) -> None:
        await self._run(lambda leases: leases.give_back(held))

    async def find(self, name: str) -> LeaseRecord | None:
        return await self._run(lambda leases: leases.find(name))

    async def join(
        self, name: str, group: str, seconds: float, *, is_over: Callable[[LeaseRecord], bool]
    ) -> HeldLease | None:
        """As `LeaseStore.join`. It ends the transactions of a former holder."""

        def work(leases: LeaseStore) -> HeldLease | None:
            former = leases.find(name)
            if former is not None and former.node != group:
                if not former.is_given_back and not is_over(former):
                    return None
                self._end_sessions(former.instance)
            return leases.join(name, group, seconds, former=former)

        return await self._run(work)

    async def run(self, work: Callable[[LeaseStore], T]) -> T:
        return await self._run(work)

    async def leave(self, held: HeldLease, shared: HeldLease) -> None:
        """A node among several has stopped writing."""

        def work(leases: LeaseStore) -> None:
            leases.free(held.node)
            connection = self._opened()
            DeviceConnectionStore(connection).end_all(held.node)
            MqttWillStore(connection).take_over("", held.node, connection.now_ms())
            leases.give_back(held)
            leases.leave(shared)

        await self._run(work)

    async def forget_old_facts(self) -> None:
        await self._thread.run(lambda: FactStore(self._opened()).forget_old())

    async def end_sessions(self, instance: str) -> None:
        """End what a process has open in the store."""
        await self._thread.run(partial(self._end_sessions, instance))

    async def look_around(self) -> tuple[tuple[str, ...], float]:
        return await self._thread.run(lambda: self._look_around(self._opened()))

    async def prepare(self, function: Callable[[], None]) -> None:
        """Run a function of the engine before the table is used."""
        await self._thread.run(function)

    async def _run(self, work: Callable[[LeaseStore], T]) -> T:
        return await self._thread.run(partial(self._on_connection, work))

    def _on_connection(self, work: Callable[[LeaseStore], T]) -> T:
        return work(LeaseStore(self._opened()))

    def _opened(self) -> EngineConnection:
        if self._connection is None:
            self._connection = self._engine.open(read_only=False)
        return self._connection

    async def close(self) -> None:
        await self._thread.run(self._close)
        self._thread.end()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
