"""The one place that decides who may READ and WRITE what (specification, Permissions)."""

from collections.abc import Sequence
from enum import Enum
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


class Reach:
    """What one caller may do, decided without waiting. Made by `Permissions.reach`.

    - A device token reaches its own device.
    - A user token reaches the devices that user owns.
    - An application token reaches the devices whose owner granted it their type, or every type; any grant to an
      application covers all types of the application's own organization (specification, Permissions).
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
        if grants and device.type_organization == caller.application_organization:
            return True
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
