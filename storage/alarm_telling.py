"""How users are told of alarms, and the notices that wait (reference 12.13). The caller holds the transaction."""

import json
from collections.abc import Collection

import msgspec

from storage.keys import Milliseconds, UserKey
from storage.sql import Store


class TellingRecord(msgspec.Struct, frozen=True):
    """`sealed`: the settings. `problem`: why the last notice was not taken; empty when it was."""

    user: UserKey
    sealed: bytes
    changed_on: Milliseconds
    problem: str = ""
    problem_on: Milliseconds | None = None


class NoticeRecord(msgspec.Struct, frozen=True):
    """A notice for one way, `ntfy` or `apprise`."""

    key: int
    user: UserKey
    way: str
    sealed: bytes
    created_on: Milliseconds
    next_on: Milliseconds
    tries: int = 0


class NoticeHead(msgspec.Struct, frozen=True):
    """A notice without its content."""

    key: int
    user: UserKey
    way: str


class AlarmTellingStore(Store):
    def of(self, user: UserKey) -> TellingRecord | None:
        row = self._db.execute("SELECT * FROM alarm_telling WHERE user = :user", {"user": user}).one()
        return None if row is None else TellingRecord(**dict(row))

    def of_users(self, users: Collection[UserKey]) -> dict[UserKey, TellingRecord]:
        rows = self._db.execute(
            f"SELECT * FROM alarm_telling WHERE user IN ({self._db.numbers_in('users')})",  # noqa: S608 - constants
            {"users": json.dumps(list(users))},
        )
        found = [TellingRecord(**dict(row)) for row in rows]
        return {one.user: one for one in found}

    def put(self, record: TellingRecord) -> None:
        names = TellingRecord.__struct_fields__
        self._db.put_many("alarm_telling", names, ("user",), [[getattr(record, name) for name in names]])

    def note_problem(self, user: UserKey, problem: str, now_ms: Milliseconds | None) -> None:
        self._db.execute(
            "UPDATE alarm_telling SET problem = :problem, problem_on = :now WHERE user = :user",
            {"user": user, "problem": problem, "now": now_ms},
        )

    def remove_of(self, user: UserKey) -> None:
        """Remove a user's settings, and what waits."""
        for table in ("alarm_telling", "alarm_notice"):
            self._db.execute(f"DELETE FROM {table} WHERE user = :user", {"user": user})  # noqa: S608 - constants

    # Notices

    def add_notice(self, notice: NoticeRecord) -> None:
        values = {name: getattr(notice, name) for name in NoticeRecord.__struct_fields__[1:]}
        self._insert("alarm_notice", values)

    def waiting(self, user: UserKey) -> int:
        return self._number_of("FROM alarm_notice WHERE user = :user", {"user": user})

    def due_notices(self, now_ms: Milliseconds, *, of_one: int, limit: int) -> list[NoticeHead]:
        """The oldest due notices of each user, at most `of_one`: first the oldest one of each."""
        rows = self._db.execute(
            "SELECT key, user, way FROM (SELECT key, user, way, row_number() OVER"
            " (PARTITION BY user ORDER BY key) AS turn FROM alarm_notice WHERE next_on <= :now) AS due"
            " WHERE turn <= :of_one ORDER BY turn, key LIMIT :limit",
            {"now": now_ms, "of_one": of_one, "limit": limit},
        )
        return [NoticeHead(**dict(row)) for row in rows]

    def notice(self, key: int) -> tuple[NoticeRecord, TellingRecord | None] | None:
        """A notice, and how its user is told now."""
        row = self._db.execute("SELECT * FROM alarm_notice WHERE key = :key", {"key": key}).one()
        return None if row is None else (NoticeRecord(**dict(row)), self.of(row["user"]))

    def retry(self, key: int, next_on: Milliseconds) -> None:
        self._db.execute(
            "UPDATE alarm_notice SET next_on = :next, tries = tries + 1 WHERE key = :key", {"key": key, "next": next_on}
        )

    def drop(self, key: int) -> None:
        self._db.execute("DELETE FROM alarm_notice WHERE key = :key", {"key": key})
