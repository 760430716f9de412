"""Messages of which nothing remained: their sender is told on MQTT and CoAP, at a bounded rate (reference 9.7)."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from broker.clock import Clock
from broker.devices.registry import Device
from broker.errors import DomainError
from storage.keys import DeviceKey

_EVERY_MS: Final = 1_000  # for one device
_DEVICES: Final = 2_000


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
        """What to tell the device; None when it was told less than a second ago."""
        now = self._steady_ms()
        if now - self._told.get(device.key, now - _EVERY_MS) < _EVERY_MS:
            return None
        self._told[device.key] = now
        self._told.move_to_end(device.key)
        if len(self._told) > _DEVICES:
            self._told.popitem(last=False)
        return NothingRemained(reason)
