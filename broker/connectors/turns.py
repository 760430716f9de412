"""Turns at a device: one task at a time changes its link or stores its readings, on whatever of several nodes.

A node that dies loses its turns when the others bury it; until then they wait. One that was paused stores nothing more.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

import trio

from broker.cluster.facts import FactLog
from broker.loops import Loop
from storage.database import Database
from storage.keys import DeviceKey
from storage.sql import StoreError
from storage.transaction import Transaction

_FIRST_SECONDS: Final = 0.02
_LATER_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 5.0


class Turns:
    """The turns of one kind. `peers`: other nodes have some, too; None: there are none."""

    def __init__(self, kind: str, database: Database, peers: FactLog | None) -> None:
        self._kind = kind
        self._database = database
        self._peers = peers
        self._locks: WeakValueDictionary[DeviceKey, trio.Lock] = WeakValueDictionary()
        #: Ended, and the store does not know it.
        self._left: set[DeviceKey] = set()
        self.end_again_forever = Loop(self._end_again, every=_AGAIN_SECONDS, failure="connector_turns_not_ended").run

    @asynccontextmanager
    async def of(self, device: DeviceKey) -> AsyncIterator[None]:
        """Wait for the turn, which lasts as long as the block. Raises StoreError."""
        lock = self._locks.get(device)
        if lock is None:
            lock = self._locks[device] = trio.Lock()
        async with lock:
            if self._peers is None:
                yield
                return
            await self._begin(self._peers, device)
            try:
                yield
            finally:
                await self._end(self._peers, device)

    async def _begin(self, peers: FactLog, device: DeviceKey) -> None:
        kind, holder, seconds = self._kind, peers.instance, _FIRST_SECONDS
        while not await self._database.write(lambda tx: _take(tx, device, kind, holder)):
            await trio.sleep(seconds)
            seconds = min(_LATER_SECONDS, 2 * seconds)
        self._left.discard(device)

    async def _end(self, peers: FactLog, device: DeviceKey) -> None:
        kind, holder = self._kind, peers.instance
        with trio.CancelScope(shield=True):
            try:
                await self._database.write(lambda tx: tx.connectors.end_turn(device, kind, holder))
            except StoreError:
                self._left.add(device)

    async def _end_again(self) -> None:
        """Raises StoreError."""
        for device in tuple(self._left):
            if self._peers is not None and device not in self._locks:  # else its next turn has the same row
                await self._end(self._peers, device)
                self._left.discard(device)


def _take(tx: Transaction, device: DeviceKey, kind: str, holder: str) -> bool:
    held = tx.connectors.turn(device, kind)
    if held is not None and held != holder and held in {one.instance for one in tx.leases.nodes()}:
        return False
    tx.connectors.put_turn(device, kind, holder)
    return True
