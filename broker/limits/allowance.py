"""Quotas of an organization per month, and of a device per day (reference 21.2)."""

from typing import Final

import msgspec

from broker.limits.ledger import Ledger, LedgerBatch
from broker.limits.periods import Period, PeriodUsage

UNLIMITED: Final = -1  # reference 21.2


class Usage(msgspec.Struct, frozen=True):
    """How much of `limit` (-1: unlimited) was used since `since_ms`; counting restarts at `until_ms`."""

    used: int
    limit: int
    since_ms: int
    until_ms: int


class Allowance:
    """A limit and its use in the current period. A change of the limit keeps the use."""

    __slots__ = ("_is_noted", "_ledger", "_tally", "limit")

    def __init__(self, name: str, period: Period, limit: int, ledger: Ledger, now_ms: int) -> None:
        self.limit = limit
        self._ledger = ledger
        self._tally = PeriodUsage(name, period, ledger.kept(name), now_ms)
        ledger.watch(self._tally)
        self._is_noted = False

    def take(self, units: int, now_ms: int) -> bool:
        """Use `units` if the limit allows it; return whether it did."""
        if not self.has_room(units, now_ms):
            return False
        self.use(units)
        return True

    def has_room(self, units: int, now_ms: int) -> bool:
        """Whether the limit allows `units` more. Call `has_room` before every `use`: it begins a new period."""
        tally = self._tally
        if not tally.since_ms <= now_ms < tally.until_ms:
            tally.turn(now_ms)
        return self.limit == UNLIMITED or tally.used + units <= self.limit

    def use(self, units: int) -> None:
        self._tally.used += units
        if not self._is_noted:
            self._is_noted = True
            self._ledger.note(self)

    def retire(self) -> None:
        """Save the count, so that a later allowance of this name goes on from it."""
        self._ledger.remember(self._tally.record())

    def wait_seconds(self, now_ms: int) -> int:
        """The seconds until the next period begins, rounded up."""
        return -(-(self._tally.until_ms - now_ms) // 1000)

    def usage(self, now_ms: int) -> Usage:
        self.has_room(0, now_ms)
        tally = self._tally
        return Usage(tally.used, self.limit, tally.since_ms, tally.until_ms)

    def save_into(self, batch: LedgerBatch) -> None:
        batch.put(self._tally)
        self._is_noted = False
