"""Devices that MQTT clients announce (reference 16.9). The caller holds the transaction."""

from collections.abc import Collection
from typing import Final

import msgspec

from storage.keys import DeviceKey, Milliseconds
from storage.sql import Store


class FoundRecord(msgspec.Struct, frozen=True):
    """A row of `found_device`. `status` is FOUND, ACCEPTED or IGNORED."""

    id: str
    source: DeviceKey
    identity: str
    name: str
    model: str
    manufacturer: str
    status: str
    device: DeviceKey | None
    components: str
    first_on: Milliseconds
    last_on: Milliseconds


_NAMES: Final = FoundRecord.__struct_fields__


class FoundStore(Store):
    def of(self, sources: Collection[DeviceKey]) -> list[FoundRecord]:
        """Devices that these clients have announced, by the time of the first announcement."""
        found: list[FoundRecord] = []
        for source in sources:
            rows = self._db.execute(
                "SELECT * FROM found_device WHERE source = :source ORDER BY first_on, key", {"source": source}
            )
            found += [FoundRecord(**{name: row[name] for name in _NAMES}) for row in rows]
        return found

    def put(self, record: FoundRecord) -> None:
        self._db.put_many("found_device", _NAMES, ("id",), [[getattr(record, name) for name in _NAMES]])

    def remove(self, id_: str) -> None:
        self._db.execute("DELETE FROM found_device WHERE id = :id", {"id": id_})
