"""Firmware images: what is known of the files. The caller holds the transaction."""

from collections.abc import Mapping
from typing import Any

import msgspec

from storage.keys import DeviceTypeKey, Milliseconds
from storage.sql import Store


class FirmwareImageRecord(msgspec.Struct, frozen=True):
    """A firmware image; its bytes are a file in the store (`storage/files.py`)."""

    id: str
    device_type: DeviceTypeKey
    version: str
    type: str
    size: int
    sha256: str
    created_on: Milliseconds


_IMAGE = FirmwareImageRecord.__struct_fields__


class FirmwareStore(Store):
    def put(self, image: FirmwareImageRecord) -> None:
        self._db.put_many("firmware_image", _IMAGE, ("id",), [[getattr(image, name) for name in _IMAGE]])

    def image(self, id_: str) -> FirmwareImageRecord | None:
        row = self._db.execute("SELECT * FROM firmware_image WHERE id = :id", {"id": id_}).one()
        return _image(row) if row else None

    def images(self, device_type: DeviceTypeKey, *, offset: int, limit: int) -> tuple[list[FirmwareImageRecord], int]:
        """A page of the type's images, newest first, and the number of all."""
        given = {"type": device_type, "limit": limit, "offset": offset}
        rows = self._db.execute(
            "SELECT * FROM firmware_image WHERE device_type = :type ORDER BY created_on DESC, id"
            " LIMIT :limit OFFSET :offset",
            given,
        )
        found = [_image(row) for row in rows]
        counted = self._db.execute("SELECT count(*) AS n FROM firmware_image WHERE device_type = :type", given).one()
        return found, int(counted["n"]) if counted else 0

    def of_organization(self, device_type: DeviceTypeKey) -> tuple[int, int]:
        """How many images the organization of a device type has, and their bytes."""
        row = self._db.execute(
            "SELECT count(*) AS n, coalesce(sum(i.size), 0) AS bytes FROM firmware_image AS i"
            " JOIN device_type AS t ON t.key = i.device_type"
            " WHERE t.organization = (SELECT organization FROM device_type WHERE key = :type)",
            {"type": device_type},
        ).one()
        return (int(row["n"]), int(row["bytes"])) if row else (0, 0)

    def sizes(self) -> dict[str, int]:
        """The bytes of all images, by their ids."""
        return {row["id"]: row["size"] for row in self._db.execute("SELECT id, size FROM firmware_image")}

    def remove(self, id_: str) -> None:
        self._db.execute("DELETE FROM firmware_image WHERE id = :id", {"id": id_})


def _image(row: Mapping[str, Any]) -> FirmwareImageRecord:
    return FirmwareImageRecord(**{name: row[name] for name in _IMAGE})
