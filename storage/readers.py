"""The connections that read, beside the writer: a few at once, fairly by user, and one for look-ups."""

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from storage.engines.port import StoreEngine
from storage.fair_places import FairPlaces
from storage.sql import StoreError, StoreLostError
from storage.transaction import Transaction
from storage.worker_thread import Worker

T = TypeVar("T")
READERS = 4
#: How often work runs whose connection to the store breaks. Each time a new connection is waited for.
TRIES = 4
#: Reads that run at once while none of them takes long. More would only take the interpreter's lock from each other:
#: with 20 callers, two readers answer 1.3 times as many searches as four. Somebody who has no read that runs does not
#: wait for two of the same user.
_QUICK_READERS = 2
#: A read that has waited this long for them runs beside them: the running ones are long.
_PATIENCE_SECONDS = 0.05


class Readers:
    """`number` connections for reads, and one more for look-ups. The arguments are those of `Database`."""

    def __init__(self, number: int, worker: Callable[[str], Worker], asked_by: Callable[[], Hashable]) -> None:
        self._number = number
        self._asked_by = asked_by
        self.places = FairPlaces(
            number, of_one=max(number // 2, 1), at_first=_QUICK_READERS, patience=_PATIENCE_SECONDS
        )
        self.look_ups = FairPlaces(1)
        self._threads = tuple(worker("reader") for _ in range(number + 1))
        self._idle_threads = list(self._threads)
        self._transactions: list[Transaction] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def waiting(self) -> int:
        return self.places.waiting + self.look_ups.waiting

    def open(self, engine: StoreEngine) -> None:
        """Raises StoreError."""
        for _ in range(self._number + 1):
            self.add(Transaction(engine.open(read_only=True)))

    def add(self, transaction: Transaction) -> None:
        self._transactions.append(transaction)

    def refuse(self) -> None:
        """From now on; a connection that reads is closed when its read has ended."""
        with self._lock:
            self._is_closed = True

    def close(self) -> None:
        with self._lock:
            transactions, self._transactions = self._transactions, []
        for transaction in transactions:
            transaction.connection.close()

    def end_threads(self) -> None:
        for thread in self._threads:
            thread.end()

    async def read(
        self, places: FairPlaces, work: Callable[[Transaction], T], interrupt: Callable[[], object] | None = None
    ) -> T:
        """As `Database.read`, once there is one of these places. Raises StoreError."""
        since = await places.take(key := self._asked_by())
        try:
            if self._is_closed:  # a thread that has ended would begin again
                raise StoreError("the store is not open")
            thread = self._idle_threads.pop()
            try:
                return await thread.run(partial(copy_context().run, self._read, work), interrupt)
            finally:
                self._idle_threads.append(thread)
        finally:
            places.give_back(key, since)

    def _read(self, work: Callable[[Transaction], T]) -> T:
        with self._lock:
            if not self._transactions:
                raise StoreError("the store is not open")
            transaction = self._transactions.pop()
        try:
            for _ in range(TRIES - 1):
                with suppress(StoreLostError):
                    return _in_read(transaction, work)
            return _in_read(transaction, work)
        finally:
            with self._lock:
                if self._is_closed:
                    transaction.connection.close()
                else:
                    self._transactions.append(transaction)


def _in_read(transaction: Transaction, work: Callable[[Transaction], T]) -> T:
    connection = transaction.connection
    connection.begin_read()
    try:
        return work(transaction)
    finally:
        connection.rollback()
