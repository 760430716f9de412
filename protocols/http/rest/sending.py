"""Sending a message or an Action (reference 9.1): the bodies of both calls, and the way into the store."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller, TokenKind
from broker.device_types.dropped import DroppedField
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import (
    REQUIRED,
    DeviceNotFound,
    DomainError,
    Finding,
    PayloadTooLarge,
    SourceDeviceDisabled,
    ValidationFailed,
    choice,
    invalid,
)
from broker.messages.room import MessagesRoom
from broker.nesting import check_nesting
from broker.wanted.wanted import Wanted
from config.limits import MAX_ACTIONS_PER_MESSAGE
from protocols.http.allowances import charge_to
from protocols.http.calls import AfterCommit, Answers
from protocols.http.openapi import samples
from protocols.http.reading import Given, Payload, Rule, boolean_of, has_value
from protocols.http.request_context import current_request
from protocols.http.schema import Id, Shape, about, component, one_of, time_ms
from storage.keys import Ticket

SENDING_REFUSALS: Final = {
    403: SourceDeviceDisabled.template,
    404: "The device does not exist.",
    413: str(PayloadTooLarge(organization_id=samples.OID, device_id=samples.DID)),
}
STORED: Final = Answers(about="Stored durably, and visible to every later read")

_CALLS: Final = {
    "type": "array",
    "items": {"$ref": component("ActionCall")},
    "minItems": 1,
    "maxItems": MAX_ACTIONS_PER_MESSAGE,
}
_WANTED: Final = re.compile(rb"(?:^|[&?])wanted(?:=([^&]*))?(?:&|$)")
_TS: Final = time_ms("Now by default; at most a minute in the future")


class Sent(Shape):
    example = {"mid": samples.MID}

    mid: Annotated[str, about("The message's id")]


class MessageWarning(Shape):
    example = {"field": "opne", "message": "not in the Manifest"}

    field: Annotated[str, about("Dotted path, or `data` for the whole message")]
    message: Annotated[str, about("Why the field was not kept")]


class StoredMessage(Shape):
    example = {"data": {"mid": samples.MID}, "warnings": [{"field": "opne", "message": "not in the Manifest"}]}

    data: Sent
    warnings: (
        Annotated[
            list[MessageWarning], about("Fields that were not kept, and a `ts` in seconds; absent when there are none")
        ]
        | UnsetType
    ) = UNSET
    wanted: (
        Annotated[Raw, about("What is wanted of the device, groups nested; with `?wanted` only", type="object")]
        | UnsetType
    ) = UNSET


class SendingQuery(Shape):
    wanted: Annotated[
        bool,
        about("Whether the answer has what is still wanted of the device; `?wanted` is true"),
    ] = False


def has_device(types: tuple[str, ...], given: Given) -> Sequence[Finding]:
    """A message needs its source, an Action its destination; a device token stands for the device.

    Raises ValidationFailed for a type that the call does not take, whatever else is wrong.
    """
    type_ = (given.values["type"] or types[0]).lower()
    if type_ not in types:
        raise ValidationFailed.of("type", invalid(choice(types)))
    device = "ddid" if type_ == "action" else "sdid"
    if given.values[device] or (given.caller is not None and given.caller.device_id):
        return ()
    return (Finding(device, (REQUIRED,)),)


_MESSAGE_TYPES: Final = ("message", "action")
_ACTION_TYPES: Final = ("action",)


class NewMessage(Shape, kw_only=True):
    example = {"sdid": samples.DID, "data": {"steps": 500}, "ts": samples.TS}

    sdid: Annotated[Id, about("The device that sends; required without a device token")] | None = None
    ddid: Annotated[Id, about("With `type` action: the device that it is for")] | None = None
    type: Annotated[str, one_of(_MESSAGE_TYPES, "Any case"), Rule(partial(has_device, _MESSAGE_TYPES))] = "message"
    data: Annotated[Raw, about("The fields: an object, or a text that holds one", type=["object", "string"]), Payload()]
    ts: Annotated[Raw, _TS, about("", type="integer")] = msgspec.field(default_factory=Raw)


class NewAction(Shape, kw_only=True):
    example = {"ddid": samples.DID, "data": {"actions": [{"name": "setOn"}]}}

    sdid: Annotated[Id, about("The device that sends; by default the same")] | None = None
    ddid: Annotated[Id, about("The device that they are for; required without a device token")] | None = None
    type: Annotated[str, one_of(_ACTION_TYPES, "Any case"), Rule(partial(has_device, _ACTION_TYPES))] = "action"
    data: Annotated[Raw, about("", type="object", required=["actions"], properties={"actions": _CALLS}), Payload()]
    ts: Annotated[Raw, _TS, about("", type="integer")] = msgspec.field(default_factory=Raw)


class Sending:
    """Stores messages and Actions. They are answered after the commit: every later read sees the message."""

    def __init__(
        self, accounts: AccountsRoom, devices: DevicesRoom, messages: MessagesRoom, wanted: Wanted | None = None
    ) -> None:
        self._ingest = messages.ingest
        self._wanted = wanted
        self._devices = devices.registry
        self._permissions = accounts.permissions

    async def message(self, caller: Caller, body: NewMessage) -> AfterCommit[StoredMessage]:
        device = await self._writable(caller, body.sdid or caller.device_id)
        if caller.kind is not TokenKind.DEVICE and self._asks_wanted():
            await self._permissions.require(caller, device, Permission.READ)
        charge_to(device)
        if not self._ingest.has_room:
            await self._ingest.wait_room()
        try:
            payload = payload_of(body.data, anything=device.manifest.takes_any_payload)
        except ValidationFailed as error:
            self._ingest.refused.note(device, error)
            raise
        return self._submit(caller, device, payload, body)

    def message_nowait(self, caller: Caller, body: NewMessage) -> Callable[[], AfterCommit[StoredMessage]] | None:
        """The submission of a device's own message, where the device is in memory and the store has room."""
        device = None if caller.device is None else self._devices.get_nowait(caller.device)
        if device is None or caller.kind is not TokenKind.DEVICE or not self._ingest.has_room:
            return None
        if body.type.lower() != "message" or (body.sdid and body.sdid != device.id):
            return None
        try:
            payload = payload_of(body.data, anything=device.manifest.takes_any_payload)
        except ValidationFailed:
            return None  # `message` notes it
        return partial(self._submit, caller, device, payload, body)

    def _submit(self, caller: Caller, device: Device, payload: bytes, body: NewMessage) -> AfterCommit[StoredMessage]:
        charge_to(device)
        dropped: list[DroppedField] = []
        ticket = self._ingest.submit(device, payload, time_of(body.ts), dropped)
        if self._wanted is not None and self._asks_wanted():
            return self._stored(ticket, dropped, partial(self._wanted_of, self._wanted, caller, device))
        return self._stored(ticket, dropped)

    @staticmethod
    def _asks_wanted() -> bool:
        return bool(query := current_request().query) and wants_wanted(query)

    @staticmethod
    def _wanted_of(wanted: Wanted, caller: Caller, device: Device) -> Raw:
        """The values that the message has not reported, after its commit."""
        document = wanted.document(device.key)
        if document is None:
            return Raw(b"{}")
        if caller.kind is TokenKind.DEVICE:
            wanted.given(device.key)
        return Raw(document.removeprefix(b'{"data":').removesuffix(b"}"))

    async def action(self, caller: Caller, body: NewMessage | NewAction) -> AfterCommit[StoredMessage]:
        try:
            data = payload_of(body.data)
        except ValidationFailed as error:
            await self.note_refused(caller, error)
            raise
        destination = await self._writable(caller, body.ddid or caller.device_id)
        source = destination
        if body.sdid and body.sdid != destination.id:
            source = await self._writable(caller, body.sdid)
        charge_to(source, by_day=destination)
        if not self._ingest.has_room:
            await self._ingest.wait_room()
        dropped: list[DroppedField] = []
        return self._stored(self._ingest.submit_action(source, destination, data, time_of(body.ts), dropped), dropped)

    async def note_refused(self, caller: Caller, error: DomainError) -> None:
        """A body that a device has sent cannot be read: for its owner to see (reference 9.6)."""
        if caller.kind is TokenKind.DEVICE and caller.device is not None:
            with suppress(DeviceNotFound):
                self._ingest.refused.note(await self._devices.get(caller.device), error)

    async def _writable(self, caller: Caller, device_id: str | None) -> Device:
        device = await self._devices.find(device_id or "")
        await self._permissions.require(caller, device, Permission.WRITE)
        return device

    def _stored(
        self, ticket: Ticket, dropped: Iterable[DroppedField], wanted: Callable[[], Raw] | None = None
    ) -> AfterCommit[StoredMessage]:
        group = self._ingest.group

        def answer() -> StoredMessage:
            warnings = [MessageWarning(one.field, one.message) for one in dropped]
            mid = self._ingest.mid(group.position(ticket))
            return StoredMessage(Sent(mid), warnings or UNSET, UNSET if wanted is None else wanted())

        return AfterCommit(self._ingest, answer)


def wants_wanted(query: bytes) -> bool:
    """Whether the query has `wanted`, with or without a value. The declaration of the call checks the value."""
    found = _WANTED.search(query)
    return found is not None and (not found[1] or boolean_of(found[1].decode("latin-1")) is True)


def payload_of(raw: Raw, *, anything: bool = False) -> bytes:
    """The JSON text of an object, which may come as one or as a text that holds one (reference 8.4).

    A device whose Manifest has a transform may send `anything`: a text is its bytes, everything else is JSON. Raises
    ValidationFailed.
    """
    data = bytes(raw)
    if data.startswith(b"{"):
        return data
    try:
        text = msgspec.json.decode(data, type=str).encode() if data.startswith(b'"') or not anything else data
        if not anything:
            check_nesting(text)
            msgspec.json.decode(text, type=dict[str, Raw])
    except ValueError:
        raise ValidationFailed.of("data", invalid("must be an object, or its JSON text")) from None
    return text


def time_of(given: Raw) -> object:
    """The time as it came. `Ingest` refuses what is no time."""
    if not has_value(given):
        return None
    try:
        ts: Any = msgspec.json.decode(given)
    except msgspec.DecodeError:
        return ""
    return "" if ts is None else ts
