"""/devices: the device record (reference 6.1)."""

import msgspec
from quart import Blueprint, Response

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.device_types.catalog import DeviceType
from broker.devices.inventory import POLICIES, DeviceChanges, NewDevice, Policy, name_findings
from broker.devices.registry import Device
from broker.errors import Finding, PermissionDenied, ValidationFailed
from broker.services import Services
from config.limits import FORBIDDEN_IN_NAMES
from protocols.http.answers import json_answer
from protocols.http.body import Query, members, read_body
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard
from protocols.http.rest.device_records import device_record, record_of
from protocols.http.rest.named_devices import NamedDevices
from storage.records import UserRecord


class _Put(msgspec.Struct):
    name: str | None = None
    manifestVersion: int | None = None  # noqa: N815 - as on the wire
    manifestVersionPolicy: str | None = None  # noqa: N815
    connected: bool | None = None


class _Post(msgspec.Struct):
    uid: str | None = None
    dtid: str | None = None
    name: str | None = None
    manifestVersion: int | None = None  # noqa: N815
    manifestVersionPolicy: str | None = None  # noqa: N815
    vdid: str | None = None
    svdid: str | None = None


def devices_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("devices", __name__)
    named, inventory, creation = NamedDevices(services, guard), services.devices.inventory, _Creation(services)

    async def answer(caller: Caller, device: Device, *, with_properties: bool = False) -> Response:
        share = None if caller.user is None else await services.devices.shares.accepted_by(caller.user, device)
        record = device_record(device, shared_with_me=None if share is None else share.id)
        return json_answer({"data": record | ({"properties": {}} if with_properties else {})})

    @routes.post("/devices")
    async def create() -> Response:
        caller = await guard.caller(USER, APPLICATION)
        return await answer(caller, await creation.device(caller, members(await read_body(), _Post)))

    @routes.get("/devices/<device_id>")
    async def show(device_id: str) -> Response:
        caller, device = await named.get(device_id, Permission.READ, USER, APPLICATION, DEVICE)
        query = Query.of_request()
        shown = query.boolean("includeProperties", default=False) or query.boolean("properties", default=False)
        query.check()
        return await answer(caller, device, with_properties=shown)

    @routes.put("/devices/<device_id>")
    async def change(device_id: str) -> Response:
        caller, device = await named.get(device_id, Permission.MANAGE, USER, APPLICATION)
        put = members(await read_body(), _Put)
        findings: list[Finding] = []
        changes = DeviceChanges(
            name=put.name,
            manifest_version=put.manifestVersion,
            manifest_version_policy=_policy(put.manifestVersionPolicy, findings),
            enabled=put.connected,
        )
        _refuse(findings)
        await inventory.change(device, changes, application_id=caller.application_id)
        return await answer(caller, device)

    @routes.delete("/devices/<device_id>")
    async def delete(device_id: str) -> Response:
        caller, device = await named.get(device_id, Permission.MANAGE, USER, APPLICATION)
        was = await inventory.delete(device, application_id=caller.application_id)
        return json_answer({"data": record_of(was, device)})

    return routes


class _Creation:
    """From the body of POST /devices to a device."""

    def __init__(self, services: Services) -> None:
        self._users = services.accounts.users
        self._types = services.device_types.catalog
        self._permissions = services.accounts.permissions
        self._inventory = services.devices.inventory
        self._approved = services.registration.approved_lists

    async def device(self, caller: Caller, post: _Post) -> Device:
        """Raises ValidationFailed, UserNotFound, DeviceTypeNotFound, PermissionDenied, Conflict."""
        dtid, policy = _checked(caller, post)
        owner = await self._users.find(post.uid or "self", caller)
        type_ = await self._types.find(dtid)
        await self._require(caller, owner, type_)
        is_listed = await self._approved.is_enabled(type_)
        claim = await self._approved.check(type_, post.vdid, post.svdid)
        new = NewDevice(
            owner=owner.key,
            type=type_,
            name=post.name,
            manifest_version=post.manifestVersion,
            manifest_version_policy=policy,
            vdid=post.vdid if is_listed else None,
        )
        return await self._inventory.create(new, application_id=caller.application_id, check=claim)

    async def _require(self, caller: Caller, owner: UserRecord, type_: DeviceType) -> None:
        if not (await self._permissions.reach(caller)).allows_type(owner.key, type_.record, Permission.WRITE):
            missing = f"WRITE on device type {type_.id}" if caller.kind is APPLICATION else "access to this user"
            raise PermissionDenied(missing)
        await self._permissions.require_type(caller, type_.record, user=owner.key)


def _checked(caller: Caller, post: _Post) -> tuple[str, Policy]:
    """What the body says by itself. Raises ValidationFailed with everything that is wrong."""
    findings: list[Finding] = []
    if post.uid is None and caller.kind is APPLICATION:
        findings.append(Finding("uid", ("Required parameter",)))
    dtid = post.dtid or ""
    if not dtid:
        findings.append(Finding("dtid", ("Required parameter",)))
    elif not FORBIDDEN_IN_NAMES.isdisjoint(dtid):
        findings.append(Finding("dtid", ("Invalid value",)))
    if post.name is not None:
        findings += name_findings(post.name)
    policy = _policy(post.manifestVersionPolicy, findings)
    _refuse(findings)
    return dtid, policy or POLICIES[0]


def _policy(given: str | None, findings: list[Finding]) -> Policy | None:
    if given is None:
        return None
    for policy in POLICIES:
        if given.upper() == policy:
            return policy
    findings.append(Finding("manifestVersionPolicy", ("Invalid value",)))
    return None


def _refuse(findings: list[Finding]) -> None:
    if findings:
        raise ValidationFailed(tuple(findings))
