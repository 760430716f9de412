"""Time buckets from the minute to the year, in UTC, and the longest range of a search for each (reference 9.5)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime
from enum import StrEnum
from itertools import pairwise

from storage.keys import Milliseconds

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
YEAR_MS = 366 * DAY_MS
FIRST_MS = Milliseconds(0)
#: The end of the year 9999, the last year of `datetime`.
LAST_MS = Milliseconds(253_402_300_799_999)


class Interval(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    YEAR = "year"

    def start_of(self, ts: int) -> Milliseconds:
        """The start of the bucket that contains `ts` (ms)."""
        if (width := _FIXED.get(self)) is not None:
            return Milliseconds(ts - ts % width)
        moment = datetime.fromtimestamp(ts // 1000, UTC)
        return _month_ms(moment.year, moment.month if self is Interval.MONTH else 1)

    def end_of(self, ts: int) -> Milliseconds:
        """The end of the bucket that contains `ts` (ms): the start of the next one."""
        if (width := _FIXED.get(self)) is not None:
            return Milliseconds(ts - ts % width + width)
        moment = datetime.fromtimestamp(ts // 1000, UTC)
        if self is Interval.MONTH and moment.month < _MONTHS:
            return _month_ms(moment.year, moment.month + 1)
        return Milliseconds(LAST_MS + 1) if moment.year == MAXYEAR else _month_ms(moment.year + 1, 1)


_FIXED = {Interval.MINUTE: MINUTE_MS, Interval.HOUR: HOUR_MS, Interval.DAY: DAY_MS}
_MONTHS = 12


def _month_ms(year: int, month: int) -> Milliseconds:
    return Milliseconds(int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1000)


#: The longest range of a histogram and of a presence search, in ms.
HISTOGRAM_RANGE_MS = {
    Interval.MINUTE: HOUR_MS,
    Interval.HOUR: DAY_MS,
    Interval.DAY: 31 * DAY_MS,
    Interval.MONTH: YEAR_MS,
    Interval.YEAR: YEAR_MS,
}
PRESENCE_RANGE_MS = HISTOGRAM_RANGE_MS | {Interval.YEAR: 10 * YEAR_MS}
AGGREGATES_RANGE_MS = 31 * DAY_MS


@dataclass(frozen=True, slots=True)
class Span:
    """A run of whole buckets of one rollup level: from `start_ms` up to, not including, `end_ms`."""

    level: Interval
    start_ms: Milliseconds
    end_ms: Milliseconds


def spans(start_ms: Milliseconds, end_ms: Milliseconds, coarsest: Interval = Interval.DAY) -> Iterator[Span]:
    """Cover whole minutes with as few rollup rows as possible: days in the middle, hours and minutes at the edges.

    No row is coarser than `coarsest`; a month or a year consists of days.
    """
    levels = [level for level, width in _FIXED.items() if width <= _FIXED.get(coarsest, DAY_MS)]
    for level, wider in pairwise(levels):
        width = _FIXED[wider]
        edge = min(Milliseconds(-(-start_ms // width) * width), level.start_of(end_ms))
        if start_ms < edge:
            yield Span(level, start_ms, edge)
            start_ms = edge
    for level in reversed(levels):
        edge = level.start_of(end_ms)
        if start_ms < edge:
            yield Span(level, start_ms, edge)
            start_ms = edge
