"""Daily usage of organizations, for charts (reference 21.2). It is noted every minute, and at the end."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from broker.clock import Clock
from broker.limits.periods import utc_day, utc_month
from broker.limits.quotas import Quotas
from broker.loops import Loop
from storage.database import Database
from storage.keys import OrganizationKey
from storage.leases import Holder
from storage.sql import StaleLeaseError
from storage.transaction import Transaction

KEPT_DAYS: Final = 400
SHOWN_DAYS: Final = 31
_DAY_MS: Final = 86_400_000
_NOTE_SECONDS: Final = 60.0


class DayUsage(msgspec.Struct, frozen=True):
    day_ms: int
    units: int


class UsageDays:
    def __init__(self, database: Database, lease: Holder, clock: Clock, quotas: Quotas) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        self._quotas = quotas
        self._noted: Mapping[OrganizationKey, int] = {}
        self._noted_on = 0  # the day
        self.note_forever = Loop(self.note, every=_NOTE_SECONDS, failure="usage_not_noted").run

    async def note(self) -> None:
        """Save the counts that have changed. Raises StoreError."""
        now_ms = self._clock.now_ms()
        day_ms, _ = utc_day(now_ms)
        used = self._quotas.used_by_organization(now_ms)
        known = self._noted if day_ms == self._noted_on else {}
        changed = {key: units for key, units in used.items() if units and known.get(key) != units}
        is_new_day = day_ms != self._noted_on

        def work(tx: Transaction) -> None:
            tx.limits.put_usage(day_ms, changed)
            if is_new_day and self._clock.may_delete():
                tx.limits.forget_usage(before_ms=day_ms - KEPT_DAYS * _DAY_MS)

        if changed or is_new_day:
            await self._database.write_own(self._lease, work)
        self._noted, self._noted_on = used, day_ms

    async def of(self, organization: OrganizationKey) -> list[DayUsage]:
        """The last 31 days with today, oldest first."""
        with suppress(StaleLeaseError):  # another node saves them
            await self.note()
        today_ms, _ = utc_day(self._clock.now_ms())
        first_ms = today_ms - (SHOWN_DAYS - 1) * _DAY_MS
        since_ms = first_ms - SHOWN_DAYS * _DAY_MS  # so that the first day has the one before it
        rows = await self._database.read(lambda tx: tx.limits.usage(organization, since_ms=since_ms))
        found, before, month = {}, 0, 0
        for day_ms, used in rows:
            of_month, _ = utc_month(day_ms)
            found[day_ms] = max(0, used - (before if of_month == month else 0))
            before, month = used, of_month
        days = range(first_ms, today_ms + 1, _DAY_MS)
        return [DayUsage(day_ms, found.get(day_ms, 0)) for day_ms in days]
