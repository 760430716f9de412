"""Sun expressions: against astral directly, and the rules that are our own (reference 12.8)."""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from astral import Observer
from astral.sun import sunrise, sunset

from broker.rules.schedule import MINUTE_MS, InvalidScheduleError
from broker.rules.sun import SunTime
from storage.keys import Milliseconds
from tests.rows import each_row

_DAY = timedelta(days=1)
_PLACES = [
    ("37.02N 121.51W", 37.02, -121.51, "America/Los_Angeles"),
    ("48.85 2.35", 48.85, 2.35, "Europe/Paris"),
    ("-33.87 151.21", -33.87, 151.21, "Australia/Sydney"),
    ("1.35N 103.82E", 1.35, 103.82, "Asia/Singapore"),
    ("17.7S 178E", -17.7, 178.0, "Pacific/Fiji"),
]


def ms(moment: datetime) -> Milliseconds:
    return Milliseconds(int(moment.timestamp()) // 60 * MINUTE_MS)


@each_row(("place", "latitude", "longitude", "zone"), _PLACES)
@each_row(("name", "event"), [("sunrise", sunrise), ("sunset", sunset)])
def test_each_event_of_two_years_is_astrals_to_the_minute(
    place: str, latitude: float, longitude: float, zone: str, name: str, event: type
) -> None:
    zone_info = ZoneInfo(zone)
    days = [date(2026, 1, 1) + number * _DAY for number in range(0, 730, 5)]
    schedule = SunTime(f"@{name} {place} +00:00 TZ {zone}")
    for day in days:
        expected = ms(event(Observer(latitude, longitude, 0.0), day, tzinfo=zone_info))
        midnight = datetime(day.year, day.month, day.day, tzinfo=zone_info)
        assert schedule.next_after(Milliseconds(int(midnight.timestamp()) * 1000 - 1)) == expected
        assert schedule.holds("=", Milliseconds(expected + 59_999))
        assert not schedule.holds("=", Milliseconds(expected + MINUTE_MS))
        assert not schedule.holds("=", Milliseconds(expected - 1))


_SAN_JOSE = Observer(37.02, -121.51, 0.0)
_ZONE = ZoneInfo("America/Los_Angeles")
_DATE = date(2026, 6, 21)
_SUNSET = ms(sunset(_SAN_JOSE, _DATE, tzinfo=_ZONE))


@pytest.mark.parametrize("place", ["37.02N 121.51W", "37.02 -121.51", "+37.02 121.51W", "37.0200 -121.510"])
def test_both_spellings_mean_the_same_place(place: str) -> None:
    assert SunTime(f"@sunset {place} +00:00 TZ America/Los_Angeles").holds("=", _SUNSET)


@pytest.mark.parametrize(("offset", "minutes"), [("+00:30", 30), ("-01:15", -75), ("+23:59", 1439), ("-23:59", -1439)])
def test_the_offset_moves_the_event_also_to_another_day(offset: str, minutes: int) -> None:
    schedule = SunTime(f"@sunset 37.02N 121.51W {offset} TZ America/Los_Angeles")
    moved = Milliseconds(_SUNSET + minutes * MINUTE_MS)
    assert schedule.holds("=", moved)
    assert schedule.next_after(Milliseconds(moved - 1)) == moved
    assert schedule.holds(">=", moved)
    assert schedule.holds("<=", moved)
    assert not schedule.holds("<", moved)
    assert not schedule.holds(">", moved)


def test_the_other_operators_compare_the_time_of_day() -> None:
    schedule = SunTime("@sunset 37.02N 121.51W +00:00 TZ America/Los_Angeles")
    held = {
        operator: [
            minutes
            for minutes in (-600, -1, 0, 1, 120)
            if schedule.holds(operator, Milliseconds(_SUNSET + minutes * MINUTE_MS + 30_000))
        ]
        for operator in ("<", "<=", "=", ">=", ">")
    }
    assert held == {"<": [-600, -1], "<=": [-600, -1, 0], "=": [0], ">=": [0, 1, 120], ">": [1, 120]}


def test_where_the_sun_does_not_rise_no_operator_holds_until_it_does() -> None:
    schedule = SunTime("@sunrise 78.22N 15.65E +00:00 TZ Arctic/Longyearbyen")
    zone = ZoneInfo("Arctic/Longyearbyen")
    moment = Milliseconds(int(datetime(2026, 12, 1, 12, tzinfo=zone).timestamp()) * 1000)
    assert not any(schedule.holds(operator, moment) for operator in ("<", "<=", "=", ">=", ">"))
    asked = 0
    while not schedule.holds("=", moment):
        following = schedule.next_after(moment)
        assert following is not None
        assert following > moment
        moment = following
        asked += 1
    first = datetime.fromtimestamp(moment // 1000, zone)
    assert ms(sunrise(Observer(78.22, 15.65, 0.0), first.date(), tzinfo=zone)) == moment
    assert first.date() > date(2027, 2, 1)
    assert asked < 15
    with pytest.raises(ValueError, match=r"horizon|Unable|range from -1"):
        sunrise(Observer(78.22, 15.65, 0.0), first.date() - _DAY, tzinfo=zone)


@each_row(
    "expression",
    [
        "@sunset",
        "@noon 37.02N 121.51W +00:00 TZ America/Los_Angeles",
        "@sunset 37.02N 121.51W TZ America/Los_Angeles",
        "@sunset 37.02N 121.51W +00:00",
        "@sunset 37.02N 121.51W 00:00 TZ America/Los_Angeles",
        "@sunset 37.02N 121.51W +24:00 TZ America/Los_Angeles",
        "@sunset 37.02N 121.51W +00:60 TZ America/Los_Angeles",
        "@sunset 37.02N 121.51W +0:00 TZ America/Los_Angeles",
        "@sunset 37.02N 121.51W +00:00 TZ Mars/Base",
        "@sunset 37.02E 121.51N +00:00 TZ America/Los_Angeles",
        "@sunset -37.02S 121.51W +00:00 TZ America/Los_Angeles",
        "@sunset 90.01N 121.51W +00:00 TZ America/Los_Angeles",
        "@sunset 37.02 -180.5 +00:00 TZ America/Los_Angeles",
        "@sunset 1e1 2 +00:00 TZ America/Los_Angeles",
        "@sunset nan 2 +00:00 TZ America/Los_Angeles",
        "@sunset ٣٧.02 2 +00:00 TZ America/Los_Angeles",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(InvalidScheduleError):
        SunTime(expression)
