"""The resources of LWM2M that a device's Manifest names, and whether the device offers them (reference 18.8)."""

from collections.abc import Callable
from enum import StrEnum

import msgspec

from broker.device_management.sessions import ManagedSession, ResourcePath
from broker.device_types.manifest import address_text
from broker.devices.registry import Device
from storage.keys import DeviceKey

_AWAY = "The device is not registered, or its properties are being read."


class FieldState(StrEnum):
    OBSERVED = "observed"
    NOT_OBSERVED = "notObserved"
    AWAY = "away"


class ResourceField(msgspec.Struct, frozen=True):
    """A field with `lwm2m`. `text` says why its resource is not observed; empty when it is."""

    field: str
    path: str
    state: FieldState
    text: str


class DeviceResources:
    def __init__(self, session_of: Callable[[DeviceKey], ManagedSession | None]) -> None:
        self._session_of = session_of

    def fields(self, device: Device) -> list[ResourceField]:
        """The fields of the device's Manifest that have resources, in the order of the Manifest."""
        session = self._session_of(device.key)
        return [_shown(field, path, session) for field, path in device.manifest.manifest.resources.items()]


def _shown(field: str, path: ResourcePath, session: ManagedSession | None) -> ResourceField:
    if session is None or session.is_over:
        return ResourceField(field, address_text(path), FieldState.AWAY, _AWAY)
    problem = session.unobserved.get(path)
    state = FieldState.OBSERVED if problem is None else FieldState.NOT_OBSERVED
    return ResourceField(field, address_text(path), state, problem or "")
