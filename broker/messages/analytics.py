"""Aggregates, histogram and presence of intervals (reference 9.5).

Answers are exact at any position of the projections: rollups cover the projected messages, the others are read from the
log in the same transaction. Only messages whose `ts` is at least a minute old count, so the minute in which this limit
falls is read from the log, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from broker.clock import Clock
from broker.device_types.manifest import ValueClass
from broker.devices.registry import Device
from broker.errors import INVALID, NUMERIC_ONLY, ValidationFailed, too_high, too_low
from broker.messages.aggregates import Aggregate, merge_all
from broker.messages.intervals import (
    AGGREGATES_RANGE_MS,
    HISTOGRAM_RANGE_MS,
    LAST_MS,
    MINUTE_MS,
    PRESENCE_RANGE_MS,
    Interval,
    Span,
    spans,
)
from broker.messages.projections import Decoded, decoded, unprojected
from broker.messages.rollups import EVERY_MESSAGE, aggregate_of, collect
from storage.database import Database, Transaction
from storage.keys import DeviceKey, Milliseconds
from storage.messages import Match, Range

SETTLED_MS = MINUTE_MS
_NUMERIC = {ValueClass.INTEGER, ValueClass.LONG, ValueClass.FLOAT, ValueClass.DOUBLE}


@dataclass(frozen=True, slots=True)
class AggregatesAnswer:
    """`aggregate` is None when no message of the range has the field."""

    start_ms: Milliseconds
    end_ms: Milliseconds
    aggregate: Aggregate | None


@dataclass(frozen=True, slots=True)
class HistogramAnswer:
    start_ms: Milliseconds
    end_ms: Milliseconds
    buckets: tuple[tuple[int, Aggregate], ...]  # start (ms) and summary of each bucket that is not empty


@dataclass(frozen=True, slots=True)
class PresenceAnswer:
    start_ms: Milliseconds
    end_ms: Milliseconds
    buckets: tuple[int, ...]  # the start (ms) of each interval with a message


class Analytics:
    """Callers check permissions: pass only devices that the caller may read."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def aggregates(
        self, device: Device, field: str, *, start_ms: Milliseconds, end_ms: Milliseconds
    ) -> AggregatesAnswer:
        """One summary of a numeric field. Raises ValidationFailed naming `field`, `startDate` or `endDate`."""
        _check_numeric(device, field)
        _check_range(start_ms, end_ms, AGGREGATES_RANGE_MS)
        start_ms, end_ms = Interval.MINUTE.start_of(start_ms), Interval.MINUTE.start_of(end_ms)
        buckets = await self._buckets(device, field, Interval.DAY, start_ms, end_ms)
        return AggregatesAnswer(start_ms, end_ms, merge_all(aggregate for _, aggregate in buckets))

    async def histogram(
        self, device: Device, field: str, interval: Interval, *, start_ms: Milliseconds, end_ms: Milliseconds
    ) -> HistogramAnswer:
        """A summary of a numeric field for each interval. Raises ValidationFailed as `aggregates` does."""
        _check_numeric(device, field)
        _check_range(start_ms, end_ms, HISTOGRAM_RANGE_MS[interval])
        start_ms, end_ms = interval.start_of(start_ms), interval.start_of(end_ms)
        found: dict[int, Aggregate] = {}
        for bucket_ms, aggregate in await self._buckets(device, field, interval, start_ms, end_ms):
            start = interval.start_of(bucket_ms)
            found[start] = found[start].merged(aggregate) if start in found else aggregate
        return HistogramAnswer(start_ms, end_ms, tuple(sorted(found.items())))

    async def presence(
        self,
        devices: Sequence[Device],
        interval: Interval,
        *,
        field: str | None,
        start_ms: Milliseconds,
        end_ms: Milliseconds,
    ) -> PresenceAnswer:
        """The intervals with a message of any of the devices, or with a message that has the field.

        Raises ValidationFailed naming `fieldPresence`, `startDate` or `endDate`.
        """
        if field is not None and devices and not any(_declares(device, field) for device in devices):
            raise ValidationFailed.of("fieldPresence", INVALID)
        _check_range(start_ms, end_ms, PRESENCE_RANGE_MS[interval])
        start_ms, end_ms = interval.start_of(start_ms), interval.start_of(end_ms)
        looked_at = _LookedAt.of(self._settled_ms(), interval, start_ms, end_ms)
        keys = [device.key for device in devices]
        found = await self._database.read(lambda tx: _Presence(tx, keys, field, interval).of(looked_at))
        return PresenceAnswer(start_ms, end_ms, tuple(sorted(found)))

    def _settled_ms(self) -> Milliseconds:
        """Messages up to this moment count."""
        return Milliseconds(self._clock.now_ms() - SETTLED_MS)

    async def _buckets(
        self, device: Device, field: str, coarsest: Interval, start_ms: Milliseconds, end_ms: Milliseconds
    ) -> list["_Bucket"]:
        looked_at = _LookedAt.of(self._settled_ms(), coarsest, start_ms, end_ms)
        return await self._database.read(lambda tx: list(_buckets(tx, device.key, field, looked_at)))


@dataclass(frozen=True, slots=True)
class _LookedAt:
    """How a time range is read: whole buckets from rollups, then the minute in which the limit falls from the log.

    The rollup of that minute contains messages that do not count yet.
    """

    spans: tuple[Span, ...]
    minute: Range | None

    @classmethod
    def of(
        cls, settled_ms: Milliseconds, coarsest: Interval, start_ms: Milliseconds, end_ms: Milliseconds
    ) -> "_LookedAt":
        cut = max(start_ms, min(end_ms, Interval.MINUTE.start_of(settled_ms)))
        minute = Range(cut, settled_ms) if cut <= settled_ms and cut < end_ms else None
        return cls(tuple(spans(start_ms, cut, coarsest)), minute)


_Bucket = tuple[int, Aggregate]  # start (ms), summary


def _buckets(tx: Transaction, device: DeviceKey, field: str, looked_at: _LookedAt) -> Iterator[_Bucket]:
    """Every bucket with numbers, then the messages that are not projected yet, then the part of a minute at the end."""
    covered = looked_at.spans
    if (key := tx.rollups.field_key(field)) is not None:
        for span in covered:
            for row in tx.rollups.range(device, key, span.level, start_ms=span.start_ms, end_ms=span.end_ms):
                if (aggregate := aggregate_of(row)) is not None:
                    yield row.bucket, aggregate
    if covered:
        yield from _collected(unprojected(tx, [device], start_ms=covered[0].start_ms, end_ms=covered[-1].end_ms), field)
    if looked_at.minute is not None:
        yield from _collected(decoded(tx.messages.page([device], looked_at.minute)), field)


def _collected(rows: Decoded, field: str) -> Iterator[_Bucket]:
    for (_, path, minute), cell in collect(rows).items():
        if path == field and cell.values:
            yield minute, Aggregate.of(cell.values)


class _Presence:
    """The intervals with a message of any device. An interval that is known to have one is not searched again.

    So many devices cost little more than the busiest of them; silent devices cost one search of each span.
    """

    def __init__(self, tx: Transaction, devices: Sequence[DeviceKey], field: str | None, interval: Interval) -> None:
        self._tx = tx
        self._devices = devices
        self._field = field
        self._interval = interval
        self._found: set[int] = set()

    def of(self, looked_at: _LookedAt) -> set[int]:
        fields = self._tx.rollups.fields_at(self._field or EVERY_MESSAGE) if looked_at.spans else ()
        for span in looked_at.spans:
            start = span.start_ms
            for device, key in product(self._devices, fields):
                if (start := self._unknown_from(start)) >= span.end_ms:
                    break
                self._look(device, key, replace(span, start_ms=start))
        if looked_at.spans:
            self._look_at_unprojected(looked_at.spans[0].start_ms, looked_at.spans[-1].end_ms)
        if looked_at.minute is not None:
            self._look_at_minute(looked_at.minute)
        return self._found

    def _look(self, device: DeviceKey, field: int, span: Span) -> None:
        start = span.start_ms
        while start < span.end_ms:
            found = self._tx.rollups.first(device, field, span.level, start_ms=start, end_ms=span.end_ms)
            if found is None:
                return
            self._found.add(self._interval.start_of(found))
            start = self._unknown_from(found)

    def _unknown_from(self, ts: Milliseconds) -> Milliseconds:
        """The start of the first interval, from `ts` on, that is not known to have a message."""
        while self._interval.start_of(ts) in self._found:
            ts = self._interval.end_of(ts)
        return ts

    def _look_at_unprojected(self, start_ms: Milliseconds, end_ms: Milliseconds) -> None:
        start_ms = self._unknown_from(start_ms)
        if start_ms < end_ms:
            for row, fields in unprojected(self._tx, self._devices, start_ms=start_ms, end_ms=end_ms):
                if self._field is None or any(_is_at(self._field, path) for path in fields):
                    self._found.add(self._interval.start_of(row.ts))

    def _look_at_minute(self, minute: Range) -> None:
        start = self._interval.start_of(minute.start_ms or 0)
        one = replace(minute, match=Match(self._field), limit=1)
        if start not in self._found and any(self._tx.messages.page([device], one) for device in self._devices):
            self._found.add(start)


def _is_at(path: str, leaf: str) -> bool:
    """Whether the leaf is the field at the path, or is in the group at the path."""
    return leaf == path or leaf.startswith(f"{path}.")


def _declares(device: Device, path: str) -> bool:
    """Whether the device's Manifest has a field or a group at the path."""
    return any(_is_at(path, leaf) for leaf in device.manifest.manifest.leaves)


def _check_numeric(device: Device, path: str) -> None:
    if not _declares(device, path):
        raise ValidationFailed.of("field", INVALID)
    field = device.manifest.manifest.field_at(path)
    if field is None or field.value_class not in _NUMERIC or field.is_collection:
        raise ValidationFailed.of("field", NUMERIC_ONLY)


def _check_range(start_ms: Milliseconds, end_ms: Milliseconds, longest_ms: int) -> None:
    for name, value in (("startDate", start_ms), ("endDate", end_ms)):
        if value < 0:
            raise ValidationFailed.of(name, too_low(0))
        if value > LAST_MS:
            raise ValidationFailed.of(name, too_high(LAST_MS))
    if start_ms > end_ms:
        raise ValidationFailed.of("startDate", INVALID)
    if end_ms - start_ms > longest_ms:
        raise ValidationFailed.of("endDate", INVALID)
