"""/devices: the device record and its status (compatibility.md 6.1 and 6.4)."""

from quart import Blueprint, Response

from broker.accounts.permissions import Permission
from broker.devices.registry import Device
from broker.messages.status import DeviceStatus
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.body import Query
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard
from protocols.rendering import snapshot_object


def devices_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("devices", __name__)

    async def readable(device_id: str) -> Device:
        caller = await guard.caller(USER, APPLICATION, DEVICE)
        device = await services.devices.find(device_id)
        await services.permissions.require(caller, device, Permission.READ)
        return device

    @routes.get("/devices/<device_id>")
    async def record(device_id: str) -> Response:
        device = await readable(device_id)
        query = Query.of_request()
        shown = query.boolean("includeProperties", default=False) or query.boolean("properties", default=False)
        query.check()
        return json_answer({"data": _record(device) | ({"properties": {}} if shown else {})})

    @routes.get("/devices/<device_id>/status")
    async def status(device_id: str) -> Response:
        device = await readable(device_id)
        query = Query.of_request()
        with_snapshot = query.boolean("includeSnapshot", default=True)
        with_ts = query.boolean("includeSnapshotTimestamp", default=True)
        query.check()
        found = await services.statuses.of(device, with_snapshot=with_snapshot)
        return json_answer({"did": device.id, "data": _status(found, with_ts=with_ts)})

    return routes


def _record(device: Device) -> dict[str, object]:
    record = device.record
    return {
        "id": record.id,
        "uid": record.owner_id,
        "dtid": device.type.id,
        "name": record.name,
        "manifestVersion": device.manifest.version,
        "manifestVersionPolicy": record.manifest_version_policy,
        "needProviderAuth": False,
        "cloudAuthorization": "NO_AUTHORIZATION",
        "eid": None,
        "certificateSignature": None,
        "certificateInfo": None,
        "createdOn": record.created_on,
        "connected": record.enabled,
        "sharedWithOthers": False,
    }


def _status(status: DeviceStatus, *, with_ts: bool) -> dict[str, object]:
    """What never happened is absent."""
    members = {
        "lastMessageTs": status.last_message_ts,
        "lastActionTs": status.last_action_ts,
        "availability": status.availability,
        "lastTimeOnline": status.last_time_online,
        "snapshot": None if status.snapshot is None else snapshot_object(status.snapshot, with_ts=with_ts),
    }
    return {name: value for name, value in members.items() if value is not None}
