"""/messages/import: bringing tables of messages, as exports write them (reference 10.5)."""

from contextlib import aclosing
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from broker.accounts.permissions import Permission
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.my_data.imports import Wrong
from broker.my_data.room import MyDataRoom
from config.limits import IMPORT_BYTES, IMPORT_WRONG_LINES, IMPORTS_KEPT_DAYS, IMPORTS_SHOWN
from protocols.http.calls import NOTHING, USER, Accepts, Chunks, InQuery, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Query
from protocols.http.rest.export import ExportCalls
from protocols.http.schema import Amount, Data, Id, Shape, Timestamp, about, absent_if_none, integer, one_of, time_ms
from storage.imports import ImportRecord

_CSV: Final = "text/csv"
_STATUSES: Final = ("InProgress", "Success", "Failure")
_TABLE: Final = f"time,sdid,steps\n2026-11-27T16:45:00.000Z,{samples.DID},500\n"
_decode_wrong = msgspec.json.Decoder(list[Wrong]).decode


class WrongLineObject(Shape):
    shape = "WrongLine"
    example = {"line": 7, "reason": "column 3, “steps”: “many” is not an integer"}

    line: Annotated[int, integer("Its number; the header is line 1", lowest=1)]
    reason: str


class ImportObject(Shape, kw_only=True):
    shape = "Import"
    example = {
        "id": samples.IMPORT,
        "status": "Success",
        "progress": 100,
        "fileSize": 68,
        "stored": 1,
        "present": 0,
        "wrong": 0,
        "wrongLines": [],
        "requestedOn": samples.CTS,
        "endedOn": samples.CTS + 1_000,
    }

    id: Id
    status: Annotated[str, one_of(_STATUSES)]
    progress: Annotated[int, integer("Per cent of the file", lowest=0, highest=100)]
    file_size: Annotated[int, integer("Bytes", lowest=0)]
    stored: Annotated[Amount, about("Lines that are messages now")]
    present: Annotated[Amount, about("Lines whose messages were there before")]
    wrong: Annotated[Amount, about("Lines that were not taken")]
    wrong_lines: Annotated[list[WrongLineObject], about(f"The first {IMPORT_WRONG_LINES} of these")]
    reason: Annotated[str, about("Why it failed")] | UnsetType = UNSET
    requested_on: Timestamp
    ended_on: Annotated[int, time_ms("When it had ended")] | UnsetType = UNSET


class _Imports(Shape):
    imports: list[ImportObject]


class _Target(Shape, kw_only=True):
    sdid: Annotated[Id, about("The device of a file without a column sdid")] | None = None


class ImportCalls(RestCalls):
    chapter = ExportCalls.chapter

    path_names = {"importId": (Annotated[Id, about("An import of messages")], samples.IMPORT)}

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom, my_data: MyDataRoom) -> None:
        self._permissions = accounts.permissions
        self._devices = devices.registry
        self._imports = my_data.imports

    async def _target(self, caller: Caller, query: Query) -> Device | None:
        """The device that the query names, if any."""
        if (sdid := query.text("sdid")) is None:
            return None
        device = await self._devices.find(sdid)
        await self._permissions.require(caller, device, Permission.WRITE)
        return device

    async def _import(self, caller: Caller, import_id: str) -> ImportRecord:
        return await self._imports.find(caller, import_id)

    @RestCall(
        "POST",
        "/messages/import",
        tokens=USER,
        on=InQuery(_target),
        summary="Import messages",
        about="The body is CSV as an export with the format csv has it, of devices of one type on which the user may "
        "write. A wrong header refuses the file. Lines are stored in the background, as messages with their own times; "
        "wrong ones are named by their numbers. A file that is sent again stores nothing twice.",
        query=_Target,
        accepts=Accepts(
            {
                "application/octet-stream": Annotated[str, about("The same", format="binary")],
                _CSV: Annotated[str, about("UTF-8, with a header")],
            },
            _TABLE,
        ),
        refusals={413: f"The file has more than {IMPORT_BYTES} bytes.", 404: "A device does not exist."},
    )
    async def create(self, caller: Caller, device: Device | None, body: Chunks) -> Data[ImportObject]:
        async with aclosing(body(IMPORT_BYTES)) as chunks:
            return Data(_shown(await self._imports.create(caller, chunks, device)))

    @RestCall(
        "GET",
        "/messages/import/history",
        tokens=USER,
        on=NOTHING,
        summary="Imports so far",
        about=f"The latest {IMPORTS_SHOWN}, newest first. They are known for {IMPORTS_KEPT_DAYS} days.",
    )
    async def latest(self, caller: Caller) -> Data[_Imports]:
        return Data(_Imports([_shown(one) for one in await self._imports.latest(caller)]))

    @RestCall(
        "GET",
        "/messages/import/{importId}/status",
        tokens=USER,
        on=_import,
        summary="How far an import is",
    )
    async def status(self, record: ImportRecord) -> Data[ImportObject]:
        return Data(_shown(record))


def _shown(record: ImportRecord) -> ImportObject:
    ended = record.ended_on is not None
    return ImportObject(
        id=record.id,
        status=_STATUSES[2 if record.reason else int(ended)],
        progress=100 * record.position // max(1, record.size),
        file_size=record.size,
        stored=record.stored,
        present=record.present,
        wrong=record.wrong,
        wrong_lines=[WrongLineObject(one.line, one.reason) for one in _decode_wrong(record.wrong_lines)],
        reason=record.reason or UNSET,
        requested_on=record.asked_on,
        ended_on=absent_if_none(record.ended_on),
    )
