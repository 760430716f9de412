"""/messages/analytics, /messages/presence and /messages/snapshots (reference 9.4 and 9.5)."""

from typing import Final

from quart import Blueprint, Response

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.messages.aggregates import Aggregate
from broker.messages.intervals import Interval
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.body import Query
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard
from protocols.http.rest.searching import Readable
from protocols.rendering import snapshot_object

_INTERVALS: Final = tuple(Interval)


def analytics_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("analytics", __name__)
    analytics, readable = services.messages.analytics, Readable(services)

    @routes.get("/messages/analytics/aggregates")
    async def aggregates() -> Response:
        caller, query = await guard.caller(USER, APPLICATION, DEVICE), Query.of_request()
        devices = await _chosen(services, readable, caller, query)
        field, (start_ms, end_ms) = query.text("field", required=True), _dates(query)
        query.check()
        (device,) = devices
        found = await analytics.aggregates(device, field or "", start_ms=start_ms, end_ms=end_ms)
        data = [] if found.aggregate is None else [_summary(found.aggregate)]
        about = {"sdid": device.id, "startDate": found.start_ms, "endDate": found.end_ms, "field": field}
        return json_answer(about | {"size": len(data), "data": data})

    @routes.get("/messages/analytics/histogram")
    async def histogram() -> Response:
        caller, query = await guard.caller(USER, APPLICATION, DEVICE), Query.of_request()
        devices = await _chosen(services, readable, caller, query)
        field, interval, (start_ms, end_ms) = query.text("field", required=True), _interval(query), _dates(query)
        query.check()
        (device,) = devices
        found = await analytics.histogram(device, field or "", interval, start_ms=start_ms, end_ms=end_ms)
        data = [_summary(aggregate) | {"ts": start} for start, aggregate in found.buckets]
        about = {"sdid": device.id, "startDate": found.start_ms, "endDate": found.end_ms, "field": field}
        return json_answer(about | {"interval": interval.value, "size": len(data), "data": data})

    @routes.get("/messages/presence")
    async def presence() -> Response:
        caller, query = await guard.caller(USER, APPLICATION, DEVICE), Query.of_request()
        sdid, field = query.text("sdid"), query.text("fieldPresence")
        devices = await _chosen(services, readable, caller, query, or_all=True)
        interval, (start_ms, end_ms) = _interval(query), _dates(query)
        query.check()
        found = await analytics.presence(devices, interval, field=field, start_ms=start_ms, end_ms=end_ms)
        about = {"sdid": sdid, "fieldPresence": field, "interval": interval.value.upper()}
        data = [{"startDate": start} for start in found.buckets]
        return json_answer(
            {name: value for name, value in about.items() if value is not None}
            | {"startDate": found.start_ms, "endDate": found.end_ms, "size": len(data), "data": data}
        )

    @routes.get("/messages/snapshots")
    async def snapshots() -> Response:
        caller, query = await guard.caller(USER, APPLICATION, DEVICE), Query.of_request()
        sdids, with_ts = query.ids("sdids", required=True), query.boolean("includeTimestamp", default=True)
        query.check()
        devices = await readable.listed(caller, sdids)
        fields = await services.messages.snapshots.of_all([device.key for device in devices])
        data = [{"sdid": one.id, "data": snapshot_object(fields[one.key], with_ts=with_ts)} for one in devices]
        return json_answer({"sdids": ",".join(sdids), "size": len(data), "data": data})

    return routes


def _summary(aggregate: Aggregate) -> dict[str, object]:
    return {
        "count": aggregate.count,
        "min": aggregate.min,
        "max": aggregate.max,
        "mean": aggregate.mean,
        "sum": aggregate.sum,
        "variance": aggregate.variance,
    }


def _interval(query: Query) -> Interval:
    query.text("interval", required=True)
    return Interval(query.choice("interval", _INTERVALS, Interval.MINUTE))


def _dates(query: Query) -> tuple[int, int]:
    return query.number("startDate", required=True) or 0, query.number("endDate", required=True) or 0


async def _chosen(
    services: Services, readable: Readable, caller: Caller, query: Query, *, or_all: bool = False
) -> list[Device]:
    """The device `sdid`; without it all that the caller owns, if the call allows that, or a finding."""
    sdid = query.text("sdid") or caller.device_id
    if sdid is not None:
        return [await readable.device(caller, sdid)]
    if or_all and caller.user is not None:
        return await services.devices.registry.owned_by(caller.user)
    query.refuse("sdid", "Required parameter")
    return []
