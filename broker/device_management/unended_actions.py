"""The rows of the Actions that have not ended, where one daemon serves alone: a restart goes on with them.

An Action has a row from the time it is taken until it has ended. A kill may come between the commit of an Action and
the commit of its row: the position up to which all have rows, have ended, or are for others finds such Actions.
"""

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from storage.database import Database
from storage.keys import DeviceKey, Position
from storage.lwm2m_actions import UnendedActionRecord
from storage.records import ActionRow
from storage.sql import StoreDamagedError
from storage.transaction import Transaction

#: Actions that are looked for behind the position.
_LATER: Final = 10_000
_CONSUMER: Final = "lwm2m actions"
_ROW_BYTES: Final = 100


class LeftActions(msgspec.Struct, frozen=True):
    """The rows that the last run has left, their Actions, and the Actions behind its saved position."""

    saved: Position
    head: Position
    records: list[UnendedActionRecord]
    rows: dict[Position, ActionRow]
    later: list[ActionRow]


class UnendedActions:
    def __init__(self, database: Database, *, is_on: bool) -> None:
        """`is_on`: there are listeners for devices of LWM2M."""
        self._database = database
        self._is_on = is_on
        self._last = self._saved = Position(0)

    async def left(self) -> LeftActions:
        """Read what the last run has left. Raises StoreError."""
        found = await self._database.read(partial(_unended, is_on=self._is_on))
        self._last, self._saved = found.head, found.saved
        return found

    def seen(self, position: Position) -> None:
        """An Action was stored, for whatever device."""
        self._last = max(self._last, position)

    def take(self, record: UnendedActionRecord) -> None:
        self._database.write_nowait(partial(_begin, record), size=_ROW_BYTES)
        self._saved = max(self._saved, record.position)

    async def store_step(self, position: Position, step: int) -> None:
        """Raises StoreError."""
        await self._database.write(lambda tx: tx.lwm2m_actions.set_step(position, step))

    def note_step(self, position: Position, step: int) -> None:
        """As `store_step`, without a wait: a restart may begin this step again."""
        self._database.write_nowait(lambda tx: tx.lwm2m_actions.set_step(position, step), size=_ROW_BYTES)

    def end(self, positions: Collection[Position]) -> None:
        self._database.write_nowait(lambda tx: tx.lwm2m_actions.end(positions), size=_ROW_BYTES * len(positions))

    def end_of_device(self, device: DeviceKey) -> None:
        self._database.write_nowait(lambda tx: tx.lwm2m_actions.end_of_device(device), size=_ROW_BYTES)

    async def save(self) -> None:
        """Save the position. Raises StoreError."""
        position = self._last
        if (self._is_on or self._saved) and position > self._saved:
            await self._database.write(lambda tx: tx.messages.set_consumer_position(_CONSUMER, position))
            self._saved = max(self._saved, position)

    async def forget_position(self) -> None:
        """Several nodes serve: a daemon that serves alone later looks behind no position. Raises StoreError."""
        await self._database.write(lambda tx: tx.messages.set_consumer_position(_CONSUMER, Position(0)))


def _unended(tx: Transaction, *, is_on: bool) -> LeftActions:
    records, saved = tx.lwm2m_actions.all(), tx.messages.consumer_position(_CONSUMER)
    rows, later = dict[Position, ActionRow](), list[ActionRow]()
    head = max(saved, tx.messages.last_position("action"))
    with suppress(StoreDamagedError):  # the engine has told the operator
        rows = tx.messages.actions_at([one.position for one in records])
        later = tx.messages.actions_after(saved, limit=_LATER) if saved and is_on else []
    return LeftActions(saved, head, records, rows, later)


def _begin(record: UnendedActionRecord, tx: Transaction) -> None:
    tx.lwm2m_actions.put(record)
    tx.messages.set_consumer_position(_CONSUMER, record.position)
