"""Reads that must not return what a change has overtaken."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Generic, TypeVar

import trio

_K = TypeVar("_K")
_T = TypeVar("_T")

#: Reads of one transaction, so that it keeps the interpreter for some milliseconds at most.
_TOGETHER: Final = 64


class Changes:
    """Counts the changes that were announced, so that a cache is not filled with data read before one of them."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        """Note a change of data that may have been read already."""
        self.count += 1

    async def settled(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """Call `read` until no change is noted during the call, and return its result."""
        while True:
            before = self.count
            found = await read()
            if self.count == before:
                return found


class _Batch(Generic[_K, _T]):
    __slots__ = ("before", "found", "is_over", "keys")

    def __init__(self) -> None:
        self.keys: set[_K] = set()
        self.found: Mapping[_K, _T] | None = None
        self.before = 0  # the count of changes when the read began
        self.is_over = False


class ReadsTogether(Generic[_K, _T]):
    """Reads by key, of many tasks in one transaction: a hop to a reader's thread and back costs more than the read.

    The first task reads at once. Tasks that come while a read runs share the next one.
    """

    def __init__(self, read: Callable[[Collection[_K]], Awaitable[Mapping[_K, _T]]], changes: Changes) -> None:
        """`read` leaves out the keys that there are not. `changes`: as for `Changes.settled`."""
        self._read = read
        self._changes = changes
        self._waiting: _Batch[_K, _T] = _Batch()
        self._running: trio.Event | None = None  # set when the read that runs now has ended

    async def get(self, key: _K) -> _T | None:
        """The value of this key; None if there is none. Raises the errors of `read`."""
        while True:
            if len(self._waiting.keys) >= _TOGETHER:  # the waiting tasks will read it
                self._waiting = _Batch()
            batch = self._waiting
            batch.keys.add(key)
            while not batch.is_over:
                if self._running is None:
                    await self._run(batch)
                else:
                    await self._running.wait()
            if batch.found is None:
                return await self._read_alone(key)
            if batch.before == self._changes.count:
                return batch.found.get(key)

    async def _run(self, batch: _Batch[_K, _T]) -> None:
        """Read for all of the batch. When this task is cancelled, another one of the batch reads."""
        if batch is self._waiting:
            self._waiting = _Batch()
        self._running = ended = trio.Event()
        batch.before = self._changes.count
        try:
            batch.found = await self._read(batch.keys)
            batch.is_over = True
        except Exception:  # noqa: BLE001 - each reads again alone, and gets an error of its own
            batch.is_over = True
        finally:
            self._running = None
            ended.set()

    async def _read_alone(self, key: _K) -> _T | None:
        """The key of another task may be what cannot be read."""
        return (await self._changes.settled(lambda: self._read((key,)))).get(key)
