"""Devices, their tokens and their presence. The caller holds the transaction."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from storage.records import DeviceRecord, DeviceTokenRecord, PresenceRecord
from storage.sql import Connection

_PRESENCE = ("device", "availability", "last_time_online", "protocol", "last_seen_on")
_SELECT = (
    "SELECT d.*, u.id AS owner_id,"
    " EXISTS (SELECT 1 FROM device_share AS s WHERE s.device = d.key AND s.status = 'ACCEPTED') AS shared"
    " FROM device AS d JOIN user AS u ON u.key = d.owner WHERE d.deleted_on IS NULL AND "
)
_KEYS_OF_OWNER = "SELECT key FROM device WHERE owner = :owner AND deleted_on IS NULL"


class DeviceStore:
    def __init__(self, db: Connection) -> None:
        self._db = db

    def device(self, key: int) -> DeviceRecord | None:
        return self._one("d.key = :value", key)

    def by_id(self, id_: str) -> DeviceRecord | None:
        return self._one("d.id = :value", id_)

    def _one(self, condition: str, value: object) -> DeviceRecord | None:
        row = self._db.execute(_SELECT + condition, {"value": value}).one()
        return _device(row) if row else None

    def named(self, owner: int, name: str) -> list[DeviceRecord]:
        """Names need not be unique."""
        rows = self._db.execute(
            _SELECT + "d.owner = :owner AND d.name = :name ORDER BY d.key", {"owner": owner, "name": name}
        )
        return [_device(row) for row in rows]

    def keys_of_owner(self, owner: int) -> list[int]:
        return [row["key"] for row in self._db.execute(_KEYS_OF_OWNER, {"owner": owner})]

    def put_device(
        self,
        id_: str,
        *,
        owner: int,
        device_type: int,
        name: str,
        manifest_version: int,
        manifest_version_policy: str,
        enabled: bool,
        now_ms: int,
    ) -> int:
        row = self._db.execute(
            "INSERT INTO device"
            " (id, owner, device_type, name, manifest_version, manifest_version_policy, enabled, created_on)"
            " VALUES (:id, :owner, :device_type, :name, :version, :policy, :enabled, :now)"
            " ON CONFLICT (id) DO UPDATE SET name = excluded.name, manifest_version = excluded.manifest_version,"
            " manifest_version_policy = excluded.manifest_version_policy, enabled = excluded.enabled RETURNING key",
            {
                "id": id_,
                "owner": owner,
                "device_type": device_type,
                "name": name,
                "version": manifest_version,
                "policy": manifest_version_policy,
                "enabled": int(enabled),
                "now": now_ms,
            },
        ).one()
        return int(row["key"]) if row else 0

    # Tokens

    def token_of(self, device: int) -> DeviceTokenRecord | None:
        row = self._db.execute("SELECT * FROM device_token WHERE device = :device", {"device": device}).one()
        return DeviceTokenRecord(**dict(row)) if row else None

    def token_by_hash(self, hash_: bytes) -> DeviceTokenRecord | None:
        row = self._db.execute("SELECT * FROM device_token WHERE hash = :hash", {"hash": hash_}).one()
        return DeviceTokenRecord(**dict(row)) if row else None

    def put_token(self, token: DeviceTokenRecord) -> None:
        self._db.execute(
            "INSERT INTO device_token (device, hash, sealed, application, created_on)"
            " VALUES (:device, :hash, :sealed, :application, :created_on)"
            " ON CONFLICT (device) DO UPDATE SET hash = excluded.hash, sealed = excluded.sealed,"
            " application = excluded.application, created_on = excluded.created_on",
            {
                "device": token.device,
                "hash": token.hash,
                "sealed": token.sealed,
                "application": token.application,
                "created_on": token.created_on,
            },
        )

    # Presence

    def presence(self, device: int) -> PresenceRecord | None:
        row = self._db.execute("SELECT * FROM presence WHERE device = :device", {"device": device}).one()
        return PresenceRecord(**dict(row)) if row else None

    def presences(self, devices: Collection[int]) -> dict[int, PresenceRecord]:
        """Those of the devices that have one."""
        found = (self.presence(device) for device in devices)
        return {record.device: record for record in found if record is not None}

    def put_presences(self, presences: Iterable[PresenceRecord]) -> None:
        rows = [tuple(getattr(presence, name) for name in _PRESENCE) for presence in presences]
        self._db.put_many("presence", _PRESENCE, ("device",), rows)

    def end_online_periods(self) -> None:
        """A daemon that starts has no connections: whoever was online when the last one ended is offline now."""
        self._db.execute(
            "UPDATE presence SET availability = 'offline', last_time_online = coalesce(last_seen_on, last_time_online)"
            " WHERE availability = 'online'"
        )


def _device(row: Mapping[str, Any]) -> DeviceRecord:
    return DeviceRecord(
        key=row["key"],
        id=row["id"],
        owner=row["owner"],
        owner_id=row["owner_id"],
        device_type=row["device_type"],
        name=row["name"],
        manifest_version=row["manifest_version"],
        manifest_version_policy=row["manifest_version_policy"],
        enabled=bool(row["enabled"]),
        created_on=row["created_on"],
        eid=row["eid"],
        vdid=row["vdid"],
        cloud_authorization=row["cloud_authorization"],
        certificate=row["certificate"],
        shared=bool(row["shared"]),
    )
