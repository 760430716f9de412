"""The last value of every field of a device (compatibility.md 9.4): a fold over the log.

Committed rows wait in memory and are folded into the store every second, with the consumer's cursor in the same
transaction. A read folds what still waits on top, so it sees everything that was acknowledged. After a crash the fold
goes on at the cursor; folding a row twice changes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from broker.facts import MessagesStored, Router
from storage.database import Database, Transaction
from storage.records import MessageRow

FLUSH_SECONDS = 1.0
_FLUSH_ROWS = 50_000
_REPLAY_ROWS = 10_000
_CONSUMER = "snapshots"

_decode_data = msgspec.json.Decoder(dict[str, Any]).decode
_decode_fields = msgspec.json.Decoder(dict[str, tuple[int, int, Any]]).decode
_encode = msgspec.json.Encoder().encode

Fields = dict[str, tuple[int, int, Any]]  # dotted path to (ts, position, value)


@dataclass(frozen=True, slots=True)
class SnapshotStatistics:
    waiting_rows: int
    position: int


class Snapshots:
    def __init__(self, database: Database, router: Router) -> None:
        self._database = database
        self._waiting: list[Sequence[MessageRow]] = []
        self._waiting_rows = 0
        self._position = 0
        self._full = trio.Event()
        router.subscribe(MessagesStored, self._messages_stored)

    def _messages_stored(self, fact: MessagesStored) -> None:
        self._waiting.append(fact.rows)
        self._waiting_rows += len(fact.rows)
        if self._waiting_rows >= _FLUSH_ROWS:
            self._full.set()

    async def of(self, device: int) -> Fields:
        """Each field's dotted path with ts, log position and value of the message that counts."""
        # First memory, then the store: a row that is flushed in between is folded twice, which changes nothing.
        waiting = [row for rows in self._waiting for row in rows if row.device == device]
        stored = await self._database.read(lambda tx: tx.messages.snapshot(device))
        fields: Fields = _decode_fields(stored) if stored else {}
        fold(fields, waiting)
        return fields

    async def catch_up(self) -> None:
        """Fold what the last run stored but did not get to fold."""
        self._position = await self._database.read(lambda tx: tx.messages.consumer_position(_CONSUMER))
        while True:
            position = self._position
            rows = await self._database.read(lambda tx, p=position: tx.messages.after(p, limit=_REPLAY_ROWS))  # type: ignore[misc]
            if not rows:
                return
            await self._fold_into_store(rows)

    async def flush(self) -> None:
        """Fold what waits into the store."""
        batches = list(self._waiting)
        if not batches:
            return
        await self._fold_into_store([row for rows in batches for row in rows])
        del self._waiting[: len(batches)]
        self._waiting_rows -= sum(map(len, batches))

    async def _fold_into_store(self, rows: Sequence[MessageRow]) -> None:
        by_device: dict[int, list[MessageRow]] = {}
        for row in rows:
            by_device.setdefault(row.device, []).append(row)
        # Decoding is done beside the writer, so that nobody's acknowledgement waits for it.
        folded = await self._database.read(lambda tx: _folded(tx, by_device))
        position = rows[-1].position
        await self._database.write(lambda tx: _save(tx, folded, position))
        self._position = position

    async def flush_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            with trio.move_on_after(FLUSH_SECONDS):
                await self._full.wait()
            self._full = trio.Event()
            await self.flush()

    def statistics(self) -> SnapshotStatistics:
        return SnapshotStatistics(self._waiting_rows, self._position)


def fold(fields: Fields, rows: Iterable[MessageRow]) -> None:
    """Lay rows over fields, in any order and as often as you like.

    The highest ts counts, of equal ones the last received, so a late message never overwrites a newer value.
    """
    for row in rows:
        _fold_group(fields, "", _decode_data(row.data), (row.ts, row.position))


def _fold_group(fields: Fields, prefix: str, group: Mapping[str, Any], place: tuple[int, int]) -> None:
    for name, value in group.items():
        path = prefix + name
        if type(value) is dict:
            _fold_group(fields, path + ".", value, place)
        elif (known := fields.get(path)) is None or place > known[:2]:
            fields[path] = (*place, value)


def _folded(tx: Transaction, by_device: Mapping[int, Sequence[MessageRow]]) -> dict[int, str]:
    folded = {}
    for device, rows in by_device.items():
        stored = tx.messages.snapshot(device)
        fields: Fields = _decode_fields(stored) if stored else {}
        fold(fields, rows)
        folded[device] = _encode(fields).decode()
    return folded


def _save(tx: Transaction, folded: Mapping[int, str], position: int) -> None:
    for device, fields in folded.items():
        tx.messages.put_snapshot(device, fields)
    tx.messages.set_consumer_position(_CONSUMER, position)
