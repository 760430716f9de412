"""Times of `datetime` conditions that follow the sun: `@sunrise` and `@sunset` (reference 12.8)."""

import re
from datetime import UTC, date, datetime, timedelta
from math import acos, cos, degrees, radians, sin
from typing import Final

from astral import refraction_at_zenith
from astral.julian import julianday, julianday_to_juliancentury
from astral.sun import SUN_APPARENT_RADIUS, eq_of_time, sun_declination

from broker.rules.schedule import MAX_EXPRESSION_CHARACTERS, MINUTE_MS, InvalidScheduleError, time_zone
from storage.keys import Milliseconds

_EXPRESSION: Final = re.compile(
    r"@(?P<event>sunrise|sunset)\s+(?P<latitude>\S+)\s+(?P<longitude>\S+)"
    r"\s+(?P<sign>[+-])(?P<hours>[01][0-9]|2[0-3]):(?P<minutes>[0-5][0-9])\s+TZ\s+(?P<zone>\S+)\s*",
    re.ASCII,
)
_DEGREES: Final = re.compile(r"(?P<sign>[+-]?)(?P<number>[0-9]{1,3}(?:\.[0-9]{1,12})?)(?P<side>[NSEW]?)", re.ASCII)
#: Days that are looked through at once. Beyond a polar circle the sun may not rise or set for months.
_DAYS_AHEAD: Final = 8
_DAY: Final = timedelta(days=1)
#: The solar days whose event may be in a local date: its time zone may be far from its longitude, and the offset may be
#: a day.
_NEARBY: Final = range(-4, 4)
_EVENTS_KEPT: Final = 32
#: The angle from the zenith at which the upper limb of the sun is seen at the horizon.
_ZENITH: Final = 90.0 + SUN_APPARENT_RADIUS + refraction_at_zenith(90.0 + SUN_APPARENT_RADIUS)
_MOST_LATITUDE: Final = 89.8  # at the poles there is no hour angle
_PASSES: Final = 6  # each finds the event with the declination at the time that the pass before has found


class SunTime:
    """A parsed expression, such as `@sunset 37.02N 121.51W +00:30 TZ America/Los_Angeles`.

    Its *points* are the moments of the event, shifted by the offset, each in the local date that the shift leads to. A
    date has one point as a rule. It may have two, because sunset comes earlier and later in the year, and none; beyond
    the polar circles there are months with none.

    Raises InvalidScheduleError.
    """

    __slots__ = ("_events", "_is_rise", "_known", "_latitude", "_longitude", "_shift_seconds", "_zone")

    def __init__(self, text: str) -> None:
        found = _EXPRESSION.fullmatch(text) if len(text) <= MAX_EXPRESSION_CHARACTERS else None
        if found is None:
            raise InvalidScheduleError(text)
        self._is_rise = found["event"] == "sunrise"
        latitude = _degrees(found["latitude"], 90, positive="N", negative="S")
        self._latitude = max(-_MOST_LATITUDE, min(latitude, _MOST_LATITUDE))
        self._longitude = _degrees(found["longitude"], 180, positive="E", negative="W")
        seconds = int(found["hours"]) * 3600 + int(found["minutes"]) * 60
        self._shift_seconds = -seconds if found["sign"] == "-" else seconds
        self._zone = time_zone(found["zone"])
        self._known: tuple[date, tuple[datetime, ...]] = (date.min, ())  # the points that were asked for last
        self._events: dict[date, int | None] = {}  # by solar day: seconds since 1970

    def holds(self, operator: str, now_ms: Milliseconds) -> bool:
        now = datetime.fromtimestamp(now_ms // MINUTE_MS * 60, self._zone)
        points = self._points(now.date())
        if not points:
            return False
        if operator == "=":
            return any(int(point.timestamp()) * 1000 == now_ms // MINUTE_MS * MINUTE_MS for point in points)
        times = [point.time() for point in points]
        if operator in ("<", "<="):
            return now.time() < min(times) or (operator == "<=" and now.time() == min(times))
        return now.time() > max(times) or (operator == ">=" and now.time() == max(times))

    def next_after(self, after_ms: Milliseconds) -> Milliseconds | None:
        day = datetime.fromtimestamp(after_ms // 1000, self._zone).date()
        for _ in range(_DAYS_AHEAD):
            for point in self._points(day):
                if (begins_ms := int(point.timestamp()) * 1000) > after_ms:
                    return Milliseconds(begins_ms)
            day += _DAY
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return Milliseconds(int(midnight.timestamp()) * 1000)

    def missing(self, now_ms: Milliseconds) -> str:
        """What does not happen on the local date of a time: `the sun does not rise on 2027-12-01`; empty if it does."""
        day = datetime.fromtimestamp(now_ms // 1000, self._zone).date()
        if self._points(day):
            return ""
        return f"the sun does not {'rise' if self._is_rise else 'set'} on {day}"

    def _points(self, day: date) -> tuple[datetime, ...]:
        """The points of a local date, each the beginning of its minute."""
        known_day, points = self._known
        if known_day != day:
            events = [self._event(day + number * _DAY) for number in _NEARBY]
            shifted = [(event + self._shift_seconds) // 60 * 60 for event in events if event is not None]
            local = [datetime.fromtimestamp(seconds, self._zone) for seconds in shifted]
            points = tuple(point for point in local if point.date() == day)
            self._known = (day, points)
        return points

    def _event(self, day: date) -> int | None:
        """The event before or after the noon of a solar day; None when the sun neither rises nor sets."""
        if day not in self._events:
            if len(self._events) >= _EVENTS_KEPT:
                del self._events[next(iter(self._events))]
            self._events[day] = self._computed(day)
        return self._events[day]

    def _computed(self, day: date) -> int | None:
        """As NOAA's solar calculator, whose formulas astral has.

        astral itself looks for one event in a UTC day, and so misses one a year where sunrise passes midnight UTC.
        """
        begins, latitude = julianday(day), radians(self._latitude)
        minutes, angle_cosine = 720.0 - 4.0 * self._longitude, 0.0
        for _ in range(_PASSES):
            century = julianday_to_juliancentury(begins + minutes / 1440.0)
            declination = radians(sun_declination(century))
            angle_cosine = (cos(radians(_ZENITH)) - sin(latitude) * sin(declination)) / (
                cos(latitude) * cos(declination)
            )
            # Where the sun only just rises or sets, a pass before the last one may be beyond that day.
            angle = degrees(acos(angle_cosine)) if -1.0 <= angle_cosine <= 1.0 else (0.0 if angle_cosine > 1 else 180.0)
            noon = 720.0 - 4.0 * self._longitude - eq_of_time(century)
            minutes = noon - 4.0 * angle if self._is_rise else noon + 4.0 * angle
        if not -1.0 <= angle_cosine <= 1.0:
            return None
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        return int(midnight.timestamp() + minutes * 60.0)


def _degrees(text: str, most: int, *, positive: str, negative: str) -> float:
    """`37.02N` or `-121.51`. Raises InvalidScheduleError."""
    found = _DEGREES.fullmatch(text)
    if found is None or (found["side"] and (found["sign"] or found["side"] not in (positive, negative))):
        raise InvalidScheduleError(text)
    degrees = float(found["number"])
    if degrees > most:
        raise InvalidScheduleError(text)
    return -degrees if found["sign"] == "-" or found["side"] == negative else degrees
