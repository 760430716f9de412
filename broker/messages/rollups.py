"""Rollups: what analytics read instead of messages. Per device, field and minute, and above them per hour and day."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import partial
from typing import Any

from broker.messages.aggregates import Aggregate, Number, merge_all
from broker.messages.consumers import Decoded, Save
from broker.messages.intervals import Interval
from storage.database import Transaction
from storage.records import RollupRow

LEVELS = (Interval.MINUTE, Interval.HOUR, Interval.DAY)
#: The field that every message has: it counts messages.
EVERY_MESSAGE = ""

_Place = tuple[int, str, int]  # device, field path, minute


@dataclass(slots=True)
class Cell:
    """What some messages say about one field in one minute."""

    count: int = 0  # messages that have the field
    values: list[Number] = dataclass_field(default_factory=list)

    def add(self, value: object) -> None:
        self.count += 1
        if type(value) is int or type(value) is float:
            self.values.append(value)


class Rollups:
    """A fold: it adds each message to the buckets its `ts` falls into, in whatever order messages come."""

    def fold(self, tx: Transaction, rows: Decoded) -> Save:
        del tx  # buckets are read where they are written
        return partial(_add, collect(rows))


def collect(rows: Decoded) -> dict[_Place, Cell]:
    cells: dict[_Place, Cell] = defaultdict(Cell)
    for row, data in rows:
        minute = Interval.MINUTE.start_of(row.ts)
        cells[row.device, EVERY_MESSAGE, minute].count += 1
        for path, value in leaves(data):
            cells[row.device, path, minute].add(value)
    return cells


def leaves(group: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of normalised data by its dotted path; a collection is one field."""
    for name, value in group.items():
        if type(value) is dict:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def aggregate_of(row: RollupRow) -> Aggregate | None:
    """The numbers of a bucket; None when there are none."""
    if row.min is None or row.max is None or row.sum is None or row.mean_high is None or row.m2 is None:
        return None
    return Aggregate(row.numbers, row.min, row.max, row.sum, row.mean_high, row.mean_low or 0.0, row.m2)


def _add(cells: Mapping[_Place, Cell], tx: Transaction) -> None:
    keys = tx.rollups.field_keys({path for _, path, _ in cells})
    fresh: dict[tuple[int, int, Interval, int], tuple[int, Aggregate | None]] = {}
    for (device, path, minute), cell in cells.items():
        aggregate = Aggregate.of(cell.values) if cell.values else None
        for level in LEVELS:
            place = (device, keys[path], level, level.start_of(minute))
            count, known = fresh.get(place, (0, None))
            fresh[place] = count + cell.count, merge_all((known, aggregate))
    for (device, field, level, bucket), (count, aggregate) in fresh.items():
        stored = tx.rollups.get(device, field, level, bucket) or RollupRow(device, field, level, bucket, 0)
        merged = merge_all((aggregate_of(stored), aggregate))
        tx.rollups.put(_row(device, field, level, bucket, stored.count + count, merged))


def _row(device: int, field: int, level: Interval, bucket: int, count: int, of: Aggregate | None) -> RollupRow:
    if of is None:
        return RollupRow(device, field, level, bucket, count)
    return RollupRow(
        device, field, level, bucket, count, of.count, of.min, of.max, of.sum, of.mean_high, of.mean_low, of.m2
    )
