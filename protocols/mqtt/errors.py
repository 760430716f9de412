"""Refusals as MQTT tells them: CONNACK return codes, and messages on the errors topic (compatibility.md 16.2, 16.4)."""

import msgspec

from broker.errors import DeviceNotFound, DomainError, PayloadTooLarge, Unauthorized, ValidationFailed
from broker.ids import new_id
from protocols.mqtt.packets import ReturnCode

_TEXTS: dict[type[DomainError], str] = {
    PayloadTooLarge: "Plan quota exceeded for device {device_id}. Reason: Max payload Size limit",
    ValidationFailed: "Bad Request",
}


class PublishForbidden(DomainError):
    status = 403
    template = "You do not have publish permission to topic"


class SubscribeForbidden(DomainError):
    status = 403
    template = "You do not have subscribe permission to topic"


def connack_code(error: DomainError) -> ReturnCode:
    """Wrong credentials are told from valid ones that are not welcome; anything else is our trouble."""
    if isinstance(error, Unauthorized | DeviceNotFound):  # the device may have gone while it was looked up
        return ReturnCode.BAD_CREDENTIALS
    if error.status == 403:
        return ReturnCode.NOT_AUTHORIZED
    return ReturnCode.SERVER_UNAVAILABLE


def error_message(error: DomainError) -> bytes:
    """The payload of a message on the errors topic."""
    template = _TEXTS.get(type(error))
    text = str(error) if template is None else template.format(**vars(error))
    return msgspec.json.encode({"error": {"code": error.status, "message": text, "id": new_id()}})
