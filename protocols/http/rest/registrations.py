"""Secure registration: the device's calls under /cert, and the user's under /devices (reference 7.1)."""

import msgspec
from quart import Blueprint, Response

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.devices.inventory import name_findings
from broker.errors import Finding, PermissionDenied, ValidationFailed
from broker.registration.progress import Progress
from broker.services import Services
from config.limits import VENDOR_ID_MAX_CHARACTERS
from protocols.http.answers import json_answer, secret_answer
from protocols.http.body import members, read_body
from protocols.http.guard import APPLICATION, USER, Guard
from protocols.http.peers import require_certificate
from protocols.http.rest.device_records import device_record
from protocols.http.rest.named_devices import NamedDevices
from storage.keys import UserKey


def device_registrations_blueprint(services: Services) -> Blueprint:
    """For the secure listener: who calls is said by the certificate alone."""
    routes = Blueprint("device_registrations", __name__)
    registrations = services.registration.registrations

    @routes.post("/cert/devices/registrations")
    async def begin() -> Response:
        shown = require_certificate()
        device_type, vendor_device_id = _wanted(members(await read_body(), _Begin))
        begun = await registrations.begin(shown, device_type, vendor_device_id)
        return secret_answer(
            {"data": {"rid": begun.id, "pin": begun.pin, "nonce": begun.nonce, "expiresOn": begun.expires_on}}
        )

    @routes.get("/cert/devices/registrations/<rid>/status")
    async def status(rid: str) -> Response:
        return _progress(await registrations.progress(require_certificate(), rid))

    @routes.put("/cert/devices/registrations/<rid>")
    async def complete(rid: str) -> Response:
        shown = require_certificate()
        await registrations.progress(shown, rid)  # who may not know of it is not told what is wrong with the body
        nonce = members(await read_body(), _Complete).nonce
        if not nonce:
            raise ValidationFailed.of("nonce", "Required parameter")
        done = await registrations.complete(shown, rid, nonce)
        return secret_answer({"data": {"accessToken": done.token, "uid": done.owner_id, "did": done.device_id}})

    return routes


def registrations_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("registrations", __name__)
    registrations, named = services.registration.registrations, NamedDevices(services, guard)

    @routes.put("/devices/registrations/pin")
    async def confirm() -> Response:
        caller = await guard.caller(USER, APPLICATION)
        post = members(await read_body(), _Confirm)
        pin, name = _checked(post)
        if post.device_id is not None:
            device = await services.devices.registry.find(post.device_id)
            await services.accounts.permissions.require(caller, device, Permission.MANAGE)
            rid = await registrations.confirm_existing(caller, pin, device)
        else:
            rid = await registrations.confirm_new(caller, pin, owner=await owner(caller, post.uid), name=name)
        return json_answer({"data": {"rid": rid}})

    async def owner(caller: Caller, uid: str | None) -> UserKey:
        """Whose the device will be; an application says whom it acts for."""
        if uid is None:
            if caller.user is None:
                raise ValidationFailed.of("uid", "Required parameter")
            return caller.user
        user = (await services.accounts.users.find(uid, caller)).key
        if caller.user not in {None, user}:
            raise PermissionDenied("devices of this user")
        return user

    @routes.get("/devices/registrations/<rid>/status")
    async def status(rid: str) -> Response:
        async with guard.before_limit(USER, APPLICATION) as caller:
            progress = await registrations.progress_for(caller, rid)
        return _progress(progress)

    @routes.delete("/devices/<device_id>/registrations")
    async def revoke(device_id: str) -> Response:
        _caller, device = await named.get(device_id, Permission.MANAGE, USER, APPLICATION)
        await registrations.revoke(device)
        return json_answer({"data": device_record(device)})

    return routes


class _Begin(msgspec.Struct, rename="camel"):
    device_type_id: str | None = None
    vendor_device_id: str | None = None


class _Complete(msgspec.Struct):
    nonce: str | None = None


class _Confirm(msgspec.Struct, rename="camel"):
    pin: str | None = None
    device_name: str | None = None
    device_id: str | None = None
    uid: str | None = None


def _wanted(post: _Begin) -> tuple[str, str]:
    """Type and vendor id. Raises ValidationFailed."""
    findings = [
        Finding(name, ("Required parameter",))
        for name, given in (("deviceTypeId", post.device_type_id), ("vendorDeviceId", post.vendor_device_id))
        if not given
    ]
    vendor_device_id = post.vendor_device_id or ""
    if len(vendor_device_id) > VENDOR_ID_MAX_CHARACTERS:
        findings.append(Finding("vendorDeviceId", (f"Maximum length {VENDOR_ID_MAX_CHARACTERS}",)))
    elif not vendor_device_id.isprintable():
        findings.append(Finding("vendorDeviceId", ("Invalid value",)))
    if findings:
        raise ValidationFailed(tuple(findings))
    return post.device_type_id or "", vendor_device_id


def _checked(post: _Confirm) -> tuple[str, str]:
    """The PIN, and the name of a new device. Raises ValidationFailed."""
    findings = [] if post.pin else [Finding("pin", ("Required parameter",))]
    name = post.device_name
    if name is not None:
        findings += [Finding("deviceName", finding.messages) for finding in name_findings(name)]
        if post.device_id is not None:  # it has a name
            findings.append(Finding("deviceId", ("Invalid value",)))
    elif post.device_id is None:
        findings.append(Finding("deviceName", ("Required parameter",)))
    if findings:
        raise ValidationFailed(tuple(findings))
    return post.pin or "", name or ""


def _progress(progress: Progress) -> Response:
    device = {} if progress.device_id is None else {"did": progress.device_id}
    return json_answer({"data": {"status": progress.status} | device})
