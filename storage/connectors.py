"""Cloud connectors, the devices linked to third parties, and authorizations under way. The caller holds the
transaction."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from storage.keys import BY_CLOUD, DeviceKey, DeviceTypeKey, Position, UserKey
from storage.records import ConnectorLinkRecord, ConnectorRecord, ConnectorStateRecord
from storage.sql import Store, record_values, replacing

_LINKS = (
    "SELECT l.*, d.id AS device_id, d.owner, u.id AS owner_id FROM connector_link AS l"
    " JOIN device AS d ON d.key = l.device JOIN user AS u ON u.key = d.owner WHERE "
)


class ConnectorJobRecord(msgspec.Struct, frozen=True):
    """A row of `connector_job`. The store gives its key."""

    key: int
    device_type: DeviceTypeKey
    device: DeviceKey
    requests: bytes | None
    since: int


_JOB = ConnectorJobRecord.__struct_fields__


class ConnectorStore(Store):
    # Connectors

    def connectors(self) -> list[ConnectorRecord]:
        return [ConnectorRecord(**dict(row)) for row in self._db.execute("SELECT * FROM connector")]

    def connector(self, device_type: DeviceTypeKey) -> ConnectorRecord | None:
        row = self._db.execute("SELECT * FROM connector WHERE device_type = :type", {"type": device_type}).one()
        return ConnectorRecord(**dict(row)) if row else None

    def put_connector(self, connector: ConnectorRecord) -> None:
        """Bind the connector to its device type. See `demand_authorization`."""
        then = f"ON CONFLICT (device_type) DO UPDATE SET {replacing(('plugin', 'terms'))}"
        self._insert("connector", record_values(connector), then)
        self._db.execute(
            "UPDATE device_type SET has_cloud_connector = 1 WHERE key = :type", {"type": connector.device_type}
        )

    def demand_authorization(self) -> None:
        """Mark devices as unauthorized that needed no authorization, if their type has a connector now."""
        self._db.execute(
            "UPDATE device SET cloud_authorization = 'UNAUTHORIZED' WHERE cloud_authorization = 'NO_AUTHORIZATION'"
            " AND device_type IN (SELECT device_type FROM connector)"
        )

    # Links

    def link(self, device: DeviceKey) -> ConnectorLinkRecord | None:
        row = self._db.execute(_LINKS + "l.device = :device AND d.deleted_on IS NULL", {"device": device}).one()
        return _link(row) if row else None

    def links_of_account(self, device_type: DeviceTypeKey, account: bytes, *, limit: int) -> list[ConnectorLinkRecord]:
        """The links of all devices that are linked to this account of the third party."""
        rows = self._db.execute(
            _LINKS + "l.device_type = :type AND l.account = :account AND d.deleted_on IS NULL"
            " ORDER BY l.device LIMIT :limit",
            {"type": device_type, "account": account, "limit": limit},
        )
        return [_link(row) for row in rows]

    def orphans(self, *, limit: int) -> list[ConnectorLinkRecord]:
        """The links of deleted devices."""
        rows = self._db.execute(_LINKS + "d.deleted_on IS NOT NULL ORDER BY l.device LIMIT :limit", {"limit": limit})
        return [_link(row) for row in rows]

    def put_link(
        self,
        device: DeviceKey,
        *,
        device_type: DeviceTypeKey,
        account: bytes | None,
        sealed: bytes,
        linked_on: int,
        next_fetch_on: int,
    ) -> None:
        values = {"account": account, "sealed": sealed, "linked_on": linked_on, "next_fetch_on": next_fetch_on}
        then = f"ON CONFLICT (device) DO UPDATE SET {replacing(values)}"
        self._insert("connector_link", {"device": device, "device_type": device_type, **values}, then)

    def update_link(self, device: DeviceKey, *, linked_on: int, account: bytes | None, sealed: bytes) -> bool:
        """Change the link that was made at `linked_on`; a newer one, or none, stays as it is."""
        row = self._db.execute(
            "UPDATE connector_link SET account = :account, sealed = :sealed"
            " WHERE device = :device AND linked_on = :linked_on RETURNING device",
            {"device": device, "linked_on": linked_on, "account": account, "sealed": sealed},
        ).one()
        return row is not None

    def remove_link(self, device: DeviceKey, *, linked_on: int) -> bool:
        """Remove the link that was made at `linked_on`. Return whether it was still there."""
        row = self._db.execute(
            "DELETE FROM connector_link WHERE device = :device AND linked_on = :linked_on RETURNING device",
            {"device": device, "linked_on": linked_on},
        ).one()
        return row is not None

    def is_fetch_due(self, device_type: DeviceTypeKey, *, now_ms: int, latest_ms: int) -> bool:
        """Whether a pull is due; one after `latest_ms` was planned by a wrong clock, and is due, too."""
        row = self._db.execute(
            "SELECT 1 FROM connector_link WHERE device_type = :type"
            " AND (next_fetch_on <= :now OR next_fetch_on > :latest) LIMIT 1",
            {"type": device_type, "now": now_ms, "latest": latest_ms},
        ).one()
        return row is not None

    def claim_fetches(
        self, device_type: DeviceTypeKey, *, now_ms: int, latest_ms: int, next_ms: int, limit: int
    ) -> list[DeviceKey]:
        """The devices of this type whose pull is due, the longest waiting first. Their next pull is due at `next_ms`.

        The caller checks whether a device can be pulled now. `latest_ms` as for `is_fetch_due`.
        """
        rows = self._db.execute(
            "UPDATE connector_link SET next_fetch_on = :next WHERE device IN (SELECT device FROM connector_link"
            " WHERE device_type = :type AND (next_fetch_on <= :now OR next_fetch_on > :latest)"
            " ORDER BY next_fetch_on LIMIT :limit) RETURNING device",
            {"type": device_type, "now": now_ms, "latest": latest_ms, "next": next_ms, "limit": limit},
        )
        return [row["device"] for row in rows]

    def unsent_actions(self, *, after: Position, since_ms: int, limit: int) -> list[tuple[Position, DeviceKey, str]]:
        """Position, device and data of Actions to linked devices and their sub-devices, oldest first."""
        rows = self._db.execute(
            "SELECT a.position, a.device, a.data FROM (SELECT device FROM connector_link UNION"
            " SELECT s.device FROM connector_sub_device AS s JOIN connector_link AS l ON l.device = s.holder) AS d"
            " JOIN action AS a ON a.device = d.device AND a.ts >= :since AND a.source <> :cloud"
            " WHERE a.position > :after ORDER BY a.position LIMIT :limit",
            {"after": after, "since": since_ms, "limit": limit, "cloud": BY_CLOUD},
        )
        return [(row["position"], row["device"], row["data"]) for row in rows]

    # Stored readings of a third party

    def progress(self, device: DeviceKey) -> list[tuple[str, str]]:
        """Account and progress of each account that the device was linked with, the latest first."""
        rows = self._db.execute(
            "SELECT account, progress FROM connector_progress WHERE device = :device ORDER BY changed_on DESC, account",
            {"device": device},
        )
        return [(row["account"], row["progress"]) for row in rows]

    def put_progress(self, device: DeviceKey, account: str, progress: str, *, now_ms: int, at_most: int) -> None:
        """Store the progress with an account. Delete those of the device's oldest accounts beyond `at_most`."""
        changed = {"progress": progress, "changed_on": now_ms}
        then = f"ON CONFLICT (device, account) DO UPDATE SET {replacing(changed)}"
        self._insert("connector_progress", {"device": device, "account": account, **changed}, then)
        self._db.execute(
            "DELETE FROM connector_progress WHERE device = :device AND account <> :account AND account NOT IN"
            " (SELECT account FROM connector_progress WHERE device = :device AND account <> :account"
            " ORDER BY changed_on DESC, account LIMIT :others)",
            {"device": device, "account": account, "others": at_most - 1},
        )

    # Holders of links and their sub-devices

    def set_authorization(self, holder: DeviceKey, state: str) -> list[DeviceKey]:
        """Set AUTHORIZED or UNAUTHORIZED for the holder of a link and its sub-devices; return the changed devices."""
        rows = self._db.execute(
            "UPDATE device SET cloud_authorization = :state WHERE cloud_authorization <> :state AND (key = :holder"
            " OR key IN (SELECT device FROM connector_sub_device WHERE holder = :holder)) RETURNING key",
            {"state": state, "holder": holder},
        )
        return [row["key"] for row in rows]

    def holder_of(self, sub_device: DeviceKey) -> DeviceKey | None:
        """The device whose link is used for this one."""
        row = self._db.execute(
            "SELECT s.holder FROM connector_sub_device AS s JOIN device AS d ON d.key = s.holder"
            " WHERE s.device = :device AND d.deleted_on IS NULL",
            {"device": sub_device},
        ).one()
        return DeviceKey(row["holder"]) if row else None

    def sub_devices(
        self, owner: UserKey, device_type: DeviceTypeKey, eids: Collection[str]
    ) -> dict[str, tuple[DeviceKey, DeviceKey | None]]:
        """The sub-devices that exist, by external id, each with the device whose link is used for it."""
        rows = self._db.execute(
            "SELECT d.eid, d.key, s.holder FROM device AS d LEFT JOIN connector_sub_device AS s ON s.device = d.key"  # noqa: S608 - constants
            f" WHERE d.owner = :owner AND d.device_type = :type AND d.eid IN ({self._db.texts_in('eids')})"
            " AND d.deleted_on IS NULL",
            {"owner": owner, "type": device_type, "eids": self._db.texts(eids)},
        )
        return {row["eid"]: (DeviceKey(row["key"]), row["holder"]) for row in rows}

    def count_sub_devices(self, holder: DeviceKey) -> int:
        row = self._db.execute(
            "SELECT count(*) AS count FROM connector_sub_device AS s JOIN device AS d ON d.key = s.device"
            " WHERE s.holder = :holder AND d.deleted_on IS NULL",
            {"holder": holder},
        ).one()
        return int(row["count"]) if row else 0

    def put_sub_device(self, device: DeviceKey, *, holder: DeviceKey) -> None:
        """Use the link of `holder` for `device`."""
        values = {"device": device, "holder": holder}
        self._insert("connector_sub_device", values, "ON CONFLICT (device) DO UPDATE SET holder = excluded.holder")

    def count_links(self, device_type: DeviceTypeKey) -> int:
        row = self._db.execute(
            "SELECT count(*) AS count FROM connector_link AS l JOIN device AS d ON d.key = l.device"
            " WHERE l.device_type = :type AND d.deleted_on IS NULL",
            {"type": device_type},
        ).one()
        return int(row["count"]) if row else 0

    # Of several nodes: turns, and what is to be asked of third parties

    def turn(self, device: DeviceKey, kind: str) -> str | None:
        """The holder of a turn."""
        row = self._db.execute(
            "SELECT holder FROM connector_turn WHERE device = :device AND kind = :kind",
            {"device": device, "kind": kind},
        ).one()
        return None if row is None else str(row["holder"])

    def put_turn(self, device: DeviceKey, kind: str, holder: str) -> None:
        values = {"device": device, "kind": kind, "holder": holder}
        self._insert("connector_turn", values, "ON CONFLICT (device, kind) DO UPDATE SET holder = excluded.holder")

    def end_turn(self, device: DeviceKey, kind: str, holder: str) -> None:
        self._db.execute(
            "DELETE FROM connector_turn WHERE device = :device AND kind = :kind AND holder = :holder",
            {"device": device, "kind": kind, "holder": holder},
        )

    def add_job(self, job: ConnectorJobRecord, *, at_most: int) -> bool:
        """Add a job. False: its type has `at_most`. A job without requests waits once for each device."""
        if job.requests is None:
            same = "SELECT 1 FROM connector_job WHERE device = :device AND requests IS NULL LIMIT 1"
            if self._db.execute(same, {"device": job.device}).one() is not None:
                return True
        if self._number_of("FROM connector_job WHERE device_type = :type", {"type": job.device_type}) >= at_most:
            return False
        self._insert("connector_job", record_values(job, _JOB[1:]))
        return True

    def jobs(self, device_type: DeviceTypeKey, *, limit: int) -> list[ConnectorJobRecord]:
        """The oldest first."""
        rows = self._db.execute(
            "SELECT * FROM connector_job WHERE device_type = :type ORDER BY key LIMIT :limit",
            {"type": device_type, "limit": limit},
        )
        return [ConnectorJobRecord(**{name: row[name] for name in _JOB}) for row in rows]

    def set_job(self, key: int, requests: bytes) -> None:
        """These requests are left."""
        self._db.execute(
            "UPDATE connector_job SET requests = :requests WHERE key = :key", {"key": key, "requests": requests}
        )

    def end_job(self, key: int) -> None:
        self._db.execute("DELETE FROM connector_job WHERE key = :key", {"key": key})

    def forget_jobs(self, *, before_ms: int) -> None:
        """Delete jobs that nobody has done since, such as of a connector that cannot be used."""
        self._db.execute("DELETE FROM connector_job WHERE since < :before", {"before": before_ms})

    def fetch_at(self, devices: Collection[DeviceKey], now_ms: int) -> None:
        """A pull of these devices is due now."""
        self._db.execute(
            f"UPDATE connector_link SET next_fetch_on = :now WHERE device IN ({self._db.numbers_in('devices')})",  # noqa: S608 - of the engine
            {"now": now_ms, "devices": f"[{','.join(map(str, devices))}]"},
        )

    # Failures

    def problems_of(self, device_type: DeviceTypeKey) -> str:
        row = self._db.execute(
            "SELECT problems FROM connector_problems WHERE device_type = :type", {"type": device_type}
        ).one()
        return "[]" if row is None else str(row["problems"])

    def problems(self) -> list[tuple[DeviceTypeKey, str]]:
        rows = self._db.execute("SELECT device_type, problems FROM connector_problems")
        return [(row["device_type"], row["problems"]) for row in rows]

    def put_problems(self, texts: Mapping[DeviceTypeKey, str]) -> None:
        self._db.put_many("connector_problems", ("device_type", "problems"), ("device_type",), list(texts.items()))

    # Authorizations under way

    def add_state(self, state: ConnectorStateRecord, *, now_ms: int, at_most: int) -> None:
        """Add a state. Delete the device's oldest states beyond `at_most`, and every state that has expired."""
        self._db.execute("DELETE FROM connector_state WHERE expires_on <= :now", {"now": now_ms})
        self._insert("connector_state", record_values(state))
        self._db.execute(
            "DELETE FROM connector_state WHERE device = :device AND hash NOT IN (SELECT hash FROM connector_state"
            " WHERE device = :device ORDER BY key DESC LIMIT :at_most)",
            {"device": state.device, "at_most": at_most},
        )

    def take_state(self, hash_: bytes, *, until_ms: int) -> ConnectorStateRecord | None:
        """Return a state, as it was, once. It stays until then, or until `end_state`."""
        row = self._db.execute(
            "SELECT * FROM connector_state WHERE hash = :hash AND is_taken = 0", {"hash": hash_}
        ).one()
        if row is not None:
            self._db.execute(
                "UPDATE connector_state SET is_taken = 1, expires_on = :until WHERE hash = :hash",
                {"hash": hash_, "until": until_ms},
            )
        return (
            ConnectorStateRecord(**{name: row[name] for name in ConnectorStateRecord.__struct_fields__})
            if row
            else None
        )

    def end_state(self, hash_: bytes) -> bool:
        """Remove a state; False: it has ended."""
        row = self._db.execute("DELETE FROM connector_state WHERE hash = :hash RETURNING key", {"hash": hash_}).one()
        return row is not None

    def forget_states(self, device: DeviceKey) -> None:
        self._db.execute("DELETE FROM connector_state WHERE device = :device", {"device": device})


def _link(row: Mapping[str, Any]) -> ConnectorLinkRecord:
    return ConnectorLinkRecord(**{name: row[name] for name in ConnectorLinkRecord.__struct_fields__})
