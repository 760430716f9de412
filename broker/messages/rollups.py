"""Rollups: summaries per device and field of each minute, hour and day, which analytics read instead of messages."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Final

import msgspec

from broker.messages.aggregates import Aggregate, Number, merge_all
from broker.messages.decoding import Decoded
from broker.messages.intervals import DAY_MS, HOUR_MS, MINUTE_MS, Interval
from storage.keys import DeviceKey
from storage.records import RollupRow
from storage.rollups import RollupKey
from storage.transaction import Transaction

#: Each level with the width of its buckets in ms.
LEVELS: Final = ((Interval.MINUTE, MINUTE_MS), (Interval.HOUR, HOUR_MS), (Interval.DAY, DAY_MS))
#: The field that stands for the message itself: its count is the number of messages.
EVERY_MESSAGE: Final = ""


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`count` is the number of messages with the field, `numbers` sums up those in which it is a number."""

    count: int
    numbers: Aggregate | None


Cells = dict[str, Summary]  # by field path
Place = tuple[Interval, int]  # level and start (ms) of a bucket
Buckets = dict[Place, Cells]


@dataclass(slots=True)
class Values:
    """The values of one field in one minute of some messages."""

    count: int = 0  # of messages that have the field
    numbers: list[Number] = dataclass_field(default_factory=list)


Minutes = dict[int, dict[str, Values]]  # by the start of a minute (ms), then by field path


def collect(rows: Decoded) -> Minutes:
    minutes: Minutes = {}
    for row, fields in rows:
        add_row(minutes, row.ts, fields)
    return minutes


def add_row(minutes: Minutes, ts: int, fields: Mapping[str, object]) -> None:
    values = values_in(minutes, ts)
    values[EVERY_MESSAGE].count += 1
    for path, value in fields.items():
        one = values[path]
        one.count += 1
        if type(value) is int or type(value) is float:
            one.numbers.append(value)


def values_in(minutes: Minutes, ts: int) -> dict[str, Values]:
    """The values of the minute of `ts`."""
    minute = ts - ts % MINUTE_MS
    if (values := minutes.get(minute)) is None:
        values = minutes[minute] = defaultdict(Values)
    return values


def summarised(values: Mapping[str, Values]) -> Cells:
    return {
        path: Summary(one.count, Aggregate.of(one.numbers) if one.numbers else None) for path, one in values.items()
    }


def merge_into(cells: Cells, more: Mapping[str, Summary]) -> None:
    for path, summary in more.items():
        known = cells.get(path)
        cells[path] = summary if known is None else _merged(known, summary)


def _merged(one: Summary, other: Summary) -> Summary:
    return Summary(one.count + other.count, merge_all((one.numbers, other.numbers)))


# In the store


def newest_buckets(tx: Transaction, device: DeviceKey) -> dict[Interval, tuple[int, Cells]]:
    """The newest bucket of each level that the store has: its start and what is in it."""
    found: dict[Interval, tuple[int, Cells]] = {}
    for level, _ in reversed(LEVELS):
        if (start := tx.rollups.last(device, EVERY_MESSAGE, level)) is not None:
            cells = {path: summary_of(row) for path, row in tx.rollups.in_bucket(device, level, start)}
            found[level] = start, cells
    return found


class RollupWriter:
    """Writes the buckets of devices. It remembers the keys of fields, when `committed` says that they are durable."""

    def __init__(self) -> None:
        self._keys: dict[str, int] = {}
        self._new: dict[str, int] = {}

    def begin(self) -> None:
        """Forget keys of a transaction before, which was rolled back."""
        self._new.clear()

    def put(self, tx: Transaction, of_devices: Iterable[tuple[DeviceKey, Buckets]]) -> None:
        """Write buckets as they are."""
        of_devices = list(of_devices)
        self._learn(tx, of_devices)
        tx.rollups.put_all([row for device, buckets in of_devices for row in self._rows(device, buckets)])

    def add(self, tx: Transaction, of_devices: Iterable[tuple[DeviceKey, Buckets]]) -> None:
        """Add to the stored values of these buckets."""
        of_devices = list(of_devices)
        self._learn(tx, of_devices)
        stored = tx.rollups.at(
            [
                (device, self._key(path), level, start)
                for device, buckets in of_devices
                for (level, start), cells in buckets.items()
                for path in cells
            ]
        )
        self.put(tx, [(device, self._sums(device, buckets, stored)) for device, buckets in of_devices])

    def _sums(self, device: DeviceKey, buckets: Buckets, stored: Mapping[RollupKey, RollupRow]) -> Buckets:
        merged: Buckets = {}
        for (level, start), cells in buckets.items():
            rows = {path: stored.get((device, self._key(path), level, start)) for path in cells}
            merged[level, start] = {
                path: one if (row := rows[path]) is None else _merged(summary_of(row), one)
                for path, one in cells.items()
            }
        return merged

    def committed(self, is_durable: bool) -> None:
        if is_durable:
            self._keys |= self._new
        self._new.clear()

    def _learn(self, tx: Transaction, of_devices: Iterable[tuple[DeviceKey, Buckets]]) -> None:
        """Have the keys of all fields of these buckets."""
        paths = {path for _, buckets in of_devices for cells in buckets.values() for path in cells}
        if unknown := paths - self._keys.keys() - self._new.keys():
            self._new |= tx.rollups.add_fields(unknown)

    def _key(self, path: str) -> int:
        return self._keys.get(path) or self._new[path]

    def _rows(self, device: DeviceKey, buckets: Buckets) -> Iterator[RollupRow]:
        for (level, start), cells in buckets.items():
            for path, (count, of) in ((path, (one.count, one.numbers)) for path, one in cells.items()):
                key = self._key(path)
                if of is None:
                    yield RollupRow(device, key, level, start, count)
                else:
                    yield RollupRow(
                        device,
                        key,
                        level,
                        start,
                        count,
                        of.count,
                        of.min,
                        of.max,
                        of.sum,
                        of.mean_high,
                        of.mean_low,
                        of.m2,
                    )


def summary_of(row: RollupRow) -> Summary:
    return Summary(row.count, aggregate_of(row))


def aggregate_of(row: RollupRow) -> Aggregate | None:
    """The summary of a bucket; None for a bucket without numbers."""
    if row.min is None or row.max is None or row.sum is None or row.mean_high is None or row.m2 is None:
        return None
    return Aggregate(row.numbers, row.min, row.max, row.sum, row.mean_high, row.mean_low or 0.0, row.m2)
