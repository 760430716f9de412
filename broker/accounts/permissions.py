"""The one place that decides who may READ and WRITE what (specification, Permissions)."""

from collections.abc import Collection, Sequence
from enum import Enum, StrEnum
from typing import Protocol

from broker.accounts.tokens import Caller, TokenKind
from broker.errors import PermissionDenied
from storage.database import Database
from storage.records import GrantRecord


class Permission(Enum):
    READ = "READ"
    WRITE = "WRITE"


class Guarded(Protocol):
    """What a decision needs to know of a device."""

    @property
    def key(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> int: ...
    @property
    def type_key(self) -> int: ...
    @property
    def type_organization(self) -> int: ...
    @property
    def type_protected(self) -> bool: ...


class GuardedType(Protocol):
    """What a decision needs to know of a device type."""

    @property
    def id(self) -> str: ...
    @property
    def organization(self) -> int: ...
    @property
    def published(self) -> bool: ...
    @property
    def protected(self) -> bool: ...


class Role(StrEnum):
    """What a member may do for an organization (compatibility.md 5.3)."""

    ADMINISTRATOR = "administrator"
    DEVELOPER = "developer"
    VIEWER = "viewer"


ADMINISTRATORS = frozenset({Role.ADMINISTRATOR})
DEVELOPERS = frozenset({Role.ADMINISTRATOR, Role.DEVELOPER})


class Reach:
    """What one caller may do, decided without waiting. Made by `Permissions.reach`.

    - A device token reaches its own device.
    - A user token reaches the devices that user owns.
    - An application token reaches the devices whose owner granted it their type, or every type; any grant to an
      application covers all types of the application's own organization (specification, Permissions). Protected types
      of other organizations it never reaches.
    """

    def __init__(self, caller: Caller, grants: Sequence[GrantRecord]) -> None:
        self.caller = caller
        self._grants: dict[int, list[GrantRecord]] = {}
        for grant in grants:
            self._grants.setdefault(grant.user, []).append(grant)

    def allows(self, device: Guarded, permission: Permission) -> bool:
        caller = self.caller
        if caller.kind is TokenKind.DEVICE:
            return caller.device == device.key
        if caller.kind is TokenKind.USER:
            return caller.user == device.owner
        grants = self._grants.get(device.owner, ())
        if device.type_organization == caller.application_organization:
            return bool(grants)
        if device.type_protected:
            return False
        return any(
            (grant.read if permission is Permission.READ else grant.write)
            and grant.device_type in {None, device.type_key}
            for grant in grants
        )

    def covers_user(self, user: int) -> bool:
        """The caller acts for this user: it is their token, or they granted the application something."""
        if self.caller.kind is TokenKind.USER:
            return self.caller.user == user
        return self.caller.kind is TokenKind.APPLICATION and user in self._grants


class Permissions:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def reach(self, caller: Caller, *, owner: int | None = None) -> Reach:
        """Everything `caller` may reach, or only what belongs to `owner`."""
        application = caller.application
        if caller.kind is not TokenKind.APPLICATION or application is None:
            return Reach(caller, ())
        return Reach(caller, await self._database.read(lambda tx: tx.accounts.grants(application, owner)))

    async def require(self, caller: Caller, device: Guarded, permission: Permission) -> None:
        """Raises PermissionDenied unless `caller` has `permission` on `device`."""
        if not (await self.reach(caller, owner=device.owner)).allows(device, permission):
            raise PermissionDenied(f"{permission.value} on device {device.id}")

    async def require_user(self, caller: Caller, user: int) -> None:
        """Raises PermissionDenied unless `caller` acts for this user."""
        if not (await self.reach(caller, owner=user)).covers_user(user):
            raise PermissionDenied("access to this user")

    async def require_organization(self, caller: Caller, organization: int, roles: Collection[Role]) -> None:
        """The path table's O: a member in one of these roles, or an application of the organization.

        Raises PermissionDenied.
        """
        if caller.kind is TokenKind.APPLICATION and caller.application_organization == organization:
            return
        user = caller.user
        if user is not None:
            role = await self._database.read(lambda tx: tx.accounts.role_of(organization, user))
            if role in roles:
                return
        raise PermissionDenied(f"{' or '.join(sorted(roles))} of the organization")

    async def require_type(self, caller: Caller, type_: GuardedType) -> None:
        """Unpublished and protected types are for the organization's members and for users of its applications.

        Raises PermissionDenied.
        """
        if (type_.published and not type_.protected) or caller.application_organization == type_.organization:
            return
        user = caller.user
        if user is None or await self._database.read(lambda tx: tx.accounts.role_of(type_.organization, user)) is None:
            raise PermissionDenied(f"use of device type {type_.id}")
