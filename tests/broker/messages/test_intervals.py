"""Time buckets in UTC, and covering a range with few rollups."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.messages.intervals import DAY_MS, HOUR_MS, LAST_MS, MINUTE_MS, Interval, spans
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
