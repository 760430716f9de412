"""Times of `datetime` conditions that follow the sun: `@sunrise` and `@sunset` (reference 12.8)."""

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Final

from astral import Observer
from astral.sun import sunrise, sunset

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


class SunTime:
    """A parsed expression, such as `@sunset 37.02N 121.51W +00:30 TZ America/Los_Angeles`.

    Its *points* are the moments of the event, shifted by the offset, each in the local date that the shift leads to. A
    date has one point as a rule; beyond the polar circles it may have none.

    Raises InvalidScheduleError.
    """

    __slots__ = ("_event", "_known", "_observer", "_shift_seconds", "_zone")

    def __init__(self, text: str) -> None:
        found = _EXPRESSION.fullmatch(text) if len(text) <= MAX_EXPRESSION_CHARACTERS else None
        if found is None:
            raise InvalidScheduleError(text)
        self._event: Callable[..., datetime] = sunrise if found["event"] == "sunrise" else sunset
        self._observer = Observer(
            _degrees(found["latitude"], 90, positive="N", negative="S"),
            _degrees(found["longitude"], 180, positive="E", negative="W"),
            0.0,
        )
        seconds = int(found["hours"]) * 3600 + int(found["minutes"]) * 60
        self._shift_seconds = -seconds if found["sign"] == "-" else seconds
        self._zone = time_zone(found["zone"])
        self._known: tuple[date, tuple[datetime, ...]] = (date.min, ())  # the points that were asked for last

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

    def _points(self, day: date) -> tuple[datetime, ...]:
        """The points of a local date, each the beginning of its minute."""
        known_day, points = self._known
        if known_day != day:
            nearby = (day - _DAY, day, day + _DAY) if self._shift_seconds else (day,)
            found = [point for event_day in nearby if (point := self._point(event_day)) is not None]
            points = tuple(point for point in found if point.date() == day)
            self._known = (day, points)
        return points

    def _point(self, day: date) -> datetime | None:
        """The event of a local date, shifted; None when the sun neither rises nor sets."""
        try:
            event = self._event(self._observer, day, tzinfo=self._zone)
        except ValueError:
            return None
        seconds = (int(event.timestamp()) + self._shift_seconds) // 60 * 60
        return datetime.fromtimestamp(seconds, self._zone)


def _degrees(text: str, most: int, *, positive: str, negative: str) -> float:
    """`37.02N` or `-121.51`. Raises InvalidScheduleError."""
    found = _DEGREES.fullmatch(text)
    if found is None or (found["side"] and (found["sign"] or found["side"] not in (positive, negative))):
        raise InvalidScheduleError(text)
    degrees = float(found["number"])
    if degrees > most:
        raise InvalidScheduleError(text)
    return -degrees if found["sign"] == "-" or found["side"] == negative else degrees
