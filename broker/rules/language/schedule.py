"""Times of `datetime` conditions: `Cron`, and `SunTime` for `@sunrise` and `@sunset` (reference 12.8).

A cron expression is `minute hour day month weekday year`, with `TZ <zone>` after it for a time zone other than UTC. A
moment matches when the local clock shows it: a minute that the clock skips does not come, and one that it shows twice
comes twice. Libraries for cron move or drop such minutes, and none tells the bounds of a position.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from math import acos, cos, degrees, radians, sin
from operator import ge, gt, le, lt
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from astral import refraction_at_zenith
from astral.julian import julianday, julianday_to_juliancentury
from astral.sun import SUN_APPARENT_RADIUS, eq_of_time, sun_declination

from broker.zones import zone_named
from storage.keys import Milliseconds

MINUTE_MS: Final = 60_000
MAX_EXPRESSION_CHARACTERS: Final = 512
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 2099
_SKIPPED_MINUTES_MAX: Final = 180  # no clock changes by more than this

_PART: Final = re.compile(r"(?P<first>\w+)(?:-(?P<last>\w+))?(?:/(?P<step>[0-9]{1,4}))?")
_DAYS: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_WEEKDAYS: Final = {name[:length]: number for number, name in enumerate(_DAYS) for length in (3, len(name))}
_ORDERED: Final[Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]]] = {
    "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


class InvalidScheduleError(ValueError):
    """The text is no expression."""


class _Position(msgspec.Struct, frozen=True):
    """The numbers that one position allows. `mask` has bit n for each number n, counted from `first`."""

    first: int
    mask: int
    is_wildcard: bool

    def has(self, number: int) -> bool:
        return self.mask >> (number - self.first) & 1 == 1

    def at_or_after(self, number: int) -> int | None:
        """The smallest allowed number that is not less than this one."""
        rest = self.mask >> (number - self.first)
        return number + (rest & -rest).bit_length() - 1 if rest else None

    @property
    def smallest(self) -> int:
        return self.first + (self.mask & -self.mask).bit_length() - 1

    @property
    def largest(self) -> int:
        return self.first + self.mask.bit_length() - 1


def time_zone(name: str) -> ZoneInfo:
    """A time zone by its name in the tz database. Raises InvalidScheduleError."""
    try:
        return zone_named(name)
    except ValueError as error:
        raise InvalidScheduleError(name) from error


class Cron:
    """A parsed expression. Raises InvalidScheduleError."""

    __slots__ = ("_day", "_fixed", "_high", "_hour", "_low", "_minute", "_month", "_weekday", "_year", "_zone")

    def __init__(self, text: str) -> None:
        parts = text.split() if len(text) <= MAX_EXPRESSION_CHARACTERS else []
        zone = parts[6:]
        if len(parts) not in (6, 8) or (zone and zone[0] != "TZ"):
            raise InvalidScheduleError(text)
        self._zone: tzinfo = time_zone(zone[1]) if zone else UTC
        self._minute = _position(parts[0], 0, 59)
        self._hour = _position(parts[1], 0, 23)
        self._day = _position(parts[2], 1, 31)
        self._month = _position(parts[3], 1, 12)
        self._weekday = _position(parts[4], 0, 6, _WEEKDAYS)
        self._year = _position(parts[5], _FIRST_YEAR, _LAST_YEAR)
        # From the largest unit to the smallest, as times are compared.
        in_order = (self._year, self._month, self._day, self._weekday, self._hour, self._minute)
        self._fixed = tuple(index for index, position in enumerate(in_order) if not position.is_wildcard)
        self._low = tuple(in_order[index].smallest for index in self._fixed)
        self._high = tuple(in_order[index].largest for index in self._fixed)
        if self._date_after(date(_FIRST_YEAR, 1, 1) - timedelta(days=1)) is None:
            raise InvalidScheduleError(text)

    def holds(self, operator: str, now_ms: Milliseconds) -> bool:
        """Whether the condition with this operator (`<`, `<=`, `=`, `>`, `>=`) holds."""
        local = datetime.fromtimestamp(now_ms // 1000, self._zone)
        if operator == "=":
            return self._minute.has(local.minute) and self._hour.has(local.hour) and self._has_date(local)
        units = (local.year, local.month, local.day, local.isoweekday() % 7, local.hour, local.minute)
        bound = self._low if operator in ("<", "<=") else self._high
        return _ORDERED[operator](tuple([units[index] for index in self._fixed]), bound)

    def next_after(self, after_ms: Milliseconds) -> Milliseconds | None:
        """The next beginning of a matching minute, later than `after_ms`; None: there is none."""
        at = after_ms // MINUTE_MS + 1
        while True:
            local = datetime.fromtimestamp(at * 60, self._zone)
            if not self._has_date(local):
                following = self._next_date(at, local)
                if following is None:
                    return None
                at = following
            elif not self._hour.has(local.hour) or (minute := self._minute.at_or_after(local.minute)) is None:
                hour = self._hour.at_or_after(local.hour + 1) if local.hour < 23 else None
                at = self._ahead(at, local, ((24 if hour is None else hour) - local.hour) * 60 - local.minute)
            elif minute > local.minute:
                at = self._ahead(at, local, minute - local.minute)
            else:
                return Milliseconds(at * MINUTE_MS)

    def missing(self, now_ms: Milliseconds) -> str:  # noqa: ARG002 - of the sun only
        return ""

    def _has_date(self, day: date) -> bool:
        if not _FIRST_YEAR <= day.year <= _LAST_YEAR:
            return False
        return self._year.has(day.year) and self._month.has(day.month) and self._has_day(day)

    def _has_day(self, day: date) -> bool:
        in_month, in_week = self._day.has(day.day), self._weekday.has(day.isoweekday() % 7)
        if self._day.is_wildcard or self._weekday.is_wildcard:
            return in_month and in_week
        return in_month or in_week  # as in every cron: if both are given, either may match

    def _ahead(self, at: int, local: datetime, minutes: int) -> int:
        """`minutes` later; the next full hour or minute if the clock changes until then."""
        offset = local.utcoffset()
        for step in (minutes, 60 - local.minute):
            if step <= minutes and datetime.fromtimestamp((at + step) * 60, self._zone).utcoffset() == offset:
                return at + step
        return at + 1

    def _next_date(self, at: int, local: datetime) -> int | None:
        """The first minute of the next matching date, or an earlier one; None: there is no such date."""
        if (ahead := self._ahead(at, local, _SKIPPED_MINUTES_MAX)) < at + _SKIPPED_MINUTES_MAX:
            return ahead  # the clock may go back to the date before
        following = self._date_after(local.date())
        if following is None:
            return None
        midnight = datetime(following.year, following.month, following.day, tzinfo=self._zone)
        # Midnight itself may be skipped or come twice.
        begins = min(midnight.timestamp(), midnight.replace(fold=1).timestamp())
        return max(at + 1, int(begins // 60))

    def _date_after(self, day: date) -> date | None:
        day += timedelta(days=1)
        while day.year <= _LAST_YEAR:
            if not self._year.has(day.year):
                day = date(day.year + 1, 1, 1)
            elif not self._month.has(day.month):
                day = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
            elif not self._has_day(day):
                day += timedelta(days=1)
            else:
                return day
        return None


def _position(text: str, first: int, last: int, names: Mapping[str, int] | None = None) -> _Position:
    """A list of numbers, ranges and steps: `*`, `5`, `1-5`, `*/15`, `10-30/5`, `5/15`, joined by commas.

    With names it is that of the weekdays, where 7 may be written for 0.
    """
    mask = 0
    is_wildcard = False
    most = last if names is None else last + 1
    everything = f"{first}-{last}"
    for part in text.split(","):
        found = _PART.fullmatch(part.replace("*", everything, 1) if part.startswith("*") else part)
        if found is None:
            raise InvalidScheduleError(text)
        low = _number(found["first"], names)
        step = int(found["step"] or 1)
        if found["last"] is not None:
            high = _number(found["last"], names)
            if names is not None and high == 0 < low:
                high = 7  # Saturday to Sunday
        else:
            high = last if found["step"] else low
        if not first <= low <= high <= most or step == 0:
            raise InvalidScheduleError(text)
        is_wildcard = is_wildcard or part in ("*", "*/1")
        for number in range(low, high + 1, step):
            mask |= 1 << (number % 7 if names is not None else number - first)
    return _Position(first, mask, is_wildcard)


def _number(text: str, names: Mapping[str, int] | None) -> int:
    if names is not None and (named := names.get(text.lower())) is not None:
        return named
    if not (text.isascii() and text.isdecimal() and len(text) <= 4):
        raise InvalidScheduleError(text)
    return int(text)


# The sun

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
        """The next time as of `Cron.next_after`, or an earlier time to ask again."""
        day = datetime.fromtimestamp(after_ms // 1000, self._zone).date()
        for _ in range(_DAYS_AHEAD):
            for point in self._points(day):
                if (begins_ms := int(point.timestamp()) * 1000) > after_ms:
                    return Milliseconds(begins_ms)
            day += _DAY
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return Milliseconds(int(midnight.timestamp()) * 1000)

    def missing(self, now_ms: Milliseconds) -> str:
        """A text such as `the sun does not rise on 2027-12-01`, about the local date of a time; empty if it does."""
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
        """Times by the formulas of NOAA's solar calculator, which astral implements.

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


Schedule = Cron | SunTime
"""Times at which a `datetime` condition is evaluated, and whether it holds at a time."""
