"""One-time codes that a user brings back from a mail or from an external identity provider.

The caller holds the transaction. A code is stored as its SHA-256.
"""

from collections.abc import Mapping
from typing import Any

from config.mail import folded_address
from storage.keys import UserKey
from storage.records import InvitationRecord, PasswordResetRecord
from storage.sql import Store, record_values


class CodeStore(Store):
    # New passwords

    def add_reset(self, reset: PasswordResetRecord) -> None:
        values = {"hash": reset.hash, "user": reset.user, "password": reset.password, "expires_on": reset.expires_on}
        self._insert("password_reset", values)

    def reset(self, hash_: bytes, *, now_ms: int) -> PasswordResetRecord | None:
        row = self._db.execute(
            "SELECT * FROM password_reset WHERE hash = :hash AND expires_on > :now", {"hash": hash_, "now": now_ms}
        ).one()
        return PasswordResetRecord(**dict(row)) if row else None

    def remove_resets(self, user: UserKey) -> None:
        self._db.execute("DELETE FROM password_reset WHERE user = :user", {"user": user})

    def purge_resets(self, *, now_ms: int) -> None:
        self._db.execute("DELETE FROM password_reset WHERE expires_on <= :now", {"now": now_ms})

    # One-time links to the console

    def add_console_link(self, hash_: bytes, user: UserKey, *, expires_on: int, now_ms: int, at_most: int) -> None:
        """Add a link. Links that are over go, and the oldest above `at_most`."""
        self._db.execute("DELETE FROM console_link WHERE expires_on <= :now", {"now": now_ms})
        self._insert("console_link", {"hash": hash_, "user": user, "expires_on": expires_on})
        others = "SELECT hash FROM console_link WHERE hash <> :new ORDER BY expires_on"
        older = list(self._db.execute(others, {"new": hash_}))
        for oldest in older[: max(0, len(older) + 1 - at_most)]:
            self._db.execute("DELETE FROM console_link WHERE hash = :hash", {"hash": oldest["hash"]})

    def take_console_link(self, hash_: bytes, *, now_ms: int) -> UserKey | None:
        """Remove a link; return whom it signs in, if it is not over."""
        sql = "DELETE FROM console_link WHERE hash = :hash RETURNING user, expires_on"
        row = self._db.execute(sql, {"hash": hash_}).one()
        return UserKey(row["user"]) if row is not None and row["expires_on"] > now_ms else None

    # Invitations

    def put_invitation(self, invitation: InvitationRecord) -> None:
        """Add or replace the one invitation of this address; an earlier code becomes invalid."""
        values = record_values(invitation) | {"email_key": folded_address(invitation.email)}
        self.remove_invitation(invitation.email)
        self._insert("invitation", values)

    def invitation(self, hash_: bytes, *, now_ms: int) -> InvitationRecord | None:
        row = self._db.execute(
            "SELECT * FROM invitation WHERE hash = :hash AND expires_on > :now", {"hash": hash_, "now": now_ms}
        ).one()
        return _invitation(row) if row else None

    def invitation_of(self, email: str) -> InvitationRecord | None:
        """The invitation of this address, expired or not."""
        row = self._db.execute(
            "SELECT * FROM invitation WHERE email_key = :email ORDER BY expires_on DESC LIMIT 1",
            {"email": folded_address(email)},
        ).one()
        return _invitation(row) if row else None

    def remove_invitation(self, email: str) -> None:
        self._db.execute("DELETE FROM invitation WHERE email_key = :email", {"email": folded_address(email)})

    # External identity providers

    def external_user(self, issuer: str, subject: str) -> UserKey | None:
        """The key of the user who has this name at the provider."""
        row = self._db.execute(
            "SELECT user FROM external_identity WHERE issuer = :issuer AND subject = :subject",
            {"issuer": issuer, "subject": subject},
        ).one()
        return UserKey(row["user"]) if row else None

    def is_known_to(self, issuer: str, user: UserKey) -> bool:
        """Whether the user has any name at the provider."""
        row = self._db.execute(
            "SELECT subject FROM external_identity WHERE issuer = :issuer AND user = :user LIMIT 1",
            {"issuer": issuer, "user": user},
        ).one()
        return row is not None

    def add_external_user(self, issuer: str, subject: str, user: UserKey) -> None:
        self._insert("external_identity", {"issuer": issuer, "subject": subject, "user": user})

    def count_external_sign_ins(self) -> int:
        row = self._db.execute("SELECT count(*) AS count FROM external_sign_in").one()
        return int(row["count"]) if row else 0

    def add_external_sign_in(self, hash_: bytes, *, browser: bytes, content: bytes, expires_on: int) -> None:
        """`hash_` is the SHA-256 of the `state`, `browser` that of the browser's own key; `content` is sealed."""
        values = {"hash": hash_, "browser": browser, "content": content, "expires_on": expires_on}
        self._insert("external_sign_in", values)

    def take_external_sign_in(self, hash_: bytes, *, browser: bytes, now_ms: int) -> bytes | None:
        """Remove and return the content, if this browser began the sign-in."""
        row = self._db.execute(
            "DELETE FROM external_sign_in WHERE hash = :hash AND browser = :browser AND expires_on > :now"
            " RETURNING content",
            {"hash": hash_, "browser": browser, "now": now_ms},
        ).one()
        return bytes(row["content"]) if row else None

    def purge_external_sign_ins(self, *, now_ms: int) -> None:
        self._db.execute("DELETE FROM external_sign_in WHERE expires_on <= :now", {"now": now_ms})


def _invitation(row: Mapping[str, Any]) -> InvitationRecord:
    return InvitationRecord(**{name: row[name] for name in InvitationRecord.__struct_fields__})
