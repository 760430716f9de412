"""Removes deleted devices for good after 30 days, in small steps (reference 6.1).

Until then an operator can restore a device by provisioning it again with its id.
"""

from typing import Final

import msgspec
import structlog
import trio

from broker.clock import Clock
from broker.loops import Loop, Wakeup
from config.limits import DELETED_DEVICE_DAYS
from storage.database import Database
from storage.keys import DeviceKey
from storage.leases import Holder

REMOVAL_SWEEP_SECONDS: Final = 3600.0
_KEPT_MS: Final = DELETED_DEVICE_DAYS * 86_400_000
_DEVICES_AT_ONCE: Final = 100
_STEP_ROWS: Final = 1_000
_PAUSE_SECONDS: Final = 0.01
_EVER_MS: Final = 2**62

_log = structlog.get_logger(__name__)


class RemovalStatistics(msgspec.Struct, frozen=True):
    removed_devices: int


class Removal:
    def __init__(self, database: Database, lease: Holder, clock: Clock) -> None:
        self._database = database
        self._lease = lease
        self._clock = clock
        self.wakeup = Wakeup()
        self._removed = 0
        self.sweep_forever = Loop(
            self.sweep,
            every=REMOVAL_SWEEP_SECONDS,
            wakeup=self.wakeup,
            at_once=True,
            failure="deleted_devices_not_removed",
            deletes=True,
        ).run

    async def sweep(self) -> None:
        """Remove every device whose time is over, with its messages and other data."""
        if not self._clock.may_delete():
            return
        before_ms, removed = self._clock.now_ms() - _KEPT_MS, self._removed
        while devices := await self._database.read(
            lambda tx: tx.removal.deleted_before(before_ms, limit=_DEVICES_AT_ONCE)
        ):
            for device in devices:
                await self._remove(device, before_ms)
        if self._removed > removed:
            _log.info("deleted_devices_removed", devices=self._removed - removed)

    async def remove_at_once(self, device: DeviceKey) -> None:
        """Remove a deleted device with all its data, also failed messages: nobody may see them again."""
        is_done = False
        while not is_done:
            is_done = await self._database.write_own(
                self._lease, lambda tx: tx.leaving.forget_failed(device, limit=_STEP_ROWS)
            )
            await trio.sleep(_PAUSE_SECONDS)
        await self._remove(device, _EVER_MS)

    async def _remove(self, device: DeviceKey, before_ms: int) -> None:
        while True:
            if await self._database.write_own(
                self._lease, lambda tx: tx.removal.remove_some(device, before_ms=before_ms, limit=_STEP_ROWS)
            ):
                self._removed += 1
                return
            await trio.sleep(_PAUSE_SECONDS)  # lets other writes go first

    def statistics(self) -> RemovalStatistics:
        return RemovalStatistics(self._removed)
