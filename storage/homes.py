"""Users whose devices were announced to Home Assistant (reference 16.7). The caller holds the transaction."""

from storage.keys import UserKey
from storage.sql import Store


class HomeStore(Store):
    def all(self) -> set[tuple[UserKey, str]]:
        """Users, with the discovery prefix."""
        return {(UserKey(row["user"]), row["prefix"]) for row in self._db.execute('SELECT "user", prefix FROM home')}

    def put(self, user: UserKey, prefix: str) -> None:
        self._db.execute(
            'INSERT INTO home ("user", prefix) VALUES (:user, :prefix) ON CONFLICT ("user", prefix) DO NOTHING',
            {"user": user, "prefix": prefix},
        )

    def remove(self, user: UserKey, prefix: str) -> None:
        self._db.execute('DELETE FROM home WHERE "user" = :user AND prefix = :prefix', {"user": user, "prefix": prefix})
