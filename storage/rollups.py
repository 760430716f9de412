"""Rollups of the message log: per device, field and minute, hour or day. The caller holds the transaction.

The field `""` counts messages, whatever is in them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from storage.records import RollupRow
from storage.sql import Connection

_KEY = ("device", "field", "level", "bucket")
_VALUES = ("count", "numbers", "min", "max", "sum", "mean_high", "mean_low", "m2")
_NAMES = (*_KEY, *_VALUES)
_PUT = (
    f"INSERT INTO rollup ({', '.join(_NAMES)}) VALUES ({', '.join(f':{name}' for name in _NAMES)})"  # noqa: S608 - ours
    f" ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _VALUES)}"
)


class RollupStore:
    def __init__(self, db: Connection) -> None:
        self._db = db

    def field_keys(self, paths: Iterable[str]) -> dict[str, int]:
        """The short keys of field paths; new paths get theirs now."""
        keys = {}
        for path in paths:
            row = self._db.execute(
                "INSERT INTO field (path) VALUES (:path) ON CONFLICT (path) DO UPDATE SET path = path RETURNING key",
                {"path": path},
            ).one()
            if row is not None:
                keys[path] = int(row["key"])
        return keys

    def field_key(self, path: str) -> int | None:
        row = self._db.execute("SELECT key FROM field WHERE path = :path", {"path": path}).one()
        return int(row["key"]) if row else None

    def get(self, device: int, field: int, level: str, bucket: int) -> RollupRow | None:
        row = self._db.execute(
            "SELECT * FROM rollup WHERE device = :device AND field = :field AND level = :level AND bucket = :bucket",
            {"device": device, "field": field, "level": level, "bucket": bucket},
        ).one()
        return _rollup(row) if row else None

    def put(self, rollup: RollupRow) -> None:
        self._db.execute(_PUT, {name: getattr(rollup, name) for name in _NAMES})

    def range(self, device: int, field: int, level: str, *, start_ms: int, end_ms: int) -> list[RollupRow]:
        """Buckets with `start_ms <= bucket < end_ms`, in order."""
        rows = self._db.execute(
            "SELECT * FROM rollup WHERE device = :device AND field = :field AND level = :level"
            " AND bucket >= :start AND bucket < :end ORDER BY bucket",
            {"device": device, "field": field, "level": level, "start": start_ms, "end": end_ms},
        )
        return [_rollup(row) for row in rows]


def _rollup(row: Mapping[str, Any]) -> RollupRow:
    return RollupRow(**dict(row))
