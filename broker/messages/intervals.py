"""Time buckets from the minute to the year, in UTC or in a time zone, and the longest range of a search for each.

Reference 9.5.
"""

from collections.abc import Iterator
from datetime import MAXYEAR, UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from zoneinfo import ZoneInfo

import msgspec

from storage.keys import Milliseconds

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
YEAR_MS = 366 * DAY_MS
#: Without a setting, rollups of minutes are kept a day longer (broker/messages/rollup_days.py).
MINUTES_KEPT_MS = 399 * DAY_MS
FIRST_MS = Milliseconds(0)
#: The end of the year 9999, the last year of `datetime`.
LAST_MS = Milliseconds(253_402_300_799_999)


class Interval(StrEnum):
    MINUTE = "minute"
    TEN_MINUTES = "tenMinutes"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    YEAR = "year"

    def start_of(self, ts: int) -> Milliseconds:
        """The start of the bucket that contains `ts` (ms)."""
        if (width := _WIDTHS.get(self)) is not None:
            return Milliseconds(ts - ts % width)
        moment = datetime.fromtimestamp(ts // 1000, UTC)
        return _month_ms(moment.year, moment.month if self is Interval.MONTH else 1)

    def end_of(self, ts: int) -> Milliseconds:
        """The end of the bucket that contains `ts` (ms): the start of the next one."""
        if (width := _WIDTHS.get(self)) is not None:
            return Milliseconds(ts - ts % width + width)
        moment = datetime.fromtimestamp(ts // 1000, UTC)
        if self is Interval.MONTH and moment.month < _MONTHS:
            return _month_ms(moment.year, moment.month + 1)
        return Milliseconds(LAST_MS + 1) if moment.year == MAXYEAR else _month_ms(moment.year + 1, 1)


#: The levels of the rollups; ten minutes are made of minutes.
_FIXED = {Interval.MINUTE: MINUTE_MS, Interval.HOUR: HOUR_MS, Interval.DAY: DAY_MS}
_WIDTHS = _FIXED | {Interval.TEN_MINUTES: 10 * MINUTE_MS}
_MONTHS = 12


def _month_ms(year: int, month: int) -> Milliseconds:
    return Milliseconds(int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1000)


class LocalInterval:
    """An interval as the clocks of a time zone have it: a day in it may have 23 or 25 hours.

    Buckets begin at whole minutes of UTC. An hour that the clock shows twice is two buckets.
    """

    def __init__(self, interval: Interval, zone: ZoneInfo) -> None:
        self.interval = interval
        self._zone = zone
        self._known = (0, 0)  # the bucket that was asked for last

    def start_of(self, ts: int) -> Milliseconds:
        return Milliseconds(self._bucket(ts)[0])

    def end_of(self, ts: int) -> Milliseconds:
        return Milliseconds(self._bucket(ts)[1])

    def _bucket(self, ts: int) -> tuple[int, int]:
        start, end = self._known
        if not start <= ts < end:
            self._known = self._by_date(ts) if self.interval in _BY_DATE else self._by_clock(ts)
        return self._known

    def _by_date(self, ts: int) -> tuple[int, int]:
        day = self.local(ts).date()
        if self.interval is Interval.DAY:
            first, following = day, None if day == date.max else day + timedelta(days=1)
        else:
            first = day.replace(day=1, month=day.month if self.interval is Interval.MONTH else 1)
            month = first.month % _MONTHS + 1 if self.interval is Interval.MONTH else 1
            year = first.year + (month == 1)
            following = None if year > MAXYEAR else date(year, month, 1)
        return self._midnight(first), LAST_MS + 1 if following is None else self._midnight(following)

    def _midnight(self, day: date) -> int:
        """The first moment of a local date; of one that the calendar leaves out, that of the next one."""
        moment = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return max(0, int(moment.replace(tzinfo=UTC).timestamp()) * 1000 - _offset_ms(moment))

    def _by_clock(self, ts: int) -> tuple[int, int]:
        """The hour or minute, cut where the clock changes within it."""
        width, offset = _WIDTHS[self.interval], self._offset_ms(ts)
        start = (ts + offset) // width * width - offset
        end = start + width
        if self._offset_ms(start) != offset:
            start = self._change_between(start, ts)
        if self._offset_ms(end - 1) != offset:
            end = self._change_between(ts, end - 1)
        return max(0, start), end

    def _change_between(self, before: int, after: int) -> int:
        """The minute from which on the clock has the offset of `after`."""
        low, high, offset = before // MINUTE_MS, after // MINUTE_MS, self._offset_ms(after)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._offset_ms(middle * MINUTE_MS) == offset else (middle, high)
        return high * MINUTE_MS

    def _offset_ms(self, ts: int) -> int:
        try:
            return _offset_ms(datetime.fromtimestamp(ts // 1000, self._zone))
        except (OverflowError, ValueError):  # beyond the year 9999 there
            return 0

    def local(self, ts: int) -> datetime:
        """The local time at `ts`."""
        return datetime.fromtimestamp(min(ts + self._offset_ms(ts), LAST_MS) // 1000, UTC)


def _offset_ms(moment: datetime) -> int:
    """The distance from UTC, in whole minutes: until 1972, Liberia's had seconds."""
    offset = moment.utcoffset()
    return 0 if offset is None else round(offset.total_seconds() / 60) * MINUTE_MS


_BY_DATE = {Interval.DAY, Interval.MONTH, Interval.YEAR}


#: The longest range of a histogram and of a presence search, in ms.
HISTOGRAM_RANGE_MS = {
    Interval.MINUTE: HOUR_MS,
    Interval.TEN_MINUTES: DAY_MS,
    Interval.HOUR: DAY_MS,
    Interval.DAY: 31 * DAY_MS,
    Interval.MONTH: YEAR_MS,
    Interval.YEAR: YEAR_MS,
}
PRESENCE_RANGE_MS = HISTOGRAM_RANGE_MS | {Interval.YEAR: 10 * YEAR_MS}
AGGREGATES_RANGE_MS = 31 * DAY_MS


class Span(msgspec.Struct, frozen=True):
    """A run of whole buckets of one rollup level: from `start_ms` up to, not including, `end_ms`."""

    level: Interval
    start_ms: Milliseconds
    end_ms: Milliseconds


def spans(start_ms: Milliseconds, end_ms: Milliseconds, coarsest: Interval = Interval.DAY) -> Iterator[Span]:
    """Cover whole minutes with as few rollup rows as possible: days in the middle, hours and minutes at the edges.

    No row is coarser than `coarsest`; a month or a year consists of days.
    """
    levels = [level for level, width in _FIXED.items() if width <= _WIDTHS.get(coarsest, DAY_MS)]
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


class Kept(msgspec.Struct, frozen=True):
    """How old the rollups of a level are at most, in milliseconds."""

    minutes_ms: int
    hours_ms: int


def spans_of(
    buckets: LocalInterval, start_ms: Milliseconds, end_ms: Milliseconds, kept: Kept, now_ms: int
) -> Iterator[Span]:
    """Cover whole minutes so that no row is in two of the buckets.

    Rollups of minutes are not kept as long as those of hours, and hours not always as long as days. Where there are no
    minutes any more, an hour belongs to the bucket in which it begins; where there are no hours, a day.
    """
    start = start_ms
    while start < end_ms:
        end = min(buckets.end_of(start), end_ms)
        low, high = (_readable(edge, kept, now_ms) for edge in (start, end))
        yield from spans(low, high, buckets.interval)
        start = end


def _readable(edge: Milliseconds, kept: Kept, now_ms: int) -> Milliseconds:
    """The first edge, from this one on, that a bucket of a level has that is still there."""
    if edge >= now_ms - kept.minutes_ms:
        return edge
    width = HOUR_MS if edge >= now_ms - kept.hours_ms else DAY_MS
    return Milliseconds(-(-edge // width) * width)
