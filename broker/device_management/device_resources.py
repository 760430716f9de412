"""The resources of LWM2M that a device's Manifest names, whether the device offers them, and what else it offers
(reference 18.8)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from broker.device_management.objects import ObjectMap, values_by_path
from broker.device_management.offers import NOTHING, Offers, offers_of
from broker.device_management.properties import DeviceProperties
from broker.device_management.sessions import ManagedSession, ResourcePath
from broker.device_management.shared_registrations import SharedRegistrations, ShownRegistration
from broker.device_types.manifest import address_text
from broker.devices.registry import Device, Devices
from storage.keys import DeviceKey, DeviceTypeKey, OrganizationKey

_AWAY: Final = "The device is not registered, or its properties are being read."
_ASLEEP: Final = "The device sleeps: a value comes when it is heard again."
#: Devices of a type that are looked at for offers.
_LOOKED_AT: Final = 5


class FieldState(StrEnum):
    OBSERVED = "observed"
    ASLEEP = "asleep"
    NOT_OBSERVED = "notObserved"
    AWAY = "away"


class ResourceField(msgspec.Struct, frozen=True):
    """A field with `lwm2m`. `text` says why no value of its resource comes; empty when values come."""

    field: str
    path: str
    state: FieldState
    text: str


class OfferingDevice(msgspec.Struct, frozen=True):
    """A registered device, and its offers to the newest version of its type's Manifest."""

    device: Device
    offers: Offers


_Registered = tuple[Device, ShownRegistration]


@dataclass(eq=False)
class DeviceResources:
    """`shared`: other nodes have registrations, too."""

    _devices: Devices
    _session_of: Callable[[DeviceKey], ManagedSession | None]
    _sessions: Callable[[], Sequence[ManagedSession]]
    _objects: ObjectMap
    _properties: DeviceProperties
    _shared: SharedRegistrations | None = None

    async def fields(self, device: Device) -> list[ResourceField]:
        """The fields of the device's Manifest that have resources, in the order of the Manifest. Raises StoreError."""
        registration = await self._registration(device.key)
        return [_shown(field, path, registration) for field, path in device.manifest.manifest.resources.items()]

    async def _registration(self, device: DeviceKey) -> ShownRegistration | None:
        """The registration of a device, once its first steps have ended, on whatever node it is."""
        session = self._session_of(device)
        if session is not None and not session.is_over:
            return _of_session(session)
        if self._shared is None:
            return None
        found = (await self._shared.shown([device])).get(device)
        return found if found is not None and found.is_ready else None

    async def reason(self, device: Device, field: str) -> str:
        """Why no value of a field comes now; empty for a field without a resource, and for one whose values come.

        Raises StoreError.
        """
        if (path := device.manifest.manifest.resources.get(field)) is None:
            return ""
        return _shown(field, path, await self._registration(device.key)).text

    async def offers(self, device: Device) -> Offers:
        """The offers of a registered device that its Manifest lacks; nothing of a device without a registration."""
        registration = await self._registration(device.key)
        return NOTHING if registration is None else await self._offers(device, registration)

    async def _offers(self, device: Device, registration: ShownRegistration) -> Offers:
        reported = await self._properties.of(device, with_times=False)
        values = {
            found.path: value
            for name, value in values_by_path(reported.reported).items()
            if (found := self._objects.property_named(name)) is not None
        }
        return offers_of(self._objects, registration.offers, values, device.type.latest.manifest)

    async def boards(self, organization: OrganizationKey) -> list[OfferingDevice]:
        """For each type of an organization, a registered device that offers something."""
        found = list[OfferingDevice]()
        for some in _by_type(await self._registered(organization), organization).values():
            for device, registration in some:
                if (offers := await self._offers(device, registration)).fields:
                    found.append(OfferingDevice(device, offers))
                    break
        return sorted(found, key=lambda one: one.device.type.record.name)

    async def _registered(self, organization: OrganizationKey) -> list[_Registered]:
        """Registered devices, the last ones first; of several nodes those of the organization."""
        if self._shared is None:
            return [(one.device, _of_session(one)) for one in reversed(self._sessions()) if not one.is_over]
        found = await self._shared.of_organization(organization)
        devices = {device.key: device for device in await self._devices.get_all(found)}
        return [(devices[key], one) for key, one in found.items() if key in devices]


def _by_type(
    registered: Iterable[_Registered], organization: OrganizationKey
) -> dict[DeviceTypeKey, list[_Registered]]:
    """The first ones of each type."""
    found = dict[DeviceTypeKey, list[_Registered]]()
    for one in registered:
        record = one[0].type.record
        if record.organization == organization and len(some := found.setdefault(record.key, [])) < _LOOKED_AT:
            some.append(one)
    return found


def _of_session(session: ManagedSession) -> ShownRegistration:
    return ShownRegistration(True, session.is_asleep, session.unobserved, session.offers)


def _shown(field: str, path: ResourcePath, registration: ShownRegistration | None) -> ResourceField:
    if registration is None:
        return ResourceField(field, address_text(path), FieldState.AWAY, _AWAY)
    if (problem := registration.unobserved.get(path)) is not None:
        return ResourceField(field, address_text(path), FieldState.NOT_OBSERVED, problem)
    if registration.is_asleep:
        return ResourceField(field, address_text(path), FieldState.ASLEEP, _ASLEEP)
    return ResourceField(field, address_text(path), FieldState.OBSERVED, "")
