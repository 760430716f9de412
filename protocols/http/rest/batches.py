"""POST /messages/batch: messages with times of their own (reference 9.8)."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from broker.accounts.permissions import Permission, Reach
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import (
    BadRequest,
    DeviceNotFound,
    DomainError,
    InvalidTimestamp,
    PayloadTooLarge,
    PermissionDenied,
    TimestampInFuture,
    TryLater,
    ValidationFailed,
    invalid,
)
from broker.limits.room import LimitsRoom
from broker.messages.batches import BatchMessage, Turn
from broker.messages.room import MessagesRoom
from config.limits import BATCH_MESSAGES_MAX, MAX_DATA_BYTES
from protocols.http.allowances import charge_to, count_further
from protocols.http.calls import ANY_TOKEN, NOTHING, AfterCommit, Answers, Counted, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Payload, Rule, members
from protocols.http.rest.messages import MESSAGES
from protocols.http.rest.sending import MessageWarning, Sending, has_device, payload_of, time_of
from protocols.http.schema import ID_PATTERN, Amount, Id, Shape, about, one_of, time_ms
from storage.keys import Ticket

_TS_TEXT: Final = "Now by default; at most a minute in the future"
_TYPES: Final = ("message",)
_ENTRY: Final = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "sdid": {
            "type": "string",
            "pattern": ID_PATTERN,
            "description": "The device that sends; required without a device token",
        },
        "type": {"type": "string", "enum": list(_TYPES), "description": "Any case"},
        "data": {"type": ["object", "string"], "description": "The fields: an object, or a text that holds one"},
        "ts": {"type": "integer", "format": "int64", "minimum": 0, "description": _TS_TEXT},
    },
}
#: The member that a refusal is about, where it is not a finding.
_FIELDS: Final[dict[type[DomainError], str]] = {
    InvalidTimestamp: "ts",
    TimestampInFuture: "ts",
    PayloadTooLarge: "data",
    BadRequest: "data",
}


class _Entry(Shape, kw_only=True):
    """As `NewMessage`; Actions do not come in batches."""

    sdid: Annotated[Id, about("")] | None = None
    type: Annotated[str, one_of(_TYPES), Rule(partial(has_device, _TYPES))] = "message"
    data: Annotated[Raw, about(""), Payload()]
    ts: Annotated[Raw, time_ms()] = msgspec.field(default_factory=Raw)


class NewBatch(Shape):
    example = {
        "messages": [
            {"sdid": samples.DID, "ts": samples.TS - 60_000, "data": {"steps": 480}},
            {"sdid": samples.DID, "ts": samples.TS, "data": {"steps": 500}},
        ]
    }

    messages: Annotated[
        list[Raw],
        Meta(min_length=1, max_length=BATCH_MESSAGES_MAX),
        about("In the order in which they are to be stored", items=_ENTRY),
        Payload(),
    ]


class BatchError(Shape):
    example = {"code": 400, "field": "ts", "reason": "Invalid ts value (in future)"}

    code: Annotated[int, about("As the answer to `POST /messages` would have")]
    field: Annotated[str, about("The member of the entry")]
    reason: str
    retry_after: (
        Annotated[Amount, about("Seconds after which the entry may be sent again; with 429 only", example=60)]
        | UnsetType
    ) = UNSET


class BatchResult(Shape):
    example = {"mid": samples.MID}

    mid: Annotated[str, about("The message's id; absent when the entry is refused")] | UnsetType = UNSET
    warnings: (
        Annotated[list[MessageWarning], about("As of `POST /messages`; absent when there are none")] | UnsetType
    ) = UNSET
    error: Annotated[BatchError, about("Why the entry is refused; nothing of it is stored")] | UnsetType = UNSET


class BatchResults(Shape):
    example = {"results": [{"mid": samples.MID}, {"error": BatchError.example}], "stored": 1, "refused": 1}

    results: Annotated[list[BatchResult], about("One for each entry, in their order")]
    stored: Amount
    refused: Amount


class StoredBatch(Shape):
    data: BatchResults


class BatchCalls(RestCalls):
    chapter = MESSAGES

    def __init__(
        self, accounts: AccountsRoom, devices: DevicesRoom, limits: LimitsRoom, messages: MessagesRoom
    ) -> None:
        self._ingest = messages.ingest
        self._batches = messages.batches
        self._devices = devices.registry
        self._permissions = accounts.permissions
        self._meters = limits.meters
        self._sending = Sending(accounts, devices, messages)

    async def body_refused(self, caller: Caller, error: DomainError) -> None:
        await self._sending.note_refused(caller, error)

    @RestCall(
        "POST",
        "/messages/batch",
        tokens=ANY_TOKEN,
        on=NOTHING,
        summary="Send many messages",
        about=f"Up to {BATCH_MESSAGES_MAX} messages, each with its own `ts`, of one device or of several: what a "
        "gateway or a device has kept while it was offline. Each entry is checked, counted and charged as a call of "
        f"`POST /messages` is, and `data` may have {MAX_DATA_BYTES} bytes. A refused entry hinders no other one. All "
        "that are accepted are stored together, so after a lost answer all of them are stored, or none.",
        counted=Counted.MESSAGES,
        answers=Answers(about="The accepted entries are stored durably, and visible to every later read"),
    )
    async def send(self, caller: Caller, body: NewBatch) -> AfterCommit[StoredBatch]:
        counted, over = count_further(self._meters, caller, len(body.messages) - 1)
        entries, turn = list[_Entry | DomainError](), Turn()
        for raw in body.messages[: counted + 1]:
            entries.append(_entry(raw, caller))
            await turn.pause()
        wanted = {_device_id(entry, caller) for entry in entries if isinstance(entry, _Entry)}
        devices = await self._devices.find_all(wanted)
        reach = await self._permissions.reach(caller)
        entered, turn = list[BatchMessage | DomainError](), Turn()
        for entry in entries:
            if isinstance(entry, _Entry):
                entered.append(self._message(entry, devices[_device_id(entry, caller)], reach))
            else:
                entered.append(entry)
            await turn.pause()
        await self._note_unreadable(caller, entries)
        if over is not None:
            entered += [over] * (len(body.messages) - counted - 1)
        (device, *others) = devices.values() or (None,)
        if device is not None and not others and reach.allows(device, Permission.WRITE):
            charge_to(device)
        messages = [one for one in entered if isinstance(one, BatchMessage)]
        return self._stored(entered, await self._batches.submit(messages, partial(_forbidden, reach)))

    def _message(self, entry: _Entry, device: Device | None, reach: Reach) -> BatchMessage | DomainError:
        if device is None:
            return DeviceNotFound(entry.sdid or "")
        if (refusal := _forbidden(reach, device)) is not None:
            return refusal
        try:
            payload = payload_of(entry.data, anything=device.manifest.takes_any_payload)
        except ValidationFailed as error:
            self._ingest.refused.note(device, error)
            return error
        return BatchMessage(device, payload, time_of(entry.ts))

    async def _note_unreadable(self, caller: Caller, entries: Iterable[_Entry | DomainError]) -> None:
        unreadable = {str(one): one for one in entries if isinstance(one, DomainError)}
        for error in unreadable.values():
            await self._sending.note_refused(caller, error)

    def _stored(
        self, entered: Sequence[BatchMessage | DomainError], submitted: Sequence[Ticket | DomainError]
    ) -> AfterCommit[StoredBatch]:
        group, ingest = self._ingest.group, self._ingest

        def answer() -> StoredBatch:
            outcomes, results = iter(submitted), list[BatchResult]()
            for one in entered:
                outcome = next(outcomes) if isinstance(one, BatchMessage) else one
                if isinstance(outcome, DomainError):
                    results.append(BatchResult(error=_shown(outcome)))
                else:
                    dropped = one.dropped if isinstance(one, BatchMessage) else ()
                    warnings = [MessageWarning(lost.field, lost.message) for lost in dropped]
                    results.append(BatchResult(ingest.mid(group.position(outcome)), warnings or UNSET))
            stored = sum(result.error is UNSET for result in results)
            return StoredBatch(BatchResults(results, stored, len(results) - stored))

        return AfterCommit(ingest, answer)


def _entry(raw: Raw, caller: Caller) -> _Entry | DomainError:
    try:
        return members(bytes(raw), _Entry, caller)
    except BadRequest:
        return ValidationFailed.of("messages", invalid("must be an object"))
    except ValidationFailed as error:
        return error


def _device_id(entry: _Entry, caller: Caller) -> str:
    return entry.sdid or caller.device_id or ""


def _forbidden(reach: Reach, device: Device) -> DomainError | None:
    is_allowed = reach.allows(device, Permission.WRITE)
    return None if is_allowed else PermissionDenied(f"{Permission.WRITE.value} on device {device.id}")


def _shown(error: DomainError) -> BatchError:
    """The first finding, or the whole refusal."""
    retry = error.retry_seconds if isinstance(error, TryLater) else UNSET
    if isinstance(error, ValidationFailed):
        found = error.findings[0]
        return BatchError(error.code, found.field, found.messages[0], retry)
    return BatchError(error.code, _FIELDS.get(type(error), "sdid"), str(error), retry)
