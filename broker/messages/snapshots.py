"""The last value of every field of a device (compatibility.md 9.4): a fold over the log, as far as it has got.

A read lays the rows that are not folded yet on top, in the same transaction, so it sees everything acknowledged.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from broker.messages.consumers import Decoded, Save, unfolded
from broker.messages.rollups import leaves
from storage.database import Database, Transaction

_decode_fields = msgspec.json.Decoder(dict[str, tuple[int, int, Any]]).decode
_encode = msgspec.json.Encoder().encode

Fields = dict[str, tuple[int, int, Any]]  # dotted path to (ts, position, value)


class Snapshots:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, device: int) -> Fields:
        """Each field's dotted path with ts, log position and value of the message that counts."""
        return (await self.of_all([device]))[device]

    async def of_all(self, devices: Sequence[int]) -> dict[int, Fields]:
        """The snapshots of many devices, as they are at one moment."""
        return await self._database.read(lambda tx: {device: _current(tx, device) for device in devices})

    def fold(self, tx: Transaction, rows: Decoded) -> Save:
        folded: dict[int, Fields] = {}
        for row, data in rows:
            if (fields := folded.get(row.device)) is None:
                fields = folded[row.device] = _kept(tx, row.device)
            lay_over(fields, data, row.ts, row.position)
        return partial(_save, {device: _encode(fields).decode() for device, fields in folded.items()})


def lay_over(fields: Fields, data: Mapping[str, Any], ts: int, position: int) -> None:
    """Lay a message over fields, in any order and as often as you like.

    The highest ts counts, of equal ones the last received, so a late message never overwrites a newer value.
    """
    for path, value in leaves(data):
        if (known := fields.get(path)) is None or (ts, position) > known[:2]:
            fields[path] = (ts, position, value)


def _kept(tx: Transaction, device: int) -> Fields:
    kept = tx.messages.snapshot(device)
    return _decode_fields(kept) if kept else {}


def _current(tx: Transaction, device: int) -> Fields:
    fields = _kept(tx, device)
    for row, data in unfolded(tx, device):
        lay_over(fields, data, row.ts, row.position)
    return fields


def _save(folded: Mapping[int, str], tx: Transaction) -> None:
    for device, fields in folded.items():
        tx.messages.put_snapshot(device, fields)
