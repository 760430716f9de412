"""Browser sessions of users who signed in. The caller holds the transaction."""

from storage.keys import UserKey
from storage.sql import StoreConnection


class SessionStore:
    def __init__(self, db: StoreConnection) -> None:
        self._db = db

    def add(self, hash_: bytes, user: UserKey, *, password: bytes, now_ms: int, expires_on: int) -> None:
        """`password` is a mark of the password in force: when the password changes, the session ends."""
        self._db.execute(
            "INSERT INTO session (hash, user, password, created_on, expires_on)"
            " VALUES (:hash, :user, :password, :now, :expires_on)",
            {"hash": hash_, "user": user, "password": password, "now": now_ms, "expires_on": expires_on},
        )

    def user_of(self, hash_: bytes, *, now_ms: int) -> tuple[UserKey, bytes] | None:
        """The key of the session's user and the mark of the password, while the session lasts."""
        row = self._db.execute(
            "SELECT user, password FROM session WHERE hash = :hash AND expires_on > :now",
            {"hash": hash_, "now": now_ms},
        ).one()
        return (row["user"], row["password"]) if row else None

    def remove(self, hash_: bytes) -> None:
        self._db.execute("DELETE FROM session WHERE hash = :hash", {"hash": hash_})

    def remove_of(self, user: UserKey) -> None:
        self._db.execute("DELETE FROM session WHERE user = :user", {"user": user})

    def purge(self, *, now_ms: int) -> None:
        self._db.execute("DELETE FROM session WHERE expires_on <= :now", {"now": now_ms})
