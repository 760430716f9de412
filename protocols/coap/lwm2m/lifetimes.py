"""The registrations: by number, by device, and by the time at which they end."""

import heapq
from collections.abc import Iterator
from itertools import count
from math import inf
from typing import Final

from broker.errors import StorageUnavailable
from protocols.coap.lwm2m.device import RegisteredDevice
from storage.keys import DeviceKey

#: How long a registration outlives its lifetime (reference 18.2).
GRACE_SECONDS: Final = 10.0
_NUMBERS: Final = 65_534


class RegistrationTable:
    """Registrations, and a heap of the ends of their lifetimes. Extending a lifetime does not touch the heap: `due`
    finds the early entry and adds the later end."""

    def __init__(self) -> None:
        self._by_number: dict[int, RegisteredDevice] = {}
        self._by_device: dict[DeviceKey, RegisteredDevice] = {}
        self._ends: list[tuple[float, int, RegisteredDevice]] = []
        self._order = count()
        self._last = 0
        self.find = self._by_number.get
        self.of_device = self._by_device.get

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[RegisteredDevice]:
        return iter(tuple(self._by_number.values()))

    def free_number(self) -> int:
        """A number that no registration has. Raises StorageUnavailable when all are taken."""
        if len(self._by_number) >= _NUMBERS:
            raise StorageUnavailable("all registration numbers are taken")
        while True:
            self._last = self._last % _NUMBERS + 1
            if self._last not in self._by_number:
                return self._last

    def add(self, registered: RegisteredDevice) -> None:
        self._by_number[registered.number] = registered
        self._by_device[registered.device.key] = registered

    def remove(self, registered: RegisteredDevice) -> bool:
        """Returns whether it was there."""
        if self._by_number.get(registered.number) is not registered:
            return False
        del self._by_number[registered.number]
        if self._by_device.get(registered.device.key) is registered:
            del self._by_device[registered.device.key]
        return True

    def extend(self, registered: RegisteredDevice, now: float) -> None:
        """Restart the lifetime."""
        former, registered.expires = registered.expires, now + registered.lifetime_seconds + GRACE_SECONDS
        if not former or registered.expires < former:
            self._note(registered)

    def _note(self, registered: RegisteredDevice) -> None:
        heapq.heappush(self._ends, (registered.expires, next(self._order), registered))

    @property
    def next_end(self) -> float:
        """The time of the next work of `due`; infinity without registrations."""
        return self._ends[0][0] if self._ends else inf

    def due(self, now: float) -> list[RegisteredDevice]:
        """The registrations whose lifetime has passed."""
        found = []
        while self._ends and self._ends[0][0] <= now:
            noted, _, registered = heapq.heappop(self._ends)
            if self._by_number.get(registered.number) is not registered:
                continue
            if registered.expires <= now:
                found.append(registered)
            elif noted < registered.expires:
                self._note(registered)
        return found
