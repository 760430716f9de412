"""Aggregates, histogram and presence of intervals (reference 9.5).

Answers are exact at any moment: what is in memory is merged with the rollups, and messages that came since
are read from the log in the same transaction. Only messages whose `ts` is at least a minute old count, so the minute in
which this limit falls is read from the log, too.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import product
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from broker.clock import Clock
from broker.device_types.manifest import ValueClass
from broker.devices.registry import Device
from broker.errors import NUMERIC_ONLY, ValidationFailed, invalid, too_high, too_low
from broker.messages.aggregates import Aggregate, merge_all
from broker.messages.decoding import Decoded, decoded
from broker.messages.folds import Unsaved, open_buckets
from broker.messages.heavy_reads import HeavyReads
from broker.messages.intervals import (
    AGGREGATES_RANGE_MS,
    DAY_MS,
    HISTOGRAM_RANGE_MS,
    HOUR_MS,
    LAST_MS,
    MINUTE_MS,
    PRESENCE_RANGE_MS,
    Interval,
    Kept,
    LocalInterval,
    Span,
    spans,
    spans_of,
)
from broker.messages.projections import Projector
from broker.messages.rollups import EVERY_MESSAGE, Buckets, Cells, aggregate_of, collect
from storage.keys import DeviceKey, Milliseconds, Position
from storage.message_searches import FieldMatch, Range
from storage.transaction import Transaction

SETTLED_MS = MINUTE_MS
_NUMERIC = {ValueClass.INTEGER, ValueClass.LONG, ValueClass.FLOAT, ValueClass.DOUBLE}


class AggregatesAnswer(msgspec.Struct, frozen=True):
    """`aggregate` is None when no message of the range has the field."""

    start_ms: Milliseconds
    end_ms: Milliseconds
    aggregate: Aggregate | None


class HistogramAnswer(msgspec.Struct, frozen=True):
    start_ms: Milliseconds
    end_ms: Milliseconds
    buckets: tuple[tuple[int, Aggregate], ...]  # start (ms) and summary of each bucket that is not empty


class PresenceAnswer(msgspec.Struct, frozen=True):
    start_ms: Milliseconds
    end_ms: Milliseconds
    buckets: tuple[int, ...]  # the start (ms) of each interval with a message


class Analytics:
    """Callers check permissions: pass only devices that the caller may read."""

    def __init__(self, heavy_reads: HeavyReads, clock: Clock, projector: Projector, kept: Kept) -> None:
        self._heavy_reads = heavy_reads
        self._clock = clock
        self._projector = projector
        self._kept = kept

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
        self,
        device: Device,
        field: str,
        interval: Interval,
        *,
        start_ms: Milliseconds,
        end_ms: Milliseconds,
        zone: ZoneInfo | None = None,
    ) -> HistogramAnswer:
        """A summary of a numeric field for each interval, as the clocks of a time zone have it, by default UTC.

        Raises ValidationFailed as `aggregates` does.
        """
        _check_numeric(device, field)
        division = _division(interval, zone)
        _check_range(start_ms, end_ms, HISTOGRAM_RANGE_MS[interval], division)
        start_ms, end_ms = division.start_of(start_ms), division.start_of(end_ms)
        found: dict[int, Aggregate] = {}
        for bucket_ms, aggregate in await self._buckets(device, field, division, start_ms, end_ms):
            start = division.start_of(bucket_ms)
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
        zone: ZoneInfo | None = None,
    ) -> PresenceAnswer:
        """The intervals with a message of any of the devices, or with a message that has the field; zones as above.

        Raises ValidationFailed naming `fieldPresence`, `startDate` or `endDate`.
        """
        if field is not None and devices and not any(_declares(device, field) for device in devices):
            raise ValidationFailed.of("fieldPresence", invalid("is no field of the devices"))
        division = _division(interval, zone)
        _check_range(start_ms, end_ms, PRESENCE_RANGE_MS[interval], division)
        start_ms, end_ms = division.start_of(start_ms), division.start_of(end_ms)
        looked_at = _LookedAt.of(self._settled_ms(), division, start_ms, end_ms, self._kept)
        keys = [device.key for device in devices]
        held = self._held(keys)
        found = await self._heavy_reads.read(
            lambda tx: _Presence(_Sight(tx, held), keys, field, division).of(looked_at)
        )
        return PresenceAnswer(start_ms, end_ms, tuple(sorted(found)))

    def _settled_ms(self) -> Milliseconds:
        """Messages up to this moment count."""
        return Milliseconds(self._clock.now_ms() - SETTLED_MS)

    async def _buckets(
        self,
        device: Device,
        field: str,
        coarsest: Interval | LocalInterval,
        start_ms: Milliseconds,
        end_ms: Milliseconds,
    ) -> list["_Bucket"]:
        looked_at = _LookedAt.of(self._settled_ms(), coarsest, start_ms, end_ms, self._kept)
        held = self._held([device.key])
        return await self._heavy_reads.read(lambda tx: list(_buckets(_Sight(tx, held), device.key, field, looked_at)))

    def _held(self, devices: Sequence[DeviceKey]) -> "_Held":
        return _Held(*self._projector.captured(devices))


class _LookedAt(msgspec.Struct, frozen=True):
    """How a time range is read: whole buckets from rollups, then the minute in which the limit falls from the log.

    The rollup of that minute contains messages that do not count yet.
    """

    spans: tuple[Span, ...]
    minute: Range | None

    @classmethod
    def of(
        cls,
        settled_ms: Milliseconds,
        coarsest: Interval | LocalInterval,
        start_ms: Milliseconds,
        end_ms: Milliseconds,
        kept: Kept,
    ) -> "_LookedAt":
        cut = max(start_ms, min(end_ms, Interval.MINUTE.start_of(settled_ms)))
        minute = Range(cut, settled_ms) if cut <= settled_ms and cut < end_ms else None
        if isinstance(coarsest, Interval):
            return cls(tuple(spans(start_ms, cut, coarsest)), minute)
        return cls(tuple(spans_of(coarsest, start_ms, cut, kept, settled_ms)), minute)


class _Held(msgspec.Struct, frozen=True):
    """State in memory when it covered every row up to `position`. For other devices the store is complete."""

    position: Position
    of: Mapping[DeviceKey, Unsaved]


class _Sight:
    """Rollups of the store, those in memory, and messages that came since, all as one transaction sees them."""

    def __init__(self, tx: Transaction, held: _Held) -> None:
        self.tx = tx
        self._held = held

    def buckets_of(self, device: DeviceKey) -> tuple[Buckets, Buckets]:
        """Buckets that replace those of the rollups, and buckets that are added to them."""
        saved, held = self.tx.snapshots.of(device), self._held.of.get(device)
        if held is None or (saved is not None and saved.position >= held.position):
            return open_buckets(saved), {}  # the state in memory, if any, has been written since
        return held.whole, held.more

    def rows_since(self, devices: Sequence[DeviceKey], spans: Sequence[Span]) -> Decoded:
        """Messages of this time that are in no bucket."""
        start_ms, end_ms = spans[0].start_ms, spans[-1].end_ms
        rows = self.tx.message_searches.after_of(devices, self._held.position)
        found = [row for row in rows if start_ms <= row.ts < end_ms]
        written = self._written({row.device for row in found})
        return decoded([row for row in found if row.position > written[row.device]])

    def _written(self, devices: Collection[DeviceKey]) -> dict[DeviceKey, Position]:
        saved, held = self.tx.snapshots.of_all(devices), self._held.of
        return {
            device: max(Position(0) if one is None else one.position for one in (saved.get(device), held.get(device)))
            for device in devices
        }


_Bucket = tuple[int, Aggregate]  # start (ms), summary


def _buckets(sight: _Sight, device: DeviceKey, field: str, looked_at: _LookedAt) -> Iterator[_Bucket]:
    """Every bucket with numbers, then the messages that are in none yet, then the part of a minute at the end."""
    covered = looked_at.spans
    if covered:
        whole, more = sight.buckets_of(device)
        yield from _stored(sight.tx, device, field, covered, whole)
        for buckets in (whole, more):
            for start, cells in _within(buckets, covered):
                if field in cells and (numbers := cells[field].numbers) is not None:
                    yield start, numbers
        yield from _collected(sight.rows_since([device], covered), field)
    if looked_at.minute is not None:
        yield from _collected(decoded(sight.tx.message_searches.page([device], looked_at.minute)), field)


def _stored(
    tx: Transaction, device: DeviceKey, field: str, covered: Sequence[Span], replaced: Buckets
) -> Iterator[_Bucket]:
    if (key := tx.rollups.field_key(field)) is None:
        return
    for span in covered:
        for row in tx.rollups.range(device, key, span.level, start_ms=span.start_ms, end_ms=span.end_ms):
            if (span.level, row.bucket) not in replaced and (aggregate := aggregate_of(row)) is not None:
                yield row.bucket, aggregate


def _within(buckets: Buckets, covered: Sequence[Span]) -> Iterator[tuple[int, Cells]]:
    for (level, start), cells in buckets.items():
        if any(span.level is level and span.start_ms <= start < span.end_ms for span in covered):
            yield start, cells


def _collected(rows: Decoded, field: str) -> Iterator[_Bucket]:
    for minute, values in collect(rows).items():
        if field in values and (numbers := values[field].numbers):
            yield minute, Aggregate.of(numbers)


class _Presence:
    """The intervals with a message of any device. An interval that is known to have one is not searched again.

    Many devices cost little more than the busiest of them; silent devices cost one search of each span.
    """

    def __init__(
        self, sight: _Sight, devices: Sequence[DeviceKey], field: str | None, interval: Interval | LocalInterval
    ) -> None:
        self._sight = sight
        self._tx = sight.tx
        self._devices = devices
        self._field = field
        self._interval = interval
        self._found: set[int] = set()

    def of(self, looked_at: _LookedAt) -> set[int]:
        if looked_at.spans:
            for device in self._devices:
                self._look_at_memory(device, looked_at.spans)
        fields = self._tx.rollups.fields_at(self._field or EVERY_MESSAGE) if looked_at.spans else ()
        for span in looked_at.spans:
            start = span.start_ms
            for device, key in product(self._devices, fields):
                if (start := self._unknown_from(start)) >= span.end_ms:
                    break
                self._look(device, key, replace(span, start_ms=start))
        if looked_at.spans:
            self._look_at_rows(looked_at.spans)
        if looked_at.minute is not None:
            self._look_at_minute(looked_at.minute)
        return self._found

    def _look_at_memory(self, device: DeviceKey, covered: Sequence[Span]) -> None:
        for buckets in self._sight.buckets_of(device):
            for start, cells in _within(buckets, covered):
                if self._field is None or any(_is_at(self._field, path) for path in cells):
                    self._found.add(self._interval.start_of(start))

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

    def _look_at_rows(self, covered: Sequence[Span]) -> None:
        if self._unknown_from(covered[0].start_ms) < covered[-1].end_ms:
            for row, fields in self._sight.rows_since(self._devices, covered):
                if self._field is None or any(_is_at(self._field, path) for path in fields):
                    self._found.add(self._interval.start_of(row.ts))

    def _look_at_minute(self, minute: Range) -> None:
        start = self._interval.start_of(minute.start_ms or 0)
        one = replace(minute, match=FieldMatch(self._field), limit=1)
        if start not in self._found and any(self._tx.message_searches.page([device], one) for device in self._devices):
            self._found.add(start)


def _is_at(path: str, leaf: str) -> bool:
    """Whether the leaf is the field at the path, or is in the group at the path."""
    return leaf == path or leaf.startswith(f"{path}.")


def _declares(device: Device, path: str) -> bool:
    """Whether the device's Manifest has a field or a group at the path."""
    return any(_is_at(path, leaf) for leaf in device.manifest.manifest.leaves)


def _check_numeric(device: Device, path: str) -> None:
    if not _declares(device, path):
        raise ValidationFailed.of("field", invalid("is no field of the device"))
    field = device.manifest.manifest.field_at(path)
    if field is None or field.value_class not in _NUMERIC or field.is_collection:
        raise ValidationFailed.of("field", NUMERIC_ONLY)


def _division(interval: Interval, zone: ZoneInfo | None) -> Interval | LocalInterval:
    return interval if zone is None or interval is Interval.MINUTE else LocalInterval(interval, zone)


def _check_range(
    start_ms: Milliseconds, end_ms: Milliseconds, longest_ms: int, division: Interval | LocalInterval = Interval.MINUTE
) -> None:
    """With a time zone, a range may be too long because the clock went back in it, but not by the clock."""
    for name, value in (("startDate", start_ms), ("endDate", end_ms)):
        if value < 0:
            raise ValidationFailed.of(name, too_low(0))
        if value > LAST_MS:
            raise ValidationFailed.of(name, too_high(LAST_MS))
    if start_ms > end_ms:
        raise ValidationFailed.of("startDate", invalid("must not be after endDate"))
    length, longest = timedelta(milliseconds=end_ms - start_ms), timedelta(milliseconds=longest_ms)
    if isinstance(division, LocalInterval):
        length = min(length, division.local(end_ms) - division.local(start_ms))
    if length > longest:
        bound = f"{longest_ms // DAY_MS} days" if longest_ms > DAY_MS else f"{longest_ms // HOUR_MS} hours"
        raise ValidationFailed.of("endDate", invalid(f"must be at most {bound} after startDate"))
