"""Finders of the objects that paths of several nouns name. Each also checks the caller's permission."""

from collections.abc import Collection
from typing import Final

from broker.accounts.permissions import ADMINISTRATORS, Permission, Role
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller, TokenKind
from broker.device_types.catalog import DeviceType
from broker.device_types.room import DeviceTypesRoom
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from protocols.http.calls import SharedFinder
from storage.records import UserRecord


class Named:
    def __init__(self, accounts: AccountsRoom, device_types: DeviceTypesRoom, devices: DevicesRoom) -> None:
        self._users = accounts.users
        self._devices = devices.registry
        self._device_types = device_types.catalog
        self._permissions = accounts.permissions

    async def device(self, caller: Caller, did: str, permission: Permission) -> Device:
        """A device on which the caller has the permission. Raises DeviceNotFound, PermissionDenied."""
        device = await self._devices.find(did)
        await self._permissions.require(caller, device, permission)
        return device

    async def user(self, caller: Caller, uid: str) -> UserRecord:
        """A user for whom the caller acts. Raises UserNotFound, PermissionDenied."""
        user = await self._users.find(uid, caller)
        await self._permissions.require_user(caller, user.key)
        return user

    async def administered_type(self, caller: Caller, dtid: str) -> DeviceType:
        """A type, for administrators of its organization and for the organization's applications: O in reference 2.

        An administrator's token needs WRITE on the type. Raises DeviceTypeNotFound, PermissionDenied.
        """
        return await self.type_for(caller, dtid, ADMINISTRATORS)

    async def type_for(self, caller: Caller, dtid: str, roles: Collection[Role]) -> DeviceType:
        """The type for callers with other roles. Raises DeviceTypeNotFound, PermissionDenied."""
        type_ = await self._device_types.find(dtid)
        await self._permissions.require_role(caller, type_.record, roles)
        return type_

    async def managed_device(self, caller: Caller, did: str) -> Device:
        """A device, for itself, its owner, administrators of its type's organization and that one's applications.

        Raises DeviceNotFound, PermissionDenied.
        """
        device = await self._devices.find(did)
        reach = await self._permissions.reach(caller)
        if caller.kind is TokenKind.APPLICATION or not reach.allows(device, Permission.MANAGE):
            await self._permissions.require_role(caller, device.type.record, ADMINISTRATORS)
        return device


def named_device(permission: Permission) -> SharedFinder:
    async def find(named: Named, caller: Caller, did: str) -> Device:
        return await named.device(caller, did, permission)

    return SharedFinder(find)


NAMED_USER: Final = SharedFinder(Named.user)
ADMINISTERED_TYPE: Final = SharedFinder(Named.administered_type)
