"""The audit log. The caller holds the transaction."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from config.mail import folded_address
from storage.records import AuditFilter, AuditRecord
from storage.sql import Store, literal, record_values

_COLUMNS = "at_ms, event, actor, address, object, outcome, of_stranger, details"


class AuditStore(Store):
    def add(self, entry: AuditRecord) -> None:
        self._insert("audit_entry", _values(entry))

    def add_all(self, entries: Sequence[AuditRecord]) -> None:
        """Add entries, the oldest first, in one statement."""
        rows = [_values(entry) for entry in entries]
        if rows:
            self._db.insert_many("audit_entry", tuple(rows[0]), [tuple(row.values()) for row in rows])

    def find(self, wanted: AuditFilter) -> list[AuditRecord]:
        """The latest entries that match, oldest first. An e-mail address stands for the id of its user."""
        actor, object_ = self._id_for(wanted.actor), self._id_for(wanted.object)
        conditions, parameters = _conditions(replace(wanted, actor=actor, object=object_))
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM audit_entry WHERE {' AND '.join(conditions)} ORDER BY key DESC LIMIT :limit",  # noqa: S608 - constants
            parameters,
        )
        return [_entry(row) for row in rows][::-1]

    def of_user(self, user_id: str, *, offset: int, limit: int) -> tuple[list[AuditRecord], int]:
        """A user's actions and changes of the user's account, the newest first; and the number of all."""
        about = {"actor": f"user {user_id}", "account": f"account {user_id}"}
        keys = (
            "SELECT key FROM audit_entry WHERE actor = :actor"
            " UNION SELECT key FROM audit_entry WHERE object IN (:account, :actor)"
        )
        total = self._db.execute(f"SELECT count(*) AS n FROM ({keys}) AS found", about).one()  # noqa: S608 - constants
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM audit_entry WHERE key IN ({keys})"  # noqa: S608 - constants
            " ORDER BY key DESC LIMIT :limit OFFSET :offset",
            {**about, "limit": limit, "offset": offset},
        )
        return [_entry(row) for row in rows], total["n"] if total else 0

    def _id_for(self, name: str) -> str:
        row = (
            self._db.execute(
                "SELECT id FROM user WHERE lower(email) = lower(:email) OR email_key = :key"
                " ORDER BY lower(email) <> lower(:email) LIMIT 1",
                {"email": name, "key": folded_address(name)},
            ).one()
            if "@" in name
            else None
        )
        return name if row is None else row["id"]

    # How much is kept

    def older_than(self, at_ms: int, *, limit: int) -> list[int]:
        """The keys of the oldest entries before a time."""
        rows = self._db.execute(
            "SELECT key FROM audit_entry WHERE at_ms < :at_ms ORDER BY at_ms LIMIT :limit",
            {"at_ms": at_ms, "limit": limit},
        )
        return [row["key"] for row in rows]

    def surplus(self, keep: int, *, limit: int, of_stranger: bool = False) -> list[int]:
        """The keys of the oldest entries beyond the number to keep, of all or of the entries that strangers caused."""
        condition = "WHERE of_stranger = 1" if of_stranger else ""
        row = self._db.execute(
            f"SELECT key FROM audit_entry {condition} ORDER BY key DESC LIMIT 1 OFFSET :keep",  # noqa: S608 - constants
            {"keep": keep},
        ).one()
        if row is None:
            return []
        condition = f"{condition} AND" if condition else "WHERE"
        rows = self._db.execute(
            f"SELECT key FROM audit_entry {condition} key <= :last ORDER BY key LIMIT :limit",  # noqa: S608 - constants
            {"last": row["key"], "limit": limit},
        )
        return [found["key"] for found in rows]

    def surplus_keys(self, keep: int, *, share: int, limit: int) -> list[int]:
        """Keys to remove because there are more than `keep` entries.

        They are the oldest of the actor with the most, if that has more than `share`; else the oldest of all.
        """
        count = self._db.execute("SELECT count(*) AS n FROM audit_entry", {}).one()
        beyond = (count["n"] if count else 0) - keep
        if beyond <= 0:
            return []
        crowd = self._db.execute(
            "SELECT actor FROM audit_entry WHERE of_stranger = 0 GROUP BY actor HAVING count(*) > :share"
            " ORDER BY count(*) DESC LIMIT 1",
            {"share": share},
        ).one()
        if crowd is None:
            return self.surplus(keep, limit=limit)
        rows = self._db.execute(
            "SELECT key FROM audit_entry WHERE of_stranger = 0 AND actor = :actor ORDER BY key LIMIT :limit",
            {"actor": crowd["actor"], "limit": min(beyond, limit)},
        )
        return [row["key"] for row in rows]

    def remove(self, keys: list[int]) -> None:
        self._db.execute(
            f"DELETE FROM audit_entry WHERE key IN ({self._db.numbers_in('keys')})",  # noqa: S608 - constants
            {"keys": json.dumps(keys)},
        )


def _values(entry: AuditRecord) -> dict[str, Any]:
    return record_values(entry) | {
        "of_stranger": int(entry.of_stranger),
        "details": json.dumps(entry.details, ensure_ascii=False),
    }


def _conditions(wanted: AuditFilter) -> tuple[list[str], dict[str, Any]]:
    conditions, parameters = ["at_ms >= :since_ms", "at_ms < :until_ms"], dict[str, Any]()
    parameters |= {"since_ms": wanted.since_ms, "until_ms": wanted.until_ms, "limit": wanted.limit}
    # An actor or object is a word and an id, and may be asked for by both or by the id alone.
    for name, value in (("actor", wanted.actor), ("object", wanted.object)):
        if value:
            conditions.append(f"({name} = :{name} OR lower({name}) LIKE lower(:{name}_of_any) ESCAPE '!')")
            parameters |= {name: value, f"{name}_of_any": f"% {literal(value)}"}
    for name, value in (("event", wanted.event), ("outcome", wanted.outcome)):
        if value:
            conditions.append(f"{name} = :{name}")
            parameters[name] = value
    return conditions, parameters


def _entry(row: Mapping[str, Any]) -> AuditRecord:
    return AuditRecord(
        at_ms=row["at_ms"],
        event=row["event"],
        actor=row["actor"],
        address=row["address"],
        object=row["object"],
        outcome=row["outcome"],
        of_stranger=bool(row["of_stranger"]),
        details=json.loads(row["details"]),
    )
