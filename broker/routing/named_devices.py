"""The devices that a feed names: when one is deleted or no longer shared, the feed ends (reference 19.1)."""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from broker.accounts.permissions import Permission, Reach
from broker.devices.registry import Device
from broker.facts import DeviceDeleted, FactPhase, Router, SharesChanged, TokenRevoked
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


class _Subscriber(Protocol):
    @property
    def token(self) -> bytes: ...
    @property
    def named(self) -> NamedDevices: ...
    @property
    def close(self) -> Callable[[CloseReason], object]: ...


def close_with_facts(router: Router, subscribers: Iterable[_Subscriber]) -> None:
    """Close a subscriber when its token is revoked, when a device that it names is deleted, and
    when such a device is no longer its caller's to read."""

    def token_revoked(fact: TokenRevoked) -> None:
        for one in tuple(subscribers):
            if one.token == fact.hash:
                one.close(CloseReason.TOKEN_REVOKED)

    def device_deleted(fact: DeviceDeleted) -> None:
        for one in tuple(subscribers):
            if fact.device in one.named:
                one.close(CloseReason.DEVICE_DELETED)

    def shares_changed(fact: SharesChanged) -> None:
        for one in tuple(subscribers):
            if one.named.lacks(fact.device):
                one.close(CloseReason.PERMISSION_REMOVED)

    router.subscribe(TokenRevoked, token_revoked, FactPhase.EFFECT)
    router.subscribe(DeviceDeleted, device_deleted, FactPhase.EFFECT)
    router.subscribe(SharesChanged, shares_changed, FactPhase.EFFECT)
