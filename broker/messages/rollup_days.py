"""How long rollups of each level are kept (reference 9.5)."""

from typing import Final, Self

import msgspec

from broker.messages.intervals import DAY_MS, HOUR_MS, MINUTES_KEPT_MS, Interval, Kept
from config.settings import Storage

#: Without a setting: the least, and at least twice the days of messages. Ten years is the longest range of a presence
#: search.
_LEAST: Final = {Interval.MINUTE: MINUTES_KEPT_MS // DAY_MS + 1, Interval.HOUR: 3_700, Interval.DAY: 3_700}


class RollupDays(msgspec.Struct, frozen=True):
    """The settings: days of each level, 0 for what follows from the days of messages."""

    minutes: int = 0
    hours: int = 0
    days: int = 0

    @classmethod
    def of(cls, settings: Storage) -> Self:
        return cls(settings.minute_rollup_days, settings.hour_rollup_days, settings.day_rollup_days)

    @property
    def any(self) -> bool:
        return bool(self.minutes or self.hours or self.days)

    def of_device(self, messages: int) -> dict[Interval, int]:
        """The days of each level for a device, by the days of its messages; 0 is for ever on both sides.

        No level is kept longer than the next coarser one, whose buckets answers put together with its own. Days are
        kept as long as messages: rules look up in them when a rare field had a value.
        """
        chosen = {Interval.MINUTE: self.minutes, Interval.HOUR: self.hours, Interval.DAY: self.days}
        if self.days:
            chosen[Interval.DAY] = max(self.days, messages) if messages else 0
        kept, coarser = {}, 0
        for level in reversed(_LEAST):
            days = chosen[level] or (max(_LEAST[level], 2 * messages) if messages else 0)
            coarser = min(days or coarser, coarser or days)
            kept[level] = coarser
        return kept

    @property
    def kept(self) -> Kept:
        """How long rollups are certain to be there, whatever the device: less by a bucket of the next level, because an
        edge needs all of those since that one began."""
        days = self.days or _LEAST[Interval.DAY]
        hours_ms = (min(self.hours or _LEAST[Interval.HOUR], days) - 1) * DAY_MS
        minutes_ms = self.minutes * DAY_MS - HOUR_MS if self.minutes else MINUTES_KEPT_MS
        return Kept(min(minutes_ms, hours_ms), hours_ms)
