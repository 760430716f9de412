"""Refusals on MQTT: CONNACK return codes, and messages on the errors topic (reference 16.2, 16.4)."""

import msgspec

from broker.errors import DeviceNotFound, DomainError, Unauthorized
from broker.ids import new_id
from broker.limits.refusals import RateLimitExceeded
from protocols.mqtt.packets import ReturnCode
from protocols.refusals import device_text, rate_members


def connack_code(error: DomainError) -> ReturnCode:
    """The return code: 4 for wrong credentials, 5 for valid ones without permission, 3 for all other refusals."""
    if isinstance(error, Unauthorized | DeviceNotFound):  # the device may have gone while it was looked up
        return ReturnCode.BAD_CREDENTIALS
    if error.status == 403:
        return ReturnCode.NOT_AUTHORIZED
    return ReturnCode.SERVER_UNAVAILABLE


def error_message(error: DomainError) -> bytes:
    """The payload of a message on the errors topic."""
    members = rate_members(error.standing) if isinstance(error, RateLimitExceeded) else {}
    return msgspec.json.encode(
        {"error": {"code": error.status, "message": device_text(error), **members, "id": new_id()}}
    )
