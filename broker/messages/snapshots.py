"""The last value of every field of a device (reference 9.4): a fold over the log, as far as it has got.

A read lays the rows that are not folded yet on top, in the same transaction, so it sees everything acknowledged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from broker.messages.consumers import Decoded, Save, unfolded
from storage.database import Database, Transaction

_decode_fields = msgspec.json.Decoder(dict[str, tuple[int, int, Any]]).decode
_encode = msgspec.json.Encoder().encode

_REMEMBERED_DEVICES = 10_000

Place = tuple[int, int]  # (ts, position): which of two values counts
Fields = dict[str, tuple[int, int, Any]]  # dotted path to (ts, position, value)


class Snapshots:
    def __init__(self, database: Database) -> None:
        self._database = database
        # Nobody else writes snapshots, so those in use are remembered instead of read again for every step.
        self._known: dict[int, Fields] = {}

    async def of(self, device: int) -> Fields:
        """Each field's dotted path with ts, log position and value of the message that counts."""
        return (await self.of_all([device]))[device]

    async def of_all(self, devices: Sequence[int]) -> dict[int, Fields]:
        """The snapshots of many devices, as they are at one moment."""
        return await self._database.read(lambda tx: _current(tx, devices))

    def fold(self, tx: Transaction, rows: Decoded) -> Save:
        if len(self._known) > _REMEMBERED_DEVICES:
            self._known.clear()
        # From the last row back: mostly that one has every field's newest value, and the others need only a glance.
        oldest: dict[int, Place] = {}
        for row, data in reversed(rows):
            if (fields := self._known.get(row.device)) is None:
                fields = self._known[row.device] = _kept(tx, row.device)
            known = oldest.get(row.device)
            if known is None or (row.ts, row.position) > known or not data.keys() <= fields.keys():
                lay_over(fields, data, row.ts, row.position)
                oldest[row.device] = min((field[:2] for field in fields.values()), default=(row.ts, row.position))
        encoded = [(device, _encode(self._known[device]).decode()) for device in oldest]
        return lambda writing: writing.messages.put_snapshots(encoded)

    def forget(self) -> None:
        """What was folded last may not have been kept: trust the store alone."""
        self._known.clear()


def lay_over(fields: Fields, data: Mapping[str, Any], ts: int, position: int) -> None:
    """Lay a message over fields, in any order and as often as you like.

    The highest ts counts, of equal ones the last received, so a late message never overwrites a newer value.
    """
    for path, value in data.items():
        if (known := fields.get(path)) is None or (ts, position) > known[:2]:
            fields[path] = (ts, position, value)


def _kept(tx: Transaction, device: int) -> Fields:
    kept = tx.messages.snapshot(device)
    return _decode_fields(kept) if kept else {}


def _current(tx: Transaction, devices: Sequence[int]) -> dict[int, Fields]:
    current = {device: _kept(tx, device) for device in devices}
    for row, data in unfolded(tx, current):
        lay_over(current[row.device], data, row.ts, row.position)
    return current
