"""Wills of MQTT, so that they outlive the daemon (reference 16.2). The caller holds the transaction."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from storage.keys import DeviceKey, Milliseconds
from storage.sql import Store


class WillRecord(msgspec.Struct, frozen=True):
    """A row of `mqtt_will`. `topic` is empty when the will is a message of the device. `properties` are encoded, empty
    when there are none. `delay_seconds` is 0 when the will is due as soon as the connection ends."""

    device: DeviceKey
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes
    expiry_seconds: int | None
    delay_seconds: int

    @property
    def size(self) -> int:
        """Bytes of everything that the device has chosen."""
        return len(self.topic) + len(self.payload) + len(self.properties)


_COLUMNS: Final = WillRecord.__struct_fields__


class MqttWillStore(Store):
    def of_connections(self) -> list[WillRecord]:
        """The wills of connections that have gone with their daemon; those to other nodes go on."""
        rows = self._db.execute(
            "SELECT * FROM mqtt_will WHERE is_away = 0 AND NOT EXISTS (SELECT 1 FROM device_connection AS c"
            " WHERE c.device = mqtt_will.device) ORDER BY device"
        )
        return [_will(row) for row in rows]

    def away(self) -> list[tuple[WillRecord, Milliseconds]]:
        """The wills that wait, and when they are due."""
        rows = self._db.execute("SELECT * FROM mqtt_will WHERE is_away = 1 ORDER BY due_on, device")
        return [(_will(row), row["due_on"]) for row in rows]

    def keep(self, will: WillRecord) -> None:
        """The will of a connection."""
        values = [getattr(will, name) for name in _COLUMNS]
        values[_COLUMNS.index("retain")] = int(will.retain)
        self._db.put_many("mqtt_will", ("is_away", *_COLUMNS), ("device", "is_away"), [[0, *values]])

    def wait(self, device: DeviceKey, due_on: Milliseconds) -> None:
        """The connection has ended, and its will is due later."""
        self.forget(device, is_away=True)
        self._db.execute(
            "UPDATE mqtt_will SET is_away = 1, due_on = :due_on WHERE device = :device AND is_away = 0",
            {"device": device, "due_on": due_on},
        )

    def forget(self, device: DeviceKey, *, is_away: bool) -> None:
        self._db.execute(
            "DELETE FROM mqtt_will WHERE device = :device AND is_away = :is_away",
            {"device": device, "is_away": int(is_away)},
        )


def _will(row: Mapping[str, Any]) -> WillRecord:
    return WillRecord(
        row["device"],
        bytes(row["topic"]),
        bytes(row["payload"]),
        row["qos"],
        bool(row["retain"]),
        bytes(row["properties"]),
        row["expiry_seconds"],
        row["delay_seconds"],
    )
