"""Rollups of the message log: per device, field and minute, hour or day. The caller holds the transaction.

The field `""` counts all messages.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from storage.keys import DeviceKey, Milliseconds
from storage.records import RollupRow
from storage.sql import Store

#: Device, field, level and start of the bucket.
RollupKey = tuple[DeviceKey, int, str, int]

_KEY = ("device", "field", "level", "bucket")  # in the order of RollupKey
_VALUES = ("count", "numbers", "min", "max", "sum", "mean_high", "mean_low", "m2")
_NAMES = (*_KEY, *_VALUES)  # in the order of RollupRow
_values_of = attrgetter(*_NAMES)
_SELECT = f"SELECT {', '.join(_NAMES)} FROM rollup WHERE device = :device AND field = :field AND level = :level"  # noqa: S608 - constants


class RollupStore(Store):
    def add_fields(self, paths: Collection[str]) -> dict[str, int]:
        """The short keys of field paths, none of which is there twice; a new path gets a key."""
        rows = self._db.execute(
            f"INSERT INTO field (path) {self._db.texts_in('paths')} WHERE TRUE"
            " ON CONFLICT (path) DO UPDATE SET path = excluded.path RETURNING path, key",
            {"paths": self._db.texts(paths)},
        )
        return {row["path"]: int(row["key"]) for row in rows}

    def field_key(self, path: str) -> int | None:
        row = self._db.execute("SELECT key FROM field WHERE path = :path", {"path": path}).one()
        return int(row["key"]) if row else None

    def fields_at(self, path: str) -> list[int]:
        """The keys of the field at `path`; of a group, those of all fields in it."""
        rows = self._db.execute(
            "SELECT key FROM field WHERE path = :path"
            " OR (:path <> '' AND substr(path, 1, CAST(:length AS INTEGER)) = :prefix)",
            {"path": path, "prefix": f"{path}.", "length": len(path) + 1},
        )
        return [row["key"] for row in rows]

    def at(self, keys: Sequence[RollupKey]) -> dict[RollupKey, RollupRow]:
        """The rollups with these keys; a key without one is left out."""
        if not keys:
            return {}
        wanted, parameters = self._db.given("rollup", _KEY, keys)
        same = " AND ".join(f"rollup.{name} = wanted.{name}" for name in _KEY)
        rows = self._db.execute(
            f"SELECT {', '.join(f'rollup.{name}' for name in _NAMES)} FROM ({wanted}) AS wanted"  # noqa: S608 - constants
            f" CROSS JOIN rollup WHERE {same}",
            parameters,
        ).tuples()
        return {(row[0], row[1], row[2], row[3]): RollupRow(*row) for row in rows}

    def with_any(self, devices: Collection[DeviceKey]) -> list[DeviceKey]:
        """The devices among these that have rollups."""
        rows = self._db.execute(
            f"SELECT value FROM ({self._db.numbers_in('devices')}) AS given"  # noqa: S608 - constants
            " WHERE EXISTS (SELECT 1 FROM rollup WHERE device = given.value)",
            {"devices": json.dumps(list(devices))},
        )
        return [row["value"] for row in rows]

    def last(self, device: DeviceKey, path: str, level: str) -> Milliseconds | None:
        """The start of the newest bucket of a field; None without one."""
        row = self._db.execute(
            "SELECT max(bucket) AS bucket FROM rollup WHERE device = :device"
            " AND field = (SELECT key FROM field WHERE path = :path) AND level = :level",
            {"device": device, "path": path, "level": level},
        ).one()
        return row["bucket"] if row else None

    def newest(self, device: DeviceKey, path: str, level: str, upto_ms: Milliseconds) -> Milliseconds | None:
        """The start of the newest bucket of a field that begins by `upto_ms`; None without one."""
        row = self._db.execute(
            "SELECT max(bucket) AS bucket FROM rollup WHERE device = :device"
            " AND field = (SELECT key FROM field WHERE path = :path) AND level = :level AND bucket <= :upto",
            {"device": device, "path": path, "level": level, "upto": upto_ms},
        ).one()
        return row["bucket"] if row else None

    def in_bucket(self, device: DeviceKey, level: str, bucket: int) -> list[tuple[str, RollupRow]]:
        """Every field of a bucket, with its path."""
        rows = self._db.execute(
            f"SELECT path, {', '.join(_NAMES)} FROM field CROSS JOIN rollup"  # noqa: S608 - constants
            " WHERE device = :device AND field = field.key AND level = :level AND bucket = :bucket",
            {"device": device, "level": level, "bucket": bucket},
        )
        return [(row[0], RollupRow(*row[1:])) for row in rows.tuples()]

    def put_all(self, rollups: Iterable[RollupRow]) -> None:
        self._db.put_many("rollup", _NAMES, _KEY, list(map(_values_of, rollups)))

    def first(
        self, device: DeviceKey, field: int, level: str, *, start_ms: Milliseconds, end_ms: Milliseconds
    ) -> Milliseconds | None:
        """The start of the first bucket with `start_ms <= bucket < end_ms`; None when there is none."""
        row = self._db.execute(
            "SELECT min(bucket) AS bucket FROM rollup WHERE device = :device AND field = :field AND level = :level"
            " AND bucket >= :start AND bucket < :end",
            {"device": device, "field": field, "level": level, "start": start_ms, "end": end_ms},
        ).one()
        return row["bucket"] if row else None

    def range(
        self, device: DeviceKey, field: int, level: str, *, start_ms: Milliseconds, end_ms: Milliseconds
    ) -> list[RollupRow]:
        """Buckets with `start_ms <= bucket < end_ms`, in order."""
        rows = self._db.execute(
            f"{_SELECT} AND bucket >= :start AND bucket < :end ORDER BY bucket",
            {"device": device, "field": field, "level": level, "start": start_ms, "end": end_ms},
        )
        return [RollupRow(*row) for row in rows.tuples()]
