"""Browser sessions of users who signed in. The caller holds the transaction."""

from storage.keys import UserKey
from storage.records import SessionRecord
from storage.sql import Store, record_values


class SessionStore(Store):
    def add(self, session: SessionRecord) -> None:
        self._insert("session", record_values(session))

    def find(self, hash_: bytes, *, now_ms: int) -> SessionRecord | None:
        """The session, while it lasts."""
        row = self._db.execute(
            "SELECT * FROM session WHERE hash = :hash AND expires_on > :now", {"hash": hash_, "now": now_ms}
        ).one()
        return SessionRecord(**dict(row)) if row else None

    def of(self, user: UserKey, *, now_ms: int) -> list[SessionRecord]:
        """The sessions of a user that last, the newest first."""
        rows = self._db.execute(
            "SELECT * FROM session WHERE user = :user AND expires_on > :now ORDER BY created_on DESC, hash",
            {"user": user, "now": now_ms},
        )
        return [SessionRecord(**dict(row)) for row in rows]

    def touch(self, hash_: bytes, *, now_ms: int) -> None:
        """Note that the session was used."""
        self._db.execute("UPDATE session SET used_on = :now WHERE hash = :hash", {"hash": hash_, "now": now_ms})

    def remove(self, hash_: bytes) -> None:
        self._db.execute("DELETE FROM session WHERE hash = :hash", {"hash": hash_})

    def remove_of(self, user: UserKey, *, but: bytes = b"") -> None:
        """Remove the sessions of a user, except the one with the hash `but`."""
        self._db.execute("DELETE FROM session WHERE user = :user AND hash <> :but", {"user": user, "but": but})

    def renew_password(self, user: UserKey, *, before: bytes, after: bytes) -> None:
        """The mark of the user's password is another one, and the password is the same: the sessions go on."""
        self._db.execute(
            "UPDATE session SET password = :after WHERE user = :user AND password = :before",
            {"user": user, "before": before, "after": after},
        )

    def purge(self, *, now_ms: int) -> None:
        self._db.execute("DELETE FROM session WHERE expires_on <= :now", {"now": now_ms})
