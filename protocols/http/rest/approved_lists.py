"""/devicetypes/{dtid}/whitelist: the approved list of a device type (reference 7.2)."""

from collections.abc import Iterator
from typing import Final

import msgspec
from quart import Blueprint, Response, request
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, MultipartDecoder, NeedData

from broker.errors import BadRequest, ValidationFailed
from broker.registration.certificates import certificate_fields
from broker.services import Services
from config.limits import CERTIFICATE_MAX_BYTES
from protocols.http.answers import json_answer
from protocols.http.body import Query, members, read_body
from protocols.http.guard import Guard
from protocols.http.rest.named_types import AdministeredTypes
from storage.records import ApprovedEntryRecord, ApprovedUploadRecord

_PARTS_MAX: Final = 16
_FILE: Final = "file"


def approved_lists_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("approved_lists", __name__)
    lists, administered = services.registration.approved_lists, AdministeredTypes(services, guard)

    @routes.post("/devicetypes/<dtid>/whitelist")
    async def upload(dtid: str) -> Response:
        type_ = await administered.get(dtid)
        content = _csv(await read_body(), request.headers.get("Content-Type", ""))
        uploaded = {"uploadId": await lists.upload(type_, content)}
        return json_answer(uploaded | {"data": uploaded})

    @routes.get("/devicetypes/<dtid>/whitelist")
    async def entries(dtid: str) -> Response:
        type_ = await administered.get(dtid)
        count, offset = Query.of_request().paging()
        found, total = await lists.entries(type_, offset=offset, count=count)
        return json_answer(
            {
                "data": [_entry(entry) for entry in found],
                "dtid": type_.id,
                "total": total,
                "count": len(found),
                "offset": offset,
            }
        )

    @routes.get("/devicetypes/<dtid>/whitelist/status")
    async def switch(dtid: str) -> Response:
        return _switch(await lists.is_enabled(await administered.get(dtid)))

    @routes.put("/devicetypes/<dtid>/whitelist/enable")
    async def enable(dtid: str) -> Response:
        type_ = await administered.get(dtid)
        wanted = members(await read_body(), _Switch).enable_whitelist
        if wanted is None:
            raise ValidationFailed.of("enableWhitelist", "Required parameter")
        await lists.set_enabled(type_, wanted)
        return _switch(wanted)

    @routes.get("/devicetypes/<dtid>/whitelist/<upload_id>/status")
    async def upload_status(dtid: str, upload_id: str) -> Response:
        async with administered.before_limit(dtid) as type_:
            about = _upload(await lists.upload_status(type_, upload_id))
        return json_answer(about | {"data": about})

    @routes.get("/devicetypes/<dtid>/whitelist/<upload_id>/rejectedRows")
    async def rejected_rows(dtid: str, upload_id: str) -> Response:
        async with administered.before_limit(dtid) as type_:
            upload = await lists.upload_status(type_, upload_id)
        count, offset = Query.of_request().paging()
        found, total = await lists.rejected_rows(upload, offset=offset, count=count)
        rows = [{"index": index, "message": message} for index, message in found]
        return json_answer({"data": rows, "total": total, "offset": offset, "count": len(rows)})

    @routes.get("/devicetypes/<dtid>/whitelist/vdid/<vdid>")
    async def device_of(dtid: str, vdid: str) -> Response:
        async with administered.before_limit(dtid) as type_:
            entry = await lists.find(type_, vdid)
        return json_answer({"data": {"did": entry.device_id}})

    @routes.delete("/devicetypes/<dtid>/whitelist/<vdid>")
    async def remove(dtid: str, vdid: str) -> Response:
        async with administered.before_limit(dtid) as type_:
            await lists.find(type_, vdid)
        return json_answer({"data": _entry(await lists.remove(type_, vdid))})

    return routes


def approved_certificates_blueprint(services: Services, guard: Guard) -> Blueprint:
    """What the ids of an approved list are signed with."""
    routes = Blueprint("approved_certificates", __name__)
    lists, administered = services.registration.approved_lists, AdministeredTypes(services, guard)

    @routes.get("/devicetypes/<dtid>/whitelist/certificates")
    async def certificates(dtid: str) -> Response:
        type_ = await administered.get(dtid)
        count, offset = Query.of_request().paging()
        found = await lists.certificates(type_)
        page = [_certificate(*one) for one in found[offset : offset + count]]
        return json_answer({"data": page, "total": len(found), "offset": offset, "count": len(page)})

    @routes.post("/devicetypes/<dtid>/whitelist/certificates")
    async def add_certificate(dtid: str) -> Response:
        type_ = await administered.get(dtid)
        pem = members(await read_body(limit=CERTIFICATE_MAX_BYTES), _NewCertificate).certificate
        if not pem:
            raise ValidationFailed.of("certificate", "Required parameter")
        return json_answer({"data": _certificate(*await lists.add_certificate(type_, pem))})

    @routes.delete("/devicetypes/<dtid>/whitelist/certificates/<certificate_id>")
    async def remove_certificate(dtid: str, certificate_id: str) -> Response:
        async with administered.before_limit(dtid) as type_:
            await lists.certificate(type_, certificate_id)
        removed = await lists.remove_certificate(type_, certificate_id)
        return json_answer({"data": _certificate(certificate_id, removed)})

    return routes


class _Switch(msgspec.Struct, rename="camel"):
    enable_whitelist: bool | None = None


class _NewCertificate(msgspec.Struct):
    certificate: str | None = None


def _csv(body: bytes, content_type: str) -> bytes:
    """The body itself, or the part `file` of a form. Raises BadRequest, ValidationFailed."""
    kind, options = parse_options_header(content_type)
    if kind.lower() != "multipart/form-data":
        return body
    try:
        decoder = MultipartDecoder(options["boundary"].encode("latin-1"), len(body), max_parts=_PARTS_MAX)
        decoder.receive_data(body)
        decoder.receive_data(None)
        parts = dict(_parts(decoder))
    except (KeyError, ValueError) as error:
        raise BadRequest from error
    if _FILE not in parts:
        raise ValidationFailed.of(_FILE, "Required parameter")
    return parts[_FILE]


def _parts(decoder: MultipartDecoder) -> Iterator[tuple[str, bytes]]:
    """The parts of a form that has arrived, with their names. Raises ValueError, also for one that does not end."""
    name, content = "", b""
    while not isinstance(event := decoder.next_event(), Epilogue):
        if isinstance(event, NeedData):
            raise ValueError("the form has no end")
        if isinstance(event, Data):
            content += event.data
            if not event.more_data:
                yield name, content
        else:
            name, content = getattr(event, "name", ""), b""


def _switch(is_enabled: bool) -> Response:
    return json_answer({"data": {"enableWhitelist": is_enabled}})


def _entry(entry: ApprovedEntryRecord) -> dict[str, object]:
    return {"vdid": entry.vdid, "did": entry.device_id, "uploadedOn": entry.uploaded_on}


def _upload(upload: ApprovedUploadRecord) -> dict[str, object]:
    counts = {"total": upload.total, "succeeded": upload.succeeded, "failed": upload.failed}
    return {"uploadId": upload.id, "status": upload.status, "vdidsCount": counts}


def _certificate(id_: str, der: bytes) -> dict[str, object]:
    return {"id": id_, "certificateFields": certificate_fields(der)}
