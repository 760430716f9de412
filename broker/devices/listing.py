"""The devices of a user, page by page: their own, those shared with them, and the offers of shares (reference 6)."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from broker.accounts.permissions import Permission, Permissions
from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceTypes
from broker.devices.registry import Device, Devices
from broker.devices.shares import Shares, ShareStatus
from storage.database import Database
from storage.keys import DeviceTypeKey, UserKey
from storage.records import UserRecord
from storage.shares import OfferRow


class Order(StrEnum):
    ASCENDING = "asc"
    DESCENDING = "desc"


class SortedBy(StrEnum):
    CREATED_ON = "createdOn"
    NAME = "name"


class Ownership(StrEnum):
    ALL = "ALL"
    ME = "ME"
    SHARED_WITH_ME = "SHARED_WITH_ME"


class DeviceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which devices to list.

    `device_type` is an id or a unique name, `type_name` the exact display name or unique name. `search` is a part of
    the device's name or id, or of its type's name or unique name.
    """

    owner: Ownership = Ownership.ALL
    device_type: str | None = None
    type_name: str | None = None
    search: str = ""
    sort: SortedBy = SortedBy.CREATED_ON
    order: Order = Order.ASCENDING


class Listed(msgspec.Struct, frozen=True):
    """A device, and the id of the share by which the user has it; None for the user's own."""

    device: Device
    share: str | None


@dataclass(slots=True, eq=False, repr=False)
class DeviceLists:
    _database: Database
    _devices: Devices
    _types: DeviceTypes
    _permissions: Permissions
    _shares: Shares

    async def page(
        self, caller: Caller, user: UserKey, chosen: DeviceFilter, *, offset: int, count: int
    ) -> tuple[list[Listed], int]:
        """A page of a user's devices that the caller may read, in the chosen order; and their total number.

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
                search=chosen.search,
                by_name=chosen.sort is SortedBy.NAME,
                descending=chosen.order is Order.DESCENDING,
            )
        )
        types = await self._readable(caller, user, (one.device_type for one in found))
        readable = [one for one in found if one.device_type in types]
        shares = {one.key: one.share for one in readable[offset : offset + count]}
        page = [Listed(device, shares[device.key]) for device in await self._devices.get_all(shares)]
        return page, len(readable)

    async def offers(
        self, caller: Caller, user: UserRecord, statuses: Collection[ShareStatus], *, offset: int, count: int
    ) -> tuple[list[OfferRow], int]:
        """A page of the shares that were offered to the user, of devices that the caller may read; and their number.

        The caller's right to act for the user is already checked.
        """
        types = await self._readable(caller, user.key, await self._shares.types_offered_to(user))
        if not types:
            return [], 0
        return await self._shares.offered_to(user, statuses, types, offset=offset, count=count)

    async def _readable(
        self, caller: Caller, user: UserKey, types: Iterable[DeviceTypeKey]
    ) -> Collection[DeviceTypeKey]:
        """The types among these that the user granted for reading."""
        reach = await self._permissions.reach(caller)
        found = [await self._types.get(key) for key in set(types)]
        return {type_.key for type_ in found if reach.allows_type(user, type_.record, Permission.READ)}
