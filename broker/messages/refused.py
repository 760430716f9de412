"""What devices were refused lately, for their owners to see: in memory, some entries for each (reference 9.6)."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from broker.clock import Clock
from broker.devices.registry import Device
from broker.errors import DomainError
from broker.trace.origin import current_origin
from storage.keys import DeviceKey

_ENTRIES: Final = 20  # of one device
_DEVICES: Final = 2_000


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """`actor` is who sent it: a word and the id. `address` is where it came from."""

    at_ms: int
    status: int
    text: str
    actor: str
    address: str


class RefusedMessages:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of: OrderedDict[DeviceKey, deque[RefusedMessage]] = OrderedDict()

    def note(self, device: Device, error: DomainError) -> None:
        """A message of this device, or an Action to it, was refused.

        One refusal may pass several places: the same text in the same millisecond counts once.
        """
        at_ms, text = self._clock.now_ms(), str(error)
        known = self._of.get(device.key)
        if known is None:
            known = self._of[device.key] = deque(maxlen=_ENTRIES)
            if len(self._of) > _DEVICES:
                self._of.popitem(last=False)
        elif (known[-1].at_ms, known[-1].text) == (at_ms, text):
            return
        self._of.move_to_end(device.key)
        origin = current_origin()
        known.append(RefusedMessage(at_ms, error.status, text, origin.actor, origin.address))

    def of(self, device: Device) -> list[RefusedMessage]:
        """The newest first."""
        return list(reversed(self._of.get(device.key, ())))
