"""A store as a year of use leaves it, written through SQL in bulk: the log, its rollups and its snapshots.

    python -m tests.benchmarks.history_store FOLDER [--messages 10000000]

Of every 10 M messages, device 0 sends 2,678,400 over the last 31 days (1 Hz at 10 M), device 1 sends 3,153,600 over the
last year, and the other 98 share the rest, at 1 Hz up to now. Positions follow time, as they do when all send at once.
What those 98 sent in the year before was deleted by a retention: their rollups of hours and days are left.
"""

import argparse
import sqlite3
import time
from pathlib import Path

from storage.engines import engine_at
from tests.daemon import Daemon
from tests.stores import make_index

DEVICES = 100
_DAY_MS = 86_400_000

# One row for each message to come, with the numbers that are in it.
_DRAFT = """
CREATE TEMP TABLE draft (device INTEGER, ts INTEGER, temperature REAL, intensity INTEGER);
INSERT INTO draft
  WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)
  SELECT :device, :end - i * :period, 20 + (i * 7919 % 1000) / 100.0, i % 101 FROM n;
"""
_LOG = """
INSERT INTO message (position, device, ts, cts, mv, data)
  SELECT row_number() OVER (ORDER BY ts, device), device, ts, ts, 1,
  printf('{"state":%s,"intensity":%d,"temperature":%.2f,"text":"as usual"}',
         iif(intensity > 50, 'true', 'false'), intensity, temperature) FROM draft;
"""
_MINUTES = """
CREATE TEMP TABLE wide AS SELECT device, ts - ts % 60000 AS bucket, count(*) AS n,
  min(temperature) AS t_min, max(temperature) AS t_max, sum(temperature) AS t_sum,
  sum(temperature * temperature) AS t_squares, min(intensity) AS i_min, max(intensity) AS i_max,
  sum(intensity) AS i_sum, sum(intensity * intensity) AS i_squares
  FROM draft GROUP BY device, ts - ts % 60000;
"""
_LEVEL = """
INSERT INTO rollup SELECT device, :messages, :level, bucket - bucket % :width, sum(n), 0, NULL, NULL, NULL, NULL, NULL,
  NULL FROM wide GROUP BY device, bucket - bucket % :width;
INSERT INTO rollup SELECT device, :state, :level, bucket - bucket % :width, sum(n), 0, NULL, NULL, NULL, NULL, NULL,
  NULL FROM wide GROUP BY device, bucket - bucket % :width;
INSERT INTO rollup SELECT device, :temperature, :level, bucket - bucket % :width, sum(n), sum(n), min(t_min),
  max(t_max), sum(t_sum), sum(t_sum) / sum(n), 0.0, max(0.0, sum(t_squares) - sum(t_sum) * sum(t_sum) / sum(n))
  FROM wide GROUP BY device, bucket - bucket % :width;
INSERT INTO rollup SELECT device, :intensity, :level, bucket - bucket % :width, sum(n), sum(n), min(i_min), max(i_max),
  sum(i_sum), 1.0 * sum(i_sum) / sum(n), 0.0, max(0.0, sum(i_squares) - 1.0 * sum(i_sum) * sum(i_sum) / sum(n))
  FROM wide GROUP BY device, bucket - bucket % :width;
"""
_OUTLIVED = """
INSERT OR IGNORE INTO rollup WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
  SELECT :device, :messages, :level, :end - :end % :width - i * :width, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL FROM n;
"""
_SNAPSHOTS = """
INSERT INTO snapshot (device, fields) SELECT device,
  printf('{"state":[%d,%d,true],"intensity":[%d,%d,48],"temperature":[%d,%d,21.53],"text":[%d,%d,"as usual"]}',
         ts, position, ts, position, ts, position, ts, position)
  FROM (SELECT device, max(position) AS position, ts FROM message GROUP BY device);
"""


def generate(store: Path, messages: int, end_ms: int) -> None:
    """Fill a store that has the devices and nothing else."""
    db = sqlite3.connect(store, isolation_level=None)
    for pragma in ("synchronous=OFF", "cache_size=-1000000", "temp_store=FILE"):
        db.execute(f"PRAGMA {pragma}")
    keys = [key for (key,) in db.execute("SELECT key FROM device ORDER BY key")]
    db.execute("BEGIN")
    create, fill = (statement for statement in _DRAFT.split(";\n") if statement.strip())
    db.execute(create)
    for key, count, period in _shares(keys, messages):
        db.execute(fill, {"device": key, "count": count, "period": period, "end": end_ms})
    db.execute(_LOG)
    db.execute(_MINUTES)
    fields = {name: _field(db, path) for name, path in _FIELDS.items()}
    for level, width in (("minute", 60_000), ("hour", 3_600_000), ("day", _DAY_MS)):
        for statement in filter(str.strip, _LEVEL.split(";\n")):
            db.execute(statement, fields | {"level": level, "width": width})
    for key in keys[2:]:
        for level, width, count in (("hour", 3_600_000, 365 * 24), ("day", _DAY_MS, 365)):
            about = {"device": key, "messages": fields["messages"], "end": end_ms}
            db.execute(_OUTLIVED, about | {"level": level, "width": width, "count": count})
    db.execute(_SNAPSHOTS)
    (head,) = db.execute("SELECT max(position) FROM message").fetchone()
    db.execute("INSERT OR REPLACE INTO counter VALUES ('head', ?)", (head,))
    db.execute("INSERT OR REPLACE INTO consumer VALUES ('folds', ?)", (head,))
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    make_index(engine_at(str(store)))


_FIELDS = {"messages": "", "state": "state", "temperature": "temperature", "intensity": "intensity"}


def _field(db: sqlite3.Connection, path: str) -> int:
    db.execute("INSERT OR IGNORE INTO field (path) VALUES (?)", (path,))
    (key,) = db.execute("SELECT key FROM field WHERE path = ?", (path,)).fetchone()
    return int(key)


def _shares(keys: list[int], messages: int) -> list[tuple[int, int, int]]:
    """Device, number of messages, milliseconds between two of them."""
    month, year = messages * 2_678_400 // 10_000_000, messages * 3_153_600 // 10_000_000
    others = (messages - month - year) // (len(keys) - 2)
    return [
        (keys[0], month, 31 * _DAY_MS // month),
        (keys[1], year, 365 * _DAY_MS // year),
        *((key, others, 1000) for key in keys[2:]),
    ]


def build(folder: Path, messages: int) -> Daemon:
    """A daemon that does not run yet, on a generated store."""
    daemon = Daemon(folder / "state")
    daemon.configure(devices=DEVICES)
    generate(next(daemon.state.glob("*.sqlite*")), messages, int(time.time() * 1000))
    return daemon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--messages", type=int, default=10_000_000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    daemon = build(options.folder, options.messages)
    size = sum(file.stat().st_size for file in daemon.state.iterdir() if file.is_file())
    print(f"{options.messages:,} messages, {size / 1e9:.2f} GB, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
