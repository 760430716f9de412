"""MQTT sessions that outlive a connection (reference 16.5). The caller holds the transaction."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from storage.keys import DeviceKey, Milliseconds, Position, UserKey
from storage.sql import Store

_TABLES: Final = ("mqtt_delivery", "mqtt_received", "mqtt_subscription", "mqtt_session")


class MqttSessionRecord(msgspec.Struct, frozen=True):
    """A row of `mqtt_session`. `expires_on` is None while the device is connected. `holder`: the latest connection, of
    several nodes."""

    device: DeviceKey
    client_id: str
    expiry_seconds: int
    expires_on: Milliseconds | None
    actions_after: Position | None
    sent_until: int
    holder: str = ""


class TopicSubscriptionRecord(msgspec.Struct, frozen=True):
    """How a device subscribes to a filter; all but `qos` are of MQTT 5.0. `subscription_id` is 0 when there is none."""

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    subscription_id: int = 0


class DeliveryRecord(msgspec.Struct, frozen=True):
    """A message that waits for a device. `number` orders a device's deliveries. `properties` are encoded, empty when
    there are none, and without the subscription identifiers."""

    number: int
    topic: bytes
    payload: bytes
    qos: int
    is_released: bool = False
    retain: bool = False
    properties: bytes = b""
    expires_on: Milliseconds | None = None
    subscription_ids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of everything that the device has chosen: a topic and properties may be larger than the payload."""
        return len(self.topic) + len(self.payload) + len(self.properties)


class MqttSessionStore(Store):
    def session(self, device: DeviceKey) -> MqttSessionRecord | None:
        row = self._db.execute("SELECT * FROM mqtt_session WHERE device = :device", {"device": device}).one()
        return MqttSessionRecord(**{name: row[name] for name in MqttSessionRecord.__struct_fields__}) if row else None

    def put(self, session: MqttSessionRecord) -> None:
        self._db.put_many(
            "mqtt_session",
            MqttSessionRecord.__struct_fields__,
            ("device",),
            [[getattr(session, name) for name in MqttSessionRecord.__struct_fields__]],
        )

    def end(self, device: DeviceKey, *, expires_on: Milliseconds, sent_until: int) -> None:
        """The device's connection has ended."""
        self._db.execute(
            "UPDATE mqtt_session SET expires_on = :expires_on, sent_until = :sent_until WHERE device = :device",
            {"device": device, "expires_on": expires_on, "sent_until": sent_until},
        )

    def end_all(self, now_ms: Milliseconds | None = None, *, node: str = "") -> None:
        """The daemon was killed: no device is connected, and every delivery may have been sent. `node`: of several
        nodes, this one. `now_ms`: None is the time of the store."""
        now = ":now" if now_ms is not None else self._db.now_ms()
        of_node = " AND holder >= :first AND holder < :behind" if node else ""
        self._db.execute(
            f"UPDATE mqtt_session SET expires_on = {now} + expiry_seconds * 1000,"  # noqa: S608 - an expression of the engine
            " sent_until = (SELECT coalesce(max(d.number), 0) FROM mqtt_delivery AS d"
            " WHERE d.device = mqtt_session.device)"
            f" WHERE expires_on IS NULL{of_node}",
            {"now": now_ms or 0, "first": f"{node} ", "behind": f"{node}!"},  # '!' follows ' ' in ASCII
        )

    def is_held_by(self, device: DeviceKey, holder: str) -> bool:
        row = self._db.execute(
            "SELECT 1 AS held FROM mqtt_session WHERE device = :device AND holder = :holder",
            {"device": device, "holder": holder},
        ).one()
        return row is not None

    def remove(self, device: DeviceKey) -> None:
        for table in _TABLES:
            self._db.execute(f"DELETE FROM {table} WHERE device = :device", {"device": device})  # noqa: S608 - constants

    def expired(self, now_ms: Milliseconds, *, limit: int) -> list[DeviceKey]:
        rows = self._db.execute(
            "SELECT device FROM mqtt_session WHERE expires_on <= :now ORDER BY expires_on LIMIT :limit",
            {"now": now_ms, "limit": limit},
        )
        return [row["device"] for row in rows]

    def count(self) -> int:
        row = self._db.execute("SELECT count(*) AS n FROM mqtt_session").one()
        return int(row["n"]) if row else 0

    def owners(self) -> dict[DeviceKey, UserKey]:
        """The owner of each device that has a session."""
        rows = self._db.execute("SELECT d.key, d.owner FROM device AS d JOIN mqtt_session AS s ON s.device = d.key")
        return {row["key"]: row["owner"] for row in rows}

    # --- Subscriptions ---

    def subscriptions(self, device: DeviceKey) -> dict[bytes, TopicSubscriptionRecord]:
        """The subscriptions of a device, by filter."""
        rows = self._db.execute(
            "SELECT * FROM mqtt_subscription WHERE device = :device ORDER BY filter", {"device": device}
        )
        return {bytes(row["filter"]): _subscription(row) for row in rows}

    def all(self) -> list[tuple[MqttSessionRecord, int]]:
        """Every session, and the number of its last delivery, 0 when none waits."""
        rows = self._db.execute(
            "SELECT s.*, (SELECT coalesce(max(d.number), 0) FROM mqtt_delivery AS d WHERE d.device = s.device) AS last"
            " FROM mqtt_session AS s ORDER BY s.device"
        )
        return [
            (MqttSessionRecord(**{name: row[name] for name in MqttSessionRecord.__struct_fields__}), row["last"])
            for row in rows
        ]

    def subscribe(self, device: DeviceKey, subscriptions: Mapping[bytes, TopicSubscriptionRecord]) -> None:
        """`subscriptions` are by filter."""
        self._db.put_many(
            "mqtt_subscription",
            ("device", "filter", *TopicSubscriptionRecord.__struct_fields__),
            ("device", "filter"),
            [
                (device, filter_, *(int(getattr(one, name)) for name in TopicSubscriptionRecord.__struct_fields__))
                for filter_, one in subscriptions.items()
            ],
        )

    def unsubscribe(self, device: DeviceKey, filter_: bytes) -> None:
        self._db.execute(
            "DELETE FROM mqtt_subscription WHERE device = :device AND filter = :filter",
            {"device": device, "filter": filter_},
        )

    def set_actions_after(self, device: DeviceKey, position: Position | None) -> None:
        self._db.execute(
            "UPDATE mqtt_session SET actions_after = :position WHERE device = :device",
            {"device": device, "position": position},
        )

    # --- Deliveries ---

    def deliveries(self, device: DeviceKey) -> list[DeliveryRecord]:
        rows = self._db.execute(
            "SELECT * FROM mqtt_delivery WHERE device = :device ORDER BY number", {"device": device}
        )
        return [_delivery(row) for row in rows]

    def put_delivery(self, device: DeviceKey, delivery: DeliveryRecord) -> None:
        self._db.execute(
            "INSERT INTO mqtt_delivery (device, number, topic, payload, qos, is_released, retain, properties,"
            " expires_on, subscription_ids)"
            " VALUES (:device, :number, :topic, :payload, :qos, 0, :retain, :properties, :expires_on, :ids)",
            {
                "device": device,
                "number": delivery.number,
                "topic": delivery.topic,
                "payload": delivery.payload,
                "qos": delivery.qos,
                "retain": int(delivery.retain),
                "properties": delivery.properties,
                "expires_on": delivery.expires_on,
                "ids": " ".join(map(str, delivery.subscription_ids)),
            },
        )

    def trim(self, device: DeviceKey, *, count: int, size: int) -> int:
        """Keep the newest deliveries: at most `count` with `size` bytes in all, and one of any size. Return how many
        were removed."""
        rows = self._db.execute(
            "SELECT number, length(topic) + length(payload) + length(properties) AS size FROM mqtt_delivery"
            " WHERE device = :device ORDER BY number DESC",
            {"device": device},
        )
        surplus = []
        for index, row in enumerate(rows):
            count, size = count - 1, size - row["size"]
            if index and (count < 0 or size < 0):
                surplus.append(row["number"])
        if surplus:
            self._db.execute(
                "DELETE FROM mqtt_delivery WHERE device = :device AND number <= :newest",
                {"device": device, "newest": surplus[0]},
            )
        return len(surplus)

    def release(self, device: DeviceKey, number: int) -> None:
        self._db.execute(
            "UPDATE mqtt_delivery SET is_released = 1 WHERE device = :device AND number = :number",
            {"device": device, "number": number},
        )

    def remove_delivery(self, device: DeviceKey, number: int) -> None:
        self._db.execute(
            "DELETE FROM mqtt_delivery WHERE device = :device AND number = :number",
            {"device": device, "number": number},
        )

    # --- Messages of QoS 2 from the device ---

    def received(self, device: DeviceKey) -> list[int]:
        rows = self._db.execute("SELECT packet_id FROM mqtt_received WHERE device = :device", {"device": device})
        return [row["packet_id"] for row in rows]

    def receive(self, device: DeviceKey, packet_id: int) -> None:
        self._db.execute(
            "INSERT INTO mqtt_received (device, packet_id) VALUES (:device, :packet_id)"
            " ON CONFLICT (device, packet_id) DO NOTHING",
            {"device": device, "packet_id": packet_id},
        )

    def forget_received(self, device: DeviceKey, packet_id: int) -> None:
        self._db.execute(
            "DELETE FROM mqtt_received WHERE device = :device AND packet_id = :packet_id",
            {"device": device, "packet_id": packet_id},
        )


def _subscription(row: Mapping[str, Any]) -> TopicSubscriptionRecord:
    return TopicSubscriptionRecord(
        row["qos"], bool(row["no_local"]), bool(row["retain_as_published"]), row["subscription_id"]
    )


def _delivery(row: Mapping[str, Any]) -> DeliveryRecord:
    return DeliveryRecord(
        row["number"],
        bytes(row["topic"]),
        bytes(row["payload"]),
        row["qos"],
        bool(row["is_released"]),
        bool(row["retain"]),
        bytes(row["properties"]),
        row["expires_on"],
        tuple(map(int, row["subscription_ids"].split())),
    )
