"""/devices/…/transfer and /users/…/transfers: handing a device over to another user (reference 6.5)."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.devices.transfers import STILL_LINKED
from broker.errors import PermissionDenied
from config.limits import TRANSFER_DAYS, TRANSFERS_SHOWN
from protocols.http.calls import USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.device_shares import OfferBody
from protocols.http.rest.named import NAMED_USER, named_device
from protocols.http.schema import Data, Id, Shape, Timestamp, about, time_ms
from storage.keys import UserKey
from storage.records import UserRecord
from storage.transfers import TransferRecord

_PATH: Final = "/devices/{did}/transfer"
_EXAMPLE: Final = {
    "id": samples.SHARE_ID,
    "did": samples.DID,
    "email": "bob@example.net",
    "offeredOn": samples.TS,
    "expiresOn": samples.TS + TRANSFER_DAYS * 86_400_000,
}


class TransferObject(Shape, kw_only=True):
    shape = "Transfer"
    example = _EXAMPLE

    id: Id
    did: Id
    email: (
        Annotated[str, about("Whom it is offered to; absent if it was offered by a user id", format="email")]
        | UnsetType
    ) = UNSET
    uid: Annotated[Id, about("Instead: the user id by which it was offered")] | UnsetType = UNSET
    offered_on: Timestamp
    expires_on: Annotated[int, time_ms("When the offer ends")]


class OfferedTransfer(TransferObject, kw_only=True):
    shape = "OfferedTransfer"
    example = _EXAMPLE | {"deviceName": "Kitchen light", "ownerId": samples.UID, "ownerName": "Ada Example"}

    device_name: str
    owner_id: Id
    owner_name: str


class _Transfers(Shape):
    transfers: Annotated[list[OfferedTransfer], about("Devices that are offered to the user")]
    offers: Annotated[list[TransferObject], about("Devices of the user that are offered to others")]


class _Decision(Shape):
    example = {"status": "ACCEPTED"}

    status: Annotated[Literal["ACCEPTED", "DECLINED"], about("Any case")]


class DeviceTransferCalls(RestCalls):
    chapter = Chapter(
        "Transfers",
        "An owner hands a device over to another user, who accepts or declines. The device keeps its id, its token and "
        "all that it has sent; what the former owner gave to others ends.",
    )

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom) -> None:
        self._devices = devices.registry
        self._permissions = accounts.permissions
        self._transfers = devices.transfers

    async def _offered(self, caller: Caller, did: str) -> tuple[Device, TransferRecord, UserKey]:
        """The device, the open offer and the caller, to whom it was made. Raises NotFound, PermissionDenied."""
        device = await self._devices.find(did)
        transfer = await self._transfers.of_device(device)
        if caller.user is None or not await self._transfers.is_for(caller.user, transfer):
            raise PermissionDenied(f"the offer of device {device.id}")
        await self._permissions.require_granted(caller, caller.user, device.type.record, Permission.WRITE)
        return device, transfer, caller.user

    @RestCall(
        "POST",
        _PATH,
        tokens=USER,
        on=named_device(Permission.MANAGE),
        summary="Offer a device to another user, for good",
        about="Replaces an earlier offer of the device. The address need not belong to a user yet; it gets a mail. The "
        f"offer ends after {TRANSFER_DAYS} days.",
        refusals={409: STILL_LINKED},
    )
    async def offer(self, device: Device, body: OfferBody) -> Data[TransferObject]:
        return Data(_shown(device, await self._transfers.offer(device, email=body.email, uid=body.uid)))

    @RestCall(
        "GET",
        _PATH,
        tokens=USER,
        on=named_device(Permission.MANAGE),
        summary="The open offer of a device",
        about="404: there is none.",
    )
    async def show(self, device: Device) -> Data[TransferObject]:
        return Data(_shown(device, await self._transfers.of_device(device)))

    @RestCall("DELETE", _PATH, tokens=USER, on=named_device(Permission.MANAGE), summary="Withdraw an offer")
    async def withdraw(self, device: Device) -> Data[TransferObject]:
        return Data(_shown(device, await self._transfers.withdraw(device)))

    @RestCall(
        "PUT",
        _PATH,
        tokens=USER,
        on=_offered,
        summary="Accept or decline a device",
        about="For the one it is offered to. From the answer on, an accepted device is theirs.",
        refusals={409: STILL_LINKED},
    )
    async def answer(self, offered: tuple[Device, TransferRecord, UserKey], body: _Decision) -> Data[TransferObject]:
        device, transfer, user = offered
        await self._transfers.answer(device, transfer, user, accept=body.status == "ACCEPTED")
        return Data(_shown(device, transfer))

    @RestCall(
        "GET",
        "/users/{uid}/transfers",
        tokens=USER,
        on=NAMED_USER,
        summary="Devices that other users hand over to this one, and the other way round",
        about=f"At most {TRANSFERS_SHOWN} of the former; answered ones make room.",
    )
    async def offered_to_user(self, caller: Caller, user: UserRecord) -> Data[_Transfers]:
        reach = await self._permissions.reach(caller)
        shown = []
        for one in await self._transfers.offered_to(user):
            device = await self._devices.find(one.device_id)
            if reach.allows_type(user.key, device.type.record, Permission.READ):
                about: dict[str, Any] = {"device_name": one.device_name, "owner_id": one.owner_id}
                shown.append(OfferedTransfer(**_members(device, one.transfer), **about, owner_name=one.owner_name))
        made = [
            _shown(device, transfer)
            for transfer in await self._transfers.made_by(user)
            if reach.allows(device := await self._devices.get(transfer.device), Permission.MANAGE)
        ]
        return Data(_Transfers(shown, made))


def _shown(device: Device, transfer: TransferRecord) -> TransferObject:
    return TransferObject(**_members(device, transfer))


def _members(device: Device, transfer: TransferRecord) -> dict[str, Any]:
    whom = {"email": transfer.email} if transfer.uid is None else {"uid": transfer.uid}
    return {
        "id": transfer.id,
        "did": device.id,
        "offered_on": transfer.offered_on,
        "expires_on": transfer.expires_on,
        **whom,
    }
