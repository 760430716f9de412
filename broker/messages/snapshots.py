"""Snapshots: the last value of every field of a device (reference 9.4), a projection of the log.

A read adds the rows that are not projected yet, in the same transaction, so it sees every acknowledged message.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from broker.messages.projections import Decoded, SaveProjection, unprojected
from storage.database import Database, Transaction
from storage.keys import DeviceKey, Milliseconds, Position
from storage.messages import SortKey

Fields = dict[str, tuple[Milliseconds, Position, Any]]  # dotted path to (ts, position, value)

_decode_fields = msgspec.json.Decoder(Fields).decode
_encode = msgspec.json.Encoder().encode

_REMEMBERED_DEVICES = 10_000


class Snapshots:
    def __init__(self, database: Database) -> None:
        self._database = database
        # Only this class writes snapshots, so those in use are remembered instead of read again for every step.
        self._known: dict[DeviceKey, Fields] = {}

    async def of(self, device: DeviceKey) -> Fields:
        """Each field's dotted path with ts, log position and value of its newest message."""
        return (await self.of_all([device]))[device]

    async def of_all(self, devices: Sequence[DeviceKey]) -> dict[DeviceKey, Fields]:
        """The snapshots of many devices, all at the same moment."""
        return await self._database.read(lambda tx: _current(tx, devices))

    def project(self, tx: Transaction, rows: Decoded) -> SaveProjection:
        if len(self._known) > _REMEMBERED_DEVICES:
            self._known.clear()
        # Start with the last row: mostly it has the newest value of every field, so older rows need one comparison.
        oldest: dict[DeviceKey, SortKey] = {}
        for row, data in reversed(rows):
            if (fields := self._known.get(row.device)) is None:
                fields = self._known[row.device] = kept_fields(tx, row.device)
            known = oldest.get(row.device)
            if known is None or (row.ts, row.position) > known or not data.keys() <= fields.keys():
                lay_over(fields, data, row.ts, row.position)
                oldest[row.device] = min((field[:2] for field in fields.values()), default=(row.ts, row.position))
        encoded = [(device, _encode(self._known[device]).decode()) for device in oldest]
        return lambda writing: writing.messages.put_snapshots(encoded)

    def forget(self) -> None:
        """Drop what is remembered: the last step may not have been saved."""
        self._known.clear()


def lay_over(fields: Fields, data: Mapping[str, Any], ts: Milliseconds, position: Position) -> None:
    """Update fields with a message. Messages may come in any order and repeatedly.

    The value with the highest ts counts, of equal ts the last received: a late message never replaces a newer value.
    """
    for path, value in data.items():
        if (known := fields.get(path)) is None or (ts, position) > known[:2]:
            fields[path] = (ts, position, value)


def kept_fields(tx: Transaction, device: DeviceKey) -> Fields:
    """The fields as of the position of the projections."""
    kept = tx.messages.snapshot(device)
    return _decode_fields(kept) if kept else {}


def _current(tx: Transaction, devices: Sequence[DeviceKey]) -> dict[DeviceKey, Fields]:
    current = {device: kept_fields(tx, device) for device in devices}
    for row, data in unprojected(tx, current):
        lay_over(current[row.device], data, row.ts, row.position)
    return current
