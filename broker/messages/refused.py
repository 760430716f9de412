"""Recent refusals of devices, for their owners to see: in memory, some entries for each (reference 9.6)."""

from collections import OrderedDict, deque
from typing import Final

import msgspec

from broker.clock import Clock
from broker.devices.registry import Device
from broker.errors import DomainError, Unauthorized
from broker.facts import DeviceHandedOver, FactPhase, Router
from broker.trace.origin import current_origin
from storage.keys import DeviceKey

_ENTRIES: Final = 20  # of one device
_CLAIMS: Final = 5  # of those: a stranger must not displace what the device was refused
_DEVICES: Final = 2_000


class RefusedMessage(msgspec.Struct, frozen=True):
    """`actor` is who sent it: a word and the id; empty for one that has not proven to be anybody."""

    at_ms: int
    status: int
    text: str
    actor: str
    address: str


class RefusedMessages:
    def __init__(self, clock: Clock, router: Router) -> None:
        self._clock = clock
        self._of: OrderedDict[DeviceKey, deque[RefusedMessage]] = OrderedDict()
        router.subscribe(DeviceHandedOver, self._handed_over, FactPhase.STATE)

    def note(self, device: Device, error: DomainError) -> None:
        """A message of this device, or an Action to it, was refused.

        One refusal may pass several places: the same text in the same millisecond counts once.
        """
        at_ms, text = self._clock.now_ms(), str(error)
        known = self._entries(device)
        if known and (known[-1].at_ms, known[-1].text) == (at_ms, text):
            return
        origin = current_origin()
        known.append(RefusedMessage(at_ms, error.status, text, origin.actor, origin.address))

    def note_claim(self, device: Device, text: str, address: str) -> None:
        """Note an attempt to act as this device with wrong credentials. The last few are kept."""
        known = self._entries(device)
        claims = [one for one in known if not one.actor and one.status == Unauthorized.status]
        if len(claims) >= _CLAIMS:
            known.remove(claims[0])
        known.append(RefusedMessage(self._clock.now_ms(), Unauthorized.status, text, "", address))

    def _entries(self, device: Device) -> deque[RefusedMessage]:
        known = self._of.get(device.key)
        if known is None:
            known = self._of[device.key] = deque(maxlen=_ENTRIES)
            if len(self._of) > _DEVICES:
                self._of.popitem(last=False)
        self._of.move_to_end(device.key)
        return known

    def _handed_over(self, fact: DeviceHandedOver) -> None:
        """Hide from a device's new owner the addresses of the former owner and of the former owner's applications."""
        self._of.pop(fact.device, None)

    def of(self, device: Device) -> list[RefusedMessage]:
        """The newest first."""
        return list(reversed(self._of.get(device.key, ())))
