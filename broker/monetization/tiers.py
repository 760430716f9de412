"""The tier of each device, and with it how many messages a day the device may send (reference 13 and 21.2)."""

from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import structlog

from broker.changes import Changes
from broker.clock import Clock
from broker.cluster.kinds import TIER
from broker.cluster.news import News
from broker.devices.registry import Device
from broker.errors import DeviceNotFound, PermissionDenied, ValidationFailed, invalid
from broker.facts import DeviceCreated, DeviceDeleted, FactPhase, PlanApproved, Router
from broker.limits.allowance import UNLIMITED
from broker.limits.quotas import Quotas
from broker.loops import Loop, Wakeup
from storage.database import Database
from storage.keys import DeviceKey, DeviceTypeKey
from storage.records import TierRecord
from storage.transaction import Transaction

_RETRY_SECONDS = 5
_log = structlog.get_logger(__name__)


class DeviceTier(msgspec.Struct, frozen=True):
    record: TierRecord
    active: bool


class Tiers:
    """Puts devices on tiers and sets their daily quotas accordingly. The caller checks permissions."""

    def __init__(self, database: Database, clock: Clock, router: Router, news: News, quotas: Quotas) -> None:
        self._database = database
        self._clock = clock
        self._quotas = quotas
        self._types_to_read: set[DeviceTypeKey] = set()
        self._devices_to_read: set[DeviceKey] = set()
        self._wakeup = Wakeup()
        self._changes = Changes()
        router.subscribe(PlanApproved, self._plan_approved, FactPhase.STATE)
        router.subscribe(DeviceCreated, self._device_created, FactPhase.STATE)
        router.subscribe(DeviceDeleted, lambda fact: self._change(fact.device, None), FactPhase.STATE)
        news.listen(TIER, self.tier_changed)
        #: Sets the limits of devices that are new, or whose type has a plan now.
        self.follow_forever = Loop(
            self._follow, wakeup=self._wakeup, failure="tiers_not_followed", retry_seconds=_RETRY_SECONDS
        ).run

    async def resume(self) -> None:
        """Set the daily quota of every device that is on a plan."""
        await self._apply(partial(_limits, None))

    async def _apply(self, work: Callable[[Transaction], Mapping[DeviceKey, int]]) -> None:
        limits = await self._changes.settled(lambda: self._database.read(work))
        for device, limit in limits.items():
            self._quotas.set_device_limit(device, limit)

    def _change(self, device: DeviceKey, limit: int | None) -> None:
        self._changes.note()
        self._quotas.set_device_limit(device, limit)

    def _plan_approved(self, fact: PlanApproved) -> None:
        self._types_to_read.add(fact.device_type)
        self._wakeup.set()

    def _device_created(self, fact: DeviceCreated) -> None:
        self._devices_to_read.add(fact.device)
        self._wakeup.set()

    async def _follow(self) -> None:
        while self._types_to_read:
            type_key = self._types_to_read.pop()  # before the read: a plan approved during it is read again
            try:
                await self._apply(partial(_limits, type_key))
            except BaseException:  # whatever it is; raised again
                self._types_to_read.add(type_key)
                raise
        while self._devices_to_read:
            device = self._devices_to_read.pop()
            try:
                await self._apply(partial(_limit_of, device))
            except BaseException:  # whatever it is; raised again
                self._devices_to_read.add(device)
                raise

    async def of_device(self, device: Device) -> list[DeviceTier]:
        """The tiers of the plan that the device is on; none when it is on none."""
        return await self._database.read(lambda tx: tiers_of(tx, device.key))

    async def select(self, device: Device, tier_id: str) -> DeviceTier:
        """Put the device on another tier of its plan.

        Raises:
            ValidationFailed: it is no tier of the device's plan.
            PermissionDenied: the tier is not paid for.
            DeviceNotFound: it was deleted.
        """

        def work(tx: Transaction) -> TierRecord:
            if tx.devices.device(device.key) is None:
                raise DeviceNotFound(device.id)
            wanted = next((one.record for one in tiers_of(tx, device.key) if one.record.id == tier_id), None)
            if wanted is None:
                raise ValidationFailed.of("ptid", invalid("is no tier of this device"))
            if wanted.type == "paid" and not tx.monetization.has_paid(device.key, wanted.key):
                raise PermissionDenied(f"payment of tier {tier_id}")
            tx.monetization.set_tier(device.key, wanted.key, now_ms=self._clock.now_ms())
            tx.tell(TIER, device.key)
            return wanted

        return DeviceTier(await self._database.write(work), active=True)

    def tier_changed(self, device: DeviceKey, tier: TierRecord | None) -> None:
        self._change(device, None if tier is None else _daily_limit(tier))


def _limits(device_type: DeviceTypeKey | None, tx: Transaction) -> Mapping[DeviceKey, int]:
    return tx.monetization.limits(device_type)


def _limit_of(device: DeviceKey, tx: Transaction) -> Mapping[DeviceKey, int]:
    tier = tx.monetization.tier_of(device)
    return {} if tier is None else {device: _daily_limit(tier)}


def _daily_limit(tier: TierRecord) -> int:
    """The paid tier removes the quota, whatever number its plan has (reference 21.2)."""
    return UNLIMITED if tier.type == "paid" else tier.message_limit


def tiers_of(tx: Transaction, device: DeviceKey) -> list[DeviceTier]:
    active = tx.monetization.tier_of(device)
    if active is None:
        return []
    return [DeviceTier(tier, tier.key == active.key) for tier in tx.monetization.tiers(active.plan)]
