"""When the disk is full, as the store grew in the last week, with what retention deletes by then."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from itertools import accumulate
from operator import sub
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from broker.messages.intervals import Interval
from broker.messages.retention import free_bytes_kept
from broker.messages.rollup_days import RollupDays
from config.limits import FAILED_DAYS
from config.settings import Settings
from storage.keys import DeviceTypeKey
from storage.retention import RetentionStore
from storage.sizes import (
    AUDIT,
    DAY_MS,
    DAYS,
    DELIVERIES,
    FAILED,
    HOURS,
    INDEX,
    MESSAGES,
    MINUTES,
    WEEK_MS,
    Sizes,
    StorePart,
    measure,
)
from storage.sql import StoreConnection

#: Nothing is forecast behind these days.
HORIZON_DAYS: Final = 3_660
_LEVELS: Final = {MINUTES: Interval.MINUTE, HOURS: Interval.HOUR, DAYS: Interval.DAY}
#: The settings that change what a part takes.
SETTINGS: Final = {
    MESSAGES: "storage.retention_days",
    INDEX: "storage.retention_days",
    MINUTES: "storage.minute_rollup_days",
    HOURS: "storage.hour_rollup_days",
    DAYS: "storage.day_rollup_days",
    AUDIT: "audit.keep_days",
    DELIVERIES: "subscriptions.keep_days",
}


class KeptDays(msgspec.Struct, frozen=True):
    """How long rows of each part are kept: the settings, and the days of device types that have their own."""

    messages: int
    rollups: RollupDays
    audit: int
    deliveries: int
    own: Mapping[DeviceTypeKey, int]

    @classmethod
    def of(cls, settings: Settings, own: Mapping[DeviceTypeKey, int]) -> Self:
        storage = settings.storage
        rollups = RollupDays.of(storage)
        return cls(storage.retention_days, rollups, settings.audit.keep_days, settings.subscriptions.keep_days, own)

    def days(self, part: str, device_type: DeviceTypeKey) -> int:
        """0 is for ever."""
        messages = self.own.get(device_type, self.messages)
        if (level := _LEVELS.get(part)) is not None:
            return self.rollups.of_device(messages)[level]
        others = {FAILED: FAILED_DAYS, AUDIT: self.audit, DELIVERIES: self.deliveries}
        return others.get(part, messages)


class PartForecast(msgspec.Struct, frozen=True):
    """Bytes now, and how many come in a day; 0 where that is not known."""

    name: str
    size: float
    bytes_a_day: float


class Forecast:
    """Of a store whose parts were measured at `now_ms`. `is_known`: the log has at least a day."""

    def __init__(self, sizes: Sizes, kept: KeptDays, *, now_ms: int) -> None:
        self.measured = sizes
        self.kept = kept
        self._now_ms = now_ms
        self._days = min(WEEK_MS, now_ms - (now_ms if sizes.since_ms is None else sizes.since_ms)) / DAY_MS
        self.is_known = self._days >= 1
        #: Bytes that come on each day, as the difference to the day before, and bytes that are deleted.
        self._more, self._gone = [0.0] * (HORIZON_DAYS + 1), [0.0] * (HORIZON_DAYS + 1)
        self.parts: Sequence[PartForecast] = [self._part(one) for one in sizes.parts]

    def under(self, **changed: int) -> "Forecast":
        """With other settings."""
        kept = replace(self.kept, messages=changed.get("retention_days", self.kept.messages))
        rollups = replace(
            kept.rollups, **{name.partition("_")[0] + "s": days for name, days in changed.items() if "rollup" in name}
        )
        return Forecast(self.measured, replace(kept, rollups=rollups), now_ms=self._now_ms)

    @property
    def bytes_a_day(self) -> float | None:
        """All that comes, also if it is deleted later; None while that is not known."""
        return sum(part.bytes_a_day for part in self.parts) if self.is_known else None

    @cached_property
    def sizes(self) -> Sequence[float]:
        """Of the store at the end of each day. Free room is used first; beyond some it goes back to the disk, where
        the engine can do that."""
        store, found = float(self.measured.store_bytes), []
        growth = map(sub, accumulate(self._more), self._gone)
        for used in accumulate(growth, initial=store - self.measured.free_bytes):
            store = max(store, used)
            if self.measured.gives_back:
                store = min(store, used + free_bytes_kept(store))
            found.append(store)
        return found[1:]

    def full_after(self, available: int) -> int | None:
        """The days after which the disk with so much room is full; None: not within ten years, or nobody knows."""
        if not self.is_known:
            return None
        full = self.measured.store_bytes + available
        return next((day for day, size in enumerate(self.sizes) if size > full), None)

    def date_after(self, days: int) -> date:
        """In UTC."""
        return datetime.fromtimestamp(self._now_ms / 1000, UTC).date() + timedelta(days)

    def settings_for(self, available: int) -> str:
        """Settings with which the disk does not get full, each with its greatest value; else the ones that matter."""
        found = []
        for name in ("retention_days", "minute_rollup_days"):
            low, high = 0, HORIZON_DAYS
            while low < high:
                middle = (low + high + 1) // 2
                if self.under(**{name: middle}).full_after(available) is None:
                    low = middle
                else:
                    high = middle - 1
            if low:
                found.append(f"storage.{name} to at most {low}")
        if found:
            return "set " + " or ".join(found)
        growing = sorted((part for part in self.parts if part.name in SETTINGS), key=lambda part: -part.bytes_a_day)
        names = dict.fromkeys(SETTINGS[part.name] for part in growing if part.bytes_a_day)
        return f"lower {', '.join(names)}"

    def _part(self, part: StorePart) -> PartForecast:
        rates: dict[int, float] = {}
        kept_by_type: dict[int, int] = {}
        for at_ms, size, device_type in part.samples:
            if (kept := kept_by_type.get(device_type)) is None:
                kept = kept_by_type[device_type] = self.kept.days(part.name, DeviceTypeKey(device_type))
            if kept:
                day = max(0, (at_ms + kept * DAY_MS - self._now_ms) // DAY_MS)
                self._gone[min(day, HORIZON_DAYS)] += size
            # The days whose rows tell how many come: all of them are still there.
            window = max(1.0, min(self._days, kept or self._days))
            if self.is_known and at_ms > self._now_ms - window * DAY_MS:
                rates[kept] = rates.get(kept, 0.0) + size / window
        for kept, rate in rates.items():
            self._more[0] += rate
            if 0 < kept < HORIZON_DAYS:
                self._more[kept] -= rate
        return PartForecast(part.name, part.size, sum(rates.values()))


def forecast(db: StoreConnection, settings: Settings, *, now_ms: int) -> Forecast:
    """The store must have all schema steps. Raises StoreError."""
    kept = KeptDays.of(settings, RetentionStore(db).days_of_types())
    return Forecast(measure(db, now_ms=now_ms), kept, now_ms=now_ms)
