"""Cron expressions: against croniter over ten years, and the rules that are our own (reference 12.8)."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.rules.language.schedule import MINUTE_MS, Cron, InvalidScheduleError
from storage.keys import Milliseconds
from tests.properties import every_nth_outside_ci, examples
from tests.rows import each_row

pytestmark = pytest.mark.slow


_BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
_END = datetime(2034, 1, 1, tzinfo=UTC)
#: With changes of the clock by an hour and by half an hour, at midnight, in both hemispheres, and none.
_ZONES = ("UTC", "Europe/Paris", "America/Los_Angeles", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo")


def ms(moment: datetime) -> Milliseconds:
    return Milliseconds(int(moment.timestamp()) * 1000)


def at(text: str, zone: str = "UTC") -> Milliseconds:
    return ms(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))


def croniter_form(expression: str) -> str:
    """The first five positions; croniter takes the year in the seventh, after the seconds."""
    *five, year = expression.split()
    return " ".join([*five, "0", year])


def matches(expression: str, moment: Milliseconds, zone: str) -> bool:
    """Whether croniter says that the local clock shows a matching minute."""
    local = datetime.fromtimestamp(moment // 1000, ZoneInfo(zone)).replace(tzinfo=None, second=0)
    return bool(croniter.match(croniter_form(expression), local))


@cache
def changes(zone: str) -> list[Milliseconds]:
    """The moments of ten years at which the clock of a zone changes."""
    zone_info = ZoneInfo(zone)
    hours = [_BEGIN + timedelta(hours=12 * step) for step in range((_END - _BEGIN).days * 2)]
    found = []
    for before, after in pairwise(hours):
        if before.astimezone(zone_info).utcoffset() != after.astimezone(zone_info).utcoffset():
            minutes = (before + timedelta(minutes=number) for number in range(12 * 60 + 1))
            offset = before.astimezone(zone_info).utcoffset()
            found.append(ms(next(minute for minute in minutes if minute.astimezone(zone_info).utcoffset() != offset)))
    return found


@each_row("zone", every_nth_outside_ci(2, _ZONES))
def test_every_time_of_ten_years_is_croniters_where_the_clock_shows_it(zone: str) -> None:
    """croniter counts on a clock without a zone. Each of its times comes once, twice, or not at all in the zone."""
    expression = "30 2 */5 * * *"
    zone_info = ZoneInfo(zone)
    expected = set()
    clock = croniter(croniter_form(expression), datetime.fromisoformat("2023-12-31T12:00"), ret_type=datetime)
    while (local := clock.get_next()).year < 2034:
        for fold in (0, 1):
            moment = ms(local.replace(tzinfo=zone_info, fold=fold))
            if datetime.fromtimestamp(moment // 1000, zone_info).replace(tzinfo=None) == local:
                expected.add(moment)
    schedule = Cron(f"{expression} TZ {zone}")
    found = []
    moment = at("2023-12-31T12:00", zone)
    while (following := schedule.next_after(moment)) is not None and following < at("2034-01-01T00:00", zone):
        found.append(following)
        moment = following
    assert found == sorted(expected)
    assert len(found) > 600


_numbers = {
    "minute": st.integers(0, 59),
    "hour": st.integers(0, 23),
    "day": st.integers(1, 31),
    "month": st.integers(1, 12),
    "weekday": st.integers(0, 6),
}
_MOST = {"minute": 59, "hour": 23, "day": 31, "month": 12, "weekday": 6}


@st.composite
def positions(draw: st.DrawFn, name: str) -> str:
    form = draw(st.sampled_from(["*", "*", "number", "range", "step", "list"]))
    number = draw(_numbers[name])
    if form == "number":
        return str(number)
    if form == "range" and number < _MOST[name]:
        return f"{number}-{draw(st.integers(number + 1, _MOST[name]))}"
    if form == "step":
        return f"*/{draw(st.integers(2, 15))}"
    if form == "list":
        return ",".join(map(str, draw(st.lists(_numbers[name], min_size=1, max_size=3))))
    return "*"


@st.composite
def expressions(draw: st.DrawFn) -> str:
    five = [draw(positions(name)) for name in _numbers]
    return " ".join([*five, draw(st.sampled_from(["*", "*", "*", "2026", "2025-2028", "2027,2029"]))])


@st.composite
def moments(draw: st.DrawFn) -> tuple[Milliseconds, str]:
    """A moment within ten years, most often near a change of the clock, and the zone."""
    zone = draw(st.sampled_from(_ZONES))
    near = [*changes(zone), Milliseconds(0)]
    change = draw(st.sampled_from(near))
    if change == 0:
        return ms(_BEGIN + timedelta(minutes=draw(st.integers(0, 10 * 365 * 1440)))), zone
    return Milliseconds(change + draw(st.integers(-240, 240)) * MINUTE_MS), zone


@given(expressions(), moments())
@settings(max_examples=examples(100), derandomize=True)  # croniter has surprises of its own
def test_an_expression_matches_when_croniter_says_so_of_the_local_clock(
    expression: str, moment: tuple[Milliseconds, str]
) -> None:
    now, zone = moment
    five = expression.split()
    full = [f"1-{_MOST['day']}", "0-6", "0-59", "0-23", "1-12"]
    if any(position in full for position in five):
        return  # croniter takes a whole range for `*`, which decides how day and weekday combine
    try:
        schedule = Cron(f"{expression} TZ {zone}")
    except InvalidScheduleError:
        _never_matches(expression)
        return
    for step in range(10):
        minute = Milliseconds(now + step * MINUTE_MS)
        assert schedule.holds("=", minute) is matches(expression, minute, zone), minute
    following = schedule.next_after(now)
    if following is None:
        assert "20" in five[5]
        return
    assert following > now
    assert matches(expression, following, zone)
    between = range(now + MINUTE_MS, min(following, now + 30 * MINUTE_MS), MINUTE_MS)
    assert not any(matches(expression, Milliseconds(minute), zone) for minute in between)


def _never_matches(expression: str) -> None:
    _, _, day, month, weekday, _ = expression.split()
    assert day != "*"
    assert month != "*"
    assert weekday == "*"


@each_row(
    ("expression", "after", "following"),
    [
        ("* * * * * *", "2026-05-05T10:00:00", "2026-05-05T10:01:00"),
        ("* * * * * *", "2026-05-05T10:00:59", "2026-05-05T10:01:00"),
        ("*/15 8-17 * * mon-fri *", "2026-05-08T17:50", "2026-05-11T08:00"),
        ("5/20 * * * * *", "2026-05-08T17:25", "2026-05-08T17:45"),
        ("0 0 * * 7 *", "2026-05-08T17:25", "2026-05-10T00:00"),
        ("0 0 * * Sunday *", "2026-05-08T17:25", "2026-05-10T00:00"),
        ("0 0 * * fri-sun *", "2026-05-08T17:25", "2026-05-09T00:00"),
        ("0 0 * * 5-7 *", "2026-05-09T00:00", "2026-05-10T00:00"),
        ("0 0 13 * 5 *", "2026-05-08T00:00", "2026-05-13T00:00"),  # the 13th, or a Friday
        ("0 0 13 * 5 *", "2026-05-13T00:00", "2026-05-15T00:00"),
        ("0 0 29 2 * *", "2026-05-08T00:00", "2028-02-29T00:00"),
        ("0 0 1 1 * 2099", "2026-05-08T00:00", "2099-01-01T00:00"),
        ("0 0 1 1 * 2025", "2026-05-08T00:00", None),
    ],
)
def test_the_next_time(expression: str, after: str, following: str | None) -> None:
    assert Cron(expression).next_after(at(after)) == (None if following is None else at(following))


def test_what_the_clock_skips_does_not_come_and_what_it_shows_twice_comes_twice() -> None:
    schedule = Cron("30 2 * * * * TZ Europe/Paris")
    assert schedule.next_after(at("2026-03-28T03:00", "Europe/Paris")) == at("2026-03-30T02:30", "Europe/Paris")
    first = schedule.next_after(at("2026-10-25T00:00", "Europe/Paris"))
    assert first == at("2026-10-25T00:30")
    second = schedule.next_after(first)
    assert second == at("2026-10-25T01:30")
    assert schedule.next_after(second) == at("2026-10-26T01:30")


def test_midnight_that_the_clock_skips_does_not_hide_its_day() -> None:
    schedule = Cron("*/30 * 6 9 * * TZ America/Santiago")  # on 6 September 2026, 24:00 is 01:00
    assert schedule.next_after(at("2026-09-05T12:00", "America/Santiago")) == at("2026-09-06T01:00", "America/Santiago")


@each_row(
    ("expression", "now", "smaller", "equal", "larger"),
    [
        ("30 18 * * * *", "2026-05-08T18:29", True, False, False),
        ("30 18 * * * *", "2026-05-08T18:30", False, True, False),
        ("30 18 * * * *", "2026-05-08T18:31", False, False, True),
        ("* 18 * * * *", "2026-05-08T18:59", False, True, False),
        ("30 18 * * * * TZ Asia/Tokyo", "2026-05-08T09:31", False, False, True),
        ("0 12 * 5 * *", "2026-06-01T00:00", False, False, True),  # the month comes before the hour
        ("0 12 * 5 * 2027", "2026-06-01T00:00", True, False, False),
        ("0 12 * * 5 *", "2026-05-08T11:59", True, False, False),  # a Friday
        ("0 12 * * 5 *", "2026-05-09T00:00", False, False, True),
        ("0 12 * * 5 *", "2026-05-10T23:00", True, False, False),  # Sunday is the first day
    ],
)
def test_times_are_compared_from_year_down_to_minute(
    expression: str, now: str, smaller: bool, equal: bool, larger: bool
) -> None:
    schedule = Cron(expression)
    assert schedule.holds("<", at(now)) is smaller
    assert schedule.holds("<=", at(now)) is (smaller or equal)
    assert schedule.holds("=", at(now)) is equal
    assert schedule.holds(">=", at(now)) is (larger or equal)
    assert schedule.holds(">", at(now)) is larger


def test_of_lists_and_ranges_the_smallest_or_the_largest_value_is_compared() -> None:
    schedule = Cron("0 8,10-12 * * * *")
    held = {
        operator: [hour for hour in range(24) if schedule.holds(operator, at(f"2026-05-08T{hour:02}:00"))]
        for operator in ("<", "<=", "=", ">=", ">")
    }
    assert held == {
        "<": list(range(8)),
        "<=": list(range(9)),
        "=": [8, 10, 11, 12],
        ">=": list(range(12, 24)),
        ">": list(range(13, 24)),
    }


def test_wildcards_are_equal_to_every_time() -> None:
    schedule = Cron("* * * * * *")
    held = [operator for operator in ("<", "<=", "=", ">=", ">") if schedule.holds(operator, at("2026-05-08T18:29"))]
    assert held == ["<=", "=", ">="]


@each_row(
    "expression",
    [
        "",
        "* * * * *",
        "* * * * * * *",
        "60 * * * * *",
        "* 24 * * * *",
        "* * 0 * * *",
        "* * 32 * * *",
        "* * * 13 * *",
        "* * * * 8 *",
        "* * * * someday *",
        "* * * * * 1969",
        "* * * * * 2100",
        "5-1 * * * * *",
        "*/0 * * * * *",
        "1, * * * * *",
        "-1 * * * * *",
        "*5 * * * * *",
        "1-2-3 * * * * *",
        "٣ * * * * *",
        "1_0 * * * * *",
        "0 0 30 2 * *",
        "0 0 29 2 * 2027",
        "* * * * * * UTC",
        "* * * * * * TZ",
        "* * * * * * TZUTC",
        "* * * * * * TZ Europe",
        "* * * * * * TZ Mars/Base",
        "* * * * * * TZ ../../etc/passwd",
        "* * * * * * TZ /etc/localtime",
        "* * * * * * TZ Europe/Paris Europe/Berlin",
        "0," * 300 + "0 * * * * *",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(InvalidScheduleError):
        Cron(expression)
