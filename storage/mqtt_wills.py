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
    """`node` is the one, of several, whose connection a will is of, or that publishes it."""

    def of_connections(self, node: str = "") -> list[WillRecord]:
        """The wills of connections."""
        rows = self._db.execute(
            "SELECT * FROM mqtt_will WHERE is_away = 0 AND node = :node ORDER BY device", {"node": node}
        )
        return [_will(row) for row in rows]

    def away(self, node: str = "") -> list[tuple[WillRecord, Milliseconds]]:
        """The wills that wait, and when they are due."""
        rows = self._db.execute(
            "SELECT * FROM mqtt_will WHERE is_away = 1 AND node = :node ORDER BY due_on, device", {"node": node}
        )
        return [(_will(row), row["due_on"]) for row in rows]

    def keep(self, will: WillRecord, node: str = "") -> None:
        """The will of a connection."""
        values = [getattr(will, name) for name in _COLUMNS]
        values[_COLUMNS.index("retain")] = int(will.retain)
        columns = ("is_away", "node", *_COLUMNS)
        self._db.put_many("mqtt_will", columns, ("device", "is_away", "node"), [[0, node, *values]])

    def wait(self, device: DeviceKey, due_on: Milliseconds, node: str = "") -> None:
        """The connection has ended, and its will is due later."""
        self.forget(device, is_away=True, node=node)
        self._db.execute(
            "UPDATE mqtt_will SET is_away = 1, due_on = :due_on"
            " WHERE device = :device AND is_away = 0 AND node = :node",
            {"device": device, "due_on": due_on, "node": node},
        )

    def forget(self, device: DeviceKey, *, is_away: bool, node: str = "") -> None:
        self._db.execute(
            "DELETE FROM mqtt_will WHERE device = :device AND is_away = :is_away AND node = :node",
            {"device": device, "is_away": int(is_away), "node": node},
        )

    def others(self, node: str) -> list[str]:
        """The nodes, but for this one, that have wills."""
        rows = self._db.execute("SELECT DISTINCT node FROM mqtt_will WHERE node <> :node ORDER BY node", {"node": node})
        return [str(row["node"]) for row in rows]

    def take_over(self, node: str, former: str, now_ms: str) -> None:
        """The wills of a former node, whose connections have ended, are this one's: they wait for their delay. Of two
        of a device the one that would come later stays. `now_ms` is an expression."""
        nodes = {"node": node, "former": former}
        of_former = "SELECT device FROM mqtt_will WHERE node = :former"
        self._db.execute(
            f"UPDATE mqtt_will SET due_on = {now_ms} + delay_seconds * 1000 WHERE node = :former AND is_away = 0",  # noqa: S608
            {"former": former},
        )
        self._db.execute(
            f"DELETE FROM mqtt_will WHERE node = :former AND is_away = 1 AND device IN ({of_former} AND is_away = 0)",  # noqa: S608
            {"former": former},
        )
        self._db.execute(
            f"DELETE FROM mqtt_will WHERE node = :node AND is_away = 1 AND device IN ({of_former})",  # noqa: S608 - constants
            nodes,
        )
        self._db.execute("UPDATE mqtt_will SET node = :node, is_away = 1 WHERE node = :former", nodes)


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
