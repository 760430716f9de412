"""/devices/…/wanted: values that wait until the device reports them (reference 9.10)."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller, TokenKind
from broker.devices.registry import Device
from broker.errors import DestinationDeviceDisabled
from broker.wanted.values import WantedState
from broker.wanted.wanted import Wanted, WantedField, WantedView
from config.limits import WANTED_FIELDS_MAX, WANTED_OF_USER, WANTED_SECONDS, WANTED_SECONDS_MAX
from protocols.http.calls import ANY_TOKEN, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Payload
from protocols.http.rest.named import named_device
from protocols.http.schema import Data, Id, Shape, Timestamp, about, absent_if_none, one_of, time_ms

_PATH: Final = "/devices/{did}/wanted"


class _Field(Shape, kw_only=True):
    example = {
        "wanted": 40,
        "since": samples.TS,
        "by": f"user {samples.UID}",
        "expiresOn": samples.TS + 86_400_000,
        "reported": 80,
        "reportedTs": samples.TS,
        "state": "sent",
        "message": "The device was given it at 2026-11-27 14:00:00 UTC, and has not reported it yet.",
    }

    wanted: Annotated[Any, about("As the Manifest converts it: a boolean, a number, a text or a list")]
    since: Timestamp
    by: Annotated[str, about("`user`, `device`, `application`, `rule` or `scene`, and the id")]
    expires_on: Timestamp
    reported: Annotated[Any, about("The last value that the device has reported")] | UnsetType = msgspec.UNSET
    reported_ts: Annotated[int, time_ms("When it was so")] | UnsetType = msgspec.UNSET
    state: Annotated[str, one_of(tuple(WantedState))]
    message: Annotated[str, about("A sentence")]


class WantedObject(Shape, kw_only=True):
    shape = "Wanted"
    example = {"did": samples.DID, "data": {"intensity": 40}, "fields": {"intensity": _Field.example}}

    did: Id
    data: Annotated[dict[str, Any], about("What is still wanted, groups nested: what the device gets")]
    fields: Annotated[dict[str, _Field], about("By dotted path; ended ones for 7 days")]


class NewWanted(Shape, kw_only=True):
    example = {"data": {"intensity": 40}, "expiresAfter": 86_400}

    data: Annotated[
        Raw,
        about(
            f"Values of fields with `settable`, groups nested, at most {WANTED_FIELDS_MAX}; null withdraws what is "
            "wanted of the field",
            type="object",
        ),
        Payload(),
    ]
    expires_after: Annotated[
        int, Meta(ge=1, le=WANTED_SECONDS_MAX), about("Seconds, after which it is not wanted any more")
    ] = WANTED_SECONDS


class WantedCalls(RestCalls):
    chapter = Chapter(
        "Wanted state",
        "A value that is wanted of a device waits until a stored message reports it. The device gets what is wanted "
        "over MQTT, WebSocket, CoAP, LWM2M and HTTP: now, or when it is there again. Only fields with `settable` in "
        "the Manifest have wanted values. A number that differs by at most the field's `tolerance` is the wanted one.",
    )

    def __init__(self, accounts: AccountsRoom, wanted: Wanted) -> None:
        self._permissions = accounts.permissions
        self._wanted = wanted

    @RestCall(
        "GET",
        _PATH,
        tokens=ANY_TOKEN,
        on=named_device(Permission.READ),
        summary="What is wanted of a device",
        about="With the device's own token: what it is to become. It counts as given to the device.",
    )
    async def show(self, caller: Caller, device: Device) -> Data[WantedObject]:
        shown = _object(device, await self._wanted.show(device))
        if caller.kind is TokenKind.DEVICE:
            self._wanted.given(device.key)
        return shown

    @RestCall(
        "PUT",
        _PATH,
        tokens=ANY_TOKEN,
        on=named_device(Permission.WRITE),
        summary="Want values of a device",
        about=f"The named fields get these values, the others stay. A user's devices have at most {WANTED_OF_USER} "
        "open values. A value that the device has reported last is reached at once. Without READ, the answer has the "
        "named fields only, without what the device has reported.",
        refusals={403: DestinationDeviceDisabled.template},
    )
    async def put(self, caller: Caller, device: Device, body: NewWanted) -> Data[WantedObject]:
        view = await self._wanted.put(
            device,
            bytes(body.data),
            expires_after=body.expires_after,
            application_id=caller.application_id,
            reach=await self._permissions.reach(caller),
        )
        return _object(device, view)

    @RestCall(
        "DELETE",
        _PATH,
        tokens=ANY_TOKEN,
        on=named_device(Permission.WRITE),
        summary="Want nothing of a device",
        about="Ended ones are not shown any more, either.",
    )
    async def withdraw(self, caller: Caller, device: Device) -> Data[WantedObject]:
        await self._wanted.withdraw(device, application_id=caller.application_id)
        return _object(device, await self._wanted.show(device))


def _object(device: Device, view: WantedView) -> Data[WantedObject]:
    data: dict[str, Any] = msgspec.json.decode(view.document)["data"]
    return Data(WantedObject(did=device.id, data=data, fields={one.field: _field(one) for one in view.fields}))


def _field(one: WantedField) -> _Field:
    return _Field(
        wanted=one.wanted,
        since=one.since,
        by=one.by,
        expires_on=one.expires_on,
        reported=absent_if_none(one.reported),
        reported_ts=absent_if_none(one.reported_ts),
        state=one.state,
        message=one.text,
    )
