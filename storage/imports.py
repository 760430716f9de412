"""Tables of messages that users bring, and how far they are. The caller holds the transaction."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, Milliseconds, UserKey
from storage.sql import Store


class ImportRecord(msgspec.Struct, frozen=True):
    """One import. Lines go to `device`, or to the devices that they name, of the type. `header` is JSON of its cells.
    `application` is the one through which the user brought it; None in a record from before it was noted.

    The file is read up to the byte `position`, where the line `line` begins. `stored`, `present` and `wrong` are
    numbers of lines; `wrong_lines` is JSON of the first wrong ones. `reason` says why it has ended early.
    """

    id: str
    user: UserKey
    device: DeviceKey | None
    device_type: DeviceTypeKey
    header: str
    size: int
    position: int
    line: int
    asked_on: Milliseconds
    stored: int = 0
    present: int = 0
    wrong: int = 0
    wrong_lines: str = "[]"
    reason: str = ""
    ended_on: Milliseconds | None = None
    application: ApplicationKey | None = None


_NAMES: Final = ImportRecord.__struct_fields__


class ImportStore(Store):
    def put(self, record: ImportRecord) -> None:
        """Add an import, or replace the one with its id."""
        self._db.put_many("table_import", _NAMES, ("id",), [tuple(getattr(record, name) for name in _NAMES)])

    def by_id(self, id_: str) -> ImportRecord | None:
        row = self._db.execute("SELECT * FROM table_import WHERE id = :id", {"id": id_}).one()
        return _record(row) if row else None

    def of_user(self, user: UserKey, *, limit: int) -> list[ImportRecord]:
        """The latest ones, newest first."""
        rows = self._db.execute(
            "SELECT * FROM table_import WHERE user = :user ORDER BY key DESC LIMIT :limit",
            {"user": user, "limit": limit},
        )
        return [_record(row) for row in rows]

    def open_of(self, user: UserKey) -> int:
        """How many of a user's go on."""
        row = self._db.execute(
            "SELECT count(*) AS number FROM table_import WHERE user = :user AND ended_on IS NULL", {"user": user}
        ).one()
        return int(row["number"]) if row else 0

    def first_of_each_user(self) -> list[ImportRecord]:
        """The oldest one of each user that goes on."""
        rows = self._db.execute(
            "SELECT * FROM table_import WHERE key IN"
            " (SELECT min(key) FROM table_import WHERE ended_on IS NULL GROUP BY user) ORDER BY key"
        )
        return [_record(row) for row in rows]

    def remove_of(self, user: UserKey) -> list[str]:
        """Remove all of a user; return the ids of the open ones."""
        rows = self._db.execute("DELETE FROM table_import WHERE user = :user RETURNING id, ended_on", {"user": user})
        return [row["id"] for row in rows if row["ended_on"] is None]

    def forget_ended(self, before_ms: int) -> None:
        self._db.execute("DELETE FROM table_import WHERE ended_on < :before", {"before": before_ms})


def _record(row: Mapping[str, Any]) -> ImportRecord:
    return ImportRecord(**{name: row[name] for name in _NAMES})
