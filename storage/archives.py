"""Archives of users (reference 5.8), and their contents. The caller holds the transaction.

`PARTS` names a file of the archive and the query that fills it. Keys, hashes and sealed values are in none of them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from storage.keys import DeviceKey, Milliseconds, UserKey
from storage.sql import Store

#: Expansions of `APPLICATION(x)` and `TYPE(x)` in the queries: ids in the place of keys.
_IDS: Final = {
    "APPLICATION": "(SELECT a.id FROM application AS a WHERE a.key = {}.application) AS application",
    "TYPE": "(SELECT t.unique_name FROM device_type AS t WHERE t.key = {}.device_type) AS device_type",
}

PARTS: Final[Mapping[str, str]] = {
    "account": "SELECT u.id, u.email, u.name, u.full_name, u.language, u.account_type, u.created_on, u.modified_on,"
    " u.email_verified_on, u.disabled_on, (SELECT f.created_on FROM second_factor AS f WHERE f.user = u.key)"
    " AS second_factor_since FROM user AS u WHERE u.key = :user",
    "identities": "SELECT issuer, subject FROM external_identity WHERE user = :user ORDER BY issuer, subject",
    "organizations": "SELECT o.id, o.name, m.role FROM membership AS m JOIN organization AS o ON o.key = m.organization"
    " WHERE m.user = :user ORDER BY o.name",
    "sessions": "SELECT proof, address, user_agent, created_on, used_on, expires_on FROM session WHERE user = :user"
    " ORDER BY created_on",
    "claims": "SELECT former, claimed_on, content FROM account_claim WHERE user = :user",
    "grants": "SELECT APPLICATION(g), TYPE(g), g.can_read, g.can_write, g.can_write_profile,"
    " g.can_manage_trials FROM access_grant AS g WHERE g.user = :user ORDER BY application, device_type",
    "tokens": "SELECT APPLICATION(k), k.created_on, k.expires_on FROM token AS k WHERE k.user = :user"
    " AND k.session IS NULL ORDER BY k.created_on",
    "application_properties": "SELECT APPLICATION(p), p.properties FROM application_properties AS p"
    " WHERE p.user = :user ORDER BY application",
    "devices": "SELECT d.id, d.name, TYPE(d), d.enabled, d.manifest_version, d.manifest_version_policy,"
    " d.created_on, d.deleted_on, d.eid, d.vdid, d.cloud_authorization, p.availability, p.last_time_online,"
    " p.last_seen_on, p.protocol, s.fields AS snapshot, r.server AS server_properties,"
    " r.reported AS reported_properties FROM device AS d LEFT JOIN presence AS p ON p.device = d.key"
    " LEFT JOIN snapshot AS s ON s.device = d.key LEFT JOIN property_set AS r ON r.device = d.key"
    " WHERE d.owner = :user ORDER BY d.created_on, d.id",
    "wanted": "SELECT d.id AS device, w.field, w.value, w.since, w.author, w.expires_on, w.state, w.ended_on,"
    " w.reported FROM wanted AS w JOIN device AS d ON d.key = w.device WHERE d.owner = :user ORDER BY d.id, w.field",
    "shares": "SELECT s.id, d.id AS device, CASE WHEN s.uid IS NULL THEN s.email END AS email, s.uid, s.status,"
    " s.shared_on FROM device_share AS s JOIN device AS d ON d.key = s.device WHERE d.owner = :user ORDER BY s.key",
    "transfers": "SELECT d.id AS device, CASE WHEN t.uid IS NULL THEN t.email END AS email, t.uid, t.offered_on,"
    " t.expires_on FROM device_transfer AS t JOIN device AS d ON d.key = t.device WHERE d.owner = :user"
    " ORDER BY t.device",
    "shared_with_me": "SELECT s.id, d.id AS device, s.status, s.shared_on FROM device_share AS s"
    " JOIN device AS d ON d.key = s.device JOIN user AS u ON u.key = :user"
    " WHERE d.deleted_on IS NULL AND (s.user = u.key OR (s.user IS NULL AND s.email_key = u.email_key"
    " AND u.email_verified_on IS NOT NULL)) ORDER BY s.key",
    "alarms": "SELECT m.id, m.rule_id, m.rule_name, d.id AS device, m.severity, m.text, m.raised_on, m.last_on,"
    " m.count, m.acknowledged_on, m.acknowledged_by, m.cleared_on, m.cleared_by, m.cause FROM alarm AS m"
    " LEFT JOIN device AS d ON d.key = m.device WHERE m.owner = :user ORDER BY m.key",
    "rules": "SELECT r.id, r.name, r.description, APPLICATION(r), r.scope, r.body, r.enabled,"
    " r.created_on, r.modified_on, r.invalidated_on, r.stopped_on, r.stop_reason FROM rule AS r WHERE r.owner = :user"
    " ORDER BY r.key",
    "boards": "SELECT b.id, b.name, b.tiles, b.created_on, b.modified_on, b.link_made_on, b.link_expires_on"
    " FROM board AS b WHERE b.user = :user ORDER BY b.key",
    "edges": "SELECT e.name, e.devices_max, e.messages, e.dropped, e.created_on, e.seen_on FROM edge AS e"
    " WHERE e.owner = :user ORDER BY e.key",
    "scenes": "SELECT s.id, s.name, s.description, APPLICATION(s), s.actions, s.created_on, s.modified_on"
    " FROM scene AS s WHERE s.user = :user ORDER BY s.key",
    "models": "SELECT m.id, m.type, m.definition, APPLICATION(m), m.status, m.reason, m.created_on,"
    " m.trained_on FROM model AS m WHERE m.user = :user ORDER BY m.key",
    "subscriptions": "SELECT s.id, s.message_type, APPLICATION(s), s.description, s.callback_url,"
    " s.stream_name, s.status, s.created_on, s.modified_on FROM subscription AS s WHERE s.user = :user"
    " AND s.removed_on IS NULL ORDER BY s.key",
    "trials": "SELECT t.id, t.name, t.description, m.role, m.since, t.started_on, t.ended_on FROM trial_member AS m"
    " JOIN trial AS t ON t.key = m.trial WHERE m.user = :user ORDER BY m.key",
    "trial_sessions": "SELECT s.id, t.id AS trial, s.devices, s.started_on, s.ended_on, s.created_on"
    " FROM trial_session AS s JOIN trial AS t ON t.key = s.trial WHERE s.user = :user ORDER BY s.key",
    "exports": "SELECT e.id, APPLICATION(e), e.request, e.status, e.created_on, e.total_messages"
    " FROM export AS e WHERE e.user = :user ORDER BY e.key",
    "imports": "SELECT i.id, i.size, i.stored, i.present, i.wrong, i.wrong_lines, i.reason, i.asked_on, i.ended_on"
    " FROM table_import AS i WHERE i.user = :user ORDER BY i.key",
    "deletions": "SELECT e.id, d.id AS device, e.start_ms, e.end_ms, e.deleted, e.asked_on, e.ended_on"
    " FROM erasure AS e LEFT JOIN device AS d ON d.key = e.device WHERE e.user = :user ORDER BY e.key",
    "readers": "SELECT APPLICATION(r), u.id AS reader, r.count, r.first_on, r.last_on FROM data_reader AS r"
    " LEFT JOIN user AS u ON u.key = r.reader WHERE r.owner = :user ORDER BY r.last_on, r.application, r.reader",
    "payments": "SELECT id, device_id, status, cost, processor, created_on, decided_on FROM payment WHERE user = :user"
    " ORDER BY key",
    "device_types": "SELECT id, unique_name, name, created_on FROM device_type WHERE owner = :user ORDER BY key",
    # The user may have named the recipient of a mail by an id.
    "mails": "SELECT m.kind, CASE WHEN m.recipient = lower(u.email) THEN m.recipient END AS recipient, m.created_on,"
    " m.outcome FROM mail AS m JOIN user AS u ON u.key = :user"
    " WHERE m.recipient IN (lower(u.email), u.email_key) OR m.cause IN (u.id, 'user ' || u.id) ORDER BY m.key",
    "failed_messages": "SELECT d.id AS device, f.cts, f.reason, f.payload FROM failed_message AS f"
    " JOIN device AS d ON d.key = f.device WHERE d.owner = :user ORDER BY f.position",
    "audit": "SELECT e.at_ms, e.event, e.actor, e.address, e.object, e.outcome, e.details FROM audit_entry AS e"
    " JOIN user AS u ON u.key = :user WHERE e.actor = 'user ' || u.id OR e.object IN ('user ' || u.id,"
    " 'account ' || u.id) ORDER BY e.key",
}


class ArchiveRecord(msgspec.Struct, frozen=True):
    user: UserKey
    id: str
    status: str
    created_on: Milliseconds
    expires_on: Milliseconds | None = None
    file_size: int | None = None
    md5: str | None = None
    messages: int = 0
    is_whole: bool = True


class UserArchiveStore(Store):
    def of(self, user: UserKey) -> ArchiveRecord | None:
        return self._one("user = :value", user)

    def next_with(self, status: str) -> ArchiveRecord | None:
        """The one that was asked for first."""
        return self._one("status = :value ORDER BY created_on LIMIT 1", status)

    def expired(self, now_ms: int) -> list[ArchiveRecord]:
        rows = self._db.execute("SELECT * FROM user_archive WHERE expires_on <= :now", {"now": now_ms})
        return [_record(row) for row in rows]

    def sizes(self, status: str) -> dict[str, int]:
        """The bytes of the archives in this status, by their ids."""
        rows = self._db.execute("SELECT id, file_size FROM user_archive WHERE status = :status", {"status": status})
        return {row["id"]: row["file_size"] or 0 for row in rows}

    def put(self, archive: ArchiveRecord) -> None:
        """Add a user's archive, or replace the one that the user has."""
        names = ArchiveRecord.__struct_fields__
        values = [int(value) if isinstance(value := getattr(archive, name), bool) else value for name in names]
        self._db.put_many("user_archive", names, ("user",), [values])

    def remove(self, user: UserKey) -> None:
        self._db.execute("DELETE FROM user_archive WHERE user = :user", {"user": user})

    def rows(self, part: str, user: UserKey, *, limit: int) -> Iterator[dict[str, Any]]:
        """Up to `limit` rows of a part."""
        for row in self._db.execute(f"{_with_ids(PARTS[part])} LIMIT :limit", {"user": user, "limit": limit}):
            yield {name: row[name] for name in row.keys()}  # noqa: SIM118 - a row of SQLite iterates over its values

    def devices_of(self, user: UserKey) -> list[tuple[DeviceKey, str]]:
        """Keys and ids of the devices that the user owns."""
        rows = self._db.execute(
            "SELECT key, id FROM device WHERE owner = :user AND deleted_on IS NULL ORDER BY key", {"user": user}
        )
        return [(row["key"], row["id"]) for row in rows]

    def _one(self, condition: str, value: object) -> ArchiveRecord | None:
        row = self._db.execute(f"SELECT * FROM user_archive WHERE {condition}", {"value": value}).one()  # noqa: S608
        return None if row is None else _record(row)


def _record(row: Mapping[str, Any]) -> ArchiveRecord:
    return ArchiveRecord(
        **{**{name: row[name] for name in ArchiveRecord.__struct_fields__}, "is_whole": bool(row["is_whole"])}
    )


def _with_ids(query: str) -> str:
    return re.sub(r"(APPLICATION|TYPE)\((\w)\)", lambda found: _IDS[found[1]].format(found[2]), query)
