"""The table of leases on a connection and a thread of its own: a lease is renewed while a long commit runs."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from storage.database import EngineConnection, StoreEngine
from storage.leases import HeldLease, LeaseRecord, LeaseStore
from storage.worker_thread import Worker, WorkerThread

T = TypeVar("T")


class LeaseTable:
    """All but `close` raise StoreError."""

    def __init__(self, engine: StoreEngine, *, worker: Callable[[str], Worker] = WorkerThread) -> None:
        self._engine = engine
        self._thread = worker("leases")
        self._connection: EngineConnection | None = None

    async def take(self, name: str, node: str, instance: str, seconds: float) -> HeldLease | None:
        return await self._run(lambda leases: leases.take(name, node, instance, seconds))

    async def renew(self, held: HeldLease, seconds: float) -> bool:
        return await self._run(lambda leases: leases.renew(held, seconds))

    async def give_back(self, held: HeldLease) -> None:
        await self._run(lambda leases: leases.give_back(held))

    async def find(self, name: str) -> LeaseRecord | None:
        return await self._run(lambda leases: leases.find(name))

    async def _run(self, work: Callable[[LeaseStore], T]) -> T:
        return await self._thread.run(partial(self._on_connection, work))

    def _on_connection(self, work: Callable[[LeaseStore], T]) -> T:
        if self._connection is None:
            self._connection = self._engine.open(read_only=False)
        return work(LeaseStore(self._connection))

    async def close(self) -> None:
        await self._thread.run(self._close)
        self._thread.end()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
