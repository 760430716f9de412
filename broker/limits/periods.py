"""Counters of the current day or month of the UTC calendar.

The machine's clock may be wrong and may be set. When the clock goes forward into another period, the count restarts, as
it does in every new period. When it is set back, the count stays. The use of the period before is remembered, and
counts again when the clock comes back to it: so a jump there and back gives nothing. A caller is locked out at most
until the end of the period that the clock shows (reference 27.7).
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from storage.records import TallyRecord

_DAY_MS: Final = 86_400_000

#: Maps a time to the beginnings of its period and of the next one; all in ms since the epoch.
Period = Callable[[int], tuple[int, int]]


def utc_day(now_ms: int) -> tuple[int, int]:
    since_ms = now_ms - now_ms % _DAY_MS
    return since_ms, since_ms + _DAY_MS


def utc_month(now_ms: int) -> tuple[int, int]:
    now = datetime.fromtimestamp(now_ms // 1000, UTC)
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = (first + timedelta(days=31)).replace(day=1)
    return int(first.timestamp()) * 1000, int(following.timestamp()) * 1000


class PeriodUsage:
    """How much was used since `since_ms`. Before `used` is read or changed after the period's end, call `turn`.

    Callers compare `since_ms <= now_ms < until_ms` themselves, because a call for each message would cost too much.
    """

    __slots__ = ("_left", "_period", "_taken", "name", "since_ms", "until_ms", "used")

    def __init__(self, name: str, period: Period, kept: TallyRecord | None, now_ms: int) -> None:
        """`kept` is the count as it was last saved."""
        self.name = name
        self._period = period
        self._left = (-1, 0)  # the beginning of the period before the last turn, and the use counted in it
        self.since_ms, self.until_ms = period(now_ms)
        self.used = kept.used if kept is not None and now_ms < kept.until_ms else 0
        self._taken = self.used  # of several nodes: what all together have counted, as far as it is known

    def turn(self, now_ms: int) -> None:
        """Go over to the current period."""
        is_forward, (left_ms, left) = now_ms >= self.until_ms, self._left
        self._left = self.since_ms, self.used
        self.since_ms, self.until_ms = self._period(now_ms)
        known = left if left_ms == self.since_ms else 0
        self.used = known if is_forward else self.used + known
        self._taken = known

    def take(self) -> TallyRecord:
        """Of several nodes: what this one has counted since the last time."""
        more, self._taken = self.used - self._taken, self.used
        return TallyRecord(self.name, self.since_ms, self.until_ms, more)

    def settle(self, sum_: TallyRecord) -> None:
        """All nodes together have counted so much, with everything that was taken."""
        if sum_.since_ms == self.since_ms:
            self.used += sum_.used - self._taken
            self._taken = sum_.used

    def record(self) -> TallyRecord:
        return TallyRecord(self.name, self.since_ms, self.until_ms, self.used)
