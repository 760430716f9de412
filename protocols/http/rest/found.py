"""/users/…/found and /found: devices that MQTT clients announce for Home Assistant (reference 16.9)."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import NotFound
from broker.found.clients import ACCEPTED, FOUND, IGNORED, FoundDevice
from broker.found.finding import DeviceFinder
from broker.found.room import FoundRoom
from broker.found.types import NO_ORGANIZATION
from protocols.http.calls import USER, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.rest.named import NAMED_USER
from protocols.http.schema import Data, Id, Shape, about, one_of, time_ms
from storage.keys import UserKey
from storage.records import UserRecord

_STATES: Final = (FOUND, ACCEPTED, IGNORED)


class FoundProblem(Shape):
    component: Annotated[str, about("What the client calls it")]
    text: Annotated[str, about("Why it is not taken over")]


class FoundObject(Shape, kw_only=True):
    shape = "Found"
    example = {
        "id": samples.SHARE_ID,
        "client": samples.DID,
        "name": "Plug",
        "model": "TS011F",
        "manufacturer": "Tuya",
        "status": FOUND,
        "fields": ["power", "switch"],
        "actions": ["set_switch"],
        "problems": [{"component": "robot", "text": "vacuum is no kind of component that Trunkline knows"}],
        "firstOn": samples.TS,
        "lastOn": samples.TS,
    }

    id: Id
    client: Annotated[Id, about("The device that announces it")]
    name: str
    model: str
    manufacturer: str
    status: Annotated[str, one_of(_STATES)]
    did: Annotated[Id, about("The device that was made of it")] | UnsetType = UNSET
    fields: Annotated[list[str], about("That its Manifest has, or would have")]
    actions: Annotated[list[str], about("That its Manifest has, or would have")]
    problems: Annotated[list[FoundProblem], about("What is not taken over")]
    first_on: Annotated[int, time_ms("When it was first announced")]
    last_on: Annotated[int, time_ms("When the announcement changed")]


class _FoundDevices(Shape):
    found: list[FoundObject]


class _Decision(Shape):
    example = {"status": ACCEPTED}

    status: Annotated[
        Literal["ACCEPTED", "IGNORED", "FOUND"],
        about("ACCEPTED makes a device of it; IGNORED takes no notice of it; FOUND lists it as new. Any case"),
    ]


class FoundCalls(RestCalls):
    chapter = Chapter(
        "Found devices",
        "MQTT clients that the operator names announce devices for Home Assistant. They are listed here; an accepted "
        "one becomes a device, whose states are messages.",
    )

    path_names = {"fid": (Annotated[Id, about("A found device")], samples.SHARE_ID)}

    def __init__(self, accounts: AccountsRoom, found: FoundRoom) -> None:
        self._permissions = accounts.permissions
        self._finder = found.finder

    @RestCall(
        "GET",
        "/users/{uid}/found",
        tokens=USER,
        on=NAMED_USER,
        summary="Devices that MQTT clients of a user announce",
        about="All of them, with what is not taken over and why.",
    )
    async def list(self, caller: Caller, user: UserRecord) -> Data[_FoundDevices]:
        if self._finder is None:
            return Data(_FoundDevices([]))
        reach, finder = await self._permissions.reach(caller), self._finder
        found = finder.of_user(user.key)
        return Data(
            _FoundDevices(
                [_shown(finder, client, one) for client, one in found if reach.allows(client, Permission.READ)]
            )
        )

    async def _one(self, caller: Caller, fid: str) -> tuple[UserKey, FoundDevice, Device]:
        """The client's owner, a found device and its client, which the caller may manage. Raises NotFound,
        PermissionDenied."""
        if self._finder is None:
            raise NotFound
        client, found = self._finder.find(fid)
        await self._permissions.require(caller, client, Permission.MANAGE)
        return client.owner, found, client

    @RestCall(
        "PUT",
        "/found/{fid}",
        tokens=USER,
        on=_one,
        summary="Accept or ignore a found device",
        about="An accepted one becomes a device of the user, of a type in the first organization of which the user is "
        "an administrator or developer. One that is accepted already stays as it is.",
        refusals={409: f"{NO_ORGANIZATION}."},
    )
    async def decide(self, one: tuple[UserKey, FoundDevice, Device], body: _Decision) -> Data[FoundObject]:
        user, found, client = one
        finder, id_ = self._finder, found.record.id
        if finder is None:
            raise NotFound
        if body.status == ACCEPTED:
            found = await finder.accept(user, id_)
        elif body.status == IGNORED:
            found = await finder.ignore(user, id_)
        else:
            found = await finder.reconsider(user, id_)
        return Data(_shown(finder, client, found))


def _shown(finder: DeviceFinder, client: Device, found: FoundDevice) -> FoundObject:
    record, definition = found.record, found.definition
    device = finder.device_of(found)
    return FoundObject(
        id=record.id,
        client=client.id,
        name=record.name,
        model=record.model,
        manufacturer=record.manufacturer,
        status=record.status,
        did=UNSET if device is None else device.id,
        fields=[str(one["name"]) for one in definition.manifest["fields"]],
        actions=[str(one["name"]) for one in definition.manifest["actions"]],
        problems=[FoundProblem(one.component, one.text) for one in definition.problems],
        first_on=record.first_on,
        last_on=record.last_on,
    )
