"""Users who are being deleted, and all that the store has of them (reference 5.7). The caller holds the transaction.

Objects that capabilities hold in memory (devices, rules, subscriptions …) are removed by their capabilities; what only
the store holds is removed here.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from config.mail import folded_address
from storage.keys import DeviceKey, Milliseconds, UserKey
from storage.records import UserRecord
from storage.sql import Store

#: Tables with rows of a user, each with the column of the user's key, in an order in which they can be removed.
OWN_ROWS: Final = (
    ("access_grant", "user"),
    ("authorization_code", "user"),
    ("device_code", "user"),
    ("token", "user"),
    ("token_family", "user"),
    ("application_properties", "user"),
    ("session", "user"),
    ("console_link", "user"),
    ("password_reset", "user"),
    ("external_identity", "user"),
    ("second_factor", "user"),
    ("upgrade_token", "user"),
    ("membership", "user"),
    ("connector_state", "user"),
    ("device_share", "user"),
    ("device_transfer", "user"),
    ("trial_device", "user"),
    ("trial_session", "user"),
    ("trial_member", "user"),
    ("trial_tally", "user"),
    ("personal_organization", "user"),
    ("rule_request", "owner"),
    ("alarm", "owner"),
    ("home", "user"),
    ("alarm_notice", "user"),
    ("alarm_telling", "user"),
    ("export", "user"),
    ("board", "user"),
    ("table_import", "user"),
    ("data_reader", "owner"),
    ("data_reader", "reader"),
)
#: Rows that stay, without the user.
ANONYMOUS: Final = (("payment", "user"), ("registration", "user"), ("device_type", "owner"), ("erasure", "user"))
#: Objects that capabilities remove, so that nothing refers to the user at the end.
OBJECTS: Final = (
    ("device", "owner"),
    ("rule", "owner"),
    ("scene", "user"),
    ("model", "user"),
    ("subscription", "user"),
    ("edge", "owner"),
    ("trial", "owner"),
)
_BY_ADDRESS: Final = (
    ("device_share", "email_key"),
    ("device_transfer", "email_key"),
    ("trial_invitation", "email_key"),
    ("invitation", "email_key"),
    ("mail", "recipient"),
)


_LATE_MS: Final = 60_000  # calls that were under way when the user left have ended


class LeavingRecord(msgspec.Struct, frozen=True):
    """A user who is being deleted, with the names that the user had."""

    user: UserKey
    id: str
    email: str
    name: str
    full_name: str
    began_on: Milliseconds


class LeavingStore(Store):
    def begin(self, user: UserRecord, *, now_ms: int) -> None:
        """Hide the user from all queries, and free the address and the user name for others."""
        names = {"id": user.id, "email": user.email, "name": user.name, "full_name": user.full_name}
        self._db.execute(
            "INSERT INTO leaving_user (user, id, email, name, full_name, began_on)"
            " VALUES (:user, :id, :email, :name, :full_name, :now)",
            {"user": user.key, "now": now_ms, **names},
        )
        self._db.execute(
            "UPDATE user SET email = id || '@deleted', email_key = id || '@deleted', name = id || '@deleted',"
            " full_name = '', password_hash = NULL,"
            " disabled_on = :now WHERE key = :user",
            {"user": user.key, "now": now_ms},
        )
        self.forget_own_rows(user.key)
        self.forget_addressed(user.email)
        self._db.execute("DELETE FROM mail WHERE cause IN (:id, 'user ' || :id)", {"id": user.id})

    def all(self) -> list[LeavingRecord]:
        """All leaving users, in the order in which they left."""
        rows = self._db.execute("SELECT * FROM leaving_user ORDER BY began_on, user")
        return [LeavingRecord(**dict(row)) for row in rows]

    def count(self) -> int:
        row = self._db.execute("SELECT count(*) AS n FROM leaving_user").one()
        return int(row["n"]) if row else 0

    # Objects of the user

    def keys_of(self, table: str, user: UserKey, *, column: str = "user", limit: int = 100) -> list[int]:
        """Keys of the first rows of a table of `OBJECTS`."""
        rows = self._db.execute(
            f"SELECT key FROM {table} WHERE {column} = :user ORDER BY key LIMIT :limit",  # noqa: S608 - constants
            {"user": user, "limit": limit},
        )
        return [row["key"] for row in rows]

    def devices_to_delete(self, user: UserKey, *, limit: int) -> list[DeviceKey]:
        rows = self._db.execute(
            "SELECT key FROM device WHERE owner = :user AND deleted_on IS NULL ORDER BY key LIMIT :limit",
            {"user": user, "limit": limit},
        )
        return [row["key"] for row in rows]

    def shares_with(self, user: UserKey, email: str) -> list[str]:
        """The ids of the shares that the user accepted or was offered."""
        rows = self._db.execute(
            "SELECT id FROM device_share WHERE user = :user OR email_key = :email",
            {"user": user, "email": folded_address(email)},
        )
        return [row["id"] for row in rows]

    def trial_roles(self, user: UserKey) -> list[tuple[int, str]]:
        rows = self._db.execute("SELECT trial, role FROM trial_member WHERE user = :user ORDER BY key", {"user": user})
        return [(row["trial"], row["role"]) for row in rows]

    def last_in(self, user: UserKey, role: str) -> list[str]:
        """The names of the organizations in which nobody else has the user's role."""
        rows = self._db.execute(
            "SELECT o.name FROM membership AS m JOIN organization AS o ON o.key = m.organization WHERE m.user = :user"
            " AND m.role = :role AND NOT EXISTS (SELECT 1 FROM membership AS other"
            " WHERE other.organization = m.organization AND other.role = :role AND other.user <> :user)"
            " ORDER BY o.name",
            {"user": user, "role": role},
        )
        return [str(row["name"]) for row in rows]

    # Removing

    def hand_over_trial(self, trial: int, owner: UserKey) -> None:
        self._db.execute("UPDATE trial SET owner = :owner WHERE key = :key", {"key": trial, "owner": owner})

    def forget_own_rows(self, user: UserKey) -> None:
        """Remove what nobody else has a part in. Shares and roles in trials stay until their capabilities end them."""
        given = {"user": user}
        self._db.execute(
            "UPDATE organization SET name = 'Personal organization (' || id || ')' WHERE key IN"
            " (SELECT organization FROM personal_organization WHERE user = :user)",
            given,
        )
        self._db.execute(
            "DELETE FROM trial_document WHERE session IN (SELECT id FROM trial_session WHERE user = :user)", given
        )
        for table, column in OWN_ROWS:
            if table not in {"device_share", "trial_member", "trial_device", "export", "table_import"}:
                self._db.execute(f"DELETE FROM {table} WHERE {column} = :user", given)  # noqa: S608 - constants
        for table, column in ANONYMOUS:
            self._db.execute(
                f"UPDATE {table} SET {column} = NULL WHERE {column} = :user",  # noqa: S608 - constants
                given,
            )
        self._db.execute("DELETE FROM topic_rule WHERE kind = 'user' AND subject = :user", given)

    def forget_addressed(self, email: str) -> None:
        """Remove what was sent or offered to an address. An accepted share stays until it is ended."""
        for table, column in _BY_ADDRESS:
            kept = " AND status <> 'ACCEPTED'" if table == "device_share" else ""
            # Of an older version, mails have the address as it was written.
            self._db.execute(
                f"DELETE FROM {table} WHERE {column} IN (:key, lower(:email)){kept}",  # noqa: S608 - constants
                {"key": folded_address(email), "email": email},
            )
        self._db.execute(
            "UPDATE monetization_plan SET contact_email = '', contact_phone = '' WHERE contact_email = :email",
            {"email": email},
        )

    def forget_marks(self, leaver: LeavingRecord) -> None:
        """Remove what the provision file made of the user, and the mails to the user or that the user caused."""
        named: dict[str, object] = {"id": leaver.id, "email": leaver.email, "key": folded_address(leaver.email)}
        self._db.execute("DELETE FROM provision_mark WHERE name IN (:email, :key) OR object = :id", named)
        # A new account with the same address keeps its mails, which are later.
        self._db.execute(
            "DELETE FROM mail WHERE cause IN (:id, 'user ' || :id) OR (recipient IN (lower(:email), :key)"
            " AND created_on < :until)",
            {**named, "until": leaver.began_on + _LATE_MS},
        )

    def forget_subscription(self, key: int, *, limit: int) -> bool:
        """Remove some rows of a subscription that was ended; return whether that was all."""
        row = self._db.execute(
            "DELETE FROM notification WHERE key IN"
            " (SELECT key FROM notification WHERE subscription = :key ORDER BY key LIMIT :limit) RETURNING key",
            {"key": key, "limit": limit},
        )
        if len(list(row)) == limit:
            return False
        self._db.execute("DELETE FROM subscription_cursor WHERE subscription = :key", {"key": key})
        self._db.execute("DELETE FROM subscription WHERE key = :key", {"key": key})
        return True

    def forget_failed(self, device: DeviceKey, *, limit: int) -> bool:
        """Remove some failed messages of a device; return whether those were all."""
        rows = self._db.execute(
            "DELETE FROM failed_message WHERE position IN"
            " (SELECT position FROM failed_message WHERE device = :device ORDER BY position LIMIT :limit)"
            " RETURNING position",
            {"device": device, "limit": limit},
        )
        return len(list(rows)) < limit

    def audit_after(self, key: int, *, limit: int) -> list[Mapping[str, Any]]:
        """Entries of the audit log in the order of their keys."""
        rows = self._db.execute(
            "SELECT key, actor, address, object, details FROM audit_entry WHERE key > :key ORDER BY key LIMIT :limit",
            {"key": key, "limit": limit},
        )
        return [dict(row) for row in rows]

    def put_audit(self, entries: Iterable[Mapping[str, Any]]) -> None:
        for entry in entries:
            self._db.execute(
                "UPDATE audit_entry SET address = :address, object = :object, details = :details WHERE key = :key",
                entry,
            )

    def end(self, leaver: LeavingRecord) -> bool:
        """Remove the user for good. False: the user has new objects, which have to be removed first."""
        for table, column in OBJECTS:
            if self.keys_of(table, leaver.user, column=column, limit=1):
                return False
        if self.shares_with(leaver.user, "") or self.trial_roles(leaver.user):
            return False
        self.forget_own_rows(leaver.user)
        self.forget_marks(leaver)
        given = {"user": leaver.user}
        for table in ("device_share", "trial_device", "export", "table_import"):
            self._db.execute(f"DELETE FROM {table} WHERE user = :user", given)  # noqa: S608 - constants
        self._db.execute("DELETE FROM leaving_user WHERE user = :user", given)
        self._db.execute(
            "INSERT INTO counter (name, value) VALUES ('removed user', :user) ON CONFLICT (name)"
            " DO UPDATE SET value = excluded.value WHERE excluded.value > counter.value",
            given,
        )
        self._db.execute("DELETE FROM user WHERE key = :user", given)
        return True
