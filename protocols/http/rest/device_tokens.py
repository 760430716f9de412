"""/devices/…/tokens: the one token of a device (reference 6.2)."""

from quart import Blueprint, Response

from broker.accounts.permissions import Permission
from broker.devices.device_tokens import DeviceToken
from broker.devices.registry import Device
from broker.services import Services
from protocols.http.answers import secret_answer
from protocols.http.guard import APPLICATION, USER, Guard
from protocols.http.rest.named_devices import NamedDevices


def device_tokens_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("device_tokens", __name__)
    named, tokens = NamedDevices(services, guard), services.devices.tokens

    @routes.get("/devices/<device_id>/tokens")
    async def show(device_id: str) -> Response:
        _, device = await named.get(device_id, Permission.MANAGE, USER, APPLICATION)
        return _answer(device, await tokens.of(device))

    @routes.put("/devices/<device_id>/tokens")
    async def renew(device_id: str) -> Response:
        caller, device = await named.get(device_id, Permission.MANAGE, USER, APPLICATION)
        return _answer(device, await tokens.renew(device, application=caller.application))

    @routes.delete("/devices/<device_id>/tokens")
    async def remove(device_id: str) -> Response:
        _, device = await named.get(device_id, Permission.MANAGE, USER, APPLICATION)
        return _answer(device, await tokens.remove(device))

    return routes


def _answer(device: Device, token: DeviceToken) -> Response:
    about = {"accessToken": token.token, "uid": device.owner_id, "did": device.id}
    if token.application_id is not None:
        about["cid"] = token.application_id
    return secret_answer({"data": about})
