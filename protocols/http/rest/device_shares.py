"""/devices/…/shares: offering a device to others, and their answers (reference 6.3)."""

from typing import Any, Final

import msgspec
from quart import Blueprint, Response

from broker.accounts.permissions import Permission
from broker.devices.registry import Device
from broker.devices.shares import ShareStatus
from broker.errors import PermissionDenied, ValidationFailed
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.body import Query, members, read_body
from protocols.http.guard import USER, Guard
from protocols.http.rest.named_devices import NamedDevices
from storage.records import ShareRecord

_ANSWERS: Final = (ShareStatus.ACCEPTED, ShareStatus.REJECTED)


class _Post(msgspec.Struct):
    email: str | None = None
    uid: str | None = None


class _Put(msgspec.Struct):
    status: str | None = None


def device_shares_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("device_shares", __name__)
    named, shares = NamedDevices(services, guard), services.devices.shares

    async def found(device_id: str, share_id: str) -> tuple[Device, ShareRecord]:
        device = await services.devices.registry.find(device_id)
        return device, await shares.find(device, share_id)

    async def found_by_either(device_id: str, share_id: str) -> ShareRecord:
        """For the owner, and for the one it is offered to."""
        async with guard.before_limit(USER) as caller:
            device, share = await found(device_id, share_id)
            if not await shares.is_for(caller.user, share):
                await services.accounts.permissions.require(caller, device, Permission.MANAGE)
        return share

    @routes.post("/devices/<device_id>/shares")
    async def offer(device_id: str) -> Response:
        _, device = await named.get(device_id, Permission.MANAGE, USER)
        post = members(await read_body(), _Post)
        share = await shares.offer(device, email=post.email, uid=post.uid)
        about = {"id": share.id, "shareId": share.id}
        return json_answer({"data": about, **about})

    @routes.get("/devices/<device_id>/shares")
    async def list_(device_id: str) -> Response:
        _, device = await named.get(device_id, Permission.MANAGE, USER)
        count, offset = Query.of_request().paging()
        page, total = await shares.of_device(device, offset=offset, count=count)
        entries = [share_record(share) for share in page]
        return json_answer({"data": {"shares": entries}, "total": total, "offset": offset, "count": len(entries)})

    @routes.get("/devices/<device_id>/shares/<share_id>")
    async def show(device_id: str, share_id: str) -> Response:
        return _answer(await found_by_either(device_id, share_id))

    @routes.put("/devices/<device_id>/shares/<share_id>")
    async def answer(device_id: str, share_id: str) -> Response:
        async with guard.before_limit(USER) as caller:
            _, share = await found(device_id, share_id)
            if caller.user is None or not await shares.is_for(caller.user, share):
                raise PermissionDenied(f"the invitation of share {share.id}")
        status = _status(members(await read_body(), _Put).status)
        return _answer(await shares.answer(share.id, caller.user, status))

    @routes.delete("/devices/<device_id>/shares/<share_id>")
    async def remove(device_id: str, share_id: str) -> Response:
        return _answer(await shares.remove((await found_by_either(device_id, share_id)).id))

    return routes


def share_record(share: ShareRecord) -> dict[str, Any]:
    return {"id": share.id, "email": share.email, "status": share.status, "sharedOn": share.shared_on}


def _answer(share: ShareRecord) -> Response:
    """Under `data` and flat as well."""
    about = share_record(share)
    return json_answer({"data": about, **about})


def _status(given: str | None) -> ShareStatus:
    if given is None:
        raise ValidationFailed.of("status", "Required parameter")
    for status in _ANSWERS:
        if given.upper() == status:
            return status
    raise ValidationFailed.of("status", "Invalid value")
