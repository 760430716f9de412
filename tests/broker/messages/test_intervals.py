"""Time buckets in UTC, and covering a range with few rollups."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.messages.intervals import (
    DAY_MS,
    HOUR_MS,
    LAST_MS,
    MINUTE_MS,
    Interval,
    Kept,
    LocalInterval,
    spans,
    spans_of,
)
from storage.keys import Milliseconds

WIDTHS = {Interval.MINUTE: MINUTE_MS, Interval.HOUR: HOUR_MS, Interval.DAY: DAY_MS}


@pytest.mark.parametrize(
    ("interval", "start"),
    [
        (Interval.MINUTE, "2024-02-29T23:59"),
        (Interval.HOUR, "2024-02-29T23:00"),
        (Interval.DAY, "2024-02-29"),
        (Interval.MONTH, "2024-02-01"),
        (Interval.YEAR, "2024-01-01"),
    ],
)
def test_start_of(interval: Interval, start: str) -> None:
    ts = int(datetime(2024, 2, 29, 23, 59, 30, 500_000, tzinfo=UTC).timestamp() * 1000)
    assert interval.start_of(ts) == datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp() * 1000


@pytest.mark.parametrize("interval", Interval)
def test_buckets_end_at_the_limits_of_the_calendar(interval: Interval) -> None:
    assert interval.start_of(0) == 0
    assert LAST_MS - interval.start_of(LAST_MS) < 366 * DAY_MS


@given(st.integers(0, LAST_MS), st.sampled_from(list(Interval)))
def test_each_bucket_ends_where_the_next_one_begins(ts: int, interval: Interval) -> None:
    end = interval.end_of(ts)
    assert interval.start_of(ts) <= ts < end
    assert interval.start_of(end - 1) == interval.start_of(ts)
    assert end > LAST_MS or interval.start_of(end) == end


ZONES = ("Europe/Paris", "America/Los_Angeles", "Asia/Kolkata", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia",
         "Asia/Kathmandu", "Africa/Monrovia", "Pacific/Kiritimati", "Atlantic/Azores", "America/Sao_Paulo")  # fmt: skip
_YEAR_2100_MS = 4_102_444_800_000


@given(st.integers(0, _YEAR_2100_MS), st.sampled_from(list(Interval)), st.sampled_from(ZONES))
def test_each_local_bucket_ends_where_the_next_one_begins(ts: int, interval: Interval, zone: str) -> None:
    local = LocalInterval(interval, ZoneInfo(zone))
    start, end = local.start_of(ts), local.end_of(ts)
    assert start <= ts < end
    assert start % MINUTE_MS == end % MINUTE_MS == 0
    for moment in (start, end - 1):
        assert (local.start_of(moment), local.end_of(moment)) == (start, end)
    assert local.start_of(end) == end
    assert interval is Interval.YEAR or local.end_of(end) - end <= 32 * DAY_MS


@pytest.mark.parametrize(
    ("zone", "interval", "moment", "start", "hours"),
    [
        ("Europe/Paris", Interval.DAY, "2026-10-25T12:00+01:00", "2026-10-25T00:00+02:00", 25),
        ("Europe/Paris", Interval.DAY, "2026-03-29T12:00+02:00", "2026-03-29T00:00+01:00", 23),
        ("Europe/Paris", Interval.MONTH, "2026-10-25T12:00+01:00", "2026-10-01T00:00+02:00", 31 * 24 + 1),
        ("America/Los_Angeles", Interval.DAY, "2026-10-26T03:00+00:00", "2026-10-25T00:00-07:00", 24),
        ("Asia/Kolkata", Interval.HOUR, "2026-10-26T03:40+00:00", "2026-10-26T09:00+05:30", 1),
        ("Australia/Lord_Howe", Interval.DAY, "2026-04-05T12:00+10:30", "2026-04-05T00:00+11:00", 24.5),
        ("America/Havana", Interval.DAY, "2026-11-01T12:00-05:00", "2026-11-01T00:00-04:00", 25),
        ("Africa/Cairo", Interval.DAY, "2026-04-24T12:00+03:00", "2026-04-24T01:00+03:00", 23),
    ],
)
def test_local_buckets_are_those_of_the_calendar(
    zone: str, interval: Interval, moment: str, start: str, hours: float
) -> None:
    ts, expected = (round(datetime.fromisoformat(one).timestamp() * 1000) for one in (moment, start))
    local = LocalInterval(interval, ZoneInfo(zone))
    assert (local.start_of(ts), local.end_of(ts)) == (expected, expected + hours * HOUR_MS)


@given(
    st.integers(0, _YEAR_2100_MS // MINUTE_MS).map(lambda number: number * MINUTE_MS),
    st.integers(0, 40 * 1440).map(lambda number: number * MINUTE_MS),
    st.sampled_from([Interval.HOUR, Interval.DAY, Interval.MONTH]),
    st.sampled_from(ZONES),
)
def test_local_spans_cover_the_range_once_and_never_two_buckets(
    start: int, length: int, interval: Interval, zone: str
) -> None:
    local, place = LocalInterval(interval, ZoneInfo(zone)), start
    for span in spans_of(local, Milliseconds(start), Milliseconds(start + length), Kept(10**15, 10**15), 0):
        assert span.start_ms == place
        width = WIDTHS[span.level]
        for row in range(span.start_ms, span.end_ms, width):
            assert local.end_of(row) >= row + width
        place = span.end_ms
    assert place == start + length


minutes = st.integers(0, 100 * 1440).map(lambda number: number * MINUTE_MS)


@given(minutes, minutes, st.sampled_from(list(Interval)))
def test_spans_cover_the_range_once_and_nothing_else(start: int, end: int, coarsest: Interval) -> None:
    found = list(spans(Milliseconds(start), Milliseconds(end), coarsest))
    place = start
    for span in found:
        width = WIDTHS[span.level]
        assert span.start_ms == place
        assert span.start_ms < span.end_ms
        assert span.start_ms % width == span.end_ms % width == 0
        assert width <= WIDTHS.get(coarsest, DAY_MS)
        place = span.end_ms
    assert place == max(start, end)
    if coarsest in {Interval.DAY, Interval.MONTH, Interval.YEAR}:
        rows = sum((span.end_ms - span.start_ms) // WIDTHS[span.level] for span in found)
        assert rows <= max(0, end - start) // DAY_MS + 2 * (59 + 23)
