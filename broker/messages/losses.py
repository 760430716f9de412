"""Losses of messages: dropped fields and failures (reference 9.6, 9.7).

Owners see the fields that were not kept. A sender on MQTT or CoAP is told when nothing of its message remained.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.clock import Clock
from broker.device_types.dropped import DroppedField
from broker.devices.registry import Device
from broker.errors import DomainError
from storage.keys import DeviceKey, Milliseconds

_EVERY_MS: Final = 1_000  # for one device
_DEVICES: Final = 2_000
#: Milliseconds between two looks at messages of a device whose sender does not ask for its dropped fields.
_LOOK_MS: Final = 10_000
_FIELDS: Final = 20  # of one device; the field that was dropped longest ago is forgotten first


@dataclass(eq=False)
class NothingRemained(DomainError):
    """The message is accepted and in the failed messages of its device; no search shows it."""

    status = 400
    template = "Nothing of the message was kept: {reason}"
    reason: str


class Losses:
    """Remembers when each device was told last. The device that was told longest ago is forgotten first."""

    def __init__(self, clock: Clock) -> None:
        self._steady_ms = clock.steady_ms
        self._told: OrderedDict[DeviceKey, int] = OrderedDict()

    def notice(self, device: Device, reason: str) -> NothingRemained | None:
        """The notice for the device; None if it got one less than a second ago."""
        now = self._steady_ms()
        if now - self._told.get(device.key, now - _EVERY_MS) < _EVERY_MS:
            return None
        self._told[device.key] = now
        self._told.move_to_end(device.key)
        if len(self._told) > _DEVICES:
            self._told.popitem(last=False)
        return NothingRemained(reason)


class LostField(msgspec.Struct, frozen=True):
    """The last time that a field was not kept. `at_ms` is when its message came; the rest is as for the sender."""

    at_ms: Milliseconds
    field: str
    message: str


class LostFields:
    """Lost fields of recent devices, in memory. MQTT and CoAP senders do not ask for them, so samples are checked."""

    def __init__(self) -> None:
        self._next: dict[DeviceKey, Milliseconds] = {}
        self._of: OrderedDict[DeviceKey, OrderedDict[str, LostField]] = OrderedDict()

    def is_due(self, device: DeviceKey, now_ms: Milliseconds) -> bool:
        """Whether a message of the device is to be looked at, although its sender does not ask."""
        next_ms = self._next.get(device)
        return next_ms is None or not next_ms - _LOOK_MS <= now_ms < next_ms

    def look(self, device: DeviceKey, now_ms: Milliseconds) -> None:
        """A message of the device is looked at: for some time, none is due."""
        if len(self._next) > 10 * _DEVICES:
            self._next.clear()
        self._next[device] = Milliseconds(now_ms + _LOOK_MS)

    def note(self, device: DeviceKey, fields: Iterable[DroppedField], now_ms: Milliseconds) -> None:
        known = self._of.setdefault(device, OrderedDict())
        self._of.move_to_end(device)
        if len(self._of) > _DEVICES:
            self._of.popitem(last=False)
        for one in fields:
            known[one.field] = LostField(now_ms, one.field, one.message)
            known.move_to_end(one.field)
        while len(known) > _FIELDS:
            known.popitem(last=False)

    def of(self, device: Device) -> list[LostField]:
        """The newest first."""
        return list(reversed(self._of.get(device.key, {}).values()))
