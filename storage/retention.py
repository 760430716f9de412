"""Deleting old messages and rollups, and the progress of that. The caller holds the transaction."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from storage.damage import first_readable
from storage.keys import DeviceKey, DeviceTypeKey, Position
from storage.log_index import LogIndex
from storage.sql import Store, StoreDamagedError

LogTable = Literal["message", "action", "failed_message"]


class RetentionStore(Store):
    # How long each device type is kept

    def days_of_types(self) -> dict[DeviceTypeKey, int]:
        """The retention in days of each device type that has its own, by key; 0 keeps for ever."""
        rows = self._db.execute("SELECT key, retention_days FROM device_type WHERE retention_days IS NOT NULL")
        return {row["key"]: row["retention_days"] for row in rows}

    def set_days(self, device_type: DeviceTypeKey, days: int | None) -> None:
        self._db.execute(
            "UPDATE device_type SET retention_days = :days WHERE key = :key", {"key": device_type, "days": days}
        )

    # The log

    def first_received(
        self, table: LogTable, *, behind: int, upto: int, since_ms: int, until_ms: int
    ) -> Position | None:
        """The first row with `behind < position <= upto` and `since_ms <= cts <= until_ms`. It reads all before it."""
        row = self._db.execute(
            f"SELECT position FROM {table} WHERE position > :behind AND position <= :upto"  # noqa: S608 - constants
            " AND cts >= :since AND cts <= :until ORDER BY position LIMIT 1",
            {"behind": behind, "upto": upto, "since": since_ms, "until": until_ms},
        ).one()
        return Position(row["position"]) if row else None

    def last(self, table: LogTable) -> Position:
        """The highest position of a row; 0 without rows."""
        row = self._db.execute(f"SELECT max(position) AS position FROM {table}").one()  # noqa: S608 - constants
        return Position(row["position"] or 0) if row else Position(0)

    def first_after(self, table: LogTable, position: Position) -> Position | None:
        row = self._db.execute(
            f"SELECT min(position) AS position FROM {table} WHERE position > :position",  # noqa: S608 - constants
            {"position": position},
        ).one()
        return row["position"] if row else None

    def delete(
        self, table: LogTable, *, behind: int, upto: int, types: Collection[DeviceTypeKey] | None, others: bool = False
    ) -> int:
        """Delete rows with `behind < position <= upto` and return their number.

        `types` limits this to devices of these types, or with `others` to devices of all other types.
        """
        condition, parameters = "", {"behind": behind, "upto": upto}
        if types is not None:
            names = {f"type_{index}": key for index, key in enumerate(types)}
            listed = ", ".join(f":{name}" for name in names) or "NULL"
            chosen = f"SELECT key FROM device WHERE device_type IN ({listed})"  # noqa: S608 - constants
            condition = f" AND device {'NOT IN' if others else 'IN'} ({chosen})"
            parameters |= names
        rows = self._db.execute(
            f"DELETE FROM {table} WHERE position > :behind AND position <= :upto{condition}"  # noqa: S608 - constants
            " RETURNING position",
            parameters,
        )
        number = sum(1 for _ in rows)
        if table != "failed_message":
            LogIndex(self._db, table).forget_steps(behind=behind, upto=upto, condition=condition, parameters=parameters)
        return number

    def partitions(self) -> Sequence[range]:
        """The positions of the partitions of the messages that get no more rows, the oldest first, if there are any."""
        return self._db.full_partitions()

    def rows_if_old(self, part: range, *, since_ms: int, until_ms: int) -> int | None:
        """The number of messages at these positions; None when one of them was received within the time."""
        within, times = (
            "FROM message WHERE position >= :first AND position < :behind",
            "cts >= :since AND cts <= :until",
        )
        given = {"first": part.start, "behind": part.stop, "since": since_ms, "until": until_ms}
        newest = self._db.execute(f"SELECT cts {within} ORDER BY position DESC LIMIT 1", given).one()
        if newest is not None and since_ms <= newest["cts"] <= until_ms:
            return None  # without reading all of them
        row = self._db.execute(
            f"SELECT count(*) AS number, count(CASE WHEN {times} THEN 1 END) AS fresh {within}", given
        ).one()
        return None if row is None or row["fresh"] else int(row["number"])

    def forget_entries(self, behind: int, upto: int) -> None:
        """Delete the index entries of all messages with `behind < position <= upto`."""
        LogIndex(self._db, "message").forget_steps(behind=behind, upto=upto, condition="", parameters={})

    def drop_partition(self, part: range) -> None:
        """Delete all messages at these positions. Raises StoreBusyError."""
        self._db.drop_partition(part)

    def beyond_damage(self, table: LogTable, position: Position, last: Position) -> Position:
        """The position from which rows after `position`, which is damaged, can be read; `last` when there is none."""

        def is_readable(at: int) -> bool:
            try:
                self._db.execute(
                    f"SELECT * FROM {table} WHERE position >= :at ORDER BY position LIMIT 1",  # noqa: S608 - constants
                    {"at": at},
                ).one()
            except StoreDamagedError:
                return False
            return True

        return Position(first_readable(is_readable, position, last) or last)

    def lowest_consumer(self) -> Position | None:
        """The lowest position of all consumers of the log; None without consumers."""
        row = self._db.execute("SELECT min(position) AS position FROM consumer").one()
        return row["position"] if row else None

    # The progress of deleting

    def cursor(self, name: str) -> Position:
        row = self._db.execute("SELECT position FROM retention WHERE name = :name", {"name": name}).one()
        return Position(row["position"]) if row else Position(0)

    def set_cursor(self, name: str, position: Position) -> None:
        self._db.execute(
            "INSERT INTO retention (name, position) VALUES (:name, :position)"
            " ON CONFLICT (name) DO UPDATE SET position = excluded.position",
            {"name": name, "position": position},
        )

    def cursors(self) -> list[tuple[str, Position]]:
        """All cursors, by name."""
        rows = self._db.execute("SELECT name, position FROM retention")
        return [(row["name"], Position(row["position"])) for row in rows]

    def forget_cursors(self, kept: Collection[str]) -> None:
        """Delete all cursors but these."""
        self._db.execute(
            f"DELETE FROM retention WHERE name NOT IN ({self._db.texts_in('kept')})",  # noqa: S608 - constants
            {"kept": self._db.texts(kept)},
        )

    # Rollups

    def devices_after(self, key: DeviceKey, limit: int) -> list[tuple[DeviceKey, DeviceTypeKey]]:
        """The next devices after `key` in the order of their keys, each with its type."""
        rows = self._db.execute(
            "SELECT key, device_type FROM device WHERE key > :key ORDER BY key LIMIT :limit",
            {"key": key, "limit": limit},
        )
        return [(row["key"], row["device_type"]) for row in rows]

    def old_rollups(self, device: DeviceKey, level: str, before_ms: int) -> list[tuple[int, int]]:
        """The fields with buckets before `before_ms`, each with the start of its first bucket."""
        rows = self._db.execute(
            "SELECT * FROM (SELECT f.key AS field, (SELECT min(r.bucket) FROM rollup AS r WHERE r.device = :device"
            " AND r.field = f.key AND r.level = :level) AS bucket FROM field AS f) AS firsts WHERE bucket < :before",
            {"device": device, "level": level, "before": before_ms},
        )
        return [(row["field"], row["bucket"]) for row in rows]

    def delete_rollups(self, device: DeviceKey, fields: Iterable[int], level: str, before_ms: int) -> int:
        rows = self._db.execute(
            f"DELETE FROM rollup WHERE device = :device AND field IN ({self._db.numbers_in('fields')})"  # noqa: S608 - constants
            " AND level = :level AND bucket < :before RETURNING bucket",
            {"device": device, "fields": json.dumps(list(fields)), "level": level, "before": before_ms},
        )
        return sum(1 for _ in rows)

    # How much there is

    def size_bytes(self) -> tuple[int, int]:
        """The size of the store and how much of it is free for reuse, in bytes."""
        return self._db.size_bytes()

    def give_back(self, pages: int) -> bool:
        """Return at most this many free pages to the disk; answer whether there may be more."""
        return self._db.give_back(pages)
