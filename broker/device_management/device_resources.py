"""The resources of LWM2M that a device's Manifest names, whether the device offers them, and what else it offers
(reference 18.8)."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from broker.device_management.objects import ObjectMap, leaves_of
from broker.device_management.offers import NOTHING, Offers, offers_of
from broker.device_management.properties import DeviceProperties
from broker.device_management.sessions import ManagedSession, ResourcePath
from broker.device_types.manifest import address_text
from broker.devices.registry import Device
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


class DeviceResources:
    def __init__(
        self,
        session_of: Callable[[DeviceKey], ManagedSession | None],
        sessions: Callable[[], Sequence[ManagedSession]],
        objects: ObjectMap,
        properties: DeviceProperties,
    ) -> None:
        self._session_of = session_of
        self._sessions = sessions
        self._objects = objects
        self._properties = properties

    def fields(self, device: Device) -> list[ResourceField]:
        """The fields of the device's Manifest that have resources, in the order of the Manifest."""
        session = self._session_of(device.key)
        return [_shown(field, path, session) for field, path in device.manifest.manifest.resources.items()]

    def reason(self, device: Device, field: str) -> str:
        """Why no value of a field comes now; empty for a field without a resource, and for one whose values come."""
        if (path := device.manifest.manifest.resources.get(field)) is None:
            return ""
        return _shown(field, path, self._session_of(device.key)).text

    async def offers(self, device: Device) -> Offers:
        """The offers of a registered device that its Manifest lacks; nothing of a device without a registration."""
        session = self._session_of(device.key)
        if session is None or session.is_over:
            return NOTHING
        reported = await self._properties.of(device, with_times=False)
        values = {
            found.path: value
            for name, value in leaves_of(reported.reported).items()
            if (found := self._objects.property_named(name)) is not None
        }
        return offers_of(self._objects, session.offers, values, device.type.latest.manifest)

    async def boards(self, organization: OrganizationKey) -> list[OfferingDevice]:
        """For each type of an organization, a registered device that offers something."""
        found = list[OfferingDevice]()
        for sessions in _by_type(self._sessions(), organization).values():
            for session in sessions:
                if (offers := await self.offers(session.device)).fields:
                    found.append(OfferingDevice(session.device, offers))
                    break
        return sorted(found, key=lambda one: one.device.type.record.name)


def _by_type(
    sessions: Iterable[ManagedSession], organization: OrganizationKey
) -> dict[DeviceTypeKey, list[ManagedSession]]:
    """The last registrations of each type."""
    found = dict[DeviceTypeKey, list[ManagedSession]]()
    for session in reversed(list(sessions)):
        record = session.device.type.record
        if record.organization == organization and len(some := found.setdefault(record.key, [])) < _LOOKED_AT:
            some.append(session)
    return found


def _shown(field: str, path: ResourcePath, session: ManagedSession | None) -> ResourceField:
    if session is None or session.is_over:
        return ResourceField(field, address_text(path), FieldState.AWAY, _AWAY)
    if (problem := session.unobserved.get(path)) is not None:
        return ResourceField(field, address_text(path), FieldState.NOT_OBSERVED, problem)
    if session.is_asleep:
        return ResourceField(field, address_text(path), FieldState.ASLEEP, _ASLEEP)
    return ResourceField(field, address_text(path), FieldState.OBSERVED, "")
