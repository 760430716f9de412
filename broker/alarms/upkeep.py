"""Clears alarms of devices that are gone, and deletes old ones."""

from collections.abc import Mapping
from typing import Final

import msgspec
import trio

from broker.alarms.changes import ClearedBy, clear_keys
from broker.clock import Clock
from broker.facts import DeviceDeleted, DeviceHandedOver, FactPhase, Router, SharesChanged
from broker.loops import Loop, Wakeup
from config.limits import ALARMS_OF_USER
from storage.database import Database
from storage.keys import Milliseconds
from storage.leases import Holder
from storage.transaction import Transaction

_LOOK_SECONDS: Final = 60.0
_SWEEP_SECONDS: Final = 600.0
_STEP_ROWS: Final = 500
_DAY_MS: Final = 86_400_000
_RETRY_SECONDS: Final = 5.0


class AlarmStatistics(msgspec.Struct, frozen=True):
    """The open ones, as they were at most a minute ago. `deleted`: old ones, since the start, by this node."""

    open_info: int
    open_warning: int
    open_critical: int
    deleted: int


class AlarmUpkeep:
    def __init__(self, database: Database, clock: Clock, router: Router, lease: Holder, keep_days: int) -> None:
        self._database = database
        self._clock = clock
        self._lease = lease
        self._keep_ms = keep_days * _DAY_MS
        self._wakeup = Wakeup()
        self._deleted = 0
        self._open: Mapping[str, int] = {}
        self._swept_at = -_SWEEP_SECONDS
        router.subscribe(DeviceDeleted, self._lost, FactPhase.EFFECT)
        router.subscribe(DeviceHandedOver, self._lost, FactPhase.EFFECT)
        router.subscribe(SharesChanged, self._lost, FactPhase.EFFECT)
        # A device may have been deleted just before a crash.
        self.run_forever = Loop(
            self.step,
            every=_LOOK_SECONDS,
            wakeup=self._wakeup,
            at_once=True,
            failure="alarms_not_swept",
            retry_seconds=_RETRY_SECONDS,
            deletes=True,
        ).run

    def _lost(self, _fact: DeviceDeleted | DeviceHandedOver | SharesChanged) -> None:
        self._wakeup.set()

    async def step(self) -> bool:
        """Returns whether there is more to do at once."""
        if await self._clear_lost():
            return True
        self._open = await self._database.read(lambda tx: tx.alarms.count_open())
        now = trio.current_time()
        if now - self._swept_at < _SWEEP_SECONDS:
            return False
        if self._clock.may_delete() and await self._sweep():
            return True
        self._swept_at = now
        return False

    async def _clear_lost(self) -> bool:
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> int:
            keys = tx.alarms.of_lost_devices(limit=_STEP_ROWS)
            return clear_keys(tx, keys, at_ms=now_ms, by=ClearedBy.DEVICE)

        if not await self._database.read(lambda tx: tx.alarms.of_lost_devices(limit=1)):
            return False
        return await self._database.write_own(self._lease, work) > 0

    async def _sweep(self) -> bool:
        before_ms = Milliseconds(self._clock.now_ms() - self._keep_ms)

        def work(tx: Transaction) -> int:
            deleted = tx.alarms.sweep(before_ms, limit=_STEP_ROWS)
            for owner in tx.alarms.owners_with_more_than(ALARMS_OF_USER):
                deleted += tx.alarms.trim(owner, keep=ALARMS_OF_USER, limit=_STEP_ROWS)
            return deleted

        deleted = await self._database.write_own(self._lease, work)
        self._deleted += deleted
        return deleted > 0

    def statistics(self) -> AlarmStatistics:
        info, warning, critical = (self._open.get(one, 0) for one in ("info", "warning", "critical"))
        return AlarmStatistics(info, warning, critical, self._deleted)
