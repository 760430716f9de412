"""The devices that a feed names: when one is deleted or no longer shared, the feed ends (reference 19.1)."""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from broker.accounts.permissions import Permission, Reach
from broker.devices.registry import Device
from broker.facts import DeviceDeleted, SharesChanged
from broker.routing.connections import CloseReason
from storage.keys import DeviceKey


class NamedDevices:
    """The devices, held so that they stay up to date, and what the feed's caller may do with them."""

    __slots__ = ("_devices", "_reach")

    def __init__(self, reach: Reach | None, devices: Iterable[Device]) -> None:
        self._reach = reach
        self._devices = {device.key: device for device in devices}

    def __contains__(self, key: DeviceKey) -> bool:
        return key in self._devices

    def lacks(self, key: DeviceKey) -> bool:
        """One of them is this device, and the caller may not read it."""
        device = self._devices.get(key)
        return not (device is None or self._reach is None or self._reach.allows(device, Permission.READ))


#: Of a feed that names none.
NO_DEVICES: Final = NamedDevices(None, ())


class _Feed(Protocol):
    @property
    def named(self) -> NamedDevices: ...
    @property
    def close(self) -> Callable[[CloseReason], object]: ...


def end_deleted(feeds: Iterable[_Feed], fact: DeviceDeleted) -> None:
    for feed in tuple(feeds):
        if fact.device in feed.named:
            feed.close(CloseReason.DEVICE_DELETED)


def end_unshared(feeds: Iterable[_Feed], fact: SharesChanged) -> None:
    for feed in tuple(feeds):
        if feed.named.lacks(fact.device):
            feed.close(CloseReason.PERMISSION_REMOVED)
