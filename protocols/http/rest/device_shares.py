"""/devices/…/shares and /users/…/shares: offering a device to others, and their answers (reference 6.3)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.devices.shares import ALREADY_SHARED, ShareStatus
from broker.errors import PermissionDenied
from config.limits import EMAIL_MAX_CHARACTERS
from protocols.http.calls import USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import NAMED_USER, named_device
from protocols.http.schema import (
    BodyForm,
    Count,
    DataAndFlat,
    Id,
    NumberedPage,
    Offset,
    Paging,
    Shape,
    Timestamp,
    about,
    one_of,
)
from storage.keys import UserKey
from storage.records import ShareRecord, UserRecord

_PATH: Final = "/devices/{did}/shares/{shareId}"
_EXAMPLE: Final = {"id": samples.SHARE_ID, "email": "bob@example.net", "status": "PENDING", "sharedOn": samples.TS}
_FILTERS: Final[Mapping[str, Sequence[ShareStatus]]] = {
    "ALL": tuple(ShareStatus),
    "WAITING": (ShareStatus.PENDING,),
    "ACCEPTED": (ShareStatus.ACCEPTED,),
    "REJECTED": (ShareStatus.REJECTED,),
}


class ShareObject(Shape, kw_only=True):
    shape = "Share"
    example = _EXAMPLE

    id: Id
    email: (
        Annotated[str, about("Whom it is offered to; absent if it was offered by a user id", format="email")]
        | UnsetType
    ) = UNSET
    uid: Annotated[Id, about("Instead: the user id by which it was offered")] | UnsetType = UNSET
    status: Annotated[str, one_of(("PENDING", "ACCEPTED", "REJECTED"))]
    shared_on: Timestamp


class OfferedShare(ShareObject, kw_only=True):
    shape = "OfferedShare"
    example = _EXAMPLE | {
        "did": samples.DID,
        "deviceName": "Kitchen light",
        "ownerId": samples.UID,
        "ownerName": "Ada Example",
    }

    did: Id
    device_name: str
    owner_id: Id
    owner_name: str


class _Offered(Shape):
    example = {"id": samples.SHARE_ID, "shareId": samples.SHARE_ID}

    id: Id
    share_id: Id


class _Shares(Shape):
    shares: list[ShareObject]


class _OfferedShares(Shape):
    shares: list[OfferedShare]


class OfferBody(Shape):
    """To whom a device is offered: to share it, or to hand it over."""

    example = {"email": "bob@example.net"}
    any_of = (BodyForm(("email",)), BodyForm(("uid",)))

    email: Annotated[str, about("Whom it is offered to", format="email", maxLength=EMAIL_MAX_CHARACTERS)] | None = None
    uid: Annotated[str, about("A user id or an e-mail address", maxLength=EMAIL_MAX_CHARACTERS)] | None = None


class _Decision(Shape):
    example = {"status": "ACCEPTED"}

    status: Annotated[Literal["ACCEPTED", "REJECTED"], about("Any case")]


class _OfUser(Shape):
    filter: Annotated[Literal["ALL", "WAITING", "ACCEPTED", "REJECTED"], about("Any case")] = "ALL"
    count: Count = 100
    offset: Offset = 0


class DeviceShareCalls(RestCalls):
    chapter = Chapter(
        "Shares",
        "An owner offers a device to somebody by e-mail. An accepted share gives READ and WRITE on its messages, "
        "Actions, status, snapshots and events; the device stays its owner's.",
    )

    path_names = {"shareId": (Annotated[Id, about("A share")], samples.SHARE_ID)}

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom) -> None:
        self._devices = devices.registry
        self._permissions = accounts.permissions
        self._shares = devices.shares
        self._lists = devices.lists

    async def _invited(self, caller: Caller, did: str, share_id: str) -> tuple[UserKey, ShareRecord]:
        """The caller and the share. Only for the user to whom the device is offered. Raises PermissionDenied."""
        device = await self._devices.find(did)
        share = await self._shares.find(device, share_id)
        if caller.user is None or not await self._shares.is_for(caller.user, share):
            raise PermissionDenied(f"the invitation of share {share.id}")
        await self._permissions.require_granted(caller, caller.user, device.type.record, Permission.WRITE)
        return caller.user, share

    async def _shown(self, caller: Caller, did: str, share_id: str) -> ShareRecord:
        return await self._of_either(caller, did, share_id, Permission.READ)

    async def _removable(self, caller: Caller, did: str, share_id: str) -> ShareRecord:
        return await self._of_either(caller, did, share_id, Permission.WRITE)

    async def _of_either(self, caller: Caller, did: str, share_id: str, permission: Permission) -> ShareRecord:
        """The share. For the owner of the device, and for the user to whom it is offered. Raises PermissionDenied.

        Args:
            permission: what the user to whom it is offered must have granted on its type.
        """
        device = await self._devices.find(did)
        share = await self._shares.find(device, share_id)
        if caller.user is not None and await self._shares.is_for(caller.user, share):
            await self._permissions.require_granted(caller, caller.user, device.type.record, permission)
        else:
            await self._permissions.require(caller, device, Permission.MANAGE)
        return share

    @RestCall(
        "POST",
        "/devices/{did}/shares",
        tokens=USER,
        on=named_device(Permission.MANAGE),
        summary="Offer a device to somebody",
        about="Only the owner shares. The address need not belong to a user yet; it gets a mail with a link.",
        refusals={409: ALREADY_SHARED},
    )
    async def offer(self, device: Device, body: OfferBody) -> DataAndFlat[_Offered]:
        share = await self._shares.offer(device, email=body.email, uid=body.uid)
        return DataAndFlat(_Offered(share.id, share.id))

    @RestCall(
        "GET",
        "/devices/{did}/shares",
        tokens=USER,
        on=named_device(Permission.MANAGE),
        summary="To whom a device is offered",
    )
    async def of_device(self, device: Device, query: Paging) -> NumberedPage[_Shares]:
        found, total = await self._shares.of_device(device, offset=query.offset, count=query.count)
        return NumberedPage(_Shares(list(map(_share, found))), total, query.offset, len(found))

    @RestCall(
        "GET",
        _PATH,
        tokens=USER,
        on=_shown,
        summary="One share",
        about="For the owner, and for the one it is offered to.",
    )
    async def show(self, share: ShareRecord) -> DataAndFlat[ShareObject]:
        return DataAndFlat(_share(share))

    @RestCall(
        "PUT",
        _PATH,
        tokens=USER,
        on=_invited,
        summary="Accept or refuse a share",
        about="For the one it is offered to.",
        refusals={409: "Share is ACCEPTED"},
    )
    async def answer(self, invited: tuple[UserKey, ShareRecord], body: _Decision) -> DataAndFlat[ShareObject]:
        user, share = invited
        return DataAndFlat(_share(await self._shares.answer(share.id, user, ShareStatus(body.status))))

    @RestCall(
        "DELETE",
        _PATH,
        tokens=USER,
        on=_removable,
        summary="Revoke or leave a share",
        about="The owner revokes, the other one leaves.",
    )
    async def remove(self, share: ShareRecord) -> DataAndFlat[ShareObject]:
        return DataAndFlat(_share(await self._shares.remove(share.id)))

    @RestCall("GET", "/users/{uid}/shares", tokens=USER, on=NAMED_USER, summary="Devices that are offered to a user")
    async def offered_to_user(self, caller: Caller, user: UserRecord, query: _OfUser) -> NumberedPage[_OfferedShares]:
        found, total = await self._lists.offers(
            caller, user, _FILTERS[query.filter], offset=query.offset, count=query.count
        )
        shares = [
            OfferedShare(
                **_members(one.share),
                did=one.device_id,
                device_name=one.device_name,
                owner_id=one.owner_id,
                owner_name=one.owner_name,
            )
            for one in found
        ]
        return NumberedPage(_OfferedShares(shares), total, query.offset, len(shares))


def _share(share: ShareRecord) -> ShareObject:
    return ShareObject(**_members(share))


def _members(share: ShareRecord) -> dict[str, Any]:
    whom = {"email": share.email} if share.uid is None else {"uid": share.uid}
    return {"id": share.id, "status": share.status, "shared_on": share.shared_on, **whom}
