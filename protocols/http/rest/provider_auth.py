"""/devices/{did}/providerauth: linking a device with its user's account at a third party (reference 23)."""

import msgspec
from quart import Blueprint, Response, request

from broker.accounts.permissions import Permission
from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import BadRequest, ValidationFailed
from broker.services import Services
from protocols.http.answers import json_answer
from protocols.http.body import Query, members, read_body
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard, bearer_token
from protocols.http.rest.cloud_connectors import redirect_to
from protocols.http.rest.device_records import device_record

_BODY_BYTES = 16 * 1024


class _Body(msgspec.Struct):
    token: str | None = None
    mobile: bool | None = None


def provider_auth_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("provider_auth", __name__)

    async def holder(caller: Caller, device_id: str) -> Device:
        """The device that is linked for this one, if the caller may decide that: its owner, and who acts for it."""
        device = await services.connectors.holder(await services.devices.registry.find(device_id))
        await services.accounts.permissions.require(caller, device, Permission.MANAGE)
        return device

    @routes.post("/devices/<device_id>/providerauth")
    async def authorize(device_id: str) -> Response:
        offered = None if bearer_token() else _offered_token(await read_body(limit=_BODY_BYTES))
        async with guard.before_limit(USER, APPLICATION, DEVICE, offered=offered) as caller:
            device = await holder(caller, device_id)
        given = _given(await read_body(limit=_BODY_BYTES))
        query = Query.of_request()
        mobile = query.boolean("mobile", default=bool(given.mobile))
        query.check()
        referer = request.headers.get("Referer", "")
        return redirect_to(await services.connectors.authorize(caller, device, referer=referer, mobile=mobile))

    @routes.delete("/devices/<device_id>/providerauth")
    async def revoke(device_id: str) -> Response:
        async with guard.before_limit(USER, APPLICATION, DEVICE) as caller:
            device = await holder(caller, device_id)
        await services.connectors.revoke(device)
        return json_answer({"data": device_record(await services.devices.registry.find(device_id))})

    return routes


def _offered_token(body: bytes) -> str | None:
    """A body that is not what it should be has none; what is wrong with it is for callers that have one to know."""
    try:
        return _given(body).token
    except (BadRequest, ValidationFailed):
        return None


def _given(body: bytes) -> _Body:
    """A form or an object of JSON. Raises BadRequest, ValidationFailed."""
    if request.mimetype != "application/x-www-form-urlencoded":
        return members(body, _Body)
    form = Query(body)
    given = _Body(form.text("token"), form.boolean("mobile", default=False))
    form.check()
    return given
