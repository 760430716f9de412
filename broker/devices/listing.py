"""The devices of a user, page by page: their own and those shared with them (reference 6.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from broker.accounts.permissions import Permission, Permissions
from broker.accounts.tokens import Caller, TokenKind
from broker.device_types.catalog import DeviceTypes
from broker.devices.registry import Device, Devices
from storage.database import Database
from storage.devices import ListedDevice
from storage.keys import UserKey


class Ownership(StrEnum):
    ALL = "ALL"
    ME = "ME"
    SHARED_WITH_ME = "SHARED_WITH_ME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which devices to list.

    `device_type` is an id or a unique name, `type_name` the exact display name or unique name.
    """

    owner: Ownership = Ownership.ALL
    device_type: str | None = None
    type_name: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A device, and the id of the share by which the user has it; None for the user's own."""

    device: Device
    share: str | None


class DeviceLists:
    def __init__(
        self, database: Database, devices: Devices, device_types: DeviceTypes, permissions: Permissions
    ) -> None:
        self._database = database
        self._devices = devices
        self._types = device_types
        self._permissions = permissions

    async def page(
        self, caller: Caller, user: UserKey, chosen: Chosen, *, offset: int, count: int
    ) -> tuple[list[Listed], int]:
        """A page of a user's devices that the caller may read, by time of creation and id; and their total number.

        Raises:
            PermissionDenied: the caller does not act for the user.
            DeviceTypeNotFound: there is no such type.
        """
        await self._permissions.require_user(caller, user)
        type_ = None if chosen.device_type is None else (await self._types.find(chosen.device_type)).key
        found = await self._database.read(
            lambda tx: tx.devices.listed(
                user,
                own=chosen.owner is not Ownership.SHARED_WITH_ME,
                shared=chosen.owner is not Ownership.ME,
                device_type=type_,
                type_name=chosen.type_name,
            )
        )
        readable = await self._readable(caller, user, found)
        shares = {one.key: one.share for one in readable[offset : offset + count]}
        page = [Listed(device, shares[device.key]) for device in await self._devices.get_all(shares)]
        return page, len(readable)

    async def _readable(self, caller: Caller, user: UserKey, found: Sequence[ListedDevice]) -> Sequence[ListedDevice]:
        """An application sees devices of the types that it may read; other callers see all."""
        if caller.kind is not TokenKind.APPLICATION:
            return found
        reach = await self._permissions.reach(caller)
        types = [await self._types.get(key) for key in {one.device_type for one in found}]
        allowed = {type_.key for type_ in types if reach.allows_type(user, type_.record, Permission.READ)}
        return [one for one in found if one.device_type in allowed]
