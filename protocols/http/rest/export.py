"""/messages/export: asking for an archive, watching it grow, and downloading it (reference 10)."""

from collections.abc import AsyncIterator
from typing import Any, Final, Literal

import msgspec
import trio
from msgspec import Raw
from quart import Blueprint, Response, request

from broker.errors import Finding, Gone, ValidationFailed
from broker.export.exports import Export, Exports
from broker.export.requests import ExportRequest, items
from broker.export.status import ExportStatus
from config.limits import EXPORT_KEPT_HOURS
from protocols.http.answers import json_answer
from protocols.http.body import Query, members, read_body
from protocols.http.guard import APPLICATION, USER, Guard

_CHUNK_BYTES: Final = 256 * 1024
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


def export_blueprint(exports: Exports, guard: Guard) -> Blueprint:
    routes = Blueprint("export", __name__)

    @routes.post("/messages/export")
    async def create() -> Response:
        caller = await guard.caller(USER, APPLICATION)
        wanted = _request(members(await read_body(), _Post))
        export_id = await exports.create(caller, wanted)
        return json_answer({"data": {"exportId": export_id} | _asked_for(wanted)})

    @routes.get("/messages/export/history")
    async def history() -> Response:
        caller = await guard.caller(USER, APPLICATION)
        query = Query.of_request()
        count, offset, trial = query.count(), query.offset(), query.text("trialId")
        query.check()
        found, total = await exports.history(caller, trial=trial, offset=offset, count=count)
        entries = [_status(one) | {"request": _history_request(one)} for one in found]
        return json_answer({"count": len(entries), "offset": offset, "total": total, "data": {"exports": entries}})

    @routes.get("/messages/export/<export_id>/status")
    async def status(export_id: str) -> Response:
        async with guard.before_limit(USER, APPLICATION) as caller:
            export = await exports.find(caller, export_id)
        return json_answer(_status(export))

    @routes.get("/messages/export/<export_id>/result")
    async def result(export_id: str) -> Response:
        async with guard.before_limit(USER, APPLICATION) as caller:
            await exports.find(caller, export_id)
        export, path = await exports.result(caller, export_id)
        try:
            file = await trio.open_file(path, "rb")
        except FileNotFoundError as error:  # it expired a moment ago
            raise Gone from error
        if request.method == "HEAD":
            await file.aclose()
            answer = Response(b"")
        else:
            answer = Response(_download(exports, export_id, file))
            answer.timeout = None  # as long as the peer reads
        answer.headers["Content-Type"] = "application/x-compressed"
        answer.headers["Content-Disposition"] = f'attachment; filename="{export_id}.tgz"'
        answer.headers["Content-Length"] = str(export.record.file_size)
        answer.headers["X-Service-Total-Messages"] = str(export.record.total_messages)
        return answer

    return routes


async def _download(exports: Exports, export_id: str, file: Any) -> AsyncIterator[bytes]:
    async with file:
        while chunk := await file.read(_CHUNK_BYTES):
            yield chunk
    with trio.CancelScope(shield=True):  # the peer has it all, and may be gone
        await exports.served(export_id)


class _Post(msgspec.Struct, gc=False, rename="camel"):
    uids: str | None = None
    sdids: str | None = None
    sdtids: str | None = None
    trial_id: str | None = None
    trial_id_as_specified: str | None = msgspec.field(default=None, name="trialID")
    start_date: int | None = None
    end_date: int | None = None
    order: str | None = None
    format: str | None = None
    csv_headers: Raw = Raw()
    url: str | None = None


def _request(post: _Post) -> ExportRequest:
    """Raises ValidationFailed with everything that cannot be read; what it means is checked by the export."""
    findings = []
    for name, date in (("startDate", post.start_date), ("endDate", post.end_date)):
        if date is None:
            findings.append(Finding(name, ("Required parameter",)))
        elif date not in range(2**62):
            findings.append(Finding(name, ("Invalid value",)))
    order, format_ = (post.order or "asc").lower(), (post.format or "json").lower()
    if order not in {"asc", "desc"}:
        findings.append(Finding("order", ("Invalid value",)))
    if format_ not in {"json", "csv1"}:
        findings.append(Finding("format", ("Invalid value",)))
    csv_headers = _truth(post.csv_headers)
    if csv_headers is None:
        findings.append(Finding("csvHeaders", ("Boolean field only",)))
    trial_id = post.trial_id or post.trial_id_as_specified
    if post.trial_id_as_specified not in {None, trial_id}:
        findings.append(Finding("trialId", ("Invalid value",)))  # two spellings, two trials
    if not any(map(items, (post.uids, post.sdids, post.sdtids, trial_id))):
        findings.append(Finding("uids", ("Required parameter",)))
    if findings:
        raise ValidationFailed(tuple(findings))
    chosen_order: Literal["asc", "desc"] = "desc" if order == "desc" else "asc"
    chosen_format: Literal["json", "csv1"] = "csv1" if format_ == "csv1" else "json"
    return ExportRequest(
        start_ms=post.start_date or 0,
        end_ms=post.end_date or 0,
        uids=post.uids,
        sdids=post.sdids,
        sdtids=post.sdtids,
        trial_id=trial_id,
        order=chosen_order,
        format=chosen_format,
        csv_headers=csv_headers is not False,
        url=post.url,
    )


def _truth(given: Raw) -> bool | None:
    text = bytes(given).decode().strip('"').lower()
    return True if text in {"", "null"} else _TRUTH.get(text)


def _asked_for(wanted: ExportRequest) -> dict[str, object]:
    given = {
        "uids": wanted.uids,
        "sdids": wanted.sdids,
        "sdtids": wanted.sdtids,
        "trialId": wanted.trial_id,
        "startDate": wanted.start_ms,
        "endDate": wanted.end_ms,
        "order": wanted.order,
        "format": wanted.format,
        "csvHeaders": wanted.csv_headers if wanted.format == "csv1" else None,
        "url": wanted.url,
    }
    return {name: value for name, value in given.items() if value is not None}


def _status(export: Export) -> dict[str, object]:
    """What comes with success is absent until then; `progress` is of our own."""
    record = export.record
    members: dict[str, object] = {"exportId": record.id, "status": export.status.value}
    if export.status in {ExportStatus.SUCCESS, ExportStatus.SERVED, ExportStatus.EXPIRED}:
        members |= {
            "md5": record.md5,
            "expirationDate": record.expires_on,
            "fileSize": record.file_size,
            "totalMessages": record.total_messages,
            "ttl": f"{EXPORT_KEPT_HOURS}h",
        }
    if export.progress is not None:
        members["progress"] = export.progress
    return members


def _history_request(export: Export) -> dict[str, object]:
    wanted = export.request
    return {
        "requestDate": export.record.created_on,
        "startDate": wanted.start_ms,
        "endDate": wanted.end_ms,
        "order": wanted.order,
        "format": wanted.format,
    }
