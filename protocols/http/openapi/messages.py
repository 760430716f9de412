"""Messages and Actions (reference 2.6 and 9)."""

from typing import Any, Final

from config.limits import CURSOR_MAX_CHARACTERS, IDS_MAX, MAX_ACTIONS_PER_MESSAGE, MAX_DATA_BYTES
from protocols.http.openapi import samples
from protocols.http.openapi.operation import ANY_TOKEN, Answer, Noun, Operation, Parameter, json_body
from protocols.http.openapi.shapes import (
    Schema,
    array,
    data,
    free,
    id_,
    ids,
    integer,
    milliseconds,
    one_of,
    record,
    ref,
    text,
    type_id,
)

#: Dotted, as the server reads it.
FIELD_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
FIELD_PRESENCE: Final = Parameter(
    "fieldPresence", text("Only messages with this field, groups separated by dots", pattern=FIELD_PATTERN)
)
_MESSAGE: Final[dict[str, Any]] = {
    "mid": samples.MID,
    "data": {"steps": 500},
    "ts": samples.TS,
    "sdtid": samples.DTID,
    "cts": samples.CTS,
    "uid": samples.UID,
    "mv": 1,
    "sdid": samples.DID,
}
_ACTION: Final[dict[str, Any]] = {
    "type": "action",
    "cts": samples.CTS,
    "ts": samples.TS,
    "mid": samples.MID,
    "sdid": samples.DID,
    "ddid": samples.DID,
    "data": {"actions": [{"name": "setOn"}]},
    "ddtid": samples.DTID,
    "uid": samples.UID,
    "mv": 1,
}
_ENVELOPE: Final = {
    "mid": text("Grows with `cts`"),
    "ts": milliseconds("When the device says that it was"),
    "cts": milliseconds("When the service took it"),
    "uid": id_("The device's owner"),
    "mv": integer("Version of the Manifest that parsed it", lowest=0),
}
_WHEN: Final = (
    Parameter("mid", text("One message by its id; everything but `uid` is ignored then", longest=64)),
    Parameter("uid", text("Whose devices; a user id, or self. By default the caller's", longest=64)),
)
_TIMES: Final = (
    Parameter("startDate", milliseconds("Required without `mid`. From this time on"), example=samples.TS),
    Parameter("endDate", milliseconds("Required without `mid`. Up to this time"), example=samples.CTS),
    Parameter("order", one_of(("asc", "desc"), "By ts", default="asc")),
    Parameter("count", integer("Messages at most", lowest=1, highest=100, default=100)),
    Parameter("offset", text("`next` or `prev` of an earlier answer", longest=CURSOR_MAX_CHARACTERS)),
)
_SENT: Final = Answer(
    data(record({"mid": text("The message's id")})),
    {"data": {"mid": samples.MID}},
    about="Stored durably, and visible to every later read",
)
_TS: Final = milliseconds("Now by default; at most a minute in the future")
_SENDING_REFUSALS: Final = {
    403: "Source device is disconnected",
    404: "The device does not exist.",
    413: f"Plan quota exceeded for organization {samples.OID}. Reason: Max payload size limit",
    429: "MINUTE rate limit exceeded",
}
_ACTIONS_DATA: Final = record({"actions": array(ref("ActionCall"), minItems=1, maxItems=MAX_ACTIONS_PER_MESSAGE)})


def _found(entries: Schema, **about: Schema) -> Schema:
    """A page of a search. `count` is the size of page that was asked for, `size` what there is of it."""
    return record(
        {
            "count": integer("Size of the page that was asked for", lowest=1),
            "order": one_of(("asc", "desc")),
            "size": integer("Messages in this answer", lowest=0),
            "data": array(entries),
        },
        {
            "uid": id_(),
            **about,
            "mid": text("When it was asked for"),
            "startDate": {"type": "integer", "format": "int64"},
            "endDate": {"type": "integer", "format": "int64"},
            "next": text("Cursor of the next page, if there is one", longest=CURSOR_MAX_CHARACTERS),
            "prev": text("Cursor of the page before, if there is one", longest=CURSOR_MAX_CHARACTERS),
        },
    )


def _search_example(entry: dict[str, Any], name: str) -> dict[str, Any]:
    return {
        "uid": samples.UID,
        name: samples.DID,
        "startDate": samples.TS,
        "endDate": samples.CTS,
        "count": 100,
        "order": "asc",
        "size": 1,
        "data": [entry],
    }


_REQUEST_TIME: Final = {"Request-Time": text("Seconds that the search took, with three decimals")}

MESSAGES: Final = Noun(
    "Messages",
    "Devices send messages; each is checked against the Manifest of its device type, and stored before it is "
    "acknowledged. Actions are messages to a device. With a device token the device need not be named.",
    (
        Operation(
            method="POST",
            path="/messages",
            summary="Send a message",
            about=f"`data` may have {MAX_DATA_BYTES} bytes as compact JSON. Fields that the Manifest does not declare "
            "are dropped. With `type` action it is an Action, as for `POST /actions`.",
            tokens=ANY_TOKEN,
            counted="messages",
            body=json_body(
                record(
                    {
                        "data": {
                            "description": "The fields: an object, or a text that holds one",
                            "type": ["object", "string"],
                        }
                    },
                    {
                        "sdid": id_("The device that sends; required without a device token"),
                        "ts": _TS,
                        "type": one_of(("message", "action"), "Any case", default="message"),
                        "ddid": id_("With `type` action: the device that it is for"),
                    },
                ),
                {"sdid": samples.DID, "data": {"steps": 500}, "ts": samples.TS},
            ),
            answer=_SENT,
            refusals=_SENDING_REFUSALS,
        ),
        Operation(
            method="POST",
            path="/actions",
            summary="Send Actions to a device",
            about="They reach the device on every channel on which it is connected; if there is none, they are only "
            "stored. Names and parameters are passed on as they are.",
            tokens=ANY_TOKEN,
            counted="messages",
            body=json_body(
                record(
                    {"data": _ACTIONS_DATA},
                    {
                        "ddid": id_("The device that they are for; required without a device token"),
                        "sdid": id_("The device that sends; by default the same"),
                        "ts": _TS,
                        "type": one_of(("action",), "Any case", default="action"),
                    },
                ),
                {"ddid": samples.DID, "data": {"actions": [{"name": "setOn"}]}},
            ),
            answer=_SENT,
            refusals={**_SENDING_REFUSALS, 403: "Destination device is disconnected"},
        ),
        Operation(
            method="GET",
            path="/messages",
            summary="Find messages",
            about="One by its id, or those of a device or a user between two times, page by page. Messages that come "
            "meanwhile never move others to another page.",
            tokens=ANY_TOKEN,
            query=(
                *_WHEN,
                Parameter(
                    "sdid", id_("The device that sent them; without it, all devices of the user"), example=samples.DID
                ),
                *_TIMES,
                FIELD_PRESENCE,
                Parameter("filter", text("field=value pairs, separated by commas; all must match")),
            ),
            answer=Answer(_found(ref("Message"), sdid=id_()), _search_example(_MESSAGE, "sdid"), headers=_REQUEST_TIME),
        ),
        Operation(
            method="GET",
            path="/actions",
            summary="Find Actions",
            about="One by its id, or those for a device or a user between two times, page by page.",
            tokens=ANY_TOKEN,
            query=(
                *_WHEN,
                Parameter(
                    "ddid",
                    id_("The device that they are for; without it, all devices of the user"),
                    example=samples.DID,
                ),
                Parameter("action", text("Only Actions of this name")),
                Parameter("name", text("The same as `action`")),
                *_TIMES,
            ),
            answer=Answer(_found(ref("Action"), ddid=id_()), _search_example(_ACTION, "ddid"), headers=_REQUEST_TIME),
        ),
        Operation(
            method="GET",
            path="/messages/last",
            summary="The messages received last",
            about="Of all named devices together, newest first.",
            tokens=ANY_TOKEN,
            query=(
                Parameter("sdids", ids("Device ids", longest=IDS_MAX), required=True, example=samples.DID),
                Parameter("count", integer("Messages at most", lowest=1, highest=100, default=100)),
                FIELD_PRESENCE,
            ),
            answer=Answer(
                record(
                    {
                        "sdids": text("As asked for"),
                        "count": integer("As asked for", lowest=1),
                        "size": integer("Messages in this answer", lowest=0),
                        "data": array(ref("Message")),
                    }
                ),
                {"sdids": samples.DID, "count": 100, "size": 1, "data": [_MESSAGE]},
                headers=_REQUEST_TIME,
            ),
        ),
    ),
    {
        "Message": record(
            {**_ENVELOPE, "data": free("The fields, groups nested"), "sdid": id_("The device"), "sdtid": type_id()}
        ),
        "Action": record(
            {
                **_ENVELOPE,
                "type": one_of(("action",)),
                "sdid": id_("Who sent it"),
                "ddid": id_("Whom it is for"),
                "ddtid": type_id(),
                "data": record({"actions": array(ref("ActionCall"))}),
            }
        ),
        "ActionCall": record(
            {"name": text("As the Manifest calls it")}, {"parameters": free("Absent when the sender gave none")}
        ),
    },
)
