"""Decides which callers may do what with a device. No other module decides that (reference 4.7 and 6.3).

A `Reach` stays up to date for as long as it is held: the grants are shared objects that are changed in place, and the
users who accepted a share are in the shared `Device`.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from enum import Enum, StrEnum
from functools import partial
from typing import Final, Protocol
from weakref import WeakValueDictionary

from broker.accounts.tokens import Caller, TokenKind
from broker.changes import Changes
from broker.errors import PermissionDenied
from broker.facts import ApplicationGrantsChanged, FactPhase, GrantsChanged, Router
from storage.conditions import require
from storage.database import Database
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, OrganizationKey, UserKey
from storage.records import GrantRecord
from storage.transaction import Transaction

#: Numbers of holders whose grants are kept in memory: an application has the grants of all its users, a user token one
#: user's.
_APPLICATIONS_REMEMBERED: Final = 100
_USERS_REMEMBERED: Final = 5_000

#: An application, and the user of a user token; None for an application token, which all users' grants concern.
_Holder = tuple[ApplicationKey, UserKey | None]


class Permission(Enum):
    """A permission on a device.

    A user grants READ and WRITE to applications, and shares a device with both. MANAGE is for the owner, and needs
    WRITE: renaming, disabling, deleting, tokens, sharing, properties, third-party credentials.
    """

    READ = "READ"
    WRITE = "WRITE"
    MANAGE = "MANAGE"


#: The permissions that a device channel needs, and that a share gives.
READ_AND_WRITE: Final = (Permission.READ, Permission.WRITE)


class Guarded(Protocol):
    """The attributes of a device that `Reach` reads."""

    @property
    def key(self) -> DeviceKey: ...
    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> UserKey: ...
    @property
    def type_key(self) -> DeviceTypeKey: ...
    @property
    def type_organization(self) -> OrganizationKey: ...
    @property
    def type_protected(self) -> bool: ...
    @property
    def shared_with(self) -> Collection[UserKey]:
        """The users who accepted a share."""


class GuardedType(Protocol):
    """The attributes of a device type that `Reach` and `Permissions.require_type` read."""

    @property
    def key(self) -> DeviceTypeKey: ...
    @property
    def id(self) -> str: ...
    @property
    def organization(self) -> OrganizationKey: ...
    @property
    def published(self) -> bool: ...
    @property
    def protected(self) -> bool: ...


class Role(StrEnum):
    """The role of a user in an organization (reference 5.3)."""

    ADMINISTRATOR = "administrator"
    DEVELOPER = "developer"
    VIEWER = "viewer"


ADMINISTRATORS = frozenset({Role.ADMINISTRATOR})


class Grants:
    """The permissions that users granted to one application, by user. Of a user token, those of its user only."""

    def __init__(self, grants: Iterable[GrantRecord] = ()) -> None:
        self._of: dict[UserKey, tuple[GrantRecord, ...]] = {}
        for grant in grants:
            self._of[grant.user] = (*self.of(grant.user), grant)

    def of(self, user: UserKey) -> tuple[GrantRecord, ...]:
        return self._of.get(user, ())

    def put(self, user: UserKey, grants: tuple[GrantRecord, ...]) -> None:
        """Replace everything that this user granted."""
        if grants:
            self._of[user] = grants
        else:
            self._of.pop(user, None)


class Reach:
    """The access of one caller. Every method answers at once, from the current grants and shares (reference 4.7).

    - A device token reaches its own device. Which REST calls accept a device token is declared with each call.
    - A user token reaches the devices that the user owns, and for READ and WRITE the devices shared with the user, as
      far as the user granted them to the token's application.
    - An application token reaches what its users reach, as far as they granted it.
    - A token of the console reaches what its user may reach, without a grant.

    A grant is for a device type, or for every type that is not protected. Any grant covers all types of the
    application's own organization. Protected types of other organizations are never reached. The application of a trial
    has only the types that were granted.
    """

    def __init__(self, caller: Caller, grants: Grants) -> None:
        self.caller = caller
        self._grants = grants

    def allows(self, device: Guarded, permission: Permission) -> bool:
        caller, user = self.caller, self.caller.user
        if caller.kind is TokenKind.DEVICE:
            return caller.device == device.key
        shared_with = () if permission is Permission.MANAGE else device.shared_with
        granted = (device.type_key, device.type_organization, device.type_protected, permission)
        if user is not None:
            return (user == device.owner or user in shared_with) and self._granted(user, *granted)
        return self._granted(device.owner, *granted) or any(self._granted(one, *granted) for one in shared_with)

    def allows_type(self, user: UserKey, type_: GuardedType, permission: Permission) -> bool:
        """The caller has `permission` for every device of this type for which `user` has it."""
        granted = (type_.key, type_.organization, type_.protected, permission)
        return self.covers_user(user) and self._granted(user, *granted)

    def _granted(
        self,
        user: UserKey,
        type_key: DeviceTypeKey,
        organization: OrganizationKey,
        protected: bool,
        permission: Permission,
    ) -> bool:
        if self.caller.is_console:
            return True
        grants = self._grants.of(user)
        if organization == self.caller.application_organization:
            return bool(grants)
        if protected and organization != self.caller.trial_organization:
            return False
        return any(
            (grant.read if permission is Permission.READ else grant.write) and grant.device_type in {None, type_key}
            for grant in grants
        )

    def covers_user(self, user: UserKey) -> bool:
        """The caller acts for this user: with the user's token, or as an application that the user granted anything."""
        if self.caller.kind is TokenKind.USER:
            return self.caller.user == user
        return self.caller.kind is TokenKind.APPLICATION and bool(self._grants.of(user))

    def writes_profile(self, user: UserKey) -> bool:
        """The caller acts for this user, who granted the application WRITE on the profile."""
        is_granted = self.caller.is_console or any(grant.profile for grant in self._grants.of(user))
        return self.covers_user(user) and is_granted

    def manages_trials(self, user: UserKey) -> bool:
        """The caller acts for this user, who granted the application to manage trials."""
        is_granted = self.caller.is_console or any(grant.trials for grant in self._grants.of(user))
        return self.covers_user(user) and is_granted


def _still_owned(device: DeviceKey, owner: UserKey, tx: Transaction) -> None:
    known = tx.devices.device(device)
    if known is not None and known.owner != owner:
        raise PermissionDenied(f"{Permission.MANAGE.value} on device {known.id}")


_NO_GRANTS: Final = Grants()


def manages_organization(tx: Transaction, caller: Caller) -> bool:
    """The caller's application has an administrator's rights in its organization (reference 5.3)."""
    application = None if caller.application is None else tx.accounts.application(caller.application)
    return application is not None and application.manages_organization


class Permissions:
    """Reads the grants of a caller once, and then changes them with every `GrantsChanged`."""

    def __init__(self, database: Database, router: Router) -> None:
        self._database = database
        self._live: WeakValueDictionary[_Holder, Grants] = WeakValueDictionary()
        self._applications: OrderedDict[_Holder, Grants] = OrderedDict()
        self._users: OrderedDict[_Holder, Grants] = OrderedDict()
        self._changes = Changes()
        router.subscribe(GrantsChanged, self._grants_changed, FactPhase.STATE)
        router.subscribe(ApplicationGrantsChanged, self._many_changed, FactPhase.STATE)

    async def reach(self, caller: Caller) -> Reach:
        """The reach of `caller`, which stays up to date."""
        if caller.application is None:
            return Reach(caller, _NO_GRANTS)
        holder = (caller.application, caller.user)
        return Reach(caller, self._live.get(holder) or await self._load(holder))

    async def _load(self, holder: _Holder) -> Grants:
        loaded = await self._changes.settled(
            lambda: self._database.read(lambda tx: Grants(tx.accounts.grants(*holder)))
        )
        grants = self._live.setdefault(holder, loaded)  # another task may have loaded them during the read
        is_user = holder[1] is not None
        recent, most = (self._users, _USERS_REMEMBERED) if is_user else (self._applications, _APPLICATIONS_REMEMBERED)
        recent[holder] = grants
        if len(recent) > most:
            recent.popitem(last=False)
        return grants

    def _many_changed(self, fact: ApplicationGrantsChanged) -> None:
        for user, grants in fact.grants.items():
            self._grants_changed(GrantsChanged(user, fact.application, grants))

    def _grants_changed(self, fact: GrantsChanged) -> None:
        self._changes.note()
        for user in (fact.user, None):
            if (grants := self._live.get((fact.application, user))) is not None:
                grants.put(fact.user, fact.grants)

    async def require(self, caller: Caller, device: Guarded, permission: Permission) -> None:
        """Raises PermissionDenied unless `caller` has `permission` on `device`.

        With MANAGE, nothing of a request is written any more once the device has another owner: a caller can delay what
        comes between the check and the write, by reads that wait for the caller's own.
        """
        if not (await self.reach(caller)).allows(device, permission):
            raise PermissionDenied(f"{permission.value} on device {device.id}")
        if permission is Permission.MANAGE:
            require(partial(_still_owned, device.key, device.owner))

    async def require_user(self, caller: Caller, user: UserKey) -> None:
        """Raises PermissionDenied unless `caller` acts for this user."""
        if not (await self.reach(caller)).covers_user(user):
            raise PermissionDenied("access to this user")

    async def _is_of_trial(self, application: ApplicationKey | None, type_: DeviceTypeKey) -> bool:
        """The application is that of a trial which has the device type."""
        return application is not None and await self._database.read(
            lambda tx: tx.trials.is_type_of_application(application, type_)
        )

    async def require_granted(self, caller: Caller, user: UserKey, type_: GuardedType, permission: Permission) -> None:
        """Raises PermissionDenied unless `caller` has `permission` for the user's devices of this type."""
        reach = await self.reach(caller)
        if not reach.covers_user(user):
            raise PermissionDenied("access to this user")
        if not reach.allows_type(user, type_, permission):
            raise PermissionDenied(f"{permission.value} on device type {type_.id}")

    async def require_profile(self, caller: Caller, user: UserKey) -> None:
        """Raises PermissionDenied unless the user granted the caller WRITE on the profile."""
        if not (await self.reach(caller)).writes_profile(user):
            raise PermissionDenied("WRITE on the user's profile")

    async def require_organization(
        self, caller: Caller, organization: OrganizationKey, roles: Collection[Role]
    ) -> None:
        """The caller is a member in one of these roles, or an application that manages it (reference 5.3).

        Raises:
            PermissionDenied: the caller is neither.
        """
        if caller.kind is TokenKind.APPLICATION and caller.application_organization == organization:
            if await self._database.read(lambda tx: manages_organization(tx, caller)):
                return
            raise PermissionDenied("an application that manages its organization")
        user = caller.user
        if user is not None:
            role = await self._database.read(lambda tx: tx.accounts.role_of(organization, user))
            if role in roles:
                return
        raise PermissionDenied(f"{' or '.join(sorted(roles))} of the organization")

    async def require_role(self, caller: Caller, type_: GuardedType, roles: Collection[Role]) -> None:
        """The caller is an application that manages the type's organization, or a member in one of these roles whose
        token has WRITE on the type. Raises PermissionDenied."""
        await self.require_organization(caller, type_.organization, roles)
        if caller.user is not None:
            await self.require_granted(caller, caller.user, type_, Permission.WRITE)

    async def require_type(self, caller: Caller, type_: GuardedType, *, user: UserKey | None = None) -> None:
        """Check that the caller may use a device type. Unpublished and protected types are for the members of their
        organization and for callers with a token of one of its applications; of a trial's application, if the trial
        has the type.

        Args:
            user: the user for whom the caller acts, if that is not the user of the caller's token.

        Raises:
            PermissionDenied: the type is unpublished or protected, and the caller may not use it.
        """
        if (type_.published and not type_.protected) or caller.application_organization == type_.organization:
            return
        if caller.trial_organization == type_.organization and await self._is_of_trial(caller.application, type_.key):
            return
        user = caller.user if user is None else user
        if user is None or await self._database.read(lambda tx: tx.accounts.role_of(type_.organization, user)) is None:
            raise PermissionDenied(f"use of device type {type_.id}")
