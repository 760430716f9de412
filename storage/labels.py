"""Labels by which devices are claimed. The caller holds the transaction."""

from collections.abc import Iterable
from typing import Final

import msgspec

from storage.keys import DeviceKey, Milliseconds
from storage.sql import Store


class LabelRecord(msgspec.Struct, frozen=True):
    """`hash` is of the label's code. `is_open`: the device has had no other owner; `claimed_on`: by the label;
    `replaced_on`: when a new label came in its place."""

    hash: bytes
    device: DeviceKey
    made_on: Milliseconds
    is_open: bool
    claimed_on: Milliseconds | None
    replaced_on: Milliseconds | None = None


_NAMES: Final = LabelRecord.__struct_fields__


class LabelStore(Store):
    def add(self, labels: Iterable[LabelRecord]) -> None:
        for one in labels:
            self._db.execute(
                "INSERT INTO device_label (hash, device, made_on, is_open, claimed_on, replaced_on)"
                " VALUES (:hash, :device, :made_on, :is_open, :claimed_on, :replaced_on)",
                {**msgspec.structs.asdict(one), "is_open": int(one.is_open)},
            )

    def by_hash(self, hash_: bytes) -> LabelRecord | None:
        row = self._db.execute("SELECT * FROM device_label WHERE hash = :hash", {"hash": hash_}).one()
        if row is None:
            return None
        values = {name: row[name] for name in _NAMES}
        return LabelRecord(**{**values, "hash": bytes(row["hash"]), "is_open": bool(row["is_open"])})

    def replace(self, device: DeviceKey, *, now_ms: int) -> bool:
        """The open label of a device is of no use any more; return whether there was one."""
        found = self._db.execute(
            "UPDATE device_label SET is_open = 0, replaced_on = :now WHERE device = :device AND is_open = 1"
            " RETURNING hash",
            {"device": device, "now": now_ms},
        )
        return bool(list(found))

    def claimed(self, hash_: bytes, *, now_ms: int) -> None:
        self._db.execute(
            "UPDATE device_label SET is_open = 0, claimed_on = :now WHERE hash = :hash", {"hash": hash_, "now": now_ms}
        )
