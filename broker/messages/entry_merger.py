"""Puts small entries of the log's index together (`storage/log_index.py`), every hour and in small steps.

The indexer makes an entry for the rows of a device that came within a second to a minute. Of a device that sends
seldom this is one row, and the entry takes more room than the message.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from broker.loops import Loop
from storage.database import Database
from storage.keys import DeviceKey, Position
from storage.leases import Holder
from storage.log_index import Merged, Table
from storage.sql import StoreDamagedError
from storage.transaction import Transaction

MERGE_SECONDS: Final = 3_600.0
_DEVICES_AT_ONCE: Final = 50
#: Entries that a step deletes at most, about: some milliseconds of the writer, once in the pause.
_STEP_ENTRIES: Final = 400
_PAUSE_SECONDS: Final = 0.05
_TABLES: Final[tuple[Table, ...]] = ("message", "action")
_MERGED: Final = "merged"  # the counter with the step up to which entries were put together


class EntryMerger:
    def __init__(self, database: Database, lease: Holder) -> None:
        self._database = database
        self._lease = lease
        self.merge_forever = Loop(self.merge, every=MERGE_SECONDS, failure="index_entries_not_merged").run

    async def merge(self) -> None:
        """Put the entries together that came since the last time. Raises StoreError."""
        step, upto = await self._database.read(
            lambda tx: (Position(tx.messages.counter(_MERGED)), Position(tx.messages.counter("indexed")))
        )
        if step == upto:
            return
        for table in _TABLES:
            device = DeviceKey(0)
            while found := await self._database.read(partial(_devices, table, device, step)):
                device = found[-1][0]
                await self._merge_of(table, [key for key, number in found if number], step)
        await self._database.write_own(self._lease, lambda tx: tx.messages.set_counter(_MERGED, upto))

    async def _merge_of(self, table: Table, devices: Sequence[DeviceKey], step: Position) -> None:
        some: list[Merged] = []
        for device in devices:
            try:
                small = await self._database.read(partial(_small, table, device, step))
            except StoreDamagedError:
                continue  # the doctor tells
            for one in small:
                some.append(one)
                if sum(len(each.others) for each in some) >= _STEP_ENTRIES:
                    await self._write(table, some)
                    some = []
        await self._write(table, some)

    async def _write(self, table: Table, some: Sequence[Merged]) -> None:
        if not some:
            return
        try:
            await self._database.write_own(self._lease, partial(_merge, table, some))
        except StoreDamagedError:
            return
        await trio.sleep(_PAUSE_SECONDS)  # let other writes commit


def _devices(table: Table, behind: DeviceKey, step: Position, tx: Transaction) -> list[tuple[DeviceKey, int]]:
    return tx.messages.index(table).devices(behind, step=step, limit=_DEVICES_AT_ONCE)


def _small(table: Table, device: DeviceKey, step: Position, tx: Transaction) -> list[Merged]:
    return tx.messages.index(table).small(device, step=step)


def _merge(table: Table, some: Sequence[Merged], tx: Transaction) -> None:
    tx.messages.index(table).merge(some)
