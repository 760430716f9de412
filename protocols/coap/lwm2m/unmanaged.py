"""Registrations without device management: devices register and are online, and nothing is asked of them."""

from collections.abc import Mapping

from broker.device_management.sessions import ManagedSession, Observation, ResourcePath, ResourceValue
from broker.devices.registry import Device
from storage.keys import Milliseconds


class Unmanaged:
    """Implements `Registrations`."""

    async def observation_of(self, _device: Device) -> Observation:
        """Nothing is observed."""
        return Observation(is_enabled=False, pmin=0, pmax=0)

    async def registered(self, session: ManagedSession) -> None:
        """There are no tasks."""

    def ended(self, session: ManagedSession) -> None:
        """Nothing was begun."""

    async def values_came(
        self, device: Device, values: Mapping[ResourcePath, ResourceValue], ts_ms: Milliseconds
    ) -> None:
        """There are no properties."""
