"""Counters of days and months while the clock is set there and back (reference 27.7)."""

from broker.limits.periods import PeriodUsage, utc_day
from storage.records import TallyRecord
from tests.factories import NOW_MS

DAY_MS = 86_400_000


def at(tally: PeriodUsage, now_ms: int, used: int = 0) -> int:
    """The counted use at this time, after `used` more."""
    if not tally.since_ms <= now_ms < tally.until_ms:
        tally.turn(now_ms)
    tally.used += used
    return tally.used


def test_a_jump_there_and_back_gives_nothing() -> None:
    tally = PeriodUsage("a", utc_day, None, NOW_MS)
    assert at(tally, NOW_MS, 3) == 3
    assert at(tally, NOW_MS + 365 * DAY_MS, 1) == 1
    assert at(tally, NOW_MS) == 4
    assert at(tally, NOW_MS - 9 * DAY_MS, 1) == 5
    assert at(tally, NOW_MS) == 4


def test_nobody_is_locked_out_for_longer_than_the_day_that_the_clock_shows() -> None:
    tally = PeriodUsage("a", utc_day, TallyRecord("a", NOW_MS, NOW_MS + 365 * DAY_MS, 6), NOW_MS)
    assert at(tally, NOW_MS) == 6
    assert tally.until_ms - NOW_MS <= DAY_MS
    assert at(tally, NOW_MS + DAY_MS) == 0


def test_each_new_day_begins_with_nothing() -> None:
    tally = PeriodUsage("a", utc_day, None, NOW_MS)
    for day in range(3):
        assert at(tally, NOW_MS + day * DAY_MS, 2) == 2
