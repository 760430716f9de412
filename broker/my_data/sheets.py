"""The sheet of a device type: what its devices record, how much, and for how long (reference 8.8).

Regulation (EU) 2023/2854, the Data Act, has who sells or leases a connected product say that before the contract
(article 3.2). Everything is from the Manifest, the settings and what the devices of the type have sent.
"""

from functools import partial
from typing import Final

import msgspec
import trio

from broker.clock import Clock
from broker.device_types.catalog import DeviceType
from broker.export.tables import Column, columns_of
from broker.messages.intervals import DAY_MS, Interval
from broker.messages.rollup_days import RollupDays
from storage.database import Database
from storage.keys import DeviceTypeKey
from storage.transaction import Transaction

_MEASURED_DAYS: Final = 7
#: Devices that are measured: more of them would not change a mean.
_MEASURED_DEVICES: Final = 1_000
_KNOWN_SECONDS: Final = 600.0
_KNOWN_MOST: Final = 1_000


class Measured(msgspec.Struct, frozen=True):
    """Messages of `devices`, the ones of these days that sent any: on `device_days` days of one device."""

    devices: int
    device_days: int
    messages: int

    @property
    def per_day(self) -> float | None:
        """Of one device; None when none has sent any."""
        return round(self.messages / self.device_days, 1) if self.device_days else None


class Sheet(msgspec.Struct, frozen=True):
    """`message_days` and `rollup_days` are for how long both are kept; 0 keeps for ever."""

    type: DeviceType
    columns: list[Column]
    sensitive: frozenset[str]
    actions: list[tuple[str, str]]  # name and description
    measured: Measured
    days: int
    message_days: int
    rollup_days: dict[Interval, int]


class Sheets:
    def __init__(self, database: Database, clock: Clock, *, retention_days: int, rollups: RollupDays) -> None:
        self._database, self._clock = database, clock
        self._retention_days, self._rollups = retention_days, rollups
        self._known: dict[DeviceTypeKey, tuple[float, Measured]] = {}

    async def sheet(self, type_: DeviceType) -> Sheet:
        manifest = type_.latest.manifest
        own = (await self._database.read(lambda tx: tx.retention.days_of_types())).get(type_.key)
        days = self._retention_days if own is None else own
        return Sheet(
            type_,
            columns_of([(type_.latest.version, manifest)]),
            frozenset(path for path, field in manifest.leaves.items() if field.is_sensitive),
            [(one.name, one.description) for one in manifest.actions],
            await self._measured(type_.key),
            _MEASURED_DAYS,
            days,
            self._rollups.of_device(days),
        )

    async def _measured(self, type_: DeviceTypeKey) -> Measured:
        """The messages of the last whole days; known for ten minutes."""
        known = self._known.get(type_)
        if known is not None and trio.current_time() < known[0]:
            return known[1]
        today = self._clock.now_ms() // DAY_MS * DAY_MS
        found = await self._database.read(partial(_measure, type_, today - _MEASURED_DAYS * DAY_MS, today))
        if len(self._known) >= _KNOWN_MOST:
            self._known.clear()
        self._known[type_] = trio.current_time() + _KNOWN_SECONDS, found
        return found


def _measure(type_: DeviceTypeKey, start_ms: int, end_ms: int, tx: Transaction) -> Measured:
    return Measured(*tx.data_readers.sent_by_type(type_, start_ms, end_ms, devices=_MEASURED_DEVICES))
