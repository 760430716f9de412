"""Status and presence of devices (reference 6.4)."""

from typing import Final

from config.limits import IDS_MAX
from protocols.http.openapi.operation import (
    ANY_TOKEN,
    USER_OR_APPLICATION,
    Answer,
    Noun,
    Operation,
    Parameter,
    flag,
    json_body,
)
from protocols.http.openapi.samples import CTS, DID, TS
from protocols.http.openapi.shapes import array, boolean, free, id_, ids, integer, milliseconds, one_of, record, ref

_AVAILABILITY: Final = one_of(("online", "offline", "unknown"))
_SNAPSHOT: Final = (
    flag("includeSnapshot", "Whether the last value of every field is told", default=True),
    flag("includeSnapshotTimestamp", "Whether those values come with their times", default=True),
)
_EXAMPLE: Final = {
    "did": DID,
    "data": {
        "lastMessageTs": TS,
        "lastActionTs": CTS,
        "availability": "online",
        "lastTimeOnline": CTS,
        "snapshot": {"state": {"value": True, "ts": TS}},
    },
}
_STATUS: Final = Answer(ref("DeviceStatus"), _EXAMPLE)
_PUT: Final = record({}, {"availability": _AVAILABILITY}, "The same, not wrapped")

STATUS: Final = Noun(
    "Status",
    "Whether a device is there, and what it did last. A device is online while it holds a persistent connection; "
    "otherwise whichever happened last decides: what was set here, or the end of a connection.",
    (
        Operation(
            method="GET",
            path="/devices/{did}/status",
            summary="Status of a device",
            tokens=ANY_TOKEN,
            query=_SNAPSHOT,
            answer=_STATUS,
        ),
        Operation(
            method="PUT",
            path="/devices/{did}/status",
            summary="Say whether a device is there",
            about="For devices without a persistent connection. While there is one, offline has no visible effect.",
            tokens=ANY_TOKEN,
            body=json_body(
                {
                    "anyOf": [
                        record({"data": record({"availability": _AVAILABILITY})}),
                        {**_PUT, "required": ["availability"]},
                    ]
                },
                {"data": {"availability": "online"}},
            ),
            answer=_STATUS,
        ),
        Operation(
            method="GET",
            path="/devices/status",
            summary="Status of many devices",
            about="Devices that the caller may not read are left out and not counted.",
            tokens=USER_OR_APPLICATION,
            query=(Parameter("dids", ids("Device ids", longest=IDS_MAX), required=True, example=DID), *_SNAPSHOT),
            answer=Answer(
                record(
                    {
                        "data": array(ref("DeviceStatus")),
                        "total": integer("Entries", lowest=0),
                        "offset": integer("Always 0", lowest=0),
                        "count": integer("Entries", lowest=0),
                    }
                ),
                {"data": [_EXAMPLE], "total": 1, "offset": 0, "count": 1},
            ),
        ),
        Operation(
            method="GET",
            path="/devices/{did}/presence",
            summary="Whether a device is connected",
            tokens=ANY_TOKEN,
            answer=Answer(
                record(
                    {
                        "sdid": id_("The device"),
                        "data": record(
                            {"connected": boolean("Whether it holds a persistent connection")},
                            {"lastSeenOn": milliseconds("Its last message, connection or ping")},
                        ),
                    }
                ),
                {"sdid": DID, "data": {"lastSeenOn": TS, "connected": False}},
            ),
        ),
    ),
    {
        "DeviceStatus": record(
            {
                "did": id_(),
                "data": record(
                    {"availability": _AVAILABILITY},
                    {
                        "lastMessageTs": milliseconds("The last message"),
                        "lastActionTs": milliseconds("The last Action"),
                        "lastTimeOnline": milliseconds("Now while online, else the end of the last time online"),
                        "snapshot": free("Fields by name, groups nested; each leaf is `{value, ts}`"),
                    },
                    "What never happened is left out",
                ),
            }
        )
    },
)
