"""Deleting messages: `DELETE /messages`, and how far that is (reference 9.12)."""

from typing import Annotated, Final

from msgspec import UNSET, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import REQUIRED
from broker.my_data.erasures import ShownErasure
from broker.my_data.room import MyDataRoom
from config.limits import ERASURES_KEPT_DAYS, ERASURES_SHOWN
from protocols.http.calls import NOTHING, USER, InQuery, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Query
from protocols.http.rest.messages import MESSAGES
from protocols.http.schema import Amount, Data, Id, Shape, Timestamp, about, absent_if_none, integer, one_of, time_ms

_STATUSES: Final = ("InProgress", "Success")


class DeletionObject(Shape, kw_only=True):
    shape = "Deletion"
    example = {
        "id": samples.DELETION,
        "sdid": samples.DID,
        "startDate": samples.TS,
        "endDate": samples.TS + 86_400_000,
        "status": "Success",
        "deleted": 86_400,
        "requestedOn": samples.CTS,
        "endedOn": samples.CTS + 4_000,
    }

    id: Id
    sdid: Id | UnsetType = UNSET
    start_date: Timestamp
    end_date: Timestamp
    status: Annotated[str, one_of(_STATUSES)]
    deleted: Annotated[Amount, about("Messages so far")]
    requested_on: Timestamp
    ended_on: Annotated[int, time_ms("When rollups and snapshot were counted again, too")] | UnsetType = UNSET


class _Deletions(Shape):
    deletions: list[DeletionObject]


class _Chosen(Shape, kw_only=True):
    sdid: Annotated[Id, about("The device", example=samples.DID)]
    start_date: Annotated[int, integer("The first `ts`", lowest=0, highest=2**62, example=samples.TS)]
    end_date: Annotated[int, integer("The last `ts`", lowest=0, highest=2**62, example=samples.CTS)]


class DeletionCalls(RestCalls):
    chapter = MESSAGES

    path_names = {"deletionId": (Annotated[Id, about("A deletion of messages")], samples.DELETION)}

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom, my_data: MyDataRoom) -> None:
        self._permissions = accounts.permissions
        self._devices = devices.registry
        self._erasures = my_data.erasures

    async def _owned(self, caller: Caller, query: Query) -> Device | None:
        """The device that the query names, for its owner."""
        if (sdid := query.text("sdid")) is None:
            query.refuse("sdid", REQUIRED)
            return None
        device = await self._devices.find(sdid)
        await self._permissions.require(caller, device, Permission.MANAGE)
        return device

    async def _deletion(self, caller: Caller, deletion_id: str) -> ShownErasure:
        return await self._erasures.find(caller, deletion_id)

    @RestCall(
        "DELETE",
        "/messages",
        tokens=USER,
        on=InQuery(_owned),
        summary="Delete messages",
        about="Those of one device with a `ts` from `startDate` to `endDate` that are stored by now, for its owner: "
        "with its failed messages, and with rollups and snapshots counted again. Exports that have them are deleted. "
        "It is done in the background; the answer says how to ask how far it is. Actions stay.",
        refusals={404: "The device does not exist."},
    )
    async def delete(self, caller: Caller, device: Device | None, query: _Chosen) -> Data[DeletionObject]:
        assert device is not None  # noqa: S101 - else the query was refused
        return Data(_shown(await self._erasures.create(caller, device, query.start_date, query.end_date)))

    @RestCall(
        "GET",
        "/messages/deletions",
        tokens=USER,
        on=NOTHING,
        summary="Deletions of messages so far",
        about=f"The latest {ERASURES_SHOWN}, newest first. They are known for {ERASURES_KEPT_DAYS} days.",
    )
    async def latest(self, caller: Caller) -> Data[_Deletions]:
        return Data(_Deletions([_shown(one) for one in await self._erasures.latest(caller)]))

    @RestCall(
        "GET",
        "/messages/deletions/{deletionId}",
        tokens=USER,
        on=_deletion,
        summary="How far a deletion of messages is",
    )
    async def status(self, erasure: ShownErasure) -> Data[DeletionObject]:
        return Data(_shown(erasure))


def _shown(erasure: ShownErasure) -> DeletionObject:
    record = erasure.record
    return DeletionObject(
        id=record.id,
        sdid=erasure.sdid or UNSET,
        start_date=record.start_ms,
        end_date=record.end_ms,
        status=_STATUSES[record.ended_on is not None],
        deleted=record.deleted,
        requested_on=record.asked_on,
        ended_on=absent_if_none(record.ended_on),
    )
