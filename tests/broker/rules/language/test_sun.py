"""Sun expressions: against astral, against the sun's altitude, and the rules that are our own (reference 12.8)."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from astral import Observer
from astral.sun import sunrise, sunset

from broker.rules.language.schedule import MINUTE_MS, InvalidScheduleError, SunTime
from storage.keys import Milliseconds
from tests.properties import chance
from tests.rows import each_row

pytestmark = pytest.mark.slow


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


#: Fifty places from 55 degrees south to 70 north, with those whose sunrise or sunset passes midnight UTC, and those
#: whose local date is far from their longitude.
_EVERYWHERE = [
    (-54.8, -68.3, "America/Argentina/Ushuaia"), (-53.2, -70.9, "America/Punta_Arenas"),
    (-51.7, -57.9, "Atlantic/Stanley"), (-46.4, 168.4, "Pacific/Auckland"), (-43.9, -176.5, "Pacific/Chatham"),
    (-42.9, 147.3, "Australia/Hobart"), (-37.8, 145.0, "Australia/Melbourne"),
    (-34.6, -58.4, "America/Argentina/Buenos_Aires"), (-33.9, 18.4, "Africa/Johannesburg"),
    (-31.9, 115.9, "Australia/Perth"), (-27.1, -109.4, "Pacific/Easter"), (-23.5, -46.6, "America/Sao_Paulo"),
    (-21.1, -175.2, "Pacific/Tongatapu"), (-18.9, 47.5, "Indian/Antananarivo"), (-17.7, 178.0, "Pacific/Fiji"),
    (-13.8, -171.8, "Pacific/Apia"), (-12.0, -77.0, "America/Lima"), (-9.4, 147.2, "Pacific/Port_Moresby"),
    (-6.2, 106.8, "Asia/Jakarta"), (-1.3, 36.8, "Africa/Nairobi"), (0.0, 0.0, "UTC"), (1.3, 103.8, "Asia/Singapore"),
    (1.9, -157.5, "Pacific/Kiritimati"), (6.9, 79.9, "Asia/Colombo"), (9.0, 38.8, "Africa/Addis_Ababa"),
    (14.6, -90.5, "America/Guatemala"), (19.4, -99.1, "America/Mexico_City"), (21.3, -157.9, "Pacific/Honolulu"),
    (22.6, 88.4, "Asia/Kolkata"), (23.8, 90.4, "Asia/Dhaka"), (27.7, 85.3, "Asia/Kathmandu"),
    (28.6, 77.2, "Asia/Kolkata"), (30.0, 31.2, "Africa/Cairo"), (35.7, 51.4, "Asia/Tehran"),
    (35.7, 139.7, "Asia/Tokyo"), (39.5, 76.0, "Asia/Shanghai"), (40.7, -74.0, "America/New_York"),
    (42.2, -8.7, "Europe/Madrid"), (43.8, 87.6, "Asia/Shanghai"), (47.6, -52.7, "America/St_Johns"),
    (48.9, 2.4, "Europe/Paris"), (51.5, -0.1, "Europe/London"), (53.0, 158.7, "Asia/Kamchatka"),
    (55.8, 37.6, "Europe/Moscow"), (60.2, 24.9, "Europe/Helsinki"), (64.1, -21.9, "Atlantic/Reykjavik"),
    (64.8, -147.7, "America/Anchorage"), (65.6, 22.2, "Europe/Stockholm"), (67.9, 13.1, "Europe/Oslo"),
    (70.0, 30.0, "Europe/Oslo"),
]  # fmt: skip
_STEP_SECONDS = 240
_HORIZON_DEGREES = -0.833


def _sine_of_altitude(seconds: np.ndarray, latitude: float, longitude: float) -> np.ndarray:
    """Of the sun's centre, by the low-precision formulas of the Astronomical Almanac (to 0.01 degrees until 2050)."""
    days = (seconds - 946_728_000) / 86_400  # since 2000-01-01 12:00
    anomaly = np.radians(357.528 + 0.9856003 * days)
    ecliptic = np.radians(280.460 + 0.9856474 * days + 1.915 * np.sin(anomaly) + 0.020 * np.sin(2 * anomaly))
    tilt = np.radians(23.439 - 4e-7 * days)
    declination = np.arcsin(np.sin(tilt) * np.sin(ecliptic))
    ascension = np.arctan2(np.cos(tilt) * np.sin(ecliptic), np.cos(ecliptic))
    hour_angle = np.radians(15 * (18.697374558 + 24.06570982441908 * days) + longitude) - ascension
    at = np.radians(latitude)
    sine: np.ndarray = np.sin(at) * np.sin(declination) + np.cos(at) * np.cos(declination) * np.cos(hour_angle)
    return sine


@pytest.mark.parametrize("name", ["sunrise", "sunset"])
def test_every_event_of_a_year_is_there_and_no_other(name: str) -> None:
    """Times may differ by two minutes; where the sun just passes the horizon, its altitude by a tenth of a degree."""
    begins, ends = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2027, 2028))
    seconds = np.arange(begins - 86_400, ends + 86_400, _STEP_SECONDS)
    double, missed, is_rising = 0, 0, name == "sunrise"
    # The sun is computed alike everywhere and for both: each place in the middle has one of them in two runs of four.
    turn = chance().randrange(4)
    places = [
        place for number, place in enumerate(_EVERYWHERE) if abs(place[0]) > 50 or (number + turn) % 4 == is_rising
    ]
    for latitude, longitude, zone in places:
        schedule, found, days = SunTime(f"@{name} {latitude} {longitude} +00:00 TZ {zone}"), list[int](), list[date]()
        asked = Milliseconds(begins * 1000)
        while (asked := schedule.next_after(asked) or Milliseconds(ends * 1000)) < ends * 1000:
            if schedule.holds("=", asked):
                found.append(asked // 1000)
                days.append(datetime.fromtimestamp(asked // 1000, ZoneInfo(zone)).date())
        sines = _sine_of_altitude(seconds, latitude, longitude) - np.sin(np.radians(_HORIZON_DEGREES))
        rising = (sines[:-1] < 0) & (sines[1:] >= 0) if is_rising else (sines[:-1] >= 0) & (sines[1:] < 0)
        before, after = sines[:-1][rising], sines[1:][rising]
        crossings = seconds[:-1][rising] + _STEP_SECONDS * before / (before - after)
        slow = np.abs(after - before) < 0.004  # a degree of altitude takes more than a quarter of an hour
        at = np.array(found) + 30
        nearest = np.abs(at[:, None] - crossings[None, :])
        altitude = _sine_of_altitude(at, latitude, longitude) - np.sin(np.radians(_HORIZON_DEGREES))
        assert ((nearest.min(axis=1) < 90) | (np.abs(altitude) < 0.002)).all(), (latitude, longitude)
        inside = (crossings > begins + 900) & (crossings < ends - 900) & ~slow
        late = nearest.min(axis=0)[inside] > 180
        assert not late.any(), (latitude, longitude, crossings[inside][late])
        double += len(days) - len(set(days))
        missed += (date(2028, 1, 1) - date(2027, 1, 1)).days - len(set(days))
        if abs(latitude) < 60:
            assert set(days) >= {date(2027, 1, 2) + number * _DAY for number in range(363)}, (latitude, longitude)
    assert double >= 1, "far in the north there are dates with two events"
    assert missed > 100, "beyond the polar circle there are dates with none"


@each_row(
    ("place", "zone", "moment"),
    [
        ("@sunrise 28.61N 77.21E", "Asia/Kolkata", "2027-05-17T05:29+05:30"),
        ("@sunrise 22.57N 88.36E", "Asia/Kolkata", "2027-04-01T05:29+05:30"),
        ("@sunset 64.15N 21.94W", "Atlantic/Reykjavik", "2027-06-27T00:01+00:00"),
    ],
)
def test_an_event_at_midnight_is_not_missed(place: str, zone: str, moment: str) -> None:
    """astral finds these dates without the event, or with one of two."""
    expected = ms(datetime.fromisoformat(moment))
    schedule = SunTime(f"{place} +00:00 TZ {zone}")
    following = schedule.next_after(Milliseconds(expected - 10 * MINUTE_MS))
    assert following is not None
    assert abs(following - expected) <= 2 * MINUTE_MS
    assert schedule.holds("=", following)


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
    assert abs(ms(sunrise(Observer(78.22, 15.65, 0.0), first.date(), tzinfo=zone)) - moment) <= MINUTE_MS
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
