"""Snapshots, aggregates, histograms and presence of messages (reference 9.4 and 9.5)."""

from typing import Any, Final

from broker.messages.intervals import Interval
from config.limits import IDS_MAX
from protocols.http.openapi import samples
from protocols.http.openapi.messages import FIELD_PATTERN, FIELD_PRESENCE
from protocols.http.openapi.operation import ANY_TOKEN, Answer, Noun, Operation, Parameter, flag
from protocols.http.openapi.shapes import (
    array,
    free,
    id_,
    ids,
    integer,
    milliseconds,
    number,
    one_of,
    record,
    text,
)

_SDID: Final = Parameter("sdid", id_("The device; required without a device token"), example=samples.DID)
_FIELD: Final = Parameter(
    "field", text("A numeric field, groups separated by dots", pattern=FIELD_PATTERN), required=True, example="steps"
)
_DATES: Final = (
    Parameter("startDate", milliseconds("From this time on"), required=True, example=samples.TS),
    Parameter("endDate", milliseconds("Before this time"), required=True, example=samples.TS + 3_600_000),
)
_NAMES: Final = tuple(one.value for one in Interval)
_SUMMARY: Final = {
    "count": integer(lowest=1),
    **{member: number() for member in ("min", "max", "mean", "sum")},
    "variance": number("Of the population"),
}
_SUMMED: Final[dict[str, Any]] = {"count": 3, "min": 1, "max": 9, "mean": 5, "sum": 15, "variance": 10.67}
_RANGE: Final = {
    "startDate": {"type": "integer", "format": "int64"},
    "endDate": {"type": "integer", "format": "int64"},
    "size": integer("Entries in data", lowest=0),
}
_RANGED: Final = {"startDate": samples.TS, "endDate": samples.TS + 3_600_000, "size": 1}
_OF_FIELD: Final = {"sdid": id_(), "field": text("As asked for"), **_RANGE}

ANALYTICS: Final = Noun(
    "Analytics",
    "What messages say in sum. Aggregates, histograms and presence count messages that are at least a minute old; "
    "dates are rounded down to the start of the minute or of the interval, in UTC.",
    (
        Operation(
            method="GET",
            path="/messages/snapshots",
            summary="The last value of every field",
            tokens=ANY_TOKEN,
            query=(
                Parameter("sdids", ids("Device ids", longest=IDS_MAX), required=True, example=samples.DID),
                flag("includeTimestamp", "Whether values come with their times", default=True),
            ),
            answer=Answer(
                record(
                    {
                        "sdids": text("As asked for"),
                        "size": integer("Devices", lowest=0),
                        "data": array(
                            record(
                                {
                                    "sdid": id_(),
                                    "data": free("Fields by name, groups nested; each leaf is `{value, ts}`"),
                                }
                            )
                        ),
                    }
                ),
                {
                    "sdids": samples.DID,
                    "size": 1,
                    "data": [{"sdid": samples.DID, "data": {"steps": {"ts": samples.TS, "value": 500}}}],
                },
            ),
        ),
        Operation(
            method="GET",
            path="/messages/analytics/aggregates",
            summary="A field in numbers",
            about="Over at most 31 days.",
            tokens=ANY_TOKEN,
            query=(_SDID, _FIELD, *_DATES),
            answer=Answer(
                record({**_OF_FIELD, "data": array(record(_SUMMARY), "Empty when there are no messages")}),
                {"sdid": samples.DID, "field": "steps", **_RANGED, "data": [_SUMMED]},
            ),
        ),
        Operation(
            method="GET",
            path="/messages/analytics/histogram",
            summary="A field in numbers, interval by interval",
            about="Over at most an hour by minute, a day by hour, 31 days by day, a year by month or year. Intervals "
            "without messages are left out.",
            tokens=ANY_TOKEN,
            query=(
                _SDID,
                _FIELD,
                *_DATES,
                Parameter("interval", one_of(_NAMES, "Any case"), required=True, example="hour"),
            ),
            answer=Answer(
                record(
                    {
                        **_OF_FIELD,
                        "interval": one_of(_NAMES),
                        "data": array(record({**_SUMMARY, "ts": {"type": "integer", "format": "int64"}})),
                    }
                ),
                {
                    "sdid": samples.DID,
                    "field": "steps",
                    "interval": "hour",
                    **_RANGED,
                    "data": [{**_SUMMED, "ts": samples.TS}],
                },
            ),
        ),
        Operation(
            method="GET",
            path="/messages/presence",
            summary="When there were messages",
            about="Of the device, or of all the caller's own. Over at most an hour by minute, a day by hour, 31 days "
            "by day, a year by month, ten years by year.",
            tokens=ANY_TOKEN,
            query=(
                Parameter("sdid", id_("The device; an application token must name one"), example=samples.DID),
                FIELD_PRESENCE,
                *_DATES,
                Parameter("interval", one_of(_NAMES, "Any case"), required=True, example="hour"),
            ),
            answer=Answer(
                record(
                    {
                        "interval": one_of([name.upper() for name in _NAMES]),
                        **_RANGE,
                        "data": array(record({"startDate": {"type": "integer", "format": "int64"}})),
                    },
                    {"sdid": id_("When given"), "fieldPresence": text("When given")},
                ),
                {"sdid": samples.DID, "interval": "HOUR", **_RANGED, "data": [{"startDate": samples.TS}]},
            ),
        ),
    ),
)
