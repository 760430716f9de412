"""/messages/export: asking for an archive, watching it grow, and downloading it (reference 10)."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType
from quart import Response

from broker.accounts.tokens import Caller
from broker.errors import BOOLEAN_ONLY, REQUIRED, Finding, choice, invalid
from broker.export.exports import NOT_READY, Export, Exports
from broker.export.requests import ExportFormat, ExportRequest, items
from broker.export.status import ExportStatus
from config.limits import EXPORT_IDS_MAX, EXPORT_KEPT_HOURS, EXPORT_PAST_DAYS, EXPORT_RANGE_DAYS, EXPORT_URL_CHARACTERS
from protocols.http.calls import NOTHING, USER_OR_APPLICATION, Answers, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Given, Rule, Valid, boolean_of
from protocols.http.rest.archive_answers import archive_answer
from protocols.http.schema import (
    Amount,
    Count,
    Data,
    Id,
    Offset,
    Shape,
    Timestamp,
    about,
    absent_if_none,
    ids,
    integer,
    one_of,
    text,
    time_ms,
)
from storage.keys import Milliseconds

_ORDERS: Final = ("asc", "desc")
_FORMATS: Final = get_args(ExportFormat)
_WITH_HEADERS: Final = ("csv1", "csv2", "csv")
_STATUSES: Final = ("Received", "InProgress", "Success", "Failure", "Served", "Expired")
_FINISHED: Final = frozenset({ExportStatus.SUCCESS, ExportStatus.SERVED, ExportStatus.EXPIRED})
_DONE: Final = {
    "exportId": samples.EXPORT,
    "status": "Success",
    "md5": "5eb63bbbe01eeed093cb22bb8f5acdc3",
    "expirationDate": samples.TS + 86_400_000,
    "fileSize": 1234,
    "totalMessages": 10,
    "ttl": "24h",
}
_DATES: Final = {"startDate": samples.TS, "endDate": samples.TS + 86_400_000}

_Uids = Annotated[str, ids("User ids", longest=EXPORT_IDS_MAX)]
_Sdids = Annotated[str, ids("Device ids", longest=EXPORT_IDS_MAX)]
_Sdtids = Annotated[str, ids("Device type ids", longest=EXPORT_IDS_MAX)]
_TrialId = Annotated[str, about("A trial")]
# Answers repeat these members of the request, with their defaults.
_Order = Annotated[str, one_of(_ORDERS, "By ts", default="asc")]
_Format = Annotated[str, one_of(_FORMATS, default="json")]
_CsvHeaders = Annotated[bool, about("With csv1, csv2 and csv: whether the first line names the columns", default=True)]
_Url = Annotated[str, text("An address that the mail names", longest=EXPORT_URL_CHARACTERS)]


class _Result(Shape, kw_only=True):
    export_id: Id
    status: Annotated[str, one_of(_STATUSES)]
    md5: Annotated[str, text("Of the archive, in hexadecimal", pattern="^[0-9a-f]{32}$")] | UnsetType = UNSET
    expiration_date: Annotated[int, time_ms("When the archive goes")] | UnsetType = UNSET
    file_size: Annotated[int, integer("Bytes", lowest=0)] | UnsetType = UNSET
    total_messages: Amount | UnsetType = UNSET
    ttl: Annotated[str, about("How long the archive is kept")] | UnsetType = UNSET
    progress: Annotated[int, integer("Per cent, while it is written", lowest=0, highest=99)] | UnsetType = UNSET


class ExportStatusObject(_Result, kw_only=True):
    shape = "ExportStatus"
    example = _DONE


class _EntryRequest(Shape):
    request_date: Timestamp
    start_date: Timestamp
    end_date: Timestamp
    order: _Order
    format: _Format


class ExportEntry(_Result, kw_only=True):
    shape = "ExportEntry"
    example = _DONE | {"request": {"requestDate": samples.TS, **_DATES, "order": "asc", "format": "json"}}

    request: _EntryRequest


class _Exports(Shape):
    exports: list[ExportEntry]


class _History(Shape):
    count: Annotated[Amount, about("Items in this answer", example=1)]
    offset: Annotated[Amount, about("As asked for", example=0)]
    total: Annotated[Amount, about("All matches", example=1)]
    data: _Exports


class _HistoryQuery(Shape):
    count: Count = 100
    offset: Offset = 0
    trial_id: Annotated[str, about("Only exports of this trial")] | None = None


_DATE: Final = "must be milliseconds since the epoch"


def _is_date(given: int) -> bool:
    return 0 <= given < 2**62


def _is_truth(given: Given) -> Iterator[Finding]:
    if _truth(given.values["csv_headers"]) is None:
        yield Finding("csvHeaders", (BOOLEAN_ONLY,))


def _something_is_chosen(given: Given) -> Iterator[Finding]:
    values = given.values
    trial_id = values["trial_id"] or values["trial_id_as_specified"]
    if values["trial_id_as_specified"] not in {None, trial_id}:
        yield Finding("trialId", (invalid("must be the same as trialID"),))  # the two spellings name different trials
    if not any(map(items, (values["uids"], values["sdids"], values["sdtids"], trial_id))):
        yield Finding("uids", (REQUIRED,))


class _Wanted(Shape, kw_only=True):
    example = {"uids": samples.UID, **_DATES, "order": "asc", "format": "json"}

    uids: _Uids | None = None
    sdids: _Sdids | None = None
    sdtids: _Sdtids | None = None
    trial_id: _TrialId | None = None
    trial_id_as_specified: Annotated[str, about("The same as `trialId`")] | None = msgspec.field(
        default=None, name="trialID"
    )
    start_date: Annotated[Timestamp, Valid(_is_date, _DATE)]
    end_date: Annotated[Timestamp, Valid(_is_date, _DATE)]
    # An empty text stands for the default.
    order: Annotated[_Order, Valid(lambda given: given.lower() in {"", *_ORDERS}, choice(_ORDERS))] = "asc"
    format: Annotated[_Format, Valid(lambda given: given.lower() in {"", *_FORMATS}, choice(_FORMATS))] = "json"
    csv_headers: Annotated[
        Raw,
        about("With csv1, csv2 and csv: whether the first line names the columns", type="boolean", default=True),
        Rule(_is_truth),
    ] = msgspec.field(default_factory=Raw)
    url: Annotated[_Url, Rule(_something_is_chosen)] | None = None


class _Created(Shape, kw_only=True):
    shape = "Export"
    example = {"exportId": samples.EXPORT, "uids": samples.UID, **_DATES, "order": "asc", "format": "json"}

    export_id: Id
    uids: _Uids | UnsetType = UNSET
    sdids: _Sdids | UnsetType = UNSET
    sdtids: _Sdtids | UnsetType = UNSET
    trial_id: _TrialId | UnsetType = UNSET
    start_date: Timestamp
    end_date: Timestamp
    order: _Order
    format: _Format
    csv_headers: _CsvHeaders | UnsetType = UNSET
    url: _Url | UnsetType = UNSET


class ExportCalls(RestCalls):
    chapter = Chapter(
        "Export",
        "Messages as a compressed archive of JSON or CSV files. An export is written in the background; a mail says "
        "when it is done.",
    )

    path_names = {"exportId": (Annotated[Id, about("An export")], samples.EXPORT)}

    def __init__(self, export: Exports) -> None:
        self._exports = export

    async def _export(self, caller: Caller, export_id: str) -> Export:
        return await self._exports.find(caller, export_id)

    @RestCall(
        "POST",
        "/messages/export",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Ask for an export",
        about=f"By users, by devices, or by users and types; of at most {EXPORT_RANGE_DAYS} days that begin at "
        f"most {EXPORT_PAST_DAYS} days ago. With the formats csv, jsonl and parquet of any time: one file for each "
        "device type with a column for each field, in a .zip. `trialID` is the same as `trialId`.",
        refusals={
            404: "A user, device or type of a list does not exist.",
            501: "This server has not what writes Parquet.",
        },
    )
    async def create(self, caller: Caller, body: _Wanted) -> Data[_Created]:
        wanted = _request(body)
        return Data(_created(await self._exports.create(caller, wanted), wanted))

    @RestCall(
        "GET",
        "/messages/export/history",
        tokens=USER_OR_APPLICATION,
        on=NOTHING,
        summary="Exports so far",
        about="Newest first.",
    )
    async def history(self, caller: Caller, query: _HistoryQuery) -> _History:
        found, total = await self._exports.history(caller, trial=query.trial_id, offset=query.offset, count=query.count)
        entries = [ExportEntry(**_result_members(one), request=_entry_request(one)) for one in found]
        return _History(len(entries), query.offset, total, _Exports(entries))

    @RestCall(
        "GET",
        "/messages/export/{exportId}/status",
        tokens=USER_OR_APPLICATION,
        on=_export,
        summary="How far an export is",
    )
    async def status(self, export: Export) -> ExportStatusObject:
        return ExportStatusObject(**_result_members(export))

    @RestCall(
        "GET",
        "/messages/export/{exportId}/result",
        tokens=USER_OR_APPLICATION,
        on=_export,
        summary="Download an export",
        answers=Answers(
            type=Annotated[str, about("", format="binary")],
            content_type="application/x-compressed",
            headers={
                "X-Service-Total-Messages": Annotated[int, integer("Messages in the archive", lowest=0)],
                "Content-Disposition": Annotated[str, about("Names the file")],
                "ETag": Annotated[str, about("The `md5`")],
                "Accept-Ranges": Annotated[str, about("bytes")],
            },
            about="The archive (.tgz, of csv, jsonl and parquet .zip). With `Range` the answer is 206 with a part of "
            "it; with `If-Range` and another ETag it is the whole.",
        ),
        refusals={409: NOT_READY, 410: "The archive is gone.", 416: "The archive is shorter."},
    )
    async def result(self, caller: Caller, export_id: str) -> Response:
        export, file = await self._exports.result(caller, export_id)
        answer = archive_answer(
            file,
            await self._exports.file_name(export),
            export.record.md5 or "",
            partial(self._exports.served, export_id),
        )
        answer.headers["X-Service-Total-Messages"] = str(export.record.total_messages)
        return answer


def _request(wanted: _Wanted) -> ExportRequest:
    order: Literal["asc", "desc"] = "desc" if wanted.order.lower() == "desc" else "asc"
    format_ = msgspec.convert(wanted.format.lower() or "json", ExportFormat)
    return ExportRequest(
        start_ms=Milliseconds(wanted.start_date),
        end_ms=Milliseconds(wanted.end_date),
        uids=wanted.uids,
        sdids=wanted.sdids,
        sdtids=wanted.sdtids,
        trial_id=wanted.trial_id or wanted.trial_id_as_specified,
        order=order,
        format=format_,
        csv_headers=_truth(wanted.csv_headers) is not False,
        url=wanted.url,
    )


def _truth(given: Raw) -> bool | None:
    """The value of a boolean or of its text, true if absent; None for anything else."""
    text = bytes(given).decode().strip('"')
    return True if text.lower() in {"", "null"} else boolean_of(text)


def _created(export_id: str, wanted: ExportRequest) -> _Created:
    return _Created(
        export_id=export_id,
        uids=absent_if_none(wanted.uids),
        sdids=absent_if_none(wanted.sdids),
        sdtids=absent_if_none(wanted.sdtids),
        trial_id=absent_if_none(wanted.trial_id),
        start_date=wanted.start_ms,
        end_date=wanted.end_ms,
        order=wanted.order,
        format=wanted.format,
        csv_headers=wanted.csv_headers if wanted.format in _WITH_HEADERS else UNSET,
        url=absent_if_none(wanted.url),
    )


def _result_members(export: Export) -> dict[str, Any]:
    """The members of an export's state. The archive's members are absent until the export has succeeded."""
    record = export.record
    members: dict[str, Any] = {
        "export_id": record.id,
        "status": export.status.value,
        "progress": absent_if_none(export.progress),
    }
    if export.status in _FINISHED:
        members |= {
            "md5": record.md5,
            "expiration_date": record.expires_on,
            "file_size": record.file_size,
            "total_messages": record.total_messages,
            "ttl": f"{EXPORT_KEPT_HOURS}h",
        }
    return members


def _entry_request(export: Export) -> _EntryRequest:
    wanted = export.request
    return _EntryRequest(export.record.created_on, wanted.start_ms, wanted.end_ms, wanted.order, wanted.format)
