"""Boards of users. The caller holds the transaction."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from storage.keys import UserKey
from storage.sql import Store, record_values, sure


class BoardRecord(msgspec.Struct, frozen=True):
    """A board. `tiles` is JSON. `link` is the SHA-256 of the secret of its read-only link; None: it has none.

    `link_expires_on` is None for a link without an end.
    """

    key: int
    id: str
    user: UserKey
    user_id: str
    name: str
    tiles: str
    created_on: int
    modified_on: int
    link: bytes | None = None
    link_made_on: int | None = None
    link_expires_on: int | None = None


_WRITTEN: Final = ("id", "user", "name", "tiles", "created_on", "modified_on")
_CHANGED: Final = ("name", "tiles", "modified_on", "link", "link_made_on", "link_expires_on")
_BOARDS: Final = (
    "SELECT b.*, u.id AS user_id FROM board AS b JOIN user AS u ON u.key = b.user"
    " WHERE b.user NOT IN (SELECT user FROM leaving_user) AND "
)


class BoardStore(Store):
    def add(self, board: BoardRecord) -> BoardRecord:
        """Add a board; return it with its key."""
        key = int(sure(self._insert("board", record_values(board, _WRITTEN), "RETURNING key").one())["key"])
        found = self._one("b.key = :value", key)
        assert found is not None, "it was just added"  # noqa: S101 - an invariant of the store
        return found

    def change(self, board: BoardRecord) -> None:
        """Write the changeable columns of a board."""
        self._db.execute(
            f"UPDATE board SET {', '.join(f'{name} = :{name}' for name in _CHANGED)} WHERE key = :key",  # noqa: S608 - constants
            record_values(board, ("key", *_CHANGED)),
        )

    def remove(self, key: int) -> None:
        self._db.execute("DELETE FROM board WHERE key = :key", {"key": key})

    def remove_of(self, user: UserKey) -> list[BoardRecord]:
        """Remove all boards of a user; return what they were."""
        found = self.of_user(user)
        self._db.execute("DELETE FROM board WHERE user = :user", {"user": user})
        return found

    def by_id(self, id_: str) -> BoardRecord | None:
        return self._one("b.id = :value", id_)

    def by_link(self, link: bytes) -> BoardRecord | None:
        """The board whose link has a secret with this hash, also when the link has expired."""
        return self._one("b.link = :value", link)

    def of_user(self, user: UserKey) -> list[BoardRecord]:
        """All boards of a user, oldest first. Their number is bounded (reference 12.14)."""
        return [_board(row) for row in self._db.execute(_BOARDS + "b.user = :user ORDER BY b.key", {"user": user})]

    def _one(self, where: str, value: object) -> BoardRecord | None:
        row = self._db.execute(_BOARDS + where, {"value": value}).one()
        return None if row is None else _board(row)


def _board(row: Mapping[str, Any]) -> BoardRecord:
    return BoardRecord(**{name: row[name] for name in BoardRecord.__struct_fields__})
