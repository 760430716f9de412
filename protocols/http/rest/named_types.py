"""The device type that a path names, for those who administrate it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.accounts.permissions import ADMINISTRATORS
from broker.device_types.catalog import DeviceType
from broker.services import Services
from protocols.http.guard import APPLICATION, USER, Guard


class AdministeredTypes:
    """For administrators of the type's organization, and for its applications (the path table's O)."""

    def __init__(self, services: Services, guard: Guard) -> None:
        self._services = services
        self._guard = guard

    async def get(self, dtid: str) -> DeviceType:
        """Raises Unauthorized, DeviceTypeNotFound, PermissionDenied, RateLimitExceeded."""
        async with self.before_limit(dtid) as type_:
            return type_

    @asynccontextmanager
    async def before_limit(self, dtid: str) -> AsyncIterator[DeviceType]:
        """The same, for calls on something that the type has: the block looks that up, as for the guard's own."""
        async with self._guard.before_limit(USER, APPLICATION) as caller:
            type_ = await self._services.device_types.catalog.find(dtid)
            await self._services.accounts.permissions.require_organization(
                caller, type_.record.organization, ADMINISTRATORS
            )
            yield type_
