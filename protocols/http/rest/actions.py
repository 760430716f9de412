"""/actions: sending Actions to a device, and searching them (reference 9)."""

from collections.abc import Iterator
from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.room import DevicesRoom
from broker.envelope import Action
from broker.errors import DestinationDeviceDisabled, DomainError, Finding, invalid
from broker.messages.room import MessagesRoom
from config.limits import MAX_MESSAGE_BODY_BYTES
from protocols.http.calls import ANY_TOKEN, NOTHING, AfterCommit, Counted, InQuery, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Given, Query, Rule
from protocols.http.rest.messages import MESSAGES
from protocols.http.rest.searching import ByMid, Found, InRange, Searches, SearchScope, found_example
from protocols.http.rest.sending import SENDING_REFUSALS, STORED, NewAction, Sending, StoredMessage
from protocols.http.schema import Amount, Id, Shape, TypeId, about, absent_if_none, one_of, time_ms
from protocols.rendering import action_entry
from storage.message_searches import NO_DEVICE, FieldMatch

_EXAMPLE: Final[dict[str, Any]] = {
    "type": "action",
    "cts": samples.CTS,
    "ts": samples.TS,
    "mid": samples.MID,
    "sdid": samples.DID,
    "ddid": samples.DID,
    "data": {"actions": [{"name": "setOn"}]},
    "ddtid": samples.DTID,
    "uid": samples.UID,
    "mv": 1,
}


class ActionCall(Shape):
    shape = "ActionCall"

    name: Annotated[str, about("As the Manifest calls it")]
    parameters: Annotated[dict[str, Any], about("Absent when the sender gave none")] | UnsetType = UNSET


class _ActionData(Shape):
    actions: list[ActionCall]


class ActionObject(Shape):
    shape = "Action"
    example = _EXAMPLE

    type: Annotated[str, one_of(("action",))]
    cts: Annotated[int, time_ms("When the service took it")]
    ts: Annotated[int, time_ms("When the device says that it was")]
    mid: Annotated[str, about("Grows with `cts`")]
    sdid: Annotated[Id, about("Who sent it")]
    ddid: Annotated[Id, about("Whom it is for")]
    data: _ActionData
    ddtid: TypeId
    uid: Annotated[Id, about("The device's owner")]
    mv: Annotated[Amount, about("Version of the Manifest that parsed it")]


def _names_agree(given: Given) -> Iterator[Finding]:
    """`action` and `name` say the same."""
    action, name = given.values["action"], given.values["name"]
    if action is not None and name is not None and action != name:
        yield Finding("name", (invalid("must be the same as action"),))


class _ActionsInRange(InRange, kw_only=True):
    ddid: (
        Annotated[Id, about("The device that they are for; without it, all devices of the user", example=samples.DID)]
        | None
    ) = None
    sdid: Annotated[Id, about("Only Actions that this device sent", example=samples.DID)] | None = None
    action: Annotated[str, about("Only Actions of this name")] | None = None
    name: Annotated[str, about("The same as `action`"), Rule(_names_agree)] | None = None


class _ActionsFound(Found[ActionObject]):
    example = found_example("ddid", _EXAMPLE)

    uid: Id | UnsetType = UNSET
    ddid: Id | UnsetType = UNSET


class ActionCalls(RestCalls):
    chapter = MESSAGES

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom, messages: MessagesRoom) -> None:
        history = messages.history
        self._devices = devices.registry
        self._sending = Sending(accounts, devices, messages)
        self._searches: Searches[Action] = Searches(
            accounts, devices, "ddid", history.action_by_mid, history.actions, action_entry
        )

    async def body_refused(self, caller: Caller, error: DomainError) -> None:
        await self._sending.note_refused(caller, error)

    @RestCall(
        "POST",
        "/actions",
        tokens=ANY_TOKEN,
        on=NOTHING,
        summary="Send Actions to a device",
        about="They reach the device on every channel on which it is connected; if there is none, they are only "
        "stored. Names and parameters are passed on as they are.",
        counted=Counted.MESSAGES,
        body_limit=MAX_MESSAGE_BODY_BYTES,
        answers=STORED,
        refusals={**SENDING_REFUSALS, 403: DestinationDeviceDisabled.template},
    )
    async def send(self, caller: Caller, body: NewAction) -> AfterCommit[StoredMessage]:
        return await self._sending.action(caller, body)

    async def _chosen(self, caller: Caller, query: Query) -> SearchScope:
        return await self._searches.chosen(caller, query)

    @RestCall(
        "GET",
        "/actions",
        tokens=ANY_TOKEN,
        on=InQuery(_chosen),
        summary="Find Actions",
        about="One by its id, or those for a device or a user between two times, page by page. "
        "With `sdid`, `action` or `name` each call looks at about 10,000 of them, so a page may be short or empty and "
        "still have `next`.",
        is_timed=True,
    )
    async def search(self, caller: Caller, chosen: SearchScope, query: ByMid | _ActionsInRange) -> _ActionsFound:
        if isinstance(query, ByMid):
            _, members = await self._searches.by_mid(caller, chosen, query.mid)
            return _ActionsFound(**members)
        source = None
        if query.sdid is not None:
            device = (await self._devices.find_all([query.sdid]))[query.sdid]
            source = NO_DEVICE if device is None else device.key
        match = FieldMatch(action=query.action or query.name, source=source)
        members = await self._searches.in_range(chosen, query, match)
        return _ActionsFound(ddid=absent_if_none(chosen.device_id), **members)
