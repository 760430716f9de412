"""/messages: sending and searching messages (reference 9)."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import UNSET, UnsetType

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.room import DevicesRoom
from broker.envelope import Message
from broker.errors import DomainError
from broker.messages.room import MessagesRoom
from broker.wanted.wanted import Wanted
from config.limits import MAX_DATA_BYTES, MAX_MESSAGE_BODY_BYTES, PAGE_COUNT_DEFAULT
from protocols.http.calls import ANY_TOKEN, NOTHING, AfterCommit, Chapter, Counted, InQuery, NoWait, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Query, Valid
from protocols.http.rest.searching import (
    FIELD_PATTERN,
    ByMid,
    FieldPresence,
    Found,
    InRange,
    Readable,
    SearchCount,
    SearchedDevices,
    Searches,
    SearchScope,
    found_example,
)
from protocols.http.rest.sending import SENDING_REFUSALS, STORED, NewMessage, Sending, SendingQuery, StoredMessage
from protocols.http.schema import (
    Amount,
    Id,
    Shape,
    TypeId,
    about,
    absent_if_none,
    integer,
    spliced,
    time_ms,
)
from protocols.rendering import message_entry
from storage.message_searches import FieldMatch

_EXAMPLE: Final[dict[str, Any]] = {
    "mid": samples.MID,
    "data": {"steps": 500},
    "ts": samples.TS,
    "sdtid": samples.DTID,
    "cts": samples.CTS,
    "uid": samples.UID,
    "mv": 1,
    "sdid": samples.DID,
}

MESSAGES: Final = Chapter(
    "Messages",
    "Devices send messages; each is checked against the Manifest of its device type, and stored before it is "
    "acknowledged. Stored are the fields of the Manifest; the answer names the others in `warnings`. A message of "
    "which nothing remains is stored as a failed one: no search shows it, but `GET /devices/{did}/failures` does. "
    "Actions are messages to a device. With a device token the device need not be named.",
)


class MessageObject(Shape):
    shape = "Message"
    example = _EXAMPLE

    mid: Annotated[str, about("Grows with `cts`")]
    data: Annotated[dict[str, Any], about("The fields, groups nested")]
    ts: Annotated[int, time_ms("When the device says that it was")]
    sdtid: TypeId
    cts: Annotated[int, time_ms("When the service took it")]
    uid: Annotated[Id, about("The device's owner")]
    mv: Annotated[Amount, about("Version of the Manifest that parsed it")]
    sdid: Annotated[Id, about("The device")]


#: `(+_exists_:a +_exists_:b)`; the plus signs of a query may have become blanks.
_EXIST: Final = re.compile(rf"\(?(\s*\+?\s*_exists_:{FIELD_PATTERN[1:-1]})+\s*\)?")


def _are_pairs(given: Sequence[str]) -> bool:
    pairs = [item.partition("=") for item in given if not _EXIST.fullmatch(item)]
    return all(re.fullmatch(FIELD_PATTERN, path.strip()) and value.strip() for path, _, value in pairs)


class _MessagesInRange(InRange, kw_only=True):
    sdid: (
        Annotated[Id, about("The device that sent them; without it, all devices of the user", example=samples.DID)]
        | None
    ) = None
    field_presence: FieldPresence | None = None
    filter: Annotated[
        tuple[str, ...],
        about(
            "field=value pairs, separated by commas, which must all match; `(+_exists_:a +_exists_:b)` is the presence "
            "of both fields",
            type="string",
        ),
        Valid(_are_pairs, "must be field=value pairs, separated by commas"),
    ] = ()


class _MessagesFound(Found[MessageObject]):
    example = found_example("sdid", _EXAMPLE)

    uid: Id | UnsetType = UNSET
    sdid: Id | UnsetType = UNSET


class _LastQuery(Shape):
    sdids: SearchedDevices
    count: SearchCount = PAGE_COUNT_DEFAULT
    field_presence: FieldPresence | None = None


class _Last(Shape):
    sdids: Annotated[str, about("As asked for", example=samples.DID)]
    count: Annotated[int, integer("As asked for", lowest=1, example=PAGE_COUNT_DEFAULT)]
    size: Annotated[Amount, about("Messages in this answer", example=1)]
    data: list[MessageObject]


class MessageCalls(RestCalls):
    chapter = MESSAGES

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom, messages: MessagesRoom, wanted: Wanted) -> None:
        history = messages.history
        self._history = history
        self._readable = Readable(accounts, devices)
        self._sending = Sending(accounts, devices, messages, wanted)
        self._searches: Searches[Message] = Searches(
            accounts, devices, "sdid", history.by_mid, history.messages, message_entry
        )

    async def body_refused(self, caller: Caller, error: DomainError) -> None:
        await self._sending.note_refused(caller, error)

    def _message_nowait(self) -> NoWait:
        return self._sending.message_nowait

    @RestCall(
        "POST",
        "/messages",
        tokens=ANY_TOKEN,
        on=NOTHING,
        summary="Send a message",
        about=f"`data` may have {MAX_DATA_BYTES} bytes as compact JSON. Fields that the Manifest does not declare are "
        "dropped, and named in `warnings`. When nothing remains, the message is stored as a failed one, which no "
        "search shows (`GET /devices/{did}/failures`). With `type` action it is an Action, as for `POST /actions`. "
        "With `?wanted` the answer has what is still wanted of the device, for devices that sleep "
        "(`GET /devices/{did}/wanted`).",
        counted=Counted.MESSAGES,
        body_limit=MAX_MESSAGE_BODY_BYTES,
        answers=STORED,
        refusals=SENDING_REFUSALS,
        nowait=_message_nowait,
        query=SendingQuery,
    )
    async def send(self, caller: Caller, body: NewMessage) -> AfterCommit[StoredMessage]:
        if body.type.lower() == "action":
            return await self._sending.action(caller, body)
        return await self._sending.message(caller, body)

    async def _chosen(self, caller: Caller, query: Query) -> SearchScope:
        return await self._searches.chosen(caller, query)

    @RestCall(
        "GET",
        "/messages",
        tokens=ANY_TOKEN,
        on=InQuery(_chosen),
        summary="Find messages",
        about="One by its id, or those of a device or a user between two times, page by page. New messages "
        "never move others to another page. With `fieldPresence` or `filter` each call looks at about 10,000 "
        "messages, so a page may be short or empty and still have `next`.",
        is_timed=True,
    )
    async def search(self, caller: Caller, chosen: SearchScope, query: ByMid | _MessagesInRange) -> _MessagesFound:
        if isinstance(query, ByMid):
            message, members = await self._searches.by_mid(caller, chosen, query.mid)
            return _MessagesFound(sdid=UNSET if message is None else message.sdid, **members)
        match = _match(query.field_presence, query.filter)
        members = await self._searches.in_range(chosen, query, match)
        return _MessagesFound(sdid=absent_if_none(chosen.device_id), **members)

    @RestCall(
        "GET",
        "/messages/last",
        tokens=ANY_TOKEN,
        on=NOTHING,
        summary="The messages received last",
        about="Of all named devices together, newest first.",
        is_timed=True,
    )
    async def last(self, caller: Caller, query: _LastQuery) -> _Last:
        devices = await self._readable.listed(caller, query.sdids)
        messages = await self._history.latest(devices, count=query.count, field=query.field_presence)
        return _Last(",".join(query.sdids), query.count, len(messages), spliced(map(message_entry, messages)))


def _match(field: str | None, wanted: Sequence[str]) -> FieldMatch:
    exist = [item for item in wanted if _EXIST.fullmatch(item)]
    fields = tuple(path for item in exist for path in re.findall(r"_exists_:([^\s)]+)", item))
    return FieldMatch(field, fields, tuple(_pair(item) for item in wanted if item not in exist))


def _pair(item: str) -> tuple[str, str]:
    path, _, value = item.partition("=")
    return path.strip(), value.strip()
