"""Configuration of device management for a type (reference 15.1)."""

import msgspec
from msgspec.structs import asdict, replace

from broker.clock import Clock
from broker.cluster.kinds import MANAGEMENT, publish
from broker.cluster.news import News
from broker.device_types.catalog import DeviceType
from broker.errors import Finding, ValidationFailed, too_low
from broker.facts import ManagementConfigured
from broker.trace.audit import AuditEvent, note
from config.limits import PMAX_SECONDS, PMIN_SECONDS, TASK_EXPIRES_SECONDS
from storage.database import Database
from storage.device_management import ManagementRecord
from storage.keys import DeviceTypeKey, Milliseconds
from storage.transaction import Transaction


class ConfigurationChange(msgspec.Struct, frozen=True):
    """The members to change; None keeps a value. The ranges of the seconds are checked where they are read."""

    device_properties_enabled: bool | None = None
    pmin: int | None = None
    pmax: int | None = None
    task_expires_after: int | None = None


class Configurations:
    def __init__(self, database: Database, clock: Clock, news: News) -> None:
        self._database = database
        self._clock = clock
        # One for each type that was asked for: there are as many as device types in memory.
        self._known: dict[DeviceTypeKey, ManagementRecord] = {}
        news.listen(MANAGEMENT, self._heard)

    async def of(self, type_: DeviceType) -> ManagementRecord:
        """The configuration of a type; of one that was never configured the defaults."""
        key = type_.record.key
        if (known := self._known.get(key)) is not None:
            return known
        stored = await self._database.read(lambda tx: tx.device_management.management(key))
        # A change may have been committed while this was read.
        return self._known.setdefault(key, stored or _defaults(type_))

    async def change(self, type_: DeviceType, change: ConfigurationChange) -> ManagementRecord:
        """Change the given members. Raises ValidationFailed when pmax would be smaller than pmin."""
        now_ms = self._clock.now_ms()

        def work(tx: Transaction) -> ManagementRecord:
            stored = tx.device_management.management(type_.record.key)
            changed = _changed(stored or replace(_defaults(type_), created_on=now_ms), change, now_ms)
            if changed.pmax < changed.pmin:
                raise ValidationFailed((Finding("pmax", (too_low(changed.pmin),)),))
            tx.device_management.put_management(changed)
            given = {name: value for name, value in asdict(change).items() if value is not None}
            note(tx, AuditEvent.MANAGEMENT_CONFIGURED, f"device_type {type_.record.id}", now_ms=now_ms, **given)
            tx.tell(MANAGEMENT, changed.device_type)
            publish(tx, ManagementConfigured(changed.device_type))
            return changed

        return await self._database.write(work)

    def _heard(self, type_: DeviceTypeKey, changed: ManagementRecord | None) -> None:
        if changed is not None:
            self._known[type_] = changed


def _defaults(type_: DeviceType) -> ManagementRecord:
    created_on = Milliseconds(type_.record.created_on)
    return ManagementRecord(
        type_.record.key, False, PMIN_SECONDS[1], PMAX_SECONDS[1], TASK_EXPIRES_SECONDS[1], created_on, created_on
    )


def _changed(record: ManagementRecord, change: ConfigurationChange, now_ms: Milliseconds) -> ManagementRecord:
    enabled = change.device_properties_enabled
    return replace(
        record,
        device_properties_enabled=record.device_properties_enabled if enabled is None else enabled,
        pmin=change.pmin or record.pmin,
        pmax=change.pmax or record.pmax,
        task_expires_after=change.task_expires_after or record.task_expires_after,
        modified_on=now_ms,
    )
