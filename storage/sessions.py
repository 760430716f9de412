"""Browser sessions of people who signed in. The caller holds the transaction."""

from storage.sql import Connection


class SessionStore:
    def __init__(self, db: Connection) -> None:
        self._db = db

    def add(self, hash_: bytes, user: int, *, now_ms: int, expires_on: int) -> None:
        self._db.execute(
            "INSERT INTO session (hash, user, created_on, expires_on) VALUES (:hash, :user, :now, :expires_on)",
            {"hash": hash_, "user": user, "now": now_ms, "expires_on": expires_on},
        )

    def user_of(self, hash_: bytes, *, now_ms: int) -> int | None:
        """The key of the person whose session it is, while it lasts."""
        row = self._db.execute(
            "SELECT user FROM session WHERE hash = :hash AND expires_on > :now", {"hash": hash_, "now": now_ms}
        ).one()
        return int(row["user"]) if row else None

    def remove(self, hash_: bytes) -> None:
        self._db.execute("DELETE FROM session WHERE hash = :hash", {"hash": hash_})

    def purge(self, *, now_ms: int) -> None:
        self._db.execute("DELETE FROM session WHERE expires_on <= :now", {"now": now_ms})
