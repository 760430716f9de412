"""Exports (reference 10)."""

from typing import Final

from config.limits import EXPORT_IDS_MAX, EXPORT_PAST_DAYS, EXPORT_RANGE_DAYS, EXPORT_URL_CHARACTERS
from protocols.http.openapi import samples
from protocols.http.openapi.operation import PAGING, USER_OR_APPLICATION, Answer, Noun, Operation, Parameter, json_body
from protocols.http.openapi.shapes import (
    array,
    boolean,
    data,
    id_,
    ids,
    integer,
    milliseconds,
    one_of,
    page,
    record,
    ref,
    text,
)

_CHOICE: Final = {
    "uids": ids("User ids", longest=EXPORT_IDS_MAX),
    "sdids": ids("Device ids", longest=EXPORT_IDS_MAX),
    "sdtids": ids("Device type ids", longest=EXPORT_IDS_MAX),
    "trialId": text("A trial"),
}
_FORM: Final = {
    "order": one_of(("asc", "desc"), "By ts", default="asc"),
    "format": one_of(("json", "csv1"), default="json"),
    "csvHeaders": boolean("With csv1: whether the first line names the columns", default=True),
    "url": text("An address that the mail names", longest=EXPORT_URL_CHARACTERS),
}
_DATES: Final = {"startDate": milliseconds(), "endDate": milliseconds()}
_STATUS: Final = {
    "exportId": id_(),
    "status": one_of(("Received", "InProgress", "Success", "Failure", "Served", "Expired")),
}
_RESULT: Final = {
    "md5": text("Of the archive, in hexadecimal", pattern="^[0-9a-f]{32}$"),
    "expirationDate": milliseconds("When the archive goes"),
    "fileSize": integer("Bytes", lowest=0),
    "totalMessages": integer(lowest=0),
    "ttl": text("How long the archive is kept"),
    "progress": integer("Per cent, while it is written", lowest=0, highest=99),
}
_DONE: Final = {
    "exportId": samples.EXPORT,
    "status": "Success",
    "md5": "5eb63bbbe01eeed093cb22bb8f5acdc3",
    "expirationDate": samples.TS + 86_400_000,
    "fileSize": 1234,
    "totalMessages": 10,
    "ttl": "24h",
}
_WANTED: Final = {
    "uids": samples.UID,
    "startDate": samples.TS,
    "endDate": samples.TS + 86_400_000,
    "order": "asc",
    "format": "json",
}

EXPORT: Final = Noun(
    "Export",
    "Messages as a compressed archive of JSON or CSV files. An export is written in the background; a mail says when "
    "it is done.",
    (
        Operation(
            method="POST",
            path="/messages/export",
            summary="Ask for an export",
            about=f"By users, by devices, or by users and types; of at most {EXPORT_RANGE_DAYS} days that begin at "
            f"most {EXPORT_PAST_DAYS} days ago. `trialID` is the same as `trialId`.",
            tokens=USER_OR_APPLICATION,
            body=json_body(record(_DATES, {**_CHOICE, **_FORM}), _WANTED),
            answer=Answer(
                data(
                    record(
                        {"exportId": id_(), **_DATES, "order": _FORM["order"], "format": _FORM["format"]},
                        {**_CHOICE, "csvHeaders": _FORM["csvHeaders"], "url": _FORM["url"]},
                    )
                ),
                {"data": {"exportId": samples.EXPORT, **_WANTED}},
            ),
            refusals={404: "A user, device or type of a list does not exist."},
        ),
        Operation(
            method="GET",
            path="/messages/export/history",
            summary="Exports so far",
            about="Newest first.",
            tokens=USER_OR_APPLICATION,
            query=(*PAGING, Parameter("trialId", text("Only exports of this trial"))),
            answer=Answer(
                page(record({"exports": array(ref("ExportEntry"))})),
                samples.page(
                    exports=[
                        {
                            **_DONE,
                            "request": {
                                "requestDate": samples.TS,
                                "startDate": samples.TS,
                                "endDate": samples.TS + 86_400_000,
                                "order": "asc",
                                "format": "json",
                            },
                        }
                    ]
                ),
            ),
        ),
        Operation(
            method="GET",
            path="/messages/export/{exportId}/status",
            summary="How far an export is",
            tokens=USER_OR_APPLICATION,
            answer=Answer(ref("ExportStatus"), _DONE),
        ),
        Operation(
            method="GET",
            path="/messages/export/{exportId}/result",
            summary="Download an export",
            tokens=USER_OR_APPLICATION,
            answer=Answer(
                text(format="binary"),
                content_type="application/x-compressed",
                headers={
                    "X-Service-Total-Messages": integer("Messages in the archive", lowest=0),
                    "Content-Disposition": text("Names the file"),
                },
                about="The archive (.tgz)",
            ),
            refusals={409: "Export is not ready", 410: "The archive is gone."},
        ),
    ),
    {
        "ExportStatus": record(_STATUS, _RESULT),
        "ExportEntry": record(
            {
                **_STATUS,
                "request": record(
                    {"requestDate": milliseconds(), **_DATES, "order": _FORM["order"], "format": _FORM["format"]}
                ),
            },
            _RESULT,
        ),
    },
)
