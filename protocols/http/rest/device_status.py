"""/devices/…/status and /devices/…/presence: what a device did last, and whether it is there (reference 6.4)."""

from typing import Any, Final

import msgspec
from msgspec import Raw
from quart import Blueprint, Response

from broker.accounts.permissions import Permission
from broker.devices.registry import Device
from broker.errors import DeviceNotFound, SourceDeviceDisabled, ValidationFailed
from broker.messages.status import DeviceStatus
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.body import Query, members, read_body
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard
from protocols.http.rest.named_devices import NamedDevices
from protocols.rendering import snapshot_object

_AVAILABILITIES: Final = ("online", "offline", "unknown")


def device_status_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("device_status", __name__)
    named, statuses = NamedDevices(services, guard), services.messages.statuses

    @routes.get("/devices/<device_id>/status")
    async def show(device_id: str) -> Response:
        _, device = await named.get(device_id, Permission.READ, USER, APPLICATION, DEVICE)
        with_snapshot, with_ts = _snapshot_wanted(Query.of_request())
        status = await statuses.of(device, with_snapshot=with_snapshot)
        return json_answer(_status(device, status, with_ts=with_ts))

    @routes.put("/devices/<device_id>/status")
    async def change(device_id: str) -> Response:
        caller, device = await named.get(device_id, Permission.WRITE, USER, APPLICATION, DEVICE)
        availability = _availability(members(await read_body(), _Put))
        if caller.kind is DEVICE and not device.enabled:
            raise SourceDeviceDisabled
        await services.devices.presence.set(device.key, availability)
        return json_answer(_status(device, await statuses.of(device), with_ts=True))

    @routes.get("/devices/status")
    async def show_many() -> Response:
        caller = await guard.caller(USER, APPLICATION)
        query = Query.of_request()
        ids = query.ids("dids", required=True)
        with_snapshot, with_ts = _snapshot_wanted(query)
        reach = await services.accounts.permissions.reach(caller)
        found = [device for device in await _existing(services, ids) if reach.allows(device, Permission.READ)]
        of_all = await statuses.of_all(found, with_snapshot=with_snapshot)
        entries = [_status(device, status, with_ts=with_ts) for device, status in zip(found, of_all, strict=True)]
        return json_answer({"data": entries, "total": len(entries), "offset": 0, "count": len(entries)})

    @routes.get("/devices/<device_id>/presence")
    async def presence(device_id: str) -> Response:
        _, device = await named.get(device_id, Permission.READ, USER, APPLICATION, DEVICE)
        seen_on = (await services.devices.presence.of(device.key)).last_seen_on
        data: dict[str, Any] = {} if seen_on is None else {"lastSeenOn": seen_on}
        data["connected"] = services.routing.connections.is_online(device.key)
        return json_answer({"sdid": device.id, "data": data})

    return routes


async def _existing(services: Services, ids: list[str]) -> list[Device]:
    """Each once. What the caller may not read is left out, and so is what does not exist."""
    found = []
    for id_ in dict.fromkeys(ids):
        try:
            found.append(await services.devices.registry.find(id_))
        except DeviceNotFound:
            continue
    return found


def _snapshot_wanted(query: Query) -> tuple[bool, bool]:
    """Whether the snapshot is asked for, and whether with its times. Raises ValidationFailed with all findings."""
    wanted = query.boolean("includeSnapshot", default=True), query.boolean("includeSnapshotTimestamp", default=True)
    query.check()
    return wanted


class _Put(msgspec.Struct):
    data: Raw = Raw()
    availability: Raw = Raw()


class _PutData(msgspec.Struct):
    availability: Raw = Raw()


def _availability(put: _Put) -> str:
    """Given in `data`, or flat. Raises ValidationFailed."""
    path, given = "availability", put.availability
    if bytes(put.data) not in {b"", b"null"}:
        if not bytes(put.data).startswith(b"{"):
            raise ValidationFailed.of("data", "Invalid value")
        path, given = "data.availability", members(bytes(put.data), _PutData).availability
    if bytes(given) in {b"", b"null"}:
        raise ValidationFailed.of(path, "Required parameter")
    value = msgspec.json.decode(given)
    if value not in _AVAILABILITIES:
        raise ValidationFailed.of(path, "Invalid value")
    return str(value)


def _status(device: Device, status: DeviceStatus, *, with_ts: bool) -> dict[str, Any]:
    """What never happened is absent."""
    about = {
        "lastMessageTs": status.last_message_ts,
        "lastActionTs": status.last_action_ts,
        "availability": status.availability,
        "lastTimeOnline": status.last_time_online,
        "snapshot": None if status.snapshot is None else snapshot_object(status.snapshot, with_ts=with_ts),
    }
    return {"did": device.id, "data": {name: value for name, value in about.items() if value is not None}}
