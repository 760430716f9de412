"""Keeps the delivery log within its days and bytes (reference 11.5)."""

from functools import partial
from typing import Final

from broker.clock import Clock
from broker.loops import Loop, Wakeup
from storage.database import Database
from storage.leases import Holder
from storage.transaction import Transaction

_SWEEP_SECONDS: Final = 300.0
_STEP: Final = 1_000  # rows of one step: other writes wait for it
_DAY_MS: Final = 86_400_000


class Upkeep:
    def __init__(self, database: Database, lease: Holder, clock: Clock, *, keep_days: int, keep_bytes: int) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        self.wakeup = Wakeup()
        self._keep_ms = keep_days * _DAY_MS
        self._keep_bytes = keep_bytes
        self.removed = 0
        self.log_bytes = 0
        self.sweep_forever = Loop(
            self.sweep,
            every=_SWEEP_SECONDS,
            wakeup=self.wakeup,
            at_once=True,
            failure="deliveries_not_swept",
            retry_seconds=5,
            deletes=True,
        ).run

    async def sweep(self) -> None:
        """Remove notifications that are too old or too many, the oldest first; pending ones stay. Raises StoreError."""
        before_ms = self._clock.now_ms() - self._keep_ms
        await self._database.write_own(self._lease, lambda tx: tx.deliveries.give_up_orphans())
        if self._clock.may_delete():
            await self._remove_old(before_ms)
        await self._remove_surplus()

    async def _remove_old(self, before_ms: int) -> None:
        while removed := await self._database.write_own(
            self._lease, lambda tx: tx.deliveries.remove_oldest(before_ms=before_ms, limit=_STEP)
        ):
            self.removed += removed
        await self._database.write_own(self._lease, lambda tx: tx.subscriptions.forget_removed(before_ms, limit=_STEP))

    async def _remove_surplus(self) -> None:
        while True:
            self.log_bytes, mean = await self._database.read(lambda tx: tx.deliveries.size_bytes())
            surplus = self.log_bytes - self._keep_bytes
            if surplus <= 0:
                break
            step = partial(_remove_some, min(int(surplus / mean) + 1, _STEP))
            removed = await self._database.write_own(self._lease, step)
            self.removed += removed
            if not removed:
                break


def _remove_some(limit: int, tx: Transaction) -> int:
    return tx.deliveries.remove_oldest(before_ms=None, limit=limit)
