"""Devices, their tokens and their presence. The caller holds the transaction."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from storage.keys import DeviceKey, DeviceTypeKey, UserKey
from storage.records import DeviceRecord, DeviceTokenRecord, PresenceRecord
from storage.shares import ShareStore
from storage.sql import Store, literal, record_values, replacing, sure

_PRESENCE = ("device", "availability", "last_time_online", "protocol", "last_seen_on", "is_connected")
_SELECT_ANY = (
    "SELECT d.*, u.id AS owner_id,"
    " EXISTS (SELECT 1 FROM device_share AS s WHERE s.device = d.key AND s.status = 'ACCEPTED') AS is_shared"
    " FROM device AS d JOIN user AS u ON u.key = d.owner WHERE "
)
_SELECT = f"{_SELECT_ANY}d.deleted_on IS NULL AND "
# A key is never given again: rows that refer to a removed device (Actions it sent, payments) would change hands.
_NEW_DEVICE = (
    *("key", "id", "owner", "device_type", "name"),
    *("manifest_version", "manifest_version_policy", "enabled", "created_on"),
)
_TOKEN = ("device", "hash", "sealed", "application", "created_on")
_NEXT_KEY = (
    "SELECT coalesce(max(known.key), 0) + 1 AS value FROM (SELECT max(key) AS key FROM device"
    " UNION ALL SELECT value FROM counter WHERE name = 'removed device') AS known"
)
_KEYS_AT_ONCE = 500  # in one statement; SQLite and PostgreSQL take 32,766 at least
_NOWHERE = "NOT EXISTS (SELECT 1 FROM device_connection AS c WHERE c.device = presence.device)"
_KEYS_OF_OWNER = "SELECT key FROM device WHERE owner = :owner AND deleted_on IS NULL"
_OWNED = (
    "SELECT d.key, d.device_type, d.created_on, d.id, d.name, NULL AS share FROM device AS d"
    " WHERE d.owner = :user AND d.deleted_on IS NULL"
)
_SHARED = (
    "SELECT d.key, d.device_type, d.created_on, d.id, d.name, s.id AS share FROM device_share AS s"
    " JOIN device AS d ON d.key = s.device AND d.deleted_on IS NULL WHERE s.user = :user AND s.status = 'ACCEPTED'"
)


class ListedDevice(msgspec.Struct, frozen=True):
    """A device in a user's list; `share` is the id of the share that gives access, None for an own device."""

    key: DeviceKey
    device_type: DeviceTypeKey
    share: str | None


class DeviceStore(Store):
    def device(self, key: DeviceKey) -> DeviceRecord | None:
        return self._found("d.key = :key", {"key": key})

    def by_id(self, id_: str) -> DeviceRecord | None:
        return self._found("d.id = :id", {"id": id_})

    def by_ids(self, ids: Collection[str]) -> dict[str, DeviceRecord]:
        """The devices with these ids, by id."""
        rows = self._db.execute(f"{_SELECT}d.id IN ({self._db.texts_in('ids')})", {"ids": self._db.texts(ids)})
        return {record.id: record for record in map(self._record, rows)}

    def by_token(self, hash_: bytes) -> DeviceRecord | None:
        """The device whose token has this hash."""
        return self._found("d.key = (SELECT device FROM device_token WHERE hash = :hash)", {"hash": hash_})

    def _found(self, condition: str, parameters: Mapping[str, object]) -> DeviceRecord | None:
        row = self._db.execute(_SELECT + condition, parameters).one()
        return self._record(row) if row else None

    def deleted(self, id_: str) -> DeviceRecord | None:
        """A deleted device that can still be restored, by id."""
        row = self._db.execute(f"{_SELECT_ANY}d.deleted_on IS NOT NULL AND d.id = :id", {"id": id_}).one()
        return self._record(row) if row else None

    def by_eid(self, owner: UserKey, device_type: DeviceTypeKey, eid: str) -> DeviceRecord | None:
        return self._found(
            "d.owner = :owner AND d.device_type = :device_type AND d.eid = :eid",
            {"owner": owner, "device_type": device_type, "eid": eid},
        )

    def count_with_eid(self, owner: UserKey, device_type: DeviceTypeKey) -> int:
        """How many devices of an owner and a type have an external id."""
        row = self._db.execute(
            "SELECT count(*) AS number FROM device WHERE owner = :owner AND device_type = :device_type"
            " AND eid IS NOT NULL AND deleted_on IS NULL",
            {"owner": owner, "device_type": device_type},
        ).one()
        return 0 if row is None else int(row["number"])

    def by_vdid(self, device_type: DeviceTypeKey, vdid: str) -> DeviceRecord | None:
        return self._found(
            "d.device_type = :device_type AND d.vdid = :vdid", {"device_type": device_type, "vdid": vdid}
        )

    def _record(self, row: Mapping[str, Any]) -> DeviceRecord:
        shared_with = ShareStore(self._db).users_of(row["key"]) if row["is_shared"] else frozenset()
        return _device(row, shared_with)

    def id_of(self, key: DeviceKey) -> str | None:
        """The id of a device; also of a deleted device until it is removed for good."""
        row = self._db.execute("SELECT id FROM device WHERE key = :key", {"key": key}).one()
        return str(row["id"]) if row else None

    def named(self, owner: UserKey, name: str) -> list[DeviceRecord]:
        """The owner's devices of this name; names need not be unique."""
        rows = self._db.execute(
            _SELECT + "d.owner = :owner AND d.name = :name ORDER BY d.key", {"owner": owner, "name": name}
        )
        return [self._record(row) for row in list(rows)]

    def keys(self, *, owner: UserKey | None, limit: int) -> list[DeviceKey]:
        """The first devices, by name: of one owner or of all."""
        rows = self._db.execute(
            "SELECT key FROM device WHERE deleted_on IS NULL AND (CAST(:owner AS BIGINT) IS NULL OR owner = :owner)"
            " ORDER BY name, id LIMIT :limit",
            {"owner": owner, "limit": limit},
        )
        return [row["key"] for row in rows]

    def keys_called(self, name: str, *, limit: int) -> list[DeviceKey]:
        """The devices of this name, whosever they are, by id. Reads the whole table: for operators."""
        rows = self._db.execute(
            "SELECT key FROM device WHERE deleted_on IS NULL AND name = :name ORDER BY id LIMIT :limit",
            {"name": name, "limit": limit},
        )
        return [row["key"] for row in rows]

    def names_of_owner(self, owner: UserKey) -> list[str]:
        rows = self._db.execute(
            "SELECT name FROM device WHERE owner = :owner AND deleted_on IS NULL ORDER BY key", {"owner": owner}
        )
        return [row["name"] for row in rows]

    def remove_tokens_of(self, owner: UserKey) -> list[bytes]:
        """End the tokens of all devices of a user; return their hashes."""
        rows = self._db.execute(
            "DELETE FROM device_token WHERE device IN (SELECT key FROM device WHERE owner = :owner) RETURNING hash",
            {"owner": owner},
        )
        return [row["hash"] for row in rows]

    def keys_of_owner(self, owner: UserKey) -> list[DeviceKey]:
        return [row["key"] for row in self._db.execute(_KEYS_OF_OWNER, {"owner": owner})]

    def some_keys(self, owner: UserKey, device_type: DeviceTypeKey, *, limit: int) -> list[DeviceKey]:
        """Keys of devices of a user and a type, in no order."""
        rows = self._db.execute(
            _KEYS_OF_OWNER + " AND device_type = :device_type LIMIT :limit",
            {"owner": owner, "device_type": device_type, "limit": limit},
        )
        return [row["key"] for row in rows]

    def listed(
        self,
        user: UserKey,
        *,
        own: bool,
        shared: bool,
        device_type: DeviceTypeKey | None = None,
        type_name: str | None = None,
        search: str = "",
        by_name: bool = False,
        descending: bool = False,
    ) -> list[ListedDevice]:
        """A user's own devices, those shared with them, or both; by time of creation or by name, then id.

        `type_name` is the exact name or unique name of a type. `search` is a part of the device's name or id, or of its
        type's name or unique name, in any case.
        """
        direction = "DESC" if descending else "ASC"
        parts = " UNION ALL ".join([_OWNED] * own + [_SHARED] * shared)
        rows = self._db.execute(
            f"SELECT f.key, f.device_type, f.share FROM ({parts}) AS f"  # noqa: S608 - constants
            " JOIN device_type AS t ON t.key = f.device_type"
            " WHERE (CAST(:device_type AS BIGINT) IS NULL OR t.key = :device_type)"
            " AND (CAST(:type_name AS TEXT) IS NULL OR t.name = :type_name OR t.unique_name = :type_name)"
            " AND (:search = '' OR lower(f.name) LIKE lower(:pattern) ESCAPE '!'"
            " OR f.id LIKE lower(:pattern) ESCAPE '!' OR lower(t.name) LIKE lower(:pattern) ESCAPE '!'"
            " OR lower(t.unique_name) LIKE lower(:pattern) ESCAPE '!')"
            f" ORDER BY {'lower(f.name)' if by_name else 'f.created_on'} {direction}, f.id {direction}",
            {
                "user": user,
                "device_type": device_type,
                "type_name": type_name,
                "search": search,
                "pattern": f"%{literal(search)}%",
            },
        )
        return [ListedDevice(*row) for row in rows.tuples()]

    def put_device(self, device: DeviceRecord) -> DeviceKey:
        """Add a device, and return the key that the store gave it.

        Of a device whose id is known, the name, Manifest version, Manifest version policy and enabled flag change.
        `put_origin` writes the ids, the authorization and the certificate that come from others.
        """
        row = self._db.execute(
            "INSERT INTO device"  # noqa: S608 - constants
            " (key, id, owner, device_type, name, manifest_version, manifest_version_policy, enabled, created_on)"
            f" VALUES (({_NEXT_KEY}), :id, :owner, :device_type, :name, :version, :policy, :enabled, :now)"
            " ON CONFLICT (id) DO UPDATE SET name = excluded.name, manifest_version = excluded.manifest_version,"
            " manifest_version_policy = excluded.manifest_version_policy, enabled = excluded.enabled RETURNING key",
            {
                "id": device.id,
                "owner": device.owner,
                "device_type": device.device_type,
                "name": device.name,
                "version": device.manifest_version,
                "policy": device.manifest_version_policy,
                "enabled": int(device.enabled),
                "now": device.created_on,
            },
        ).one()
        return DeviceKey(sure(row)["key"])

    def next_key(self) -> DeviceKey:
        """The key of the next new device."""
        return DeviceKey(sure(self._db.execute(_NEXT_KEY).one())["value"])

    def add_all(self, devices: Sequence[DeviceRecord], tokens: Sequence[DeviceTokenRecord]) -> None:
        """Add devices that have their keys, from `next_key` on, and their tokens."""
        rows = [tuple(getattr(one, name) for name in _NEW_DEVICE) for one in devices]
        self._db.put_many("device", _NEW_DEVICE, ("id",), rows)
        given = [tuple(getattr(one, name) for name in _TOKEN) for one in tokens]
        self._db.put_many("device_token", _TOKEN, ("device",), given)

    def put_origin(
        self, key: int, *, eid: str | None, vdid: str | None, cloud_authorization: str, certificate: bytes | None
    ) -> None:
        """Write the device's ids at its connector and vendor, its third-party authorization and its certificate."""
        self._db.execute(
            "UPDATE device SET eid = :eid, vdid = :vdid, cloud_authorization = :cloud_authorization,"
            " certificate = :certificate WHERE key = :key",
            {
                "key": key,
                "eid": eid,
                "vdid": vdid,
                "cloud_authorization": cloud_authorization,
                "certificate": certificate,
            },
        )

    def set_deleted(self, key: DeviceKey, deleted_on: int | None) -> None:
        """Hide the device from every query from now on; with None, show it again."""
        self._db.execute("UPDATE device SET deleted_on = :on WHERE key = :key", {"key": key, "on": deleted_on})

    # Tokens

    def token_of(self, device: DeviceKey) -> DeviceTokenRecord | None:
        row = self._db.execute("SELECT * FROM device_token WHERE device = :device", {"device": device}).one()
        return DeviceTokenRecord(**dict(row)) if row else None

    def token_by_hash(self, hash_: bytes) -> DeviceTokenRecord | None:
        row = self._db.execute("SELECT * FROM device_token WHERE hash = :hash", {"hash": hash_}).one()
        return DeviceTokenRecord(**dict(row)) if row else None

    def put_token(self, token: DeviceTokenRecord) -> None:
        values = record_values(token)
        self._insert("device_token", values, f"ON CONFLICT (device) DO UPDATE SET {replacing(values)}")

    def remove_token(self, device: DeviceKey) -> None:
        self._db.execute("DELETE FROM device_token WHERE device = :device", {"device": device})

    # Presence

    def presence(self, device: DeviceKey) -> PresenceRecord | None:
        row = self._db.execute("SELECT * FROM presence WHERE device = :device", {"device": device}).one()
        return _presence(row) if row else None

    def presences(self, devices: Collection[DeviceKey]) -> dict[DeviceKey, PresenceRecord]:
        """The presences of those of the devices that have one."""
        keys, found = list(devices), {}
        for begin in range(0, len(keys), _KEYS_AT_ONCE):
            given = {f"device_{index}": key for index, key in enumerate(keys[begin : begin + _KEYS_AT_ONCE])}
            names = ", ".join(f":{name}" for name in given)
            for row in self._db.execute(f"SELECT * FROM presence WHERE device IN ({names})", given):  # noqa: S608 - names
                found[DeviceKey(row["device"])] = _presence(row)
        return found

    def existing(self, devices: Sequence[DeviceKey]) -> set[DeviceKey]:
        """The devices among these that have a row, also deleted ones."""
        rows = self._db.execute(
            f"SELECT key FROM device WHERE key IN ({self._db.numbers_in('keys')})",  # noqa: S608 - constants
            {"keys": json.dumps(list(devices))},
        )
        return {row["key"] for row in rows}

    def put_presences(self, presences: Iterable[PresenceRecord]) -> None:
        rows = [tuple(getattr(presence, name) for name in _PRESENCE) for presence in presences]
        self._db.put_many("presence", _PRESENCE, ("device",), rows)

    def end_online_periods(self) -> None:
        """Set devices offline that were connected when the last run ended: a starting daemon has no connections. Those
        that are connected to other nodes stay as they are."""
        self._db.execute(
            "UPDATE presence SET availability = 'offline',"  # noqa: S608 - constants
            " last_time_online = coalesce(last_seen_on, last_time_online)"
            f" WHERE availability = 'online' AND is_connected = 1 AND {_NOWHERE}"
        )
        self._db.execute(f"UPDATE presence SET is_connected = 0 WHERE is_connected = 1 AND {_NOWHERE}")  # noqa: S608

    def end_online_periods_of(self, devices: Sequence[DeviceKey]) -> None:
        """As `end_online_periods`, of devices whose node is gone."""
        self._db.execute(
            "UPDATE presence SET availability = 'offline', is_connected = 0,"  # noqa: S608 - of the engine
            " last_time_online = coalesce(last_seen_on, last_time_online)"
            f" WHERE is_connected = 1 AND device IN ({self._db.numbers_in('devices')})",
            {"devices": json.dumps(list(devices))},
        )

    def online_without_connection(self) -> set[DeviceKey]:
        """The devices that have set their own status to online."""
        rows = self._db.execute("SELECT device FROM presence WHERE availability = 'online' AND is_connected = 0")
        return {row["device"] for row in rows}


def _presence(row: Mapping[str, Any]) -> PresenceRecord:
    return PresenceRecord(**{**dict(row), "is_connected": bool(row["is_connected"])})


def _device(row: Mapping[str, Any], shared_with: frozenset[UserKey]) -> DeviceRecord:
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
        shared_with=shared_with,
    )
