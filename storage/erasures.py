"""Deletions of messages that owners asked for, and what they delete. The caller holds the transaction."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from storage.keys import DeviceKey, Milliseconds, Position, UserKey
from storage.sql import Store


class ErasureRecord(msgspec.Struct, frozen=True):
    """Messages of a device with `start_ms <= ts <= end_ms` up to the position `head` are deleted.

    `deleted` is their number so far; `ended_on` is None while it goes on.
    """

    id: str
    device: DeviceKey
    user: UserKey | None  # who asked; None: that one is gone
    start_ms: Milliseconds
    end_ms: Milliseconds
    head: Position
    deleted: int
    asked_on: Milliseconds
    ended_on: Milliseconds | None = None


_NAMES: Final = ErasureRecord.__struct_fields__


class ErasureStore(Store):
    def put(self, erasure: ErasureRecord) -> None:
        """Add an erasure, or replace the one with its id."""
        self._db.put_many("erasure", _NAMES, ("id",), [tuple(getattr(erasure, name) for name in _NAMES)])

    def by_id(self, id_: str) -> ErasureRecord | None:
        row = self._db.execute("SELECT * FROM erasure WHERE id = :id", {"id": id_}).one()
        return _record(row) if row else None

    def of_user(self, user: UserKey, *, limit: int) -> list[ErasureRecord]:
        """The latest ones, newest first."""
        rows = self._db.execute(
            "SELECT * FROM erasure WHERE user = :user ORDER BY key DESC LIMIT :limit", {"user": user, "limit": limit}
        )
        return [_record(row) for row in rows]

    def open_of(self, user: UserKey) -> int:
        """How many of a user's go on."""
        row = self._db.execute(
            "SELECT count(*) AS number FROM erasure WHERE user = :user AND ended_on IS NULL", {"user": user}
        ).one()
        return int(row["number"]) if row else 0

    def first_of_each_user(self) -> list[ErasureRecord]:
        """The oldest one of each user that goes on."""
        rows = self._db.execute(
            "SELECT * FROM erasure WHERE key IN (SELECT min(key) FROM erasure WHERE ended_on IS NULL GROUP BY user)"
            " ORDER BY key"
        )
        return [_record(row) for row in rows]

    def forget_ended(self, before_ms: int) -> None:
        self._db.execute("DELETE FROM erasure WHERE ended_on < :before", {"before": before_ms})

    # The messages and what is counted of them

    def delete_messages(self, device: DeviceKey, positions: Sequence[Position]) -> int:
        """Delete messages of a device; return how many there were."""
        rows = self._db.execute(
            "DELETE FROM message WHERE device = :device"  # noqa: S608 - constants
            f" AND position IN ({self._db.numbers_in('positions')}) RETURNING position",
            {"device": device, "positions": json.dumps(positions)},
        )
        return sum(1 for _ in rows)

    def delete_failed(self, erasure: ErasureRecord, *, limit: int) -> int:
        """Delete some failed messages; return how many. One without a time of its own has that of its arrival."""
        rows = self._db.execute(
            "DELETE FROM failed_message WHERE position IN (SELECT position FROM failed_message WHERE device = :device"
            " AND position <= :head AND coalesce(ts, cts) >= :start AND coalesce(ts, cts) <= :end"
            " ORDER BY position LIMIT :limit) RETURNING position",
            {"limit": limit, **_range_of(erasure)},
        )
        return sum(1 for _ in rows)

    def delete_entries(self, erasure: ErasureRecord, *, limit: int) -> int:
        """Delete some index entries all of whose messages are deleted; return how many."""
        rows = self._db.execute(
            "DELETE FROM message_entry WHERE key IN (SELECT key FROM message_entry WHERE device = :device"
            " AND first_ts >= :start AND last_ts <= :end AND upto <= :head LIMIT :limit) RETURNING key",
            {"limit": limit, **_range_of(erasure)},
        )
        return sum(1 for _ in rows)

    def first_buckets(self, device: DeviceKey, level: str, start: int, end: int) -> list[tuple[int, int]]:
        """The fields with buckets of a level that begin within `start` and `end`, each with its first one."""
        # From each field of the device to its next one: there may be many of other devices.
        rows = self._db.execute(
            "WITH RECURSIVE own(field) AS (SELECT min(field) FROM rollup WHERE device = :device UNION ALL"
            " SELECT (SELECT min(n.field) FROM rollup AS n WHERE n.device = :device AND n.field > own.field) FROM own"
            " WHERE own.field IS NOT NULL)"
            " SELECT * FROM (SELECT own.field AS field, (SELECT min(r.bucket) FROM rollup AS r WHERE"
            " r.device = :device AND r.field = own.field AND r.level = :level AND r.bucket >= :start"
            " AND r.bucket <= :end) AS bucket FROM own WHERE own.field IS NOT NULL) AS firsts WHERE bucket IS NOT NULL",
            {"device": device, "level": level, "start": start, "end": end},
        )
        return [(row["field"], row["bucket"]) for row in rows]

    def delete_buckets(self, device: DeviceKey, level: str, fields: Iterable[int], start: int, end: int) -> None:
        """Delete the buckets of these fields that begin within `start` and `end`."""
        self._db.execute(
            f"DELETE FROM rollup WHERE device = :device AND field IN ({self._db.numbers_in('fields')})"  # noqa: S608 - constants
            " AND level = :level AND bucket >= :start AND bucket <= :end",
            {"device": device, "fields": json.dumps(list(fields)), "level": level, "start": start, "end": end},
        )


def _range_of(erasure: ErasureRecord) -> dict[str, int]:
    return {"device": erasure.device, "start": erasure.start_ms, "end": erasure.end_ms, "head": erasure.head}


def _record(row: Mapping[str, Any]) -> ErasureRecord:
    return ErasureRecord(**{name: row[name] for name in _NAMES})
