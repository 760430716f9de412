"""The device that a path names, with the caller's right to do what the call does."""

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller, TokenKind
from broker.devices.registry import Device
from broker.services import Services
from protocols.http.guard import Guard


class NamedDevices:
    """Every call on one device asks it first: token, device, permission, rate limit (reference 3.2)."""

    def __init__(self, services: Services, guard: Guard) -> None:
        self._services = services
        self._guard = guard

    async def get(self, device_id: str, permission: Permission, *kinds: TokenKind) -> tuple[Caller, Device]:
        """Raises Unauthorized, DeviceNotFound, PermissionDenied, RateLimitExceeded."""
        async with self._guard.before_limit(*kinds) as caller:
            device = await self._services.devices.registry.find(device_id)
            await self._services.accounts.permissions.require(caller, device, permission)
        return caller, device
