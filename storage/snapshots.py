"""Snapshots of devices: the last value of each field, and the newest rollup bucket of each level.

The caller holds the transaction.
"""

import json
from collections.abc import Collection, Sequence

from storage.keys import DeviceKey
from storage.records import SnapshotRow
from storage.sql import Store

_NAMES = ("device", "position", "fields", "open")  # in the order of SnapshotRow


class SnapshotStore(Store):
    def of(self, device: DeviceKey) -> SnapshotRow | None:
        rows = self._db.execute(
            "SELECT device, position, fields, open FROM snapshot WHERE device = :device", {"device": device}
        ).tuples()
        row = next(iter(rows), None)
        return SnapshotRow(*row) if row else None

    def of_all(self, devices: Collection[DeviceKey]) -> dict[DeviceKey, SnapshotRow]:
        """The snapshots of these devices; a device without one is left out."""
        if not devices:
            return {}
        rows = self._db.execute(
            f"SELECT {', '.join(_NAMES)} FROM snapshot WHERE device IN ({self._db.numbers_in('devices')})",  # noqa: S608 - constants
            {"devices": json.dumps(list(devices))},
        ).tuples()
        return {row[0]: SnapshotRow(*row) for row in rows}

    def put_all(self, snapshots: Sequence[SnapshotRow]) -> None:
        self._db.put_many("snapshot", _NAMES, ("device",), snapshots)
