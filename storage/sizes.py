"""How large the parts of a store are, and when their rows came: for a forecast (broker/operating/forecast.py).

The size of the store, its free pages and small tables are measured; on PostgreSQL all tables are. A large table of
SQLite is not read as a whole: its rows are counted at places all over it, and its first pages tell what a row takes.
What is estimated is then fitted to the size of the store. Rollups are counted for some hundred devices.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from storage.sql import StoreConnection, StoreDamagedError, TableSize

DAY_MS: Final = 86_400_000
WEEK_MS: Final = 7 * DAY_MS
_QUARTER_MS: Final = DAY_MS // 4
MINUTES, HOURS, DAYS = "minute rollups", "hour rollups", "day rollups"
MESSAGES, INDEX, FAILED, AUDIT, DELIVERIES = "messages", "index", "failed messages", "audit", "deliveries"
OTHER: Final = "other"
#: By the first part of a file's name.
_PART_OF_FILE: Final = {"exports": "exports", "archives": "archives", "images": "firmware"}
FILES: Final = tuple(_PART_OF_FILE.values())
#: Part, and how much is counted at each place of a long range.
_LEVELS: Final = {"minute": (MINUTES, _QUARTER_MS), "hour": (HOURS, 10 * DAY_MS), "day": (DAYS, 400 * DAY_MS)}
_PLACES: Final = 64  # of a table, before the last week and in it
_ROWS: Final = 20  # at each place
_ROW_BYTES: Final = 30  # of a row beside its text
_PLACES_OF_LEVEL: Final = 8
_DEVICES: Final = 200
_COUNTS: Final = 3_000  # levels of fields of devices, at most
_FIT: Final = 3.0


class Sample(NamedTuple):
    """Rows that came at about the same time, and the bytes of all rows for which they stand. `device_type` is a key."""

    at_ms: int
    size: float
    device_type: int


class StorePart(msgspec.Struct, frozen=True):
    """One with samples grows and is deleted with time; of any other nothing is known but its size."""

    name: str
    size: float
    samples: Sequence[Sample] = ()


class Sizes(msgspec.Struct, frozen=True):
    """In bytes. `free_bytes` of the store wait for new rows. `since_ms`: the oldest message; None without any.

    `gives_back`: free bytes can go back to the disk.
    """

    store_bytes: int
    free_bytes: int
    gives_back: bool
    since_ms: int | None
    parts: Sequence[StorePart]

    def of(self, *names: str) -> int:
        """The bytes of these parts."""
        return round(sum(part.size for part in self.parts if part.name in names))


class _Log(msgspec.Struct, frozen=True):
    """A table whose keys rise with time."""

    part: str
    table: str
    key: str
    at: str
    text: str
    has_device: bool = True


_LOGS: Final = (
    _Log(MESSAGES, "message", "position", "cts", "length(data)"),
    _Log(MESSAGES, "action", "position", "cts", "length(data)"),
    _Log(INDEX, "message_entry", "key", "last_ts", "length(positions)"),
    _Log(INDEX, "action_entry", "key", "last_ts", "length(positions)"),
    _Log(FAILED, "failed_message", "position", "cts", "length(payload)"),
    _Log(AUDIT, "audit_entry", "key", "at_ms", "length(details)", has_device=False),
    _Log(DELIVERIES, "notification", "key", "created_on", "length(positions) + length(attempts)", has_device=False),
)


def measure(db: StoreConnection, *, now_ms: int) -> Sizes:
    """The store must have all schema steps. Rows that cannot be read are left out. Raises StoreError."""
    size, free = db.size_bytes()
    found = _Measured(db.table_sizes())
    since_ms = None
    for log in _LOGS:
        samples = list(_sampled(db, log, now_ms))
        found.add(log.table, log.part, samples)
        if log.table == "message" and samples:
            since_ms = min(one.at_ms for one, _ in samples)
    with suppress(StoreDamagedError):
        for name, samples in _sampled_rollups(db, now_ms).items():
            found.add("rollup", name, samples)
    parts = found.parts(size - free, _files(db))
    return Sizes(size, free, db.gives_back(), since_ms, parts)


class _Measured:
    """Samples of parts, whose sizes are rows or characters until the bytes of their tables are known."""

    def __init__(self, tables: Mapping[str, TableSize]) -> None:
        self._tables = tables
        self._found: dict[str, list[tuple[str, list[Sample]]]] = {}
        self._rows: dict[str, float] = {}

    def add(self, table: str, part: str, samples: Sequence[tuple[Sample, float]]) -> None:
        """Each sample is given with the number of rows that it stands for."""
        self._rows[table] = self._rows.get(table, 0) + sum(rows for _, rows in samples)
        self._found.setdefault(table, []).append((part, [sample for sample, _ in samples]))

    def parts(self, used: int, files: Mapping[str, int]) -> list[StorePart]:
        sizes = self._sizes(used, sum(files.values()))
        samples: dict[str, list[Sample]] = {}
        for table, found in self._found.items():
            units = sum(sample.size for _, of_part in found for sample in of_part)
            times = sizes[table] / units if units else 0
            for part, of_part in found:
                samples.setdefault(part, []).extend(one._replace(size=one.size * times) for one in of_part)
        parts = [
            StorePart(name, sum(one.size for one in of_part), _merged(of_part)) for name, of_part in samples.items()
        ]
        stored, known = sizes.get("file_chunk", 0), sum(files.values())
        parts += [StorePart(name, stored * size / known) for name, size in files.items() if known]
        return [*parts, StorePart(OTHER, max(0.0, used - sum(part.size for part in parts)))]

    def _sizes(self, used: int, files: int) -> dict[str, float]:
        """The bytes of each table that is measured, and of each that is estimated, so that all take what is used."""
        whole: dict[str, float] = {name: one.whole for name, one in self._tables.items() if one.whole is not None}
        estimated = {
            name: self._rows[name] * one.a_row
            for name, one in self._tables.items()
            if one.whole is None and name in self._found
        }
        if "file_chunk" not in whole:
            whole["file_chunk"] = files
        left, total = max(0.0, used - sum(whole.values())), sum(estimated.values())
        fit = min(_FIT, max(1 / _FIT, left / total)) if total else 1.0
        return whole | {name: size * fit for name, size in estimated.items()}


def _merged(samples: Sequence[Sample]) -> list[Sample]:
    """One for each device type and quarter of a day."""
    found: dict[tuple[int, int], float] = {}
    for at_ms, size, device_type in samples:
        key = at_ms // _QUARTER_MS, device_type
        found[key] = found.get(key, 0.0) + size
    return [Sample(at * _QUARTER_MS + _QUARTER_MS // 2, size, type_) for (at, type_), size in found.items()]


def _sampled(db: StoreConnection, log: _Log, now_ms: int) -> Iterator[tuple[Sample, float]]:
    """Rows of places all over the table, the last week by itself: with their texts, and the rows they stand for."""
    ends, week = None, 0
    with suppress(StoreDamagedError):
        # Two queries: SQLite would read all rows for both in one.
        lowest, highest = (
            f"(SELECT {of}({log.key}) FROM {log.table})"  # noqa: S608 - constants
            for of in ("min", "max")
        )
        ends = db.execute(f"SELECT {lowest} AS first, {highest} AS last").one()
        if ends is not None and ends["first"] is not None:
            week = _first_since(db, log, ends["first"], ends["last"] + 1, now_ms - WEEK_MS)
    if not week or ends is None:
        return
    first, behind = int(ends["first"]), int(ends["last"]) + 1
    type_ = f"(SELECT device_type FROM device WHERE device.key = {log.table}.device)" if log.has_device else "0"  # noqa: S608 - as above
    sql = (
        f"SELECT {log.key} AS key, {log.at} AS at, {log.text} AS text, coalesce({type_}, 0) AS type FROM {log.table}"  # noqa: S608 - as above
        f" WHERE {log.key} >= :first AND {log.key} < :behind ORDER BY {log.key} LIMIT {_ROWS}"
    )
    for place in (*_places(first, week, _PLACES), *_places(week, behind, _PLACES)):
        rows = []
        with suppress(StoreDamagedError):
            rows = list(db.execute(sql, {"first": place.start, "behind": place.stop}))
        number = float(len(rows))
        if len(rows) == _ROWS:
            number = min(len(place), len(place) * _ROWS / (rows[-1]["key"] - place.start + 1))
        for row in rows:
            each = number / len(rows)
            yield Sample(row["at"], each * (row["text"] + _ROW_BYTES), row["type"]), each


def _first_since(db: StoreConnection, log: _Log, low: int, high: int, since_ms: int) -> int:
    """The first key that came since then: rows come in the order of their keys, and their time may have no index."""
    sql = f"SELECT {log.at} AS at FROM {log.table} WHERE {log.key} >= :key ORDER BY {log.key} LIMIT 1"  # noqa: S608 - constants
    while low < high:
        middle = (low + high) // 2
        row = db.execute(sql, {"key": middle}).one()
        if row is not None and row["at"] < since_ms:
            low = middle + 1
        else:
            high = middle
    return low


def _places(first: int, behind: int, number: int) -> list[range]:
    """A range in at most this many parts of about the same length."""
    number = min(number, behind - first)
    edges = [first + (behind - first) * place // number for place in range(number + 1)] if number > 0 else []
    return [range(low, high) for low, high in pairwise(edges)]


def _sampled_rollups(db: StoreConnection, now_ms: int) -> dict[str, list[tuple[Sample, float]]]:
    """By part. The devices are spread over all, unless there are few."""
    ends = db.execute("SELECT min(key) AS first, max(key) AS last, count(*) AS number FROM device").one()
    found: dict[str, list[tuple[Sample, float]]] = {MINUTES: [], HOURS: [], DAYS: []}
    if ends is None or not ends["number"]:
        return found
    sql = "SELECT key, device_type FROM device WHERE key >= :first AND key < :behind ORDER BY key LIMIT 1"
    taken = counts = 0
    places = _places(ends["first"], ends["last"] + 1, _DEVICES)
    for number in range(len(places)):  # in an order that covers all of them, should the counts be too many
        place = places[number * 181 % len(places) if len(places) % 181 else number]
        device = db.execute(sql, {"first": place.start, "behind": place.stop}).one()
        if device is None:
            continue
        taken += 1
        for level, samples in _of_device(db, device, now_ms):
            found[_LEVELS[level][0]] += samples
            counts += 1
        if counts >= _COUNTS:
            break
    times = ends["number"] / max(1, taken)
    return {
        part: [(sample._replace(size=sample.size * times), rows * times) for sample, rows in samples]
        for part, samples in found.items()
    }


def _of_device(
    db: StoreConnection, device: Mapping[str, Any], now_ms: int
) -> Iterator[tuple[str, list[tuple[Sample, float]]]]:
    """The level of each field that the device has, with samples."""
    given = {"device": device["key"], "field": 0, "level": ""}
    following = (
        "SELECT field, level, bucket FROM rollup WHERE device = :device AND (field, level) > (:field, :level)"
        " ORDER BY field, level, bucket LIMIT 1"
    )
    while (row := db.execute(following, given).one()) is not None:
        given |= {"field": row["field"], "level": row["level"]}
        ranges = _ranges(row["level"], row["bucket"], now_ms)
        counted = " UNION ALL ".join(
            f"SELECT {number} AS number, count(*) AS rows FROM rollup WHERE device = :device AND field = :field"  # noqa: S608 - numbers
            f" AND level = :level AND bucket >= {one.start} AND bucket < {one.stop}"
            for number, (one, _) in enumerate(ranges)
        )
        samples = []
        for found in db.execute(counted, given):
            one, times = ranges[found["number"]]
            if rows := found["rows"] * times:
                at_ms = (max(one.start, row["bucket"]) + min(one.stop, now_ms)) // 2
                samples.append((Sample(at_ms, rows, device["device_type"]), rows))
        yield row["level"], samples


def _ranges(level: str, first_ms: int, now_ms: int) -> list[tuple[range, float]]:
    """Times to count in, and how often each is there: of each day of the last week, and places in what came before."""
    window, week = _LEVELS[level][1], now_ms - WEEK_MS
    if first_ms > now_ms - 2 * DAY_MS:
        return [(range(first_ms, now_ms + DAY_MS), 1.0)]
    recent = []
    for day in range(7):
        length = min(window, DAY_MS)
        start = week + day * DAY_MS + day * length % DAY_MS  # another time of each day
        recent.append((range(start, start + length), DAY_MS / length))
    older = []
    for place in _places(first_ms, week, _PLACES_OF_LEVEL):
        length = min(window, len(place))
        middle = (place.start + place.stop - length) // 2
        older.append((range(middle, middle + length), len(place) / length))
    return [*older, *recent]


def _files(db: StoreConnection) -> dict[str, int]:
    """The bytes of files by part."""
    found: dict[str, int] = {}
    for row in db.execute("SELECT name, size FROM file"):
        part = _PART_OF_FILE.get(str(row["name"] or "").partition("/")[0], OTHER)
        found[part] = found.get(part, 0) + row["size"]
    found.pop(OTHER, None)
    return found
