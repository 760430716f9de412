"""Approved lists of device types (reference 7.2)."""

from typing import Final

from config.limits import APPROVED_ROWS_MAX
from protocols.http.openapi import samples
from protocols.http.openapi.operation import PAGING, USER_OR_APPLICATION, Answer, Body, Noun, Operation, json_body
from protocols.http.openapi.shapes import (
    array,
    boolean,
    data,
    id_,
    integer,
    milliseconds,
    nullable,
    one_of,
    page,
    record,
    ref,
    text,
    type_id,
)

_PATH: Final = "/devicetypes/{dtid}/whitelist"
_ENTRY: Final = {"vdid": samples.VDID, "did": None, "uploadedOn": samples.TS}
_SWITCH: Final = record({"enableWhitelist": boolean("Whether new devices need an id of the list")})
_SWITCHED: Final = Answer(data(_SWITCH), {"data": {"enableWhitelist": True}})
_UPLOAD: Final = {
    "uploadId": id_(),
    "status": one_of(("Processing", "Completed", "Failed"), "Failed: no valid header, or too many rows"),
    "vdidsCount": record({member: integer(lowest=0) for member in ("total", "succeeded", "failed")}),
}
_UPLOADED: Final = {
    "uploadId": samples.UPLOAD,
    "status": "Completed",
    "vdidsCount": {"total": 3, "succeeded": 2, "failed": 1},
}
_CERTIFICATE: Final = {
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
_ONE_CERTIFICATE: Final = Answer(data(ref("ApprovedCertificate")), {"data": _CERTIFICATE})

APPROVED_LISTS: Final = Noun(
    "Approved lists",
    "Which vendor ids new devices of a type may have. For administrators of the organization that owns the type, and "
    "for its applications.",
    (
        Operation(
            method="POST",
            path=_PATH,
            summary="Upload vendor ids",
            about=f"A CSV whose first line is `vdid`, with at most {APPROVED_ROWS_MAX} rows: as the body itself, or as "
            "the part `file` of a form. It is processed later; its status tells the result of every row.",
            tokens=USER_OR_APPLICATION,
            body=Body(
                {
                    "text/csv": text("The CSV"),
                    "multipart/form-data": record({"file": text("The CSV", format="binary")}),
                },
                "vdid\nlight-0001\nlight-0002\n",
            ),
            answer=Answer(
                record({"uploadId": id_(), "data": record({"uploadId": id_()})}),
                {"uploadId": samples.UPLOAD, "data": {"uploadId": samples.UPLOAD}},
            ),
            refusals={409: "Too many uploads are being processed"},
        ),
        Operation(
            method="GET",
            path=_PATH,
            summary="The vendor ids of a list",
            tokens=USER_OR_APPLICATION,
            query=PAGING,
            answer=Answer(
                record(
                    {
                        "data": array(ref("ApprovedEntry")),
                        "dtid": type_id(),
                        "total": integer("All entries", lowest=0),
                        "count": integer("Entries in this answer", lowest=0),
                        "offset": integer("As asked for", lowest=0),
                    }
                ),
                {"data": [_ENTRY], "dtid": samples.DTID, "total": 1, "count": 1, "offset": 0},
            ),
        ),
        Operation(
            method="GET",
            path=f"{_PATH}/status",
            summary="Whether a list is enabled",
            tokens=USER_OR_APPLICATION,
            answer=_SWITCHED,
        ),
        Operation(
            method="PUT",
            path=f"{_PATH}/enable",
            summary="Enable or disable a list",
            tokens=USER_OR_APPLICATION,
            body=json_body(_SWITCH, {"enableWhitelist": True}),
            answer=_SWITCHED,
            refusals={409: "Device type has devices"},
        ),
        Operation(
            method="GET",
            path=f"{_PATH}/{{uploadId}}/status",
            summary="How far an upload is",
            tokens=USER_OR_APPLICATION,
            answer=Answer(record({**_UPLOAD, "data": record(_UPLOAD)}), {**_UPLOADED, "data": _UPLOADED}),
        ),
        Operation(
            method="GET",
            path=f"{_PATH}/{{uploadId}}/rejectedRows",
            summary="Rows that an upload left out",
            tokens=USER_OR_APPLICATION,
            query=PAGING,
            answer=Answer(
                page(
                    array(
                        record(
                            {
                                "index": integer("Of the row, from 1", lowest=1),
                                "message": one_of(("Invalid vdid", "Duplicate vdid")),
                            }
                        )
                    )
                ),
                {"data": [{"index": 3, "message": "Duplicate vdid"}], "total": 1, "offset": 0, "count": 1},
            ),
        ),
        Operation(
            method="GET",
            path=f"{_PATH}/vdid/{{vdid}}",
            summary="The device that uses a vendor id",
            tokens=USER_OR_APPLICATION,
            answer=Answer(
                data(record({"did": nullable(id_("Null while nobody uses it"))})), {"data": {"did": samples.DID}}
            ),
        ),
        Operation(
            method="DELETE",
            path=f"{_PATH}/{{vdid}}",
            summary="Remove a vendor id",
            about="The device that uses it stays.",
            tokens=USER_OR_APPLICATION,
            answer=Answer(data(ref("ApprovedEntry")), {"data": _ENTRY}),
        ),
        Operation(
            method="GET",
            path=f"{_PATH}/certificates",
            summary="What vendor ids are signed with",
            tokens=USER_OR_APPLICATION,
            query=PAGING,
            answer=Answer(
                page(array(ref("ApprovedCertificate"))),
                {"data": [_CERTIFICATE], "total": 1, "offset": 0, "count": 1},
            ),
        ),
        Operation(
            method="POST",
            path=f"{_PATH}/certificates",
            summary="Add a certificate",
            about="Its key signs vendor ids: RSA with PKCS#1 v1.5 or ECDSA, with SHA-256.",
            tokens=USER_OR_APPLICATION,
            body=json_body(
                record({"certificate": text("In PEM", minLength=1)}),
                {"certificate": "-----BEGIN CERTIFICATE-----\n…\n-----END CERTIFICATE-----\n"},
            ),
            answer=_ONE_CERTIFICATE,
            refusals={409: "Certificate already uploaded"},
        ),
        Operation(
            method="DELETE",
            path=f"{_PATH}/certificates/{{certificateId}}",
            summary="Remove a certificate",
            tokens=USER_OR_APPLICATION,
            answer=_ONE_CERTIFICATE,
        ),
    ),
    {
        "ApprovedEntry": record(
            {"vdid": text(longest=64), "did": nullable(id_("The device that uses it")), "uploadedOn": milliseconds()}
        ),
        "ApprovedCertificate": record(
            {
                "id": id_(),
                "certificateFields": record(
                    {
                        "version": text(),
                        "serialNumber": text("In hexadecimal"),
                        "signatureAlgorithm": text(),
                        "subject": text(),
                        "issuer": text(),
                        "validity": record(
                            {member: {"type": "integer", "format": "int64"} for member in ("notBefore", "notAfter")}
                        ),
                    }
                ),
            }
        ),
    },
)
