"""/messages/analytics, /messages/presence and /messages/snapshots (reference 9.4 and 9.5)."""

from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

from msgspec import UNSET, UnsetType

from broker.accounts.room import AccountsRoom
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.devices.room import DevicesRoom
from broker.errors import REQUIRED, ValidationFailed
from broker.messages.aggregates import Aggregate
from broker.messages.intervals import Interval
from broker.messages.room import MessagesRoom
from broker.zones import zone_named
from protocols.http.calls import ANY_TOKEN, NOTHING, Chapter, InQuery, RestCall, RestCalls
from protocols.http.openapi import samples
from protocols.http.reading import Query
from protocols.http.rest.searching import FIELD_PATTERN, Readable, SearchedDevices
from protocols.http.schema import Amount, Id, Shape, about, absent_if_none, integer, one_of, text, time_ms
from protocols.rendering import snapshot_object
from storage.keys import Milliseconds

_NAMES: Final = tuple(one.value for one in Interval)
_RANGE: Final = {"startDate": samples.TS, "endDate": samples.TS + 3_600_000, "size": 1}
_SUMMED: Final[dict[str, Any]] = {"count": 3, "min": 1, "max": 9, "mean": 5, "sum": 15, "variance": 10.67}

_Sdid = Annotated[Id, about("The device; required without a device token", example=samples.DID)]
_Field = Annotated[str, text("A numeric field, groups separated by dots", pattern=FIELD_PATTERN, example="steps")]
_Start = Annotated[int, time_ms("From this time on", example=samples.TS)]
_End = Annotated[int, time_ms("Before this time", example=samples.TS + 3_600_000)]
_Interval = Annotated[Interval, about("Any case", example="hour")]
_Zone = Annotated[
    str,
    text("Intervals by the clocks of this zone of the tz database; by default UTC", longest=98, example="Europe/Paris"),
]
_Time = Annotated[int, integer()]
_Size = Annotated[Amount, about("Entries in data")]


class _OfField(Shape, kw_only=True):
    sdid: _Sdid | None = None
    field: _Field
    start_date: _Start
    end_date: _End


class _OfFieldByInterval(Shape, kw_only=True):
    sdid: _Sdid | None = None
    field: _Field
    interval: _Interval
    start_date: _Start
    end_date: _End
    timezone: _Zone | None = None


class _ByInterval(Shape, kw_only=True):
    sdid: Annotated[Id, about("The device; an application token must name one", example=samples.DID)] | None = None
    # A value that is no path is not refused here, in contrast to searches.
    field_presence: (
        Annotated[str, text("Only messages with this field, groups separated by dots", pattern=FIELD_PATTERN)] | None
    ) = None
    interval: _Interval
    start_date: _Start
    end_date: _End
    timezone: _Zone | None = None


class _Snapshots(Shape):
    sdids: SearchedDevices
    include_timestamp: Annotated[bool, about("Whether values come with their times")] = True


class _Summary(Shape):
    count: Annotated[int, integer(lowest=1)]
    min: float
    max: float
    mean: float
    sum: float
    variance: Annotated[float | None, about("Of the population; null when it is beyond the numbers of JSON")]


class _Bucket(_Summary):
    ts: _Time


class _Aggregates(Shape):
    example = {"sdid": samples.DID, "field": "steps", **_RANGE, "data": [_SUMMED]}

    sdid: Id
    start_date: _Time
    end_date: _Time
    field: Annotated[str, about("As asked for")]
    size: _Size
    data: Annotated[list[_Summary], about("Empty when there are no messages")]


class _Histogram(Shape, kw_only=True):
    example = {
        "sdid": samples.DID,
        "field": "steps",
        "interval": "hour",
        **_RANGE,
        "data": [{**_SUMMED, "ts": samples.TS}],
    }

    sdid: Id
    start_date: _Time
    end_date: _Time
    field: Annotated[str, about("As asked for")]
    interval: Annotated[str, one_of(_NAMES)]
    timezone: Annotated[str, about("When given")] | UnsetType = UNSET
    size: _Size
    data: list[_Bucket]


class _Present(Shape):
    start_date: _Time


class _Presence(Shape, kw_only=True):
    example = {"sdid": samples.DID, "interval": "HOUR", **_RANGE, "data": [{"startDate": samples.TS}]}

    sdid: Annotated[Id, about("When given")] | UnsetType = UNSET
    field_presence: Annotated[str, about("When given")] | UnsetType = UNSET
    interval: Annotated[str, one_of([name.upper() for name in _NAMES])]
    timezone: Annotated[str, about("When given")] | UnsetType = UNSET
    start_date: _Time
    end_date: _Time
    size: _Size
    data: list[_Present]


class _Snapshot(Shape):
    sdid: Id
    data: Annotated[dict[str, Any], about("Fields by name, groups nested; each leaf is `{value, ts}`")]


class _SnapshotsFound(Shape):
    example = {
        "sdids": samples.DID,
        "size": 1,
        "data": [{"sdid": samples.DID, "data": {"steps": {"ts": samples.TS, "value": 500}}}],
    }

    sdids: Annotated[str, about("As asked for")]
    size: Annotated[Amount, about("Devices")]
    data: list[_Snapshot]


class AnalyticsCalls(RestCalls):
    chapter = Chapter(
        "Analytics",
        "What messages say in sum. Aggregates, histograms and presence count messages that are at least a minute old; "
        "dates are rounded down to the start of the minute or of the interval, in UTC or in `timezone`.",
    )

    def __init__(self, accounts: AccountsRoom, devices: DevicesRoom, messages: MessagesRoom) -> None:
        self._analytics = messages.analytics
        self._snapshots = messages.snapshots
        self._readable = Readable(accounts, devices)

    async def _source(self, caller: Caller, query: Query) -> Device | None:
        device = await self._readable.source(caller, query)
        if device is None:
            query.refuse("sdid", REQUIRED)
        return device

    async def _sources(self, caller: Caller, query: Query) -> list[Device]:
        """The device `sdid`, by default all devices of the user that the caller may read."""
        device = await self._readable.source(caller, query)
        if device is None and caller.user is not None:
            return await self._readable.owned(caller, caller.user)
        if device is None:
            query.refuse("sdid", REQUIRED)
        return [] if device is None else [device]

    @RestCall(
        "GET",
        "/messages/snapshots",
        tokens=ANY_TOKEN,
        on=NOTHING,
        summary="The last value of every field",
    )
    async def snapshots(self, caller: Caller, query: _Snapshots) -> _SnapshotsFound:
        devices = await self._readable.listed(caller, query.sdids)
        fields = await self._snapshots.of_all([device.key for device in devices])
        found = [
            _Snapshot(device.id, snapshot_object(fields[device.key], with_ts=query.include_timestamp))
            for device in devices
        ]
        return _SnapshotsFound(",".join(query.sdids), len(found), found)

    @RestCall(
        "GET",
        "/messages/analytics/aggregates",
        tokens=ANY_TOKEN,
        on=InQuery(_source),
        summary="A field in numbers",
        about="Over at most 31 days.",
    )
    async def aggregates(self, device: Device, query: _OfField) -> _Aggregates:
        found = await self._analytics.aggregates(
            device, query.field, start_ms=Milliseconds(query.start_date), end_ms=Milliseconds(query.end_date)
        )
        data = [] if found.aggregate is None else [_Summary(**_summary(found.aggregate))]
        return _Aggregates(device.id, found.start_ms, found.end_ms, query.field, len(data), data)

    @RestCall(
        "GET",
        "/messages/analytics/histogram",
        tokens=ANY_TOKEN,
        on=InQuery(_source),
        summary="A field in numbers, interval by interval",
        about="Over at most an hour by minute, a day by hour, 31 days by day, a year by month or year. Intervals "
        "without messages are left out.",
    )
    async def histogram(self, device: Device, query: _OfFieldByInterval) -> _Histogram:
        found = await self._analytics.histogram(
            device,
            query.field,
            query.interval,
            start_ms=Milliseconds(query.start_date),
            end_ms=Milliseconds(query.end_date),
            zone=_zone(query.timezone),
        )
        data = [_Bucket(**_summary(aggregate), ts=start) for start, aggregate in found.buckets]
        return _Histogram(
            sdid=device.id,
            start_date=found.start_ms,
            end_date=found.end_ms,
            field=query.field,
            interval=query.interval.value,
            timezone=absent_if_none(query.timezone),
            size=len(data),
            data=data,
        )

    @RestCall(
        "GET",
        "/messages/presence",
        tokens=ANY_TOKEN,
        on=InQuery(_sources),
        summary="When there were messages",
        about="Of the device, or of all the caller's own. Over at most an hour by minute, a day by hour, 31 days "
        "by day, a year by month, ten years by year.",
    )
    async def presence(self, devices: list[Device], query: _ByInterval) -> _Presence:
        found = await self._analytics.presence(
            devices,
            query.interval,
            field=query.field_presence,
            start_ms=Milliseconds(query.start_date),
            end_ms=Milliseconds(query.end_date),
            zone=_zone(query.timezone),
        )
        data = [_Present(start) for start in found.buckets]
        return _Presence(
            sdid=absent_if_none(query.sdid),
            field_presence=absent_if_none(query.field_presence),
            interval=query.interval.value.upper(),
            timezone=absent_if_none(query.timezone),
            start_date=found.start_ms,
            end_date=found.end_ms,
            size=len(data),
            data=data,
        )


def _zone(name: str | None) -> ZoneInfo | None:
    """Raises ValidationFailed."""
    if name is None or name == "UTC":
        return None
    try:
        return zone_named(name)
    except ValueError:
        raise ValidationFailed.of("timezone", "No time zone of the tz database, such as Europe/Paris") from None


def _summary(found: Aggregate) -> dict[str, Any]:
    return {
        "count": found.count,
        "min": found.min,
        "max": found.max,
        "mean": found.mean,
        "sum": found.sum,
        "variance": found.variance,
    }
