"""Rollups: summaries per device and field of each minute, hour and day, which analytics read instead of messages."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial

from broker.messages.aggregates import Aggregate, Number, merge_all
from broker.messages.intervals import MINUTE_MS, Interval
from broker.messages.projections import Decoded, SaveProjection
from storage.database import Transaction
from storage.keys import DeviceKey
from storage.records import RollupRow

LEVELS = (Interval.MINUTE, Interval.HOUR, Interval.DAY)
#: The field that stands for the message itself: its count is the number of messages.
EVERY_MESSAGE = ""

_NEW = 0  # stands for the key of a field without a key
_REMEMBERED_BUCKETS = 200_000

_Place = tuple[DeviceKey, str, int]  # device, field path, minute
_Bucket = tuple[DeviceKey, str, Interval, int]  # device, field path, level, start


@dataclass(slots=True)
class Cell:
    """The values of one field in one minute of some messages."""

    count: int = 0  # of messages that have the field
    values: list[Number] = dataclass_field(default_factory=list)

    def add(self, value: object) -> None:
        self.count += 1
        if type(value) is int or type(value) is float:
            self.values.append(value)


class Rollups:
    """A projection that adds each message to the buckets of its `ts`; messages may come in any order.

    Only this class writes rollups, so buckets in use are remembered instead of read again for every step.
    """

    def __init__(self) -> None:
        self._fields: dict[str, int] = {}
        self._buckets: dict[_Bucket, RollupRow] = {}

    def project(self, tx: Transaction, rows: Decoded) -> SaveProjection:
        cells = collect(rows)
        fields = self._keys(tx, {path for _, path, _ in cells})
        changed: dict[_Bucket, RollupRow] = {}
        for (device, path, minute), cell in cells.items():
            aggregate = Aggregate.of(cell.values) if cell.values else None
            for level in LEVELS:
                place = (device, path, level, level.start_of(minute))
                known = changed.get(place) or self._bucket(tx, place, fields.get(path))
                changed[place] = _merged(known, cell.count, aggregate)
        if len(self._buckets) > _REMEMBERED_BUCKETS:
            self._buckets.clear()
        self._buckets.update(changed)
        return partial(self._save, changed)

    def forget(self) -> None:
        """Drop what is remembered: the last step may not have been saved."""
        self._fields.clear()
        self._buckets.clear()

    def _keys(self, tx: Transaction, paths: Iterable[str]) -> dict[str, int]:
        for path in paths:
            if path not in self._fields and (key := tx.rollups.field_key(path)) is not None:
                self._fields[path] = key
        return self._fields

    def _bucket(self, tx: Transaction, place: _Bucket, field: int | None) -> RollupRow:
        device, _, level, start = place
        stored = self._buckets.get(place)
        if stored is None and field is not None:
            stored = tx.rollups.get(device, field, level, start)
        return stored or RollupRow(device, field or _NEW, level, start, 0)

    def _save(self, changed: Mapping[_Bucket, RollupRow], tx: Transaction) -> None:
        for path in {path for (_, path, _, _), row in changed.items() if row.field == _NEW}:
            self._fields[path] = tx.rollups.add_field(path)
        for place, row in changed.items():
            if row.field == _NEW:
                self._buckets[place] = replace(row, field=self._fields[place[1]])
        tx.rollups.put_all(self._buckets[place] for place in changed)


def collect(rows: Decoded) -> dict[_Place, Cell]:
    by_minute: dict[tuple[DeviceKey, int], dict[str, Cell]] = {}
    for row, fields in rows:
        place = (row.device, row.ts - row.ts % MINUTE_MS)
        if (cells := by_minute.get(place)) is None:
            cells = by_minute[place] = defaultdict(Cell)
        cells[EVERY_MESSAGE].count += 1
        for path, value in fields.items():
            cells[path].add(value)
    return {
        (device, path, minute): cell for (device, minute), cells in by_minute.items() for path, cell in cells.items()
    }


def aggregate_of(row: RollupRow) -> Aggregate | None:
    """The summary of a bucket; None for a bucket without numbers."""
    if row.min is None or row.max is None or row.sum is None or row.mean_high is None or row.m2 is None:
        return None
    return Aggregate(row.numbers, row.min, row.max, row.sum, row.mean_high, row.mean_low or 0.0, row.m2)


def _merged(known: RollupRow, count: int, fresh: Aggregate | None) -> RollupRow:
    count += known.count
    of = merge_all((aggregate_of(known), fresh))
    place = (known.device, known.field, known.level, known.bucket)
    if of is None:
        return RollupRow(*place, count)
    return RollupRow(*place, count, of.count, of.min, of.max, of.sum, of.mean_high, of.mean_low, of.m2)
