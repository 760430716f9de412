"""Finders of the objects that paths of several nouns name. Each also checks the caller's permission."""

from collections.abc import Collection
from typing import Final

from broker.accounts.organizations import DEVELOPERS, Membership
from broker.accounts.permissions import ADMINISTRATORS, Permission, Role
from broker.accounts.tokens import Caller, TokenKind
from broker.device_types.catalog import DeviceType
from broker.devices.registry import Device
from broker.services import Services
from broker.trials.roles import TrialRole
from protocols.http.calls import SharedFinder
from storage.records import UserRecord
from storage.trials import TrialRecord

#: Roles in a trial: of administrators, and of both.
TRIAL_ADMINISTRATOR: Final = (TrialRole.ADMINISTRATOR,)
TRIAL_MEMBER: Final = (TrialRole.ADMINISTRATOR, TrialRole.PARTICIPANT)


class Named:
    def __init__(self, services: Services) -> None:
        self._accounts = services.accounts
        self._users = services.accounts.users
        self._devices = services.devices.registry
        self._device_types = services.device_types.catalog
        self._permissions = services.accounts.permissions
        self._trials = services.trials.trials

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

    async def operator(self, caller: Caller) -> None:
        """Nothing, for operators of the service at the console. Raises PermissionDenied."""
        await self._accounts.operators.require(caller)

    async def organization(self, caller: Caller, oid: str) -> Membership:
        """An organization, for its administrators and developers. Raises NotFound, PermissionDenied."""
        return await self._accounts.organizations.find(caller, oid)

    async def developed_type(self, caller: Caller, dtid: str) -> DeviceType:
        """A type, for administrators and developers of its organization. Raises as `type_for`."""
        return await self.type_for(caller, dtid, DEVELOPERS)

    async def administered_trial(self, caller: Caller, tid: str) -> TrialRecord:
        """A trial, for its administrators. Raises NotFound, PermissionDenied."""
        return await self._trial(caller, tid, TRIAL_ADMINISTRATOR)

    async def joined_trial(self, caller: Caller, tid: str) -> TrialRecord:
        """A trial, for its administrators and participants. Raises NotFound, PermissionDenied."""
        return await self._trial(caller, tid, TRIAL_MEMBER)

    async def _trial(self, caller: Caller, tid: str, roles: Collection[TrialRole]) -> TrialRecord:
        trial = await self._trials.find(tid)
        await self._trials.require(caller, trial, roles)
        return trial


def named_device(permission: Permission) -> SharedFinder:
    async def find(named: Named, caller: Caller, did: str) -> Device:
        return await named.device(caller, did, permission)

    return SharedFinder(find)


NAMED_USER: Final = SharedFinder(Named.user)
ADMINISTERED_TYPE: Final = SharedFinder(Named.administered_type)
DEVELOPED_TYPE: Final = SharedFinder(Named.developed_type)
OWN_ORGANIZATION: Final = SharedFinder(Named.organization)
ONLY_OPERATORS: Final = SharedFinder(Named.operator)
ADMINISTERED_TRIAL: Final = SharedFinder(Named.administered_trial)
JOINED_TRIAL: Final = SharedFinder(Named.joined_trial)
