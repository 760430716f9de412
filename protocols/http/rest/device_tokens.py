"""/devices/…/tokens: the one token of a device (reference 6.2)."""

from typing import Annotated, Final

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.devices.device_tokens import DeviceToken
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from protocols.http.calls import USER_OR_APPLICATION, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.devices import DEVICES
from protocols.http.rest.named import named_device
from protocols.http.schema import Data, Id, Shape, about

_PATH: Final = "/devices/{did}/tokens"


class DeviceTokenObject(Shape):
    shape = "DeviceToken"
    example = {"accessToken": samples.TOKEN, "uid": samples.UID, "did": samples.DID, "cid": samples.AID}

    access_token: Annotated[Id, about("The secret")]
    uid: Annotated[Id, about("The device's owner")]
    did: Id
    cid: Annotated[Id, about("The application that created it; the console's when the operator did")]


class DeviceTokenCalls(RestCalls):
    chapter = DEVICES

    def __init__(self, devices: DevicesRoom) -> None:
        self._tokens = devices.tokens

    @RestCall(
        "GET",
        _PATH,
        tokens=USER_OR_APPLICATION,
        on=named_device(Permission.MANAGE),
        summary="The device's token",
        about="404 when it has none.",
        is_secret=True,
    )
    async def show(self, device: Device) -> Data[DeviceTokenObject]:
        return _answer(device, await self._tokens.of(device))

    @RestCall(
        "PUT",
        _PATH,
        tokens=USER_OR_APPLICATION,
        on=named_device(Permission.MANAGE),
        summary="A new token for the device",
        about="The former one ends at once, and so do the connections that it holds. A body is ignored.",
        is_secret=True,
    )
    async def renew(self, caller: Caller, device: Device) -> Data[DeviceTokenObject]:
        return _answer(device, await self._tokens.renew(device, application=caller.application))

    @RestCall(
        "DELETE",
        _PATH,
        tokens=USER_OR_APPLICATION,
        on=named_device(Permission.MANAGE),
        summary="Revoke the device's token",
        about="404 when it has none.",
        is_secret=True,
    )
    async def remove(self, device: Device) -> Data[DeviceTokenObject]:
        return _answer(device, await self._tokens.remove(device))


def _answer(device: Device, token: DeviceToken) -> Data[DeviceTokenObject]:
    return Data(DeviceTokenObject(token.token, device.owner_id, device.id, token.application_id))
