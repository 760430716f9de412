"""/devicetypes/{dtid}/whitelist: the approved list of a device type (reference 7.2)."""

from collections.abc import Iterator
from typing import Annotated, Any, Final

from msgspec import Meta, convert
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data as PartData
from werkzeug.sansio.multipart import Epilogue, MultipartDecoder, NeedData

from broker.accounts.permissions import ADMINISTRATORS
from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceType
from broker.device_types.room import DeviceTypesRoom
from broker.errors import REQUIRED, BadRequest, ValidationFailed
from broker.registration.approved_lists import CERTIFICATE_UPLOADED, HAS_DEVICES, TOO_MANY_IDS, TOO_MANY_UPLOADS
from broker.registration.certificates import certificate_fields
from broker.registration.room import RegistrationRoom
from config.limits import APPROVED_ROWS_MAX, CERTIFICATE_MAX_BYTES, VENDOR_ID_MAX_CHARACTERS
from protocols.http.calls import USER_OR_APPLICATION, Accepts, Chapter, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.request_context import current_request
from protocols.http.rest.named import ADMINISTERED_TYPE
from protocols.http.schema import (
    Amount,
    Data,
    Id,
    NumberedPage,
    Paging,
    Shape,
    Timestamp,
    TypeId,
    about,
    integer,
    numbered,
    one_of,
    text,
)
from storage.records import ApprovedEntryRecord, ApprovedUploadRecord

_PATH: Final = "/devicetypes/{dtid}/whitelist"
_PARTS_MAX: Final = 16
_FILE: Final = "file"
_UPLOAD_ID: Final[dict[str, Any]] = {"uploadId": samples.UPLOAD}
_UPLOAD_STATUS: Final[dict[str, Any]] = {
    "uploadId": samples.UPLOAD,
    "status": "Completed",
    "vdidsCount": {"total": 3, "succeeded": 2, "failed": 1},
}


class ApprovedEntry(Shape):
    shape = "ApprovedEntry"
    example = {"vdid": samples.VDID, "did": None, "uploadedOn": samples.TS}

    vdid: Annotated[str, text(longest=VENDOR_ID_MAX_CHARACTERS)]
    did: Annotated[Id, about("The device that uses it")] | None
    uploaded_on: Timestamp


class _Validity(Shape):
    not_before: Annotated[int, integer()]
    not_after: Annotated[int, integer()]


class _CertificateFields(Shape):
    version: str
    serial_number: Annotated[str, about("In hexadecimal")]
    signature_algorithm: str
    subject: str
    issuer: str
    validity: _Validity


class ApprovedCertificate(Shape):
    shape = "ApprovedCertificate"
    example = {
        "id": samples.CERTIFICATE,
        "certificateFields": {
            "version": "3",
            "serialNumber": "4a1f",
            "signatureAlgorithm": "ecdsa-with-SHA256",
            "subject": "CN=Light maker",
            "issuer": "CN=Light maker",
            "validity": {"notBefore": samples.TS, "notAfter": samples.TS + 100_000_000_000},
        },
    }

    id: Id
    certificate_fields: _CertificateFields


class _Certificate(Shape):
    example = {"certificate": "-----BEGIN CERTIFICATE-----\n…\n-----END CERTIFICATE-----\n"}

    certificate: Annotated[str, Meta(min_length=1, description="In PEM")]


class _Form(Shape):
    file: Annotated[str, about("The CSV", format="binary")]


class _UploadId(Shape):
    example = _UPLOAD_ID

    upload_id: Id


class _Uploaded(_UploadId):
    example = {**_UPLOAD_ID, "data": _UPLOAD_ID}

    data: _UploadId


class _Counts(Shape):
    total: Amount
    succeeded: Amount
    failed: Amount


class _UploadStatus(Shape):
    example = _UPLOAD_STATUS

    upload_id: Id
    status: Annotated[str, one_of(("Processing", "Completed", "Failed"), "Failed: no valid header, or too many rows")]
    vdids_count: _Counts


class _UploadStatusTwice(_UploadStatus):
    example = {**_UPLOAD_STATUS, "data": _UPLOAD_STATUS}

    data: _UploadStatus


class _Switch(Shape):
    example = {"enableWhitelist": True}

    enable_whitelist: Annotated[bool, about("Whether new devices need an id of the list")]


class _EntryPage(Shape):
    data: list[ApprovedEntry]
    dtid: Annotated[TypeId, about("", example=samples.DTID)]
    total: Annotated[Amount, about("All entries", example=1)]
    count: Annotated[Amount, about("Entries in this answer", example=1)]
    offset: Annotated[Amount, about("As asked for", example=0)]


class _RejectedRow(Shape):
    example = {"index": 3, "message": "Duplicate vdid"}

    index: Annotated[int, integer("Of the row, from 1", lowest=1)]
    message: Annotated[str, one_of(("Invalid vdid", "Duplicate vdid"))]


class _UsedBy(Shape):
    example = {"did": samples.DID}

    did: Annotated[Id, about("Null while nobody uses it")] | None


class ApprovedListCalls(RestCalls):
    chapter = Chapter(
        "Approved lists",
        "Which vendor ids new devices of a type may have. For administrators of the organization that owns the type, "
        "and for its applications.",
    )

    path_names = {
        "uploadId": (Annotated[Id, about("An upload")], samples.UPLOAD),
        "vdid": (Annotated[str, text("A vendor id", pattern="^[A-Za-z0-9_-]{1,64}$")], samples.VDID),
        "certificateId": (Annotated[Id, about("A certificate")], samples.CERTIFICATE),
    }

    def __init__(
        self,
        accounts: AccountsRoom,
        device_types: DeviceTypesRoom,
        registration: RegistrationRoom,
    ) -> None:
        self._permissions = accounts.permissions
        self._types = device_types.catalog
        self._lists = registration.approved_lists

    async def _type(self, caller: Caller, dtid: str) -> DeviceType:
        type_ = await self._types.find(dtid)
        await self._permissions.require_role(caller, type_.record, ADMINISTRATORS)
        return type_

    async def _upload(self, caller: Caller, dtid: str, upload_id: str) -> ApprovedUploadRecord:
        return await self._lists.upload_status(await self._type(caller, dtid), upload_id)

    async def _listed(self, caller: Caller, dtid: str, vdid: str) -> tuple[DeviceType, ApprovedEntryRecord]:
        type_ = await self._type(caller, dtid)
        return type_, await self._lists.find(type_, vdid)

    async def _with_certificate(self, caller: Caller, dtid: str, certificate_id: str) -> DeviceType:
        type_ = await self._type(caller, dtid)
        await self._lists.certificate(type_, certificate_id)
        return type_

    @RestCall(
        "POST",
        _PATH,
        tokens=USER_OR_APPLICATION,
        on=ADMINISTERED_TYPE,
        summary="Upload vendor ids",
        about=f"A CSV whose first line is `vdid`, with at most {APPROVED_ROWS_MAX} rows: as the body itself, or as "
        "the part `file` of a form. It is processed later; its status tells the result of every row.",
        accepts=Accepts(
            {"text/csv": Annotated[str, about("The CSV")], "multipart/form-data": _Form},
            "vdid\nlight-0001\nlight-0002\n",
        ),
        refusals={409: f"{TOO_MANY_UPLOADS}. {TOO_MANY_IDS}."},
    )
    async def upload(self, type_: DeviceType, body: bytes) -> _Uploaded:
        content = _csv(body, current_request().header(b"content-type"))
        upload_id = await self._lists.upload(type_, content)
        return _Uploaded(upload_id, _UploadId(upload_id))

    @RestCall("GET", _PATH, tokens=USER_OR_APPLICATION, on=ADMINISTERED_TYPE, summary="The vendor ids of a list")
    async def entries(self, type_: DeviceType, query: Paging) -> _EntryPage:
        found, total = await self._lists.entries(type_, offset=query.offset, count=query.count)
        return _EntryPage(list(map(_entry, found)), type_.id, total, len(found), query.offset)

    @RestCall(
        "GET",
        f"{_PATH}/status",
        tokens=USER_OR_APPLICATION,
        on=ADMINISTERED_TYPE,
        summary="Whether a list is enabled",
    )
    async def switch(self, type_: DeviceType) -> Data[_Switch]:
        return Data(_Switch(await self._lists.is_enabled(type_)))

    @RestCall(
        "PUT",
        f"{_PATH}/enable",
        tokens=USER_OR_APPLICATION,
        on=ADMINISTERED_TYPE,
        summary="Enable or disable a list",
        refusals={409: HAS_DEVICES},
    )
    async def enable(self, type_: DeviceType, body: _Switch) -> Data[_Switch]:
        await self._lists.set_enabled(type_, body.enable_whitelist)
        return Data(body)

    @RestCall(
        "GET",
        f"{_PATH}/{{uploadId}}/status",
        tokens=USER_OR_APPLICATION,
        on=_upload,
        summary="How far an upload is",
    )
    async def upload_status(self, upload: ApprovedUploadRecord) -> _UploadStatusTwice:
        counts = _Counts(upload.total, upload.succeeded, upload.failed)
        return _UploadStatusTwice(
            upload.id, upload.status, counts, data=_UploadStatus(upload.id, upload.status, counts)
        )

    @RestCall(
        "GET",
        f"{_PATH}/{{uploadId}}/rejectedRows",
        tokens=USER_OR_APPLICATION,
        on=_upload,
        summary="Rows that an upload left out",
    )
    async def rejected_rows(self, upload: ApprovedUploadRecord, query: Paging) -> NumberedPage[list[_RejectedRow]]:
        found, total = await self._lists.rejected_rows(upload, offset=query.offset, count=query.count)
        return NumberedPage([_RejectedRow(index, message) for index, message in found], total, query.offset, len(found))

    @RestCall(
        "GET",
        f"{_PATH}/vdid/{{vdid}}",
        tokens=USER_OR_APPLICATION,
        on=_listed,
        summary="The device that uses a vendor id",
    )
    async def used_by(self, listed: tuple[DeviceType, ApprovedEntryRecord]) -> Data[_UsedBy]:
        _, entry = listed
        return Data(_UsedBy(entry.device_id))

    @RestCall(
        "DELETE",
        f"{_PATH}/{{vdid}}",
        tokens=USER_OR_APPLICATION,
        on=_listed,
        summary="Remove a vendor id",
        about="The device that uses it stays.",
    )
    async def remove(self, listed: tuple[DeviceType, ApprovedEntryRecord]) -> Data[ApprovedEntry]:
        type_, entry = listed
        return Data(_entry(await self._lists.remove(type_, entry.vdid)))

    @RestCall(
        "GET",
        f"{_PATH}/certificates",
        tokens=USER_OR_APPLICATION,
        on=ADMINISTERED_TYPE,
        summary="What vendor ids are signed with",
    )
    async def certificates(self, type_: DeviceType, query: Paging) -> NumberedPage[list[ApprovedCertificate]]:
        found = await self._lists.certificates(type_)
        return numbered(found, query, lambda one: _certificate(*one))

    @RestCall(
        "POST",
        f"{_PATH}/certificates",
        tokens=USER_OR_APPLICATION,
        on=ADMINISTERED_TYPE,
        summary="Add a certificate",
        about="Its key signs vendor ids: RSA with PKCS#1 v1.5 or ECDSA, with SHA-256.",
        body_limit=CERTIFICATE_MAX_BYTES,
        refusals={409: CERTIFICATE_UPLOADED},
    )
    async def add_certificate(self, type_: DeviceType, body: _Certificate) -> Data[ApprovedCertificate]:
        return Data(_certificate(*await self._lists.add_certificate(type_, body.certificate)))

    @RestCall(
        "DELETE",
        f"{_PATH}/certificates/{{certificateId}}",
        tokens=USER_OR_APPLICATION,
        on=_with_certificate,
        summary="Remove a certificate",
    )
    async def remove_certificate(self, type_: DeviceType, certificate_id: str) -> Data[ApprovedCertificate]:
        removed = await self._lists.remove_certificate(type_, certificate_id)
        return Data(_certificate(certificate_id, removed))


def _csv(body: bytes, content_type: str) -> bytes:
    """The CSV: the body itself, or the part `file` of a form. Raises BadRequest, ValidationFailed."""
    kind, options = parse_options_header(content_type)
    if kind.lower() != "multipart/form-data":
        return body
    try:
        decoder = MultipartDecoder(options["boundary"].encode("latin-1"), len(body), max_parts=_PARTS_MAX)
        decoder.receive_data(body)
        decoder.receive_data(None)
        parts = dict(_parts(decoder))
    except (KeyError, ValueError, RequestEntityTooLarge) as error:  # the last one: too many parts
        raise BadRequest from error
    if _FILE not in parts:
        raise ValidationFailed.of(_FILE, REQUIRED)
    return parts[_FILE]


def _parts(decoder: MultipartDecoder) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the parts of a form. Raises ValueError, also for a form that does not end."""
    name, content = "", b""
    while not isinstance(event := decoder.next_event(), Epilogue):
        if isinstance(event, NeedData):
            raise ValueError("the form has no end")
        if isinstance(event, PartData):
            content += event.data
            if not event.more_data:
                yield name, content
        else:
            name, content = getattr(event, "name", ""), b""


def _entry(entry: ApprovedEntryRecord) -> ApprovedEntry:
    return ApprovedEntry(entry.vdid, entry.device_id, entry.uploaded_on)


def _certificate(id_: str, der: bytes) -> ApprovedCertificate:
    return ApprovedCertificate(id_, convert(certificate_fields(der), _CertificateFields))
