"""Aggregates, histogram and presence of intervals (specification, GET /messages/analytics; compatibility.md 9.5).

Answers are exact whatever the folds have got to: rollups cover what is folded, the rest is read from the log in the
same transaction. Only messages whose `ts` is at least a minute old count, so the minute that this limit cuts through is
read from the log, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker.clock import Clock
from broker.device_types.manifest import ValueClass
from broker.devices.registry import Device
from broker.errors import ValidationFailed
from broker.messages.aggregates import Aggregate, merge_all
from broker.messages.consumers import Decoded, decoded, unfolded
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
from broker.messages.rollups import EVERY_MESSAGE, aggregate_of, collect
from storage.database import Database, Transaction
from storage.messages import Range

SETTLED_MS = MINUTE_MS
_NUMERIC = {ValueClass.INTEGER, ValueClass.LONG, ValueClass.FLOAT, ValueClass.DOUBLE}


@dataclass(frozen=True, slots=True)
class AggregatesAnswer:
    """`aggregate` is None when no message of the range has the field."""

    start_ms: int
    end_ms: int
    aggregate: Aggregate | None


@dataclass(frozen=True, slots=True)
class HistogramAnswer:
    start_ms: int
    end_ms: int
    buckets: tuple[tuple[int, Aggregate], ...]  # where it starts (ms), what is in it; empty ones are left out


@dataclass(frozen=True, slots=True)
class PresenceAnswer:
    start_ms: int
    end_ms: int
    buckets: tuple[int, ...]  # where each interval with a message starts (ms)


class Analytics:
    """Rights are the caller's business: pass only readable devices."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def aggregates(self, device: Device, field: str, *, start_ms: int, end_ms: int) -> AggregatesAnswer:
        """One summary of a numeric field. Raises ValidationFailed naming `field`, `startDate` or `endDate`."""
        _check_numeric(device, field)
        _check_range(start_ms, end_ms, AGGREGATES_RANGE_MS)
        start_ms, end_ms = Interval.MINUTE.start_of(start_ms), Interval.MINUTE.start_of(end_ms)
        buckets = await self._buckets([device], field, Interval.DAY, start_ms, end_ms)
        return AggregatesAnswer(start_ms, end_ms, merge_all(bucket.aggregate for bucket in buckets))

    async def histogram(
        self, device: Device, field: str, interval: Interval, *, start_ms: int, end_ms: int
    ) -> HistogramAnswer:
        """A summary of a numeric field for each interval. Raises ValidationFailed as `aggregates` does."""
        _check_numeric(device, field)
        _check_range(start_ms, end_ms, HISTOGRAM_RANGE_MS[interval])
        start_ms, end_ms = interval.start_of(start_ms), interval.start_of(end_ms)
        found: dict[int, Aggregate] = {}
        for bucket in await self._buckets([device], field, interval, start_ms, end_ms):
            start = interval.start_of(bucket.start_ms)
            if (merged := merge_all((found.get(start), bucket.aggregate))) is not None:
                found[start] = merged
        return HistogramAnswer(start_ms, end_ms, tuple(sorted(found.items())))

    async def presence(
        self, devices: Sequence[Device], interval: Interval, *, field: str | None, start_ms: int, end_ms: int
    ) -> PresenceAnswer:
        """Which intervals hold a message of any of the devices, or one with the field.

        Raises ValidationFailed naming `fieldPresence`, `startDate` or `endDate`.
        """
        if field is not None and devices and not any(_declares(device, field) for device in devices):
            raise ValidationFailed.of("fieldPresence", "Invalid value")
        _check_range(start_ms, end_ms, PRESENCE_RANGE_MS[interval])
        start_ms, end_ms = interval.start_of(start_ms), interval.start_of(end_ms)
        buckets = await self._buckets(devices, field or EVERY_MESSAGE, interval, start_ms, end_ms)
        found = {interval.start_of(bucket.start_ms) for bucket in buckets if bucket.count}
        return PresenceAnswer(start_ms, end_ms, tuple(sorted(found)))

    async def _buckets(
        self, devices: Sequence[Device], field: str, coarsest: Interval, start_ms: int, end_ms: int
    ) -> list["_Bucket"]:
        settled = self._clock.now_ms() - SETTLED_MS
        cut = max(start_ms, min(end_ms, Interval.MINUTE.start_of(settled)))
        covered = tuple(spans(start_ms, cut, coarsest))
        # The minute that the limit cuts through: its rollup has messages that do not count yet.
        partial = (cut, settled) if start_ms <= cut <= settled and cut < end_ms else None
        keys = [device.key for device in devices]
        return await self._database.read(
            lambda tx: [bucket for key in keys for bucket in _read(tx, key, field, covered, partial)]
        )


@dataclass(frozen=True, slots=True)
class _Bucket:
    start_ms: int
    count: int
    aggregate: Aggregate | None


def _read(
    tx: Transaction, device: int, field: str, covered: Sequence[Span], partial: tuple[int, int] | None
) -> list[_Bucket]:
    """Every bucket of the spans, what is not folded yet on top of them, and the part of a minute behind them."""
    buckets: list[_Bucket] = []
    for key in tx.rollups.fields_at(field) if covered else ():
        for span in covered:
            rows = tx.rollups.range(device, key, span.level, start_ms=span.start_ms, end_ms=span.end_ms)
            buckets += [_Bucket(row.bucket, row.count, aggregate_of(row)) for row in rows]
    if covered:
        buckets += _collected(unfolded(tx, device, start_ms=covered[0].start_ms, end_ms=covered[-1].end_ms), field)
    if partial is not None:
        buckets += _collected(decoded(tx.messages.page([device], Range(*partial))), field)
    return buckets


def _collected(rows: Decoded, field: str) -> Iterator[_Bucket]:
    for (_, path, minute), cell in collect(rows).items():
        if path == field or (field and path.startswith(f"{field}.")):
            yield _Bucket(minute, cell.count, Aggregate.of(cell.values) if cell.values else None)


def _declares(device: Device, path: str) -> bool:
    """Whether the device's Manifest has a field or a group at the path."""
    leaves = device.manifest.manifest.leaves
    return path in leaves or any(leaf.startswith(f"{path}.") for leaf in leaves)


def _check_numeric(device: Device, path: str) -> None:
    if not _declares(device, path):
        raise ValidationFailed.of("field", "Invalid value")
    field = device.manifest.manifest.field_at(path)
    if field is None or field.value_class not in _NUMERIC or field.is_collection:
        raise ValidationFailed.of("field", "Numeric field only")


def _check_range(start_ms: int, end_ms: int, longest_ms: int) -> None:
    for name, value in (("startDate", start_ms), ("endDate", end_ms)):
        if value < 0:
            raise ValidationFailed.of(name, "Minimum value 0")
        if value > LAST_MS:
            raise ValidationFailed.of(name, f"Maximum value {LAST_MS}")
    if start_ms > end_ms:
        raise ValidationFailed.of("startDate", "Invalid value")
    if end_ms - start_ms > longest_ms:
        raise ValidationFailed.of("endDate", "Invalid value")
