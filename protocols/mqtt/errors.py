"""Refusals on MQTT: reason codes, and messages on the errors topic (reference 16.2, 16.4)."""

from typing import Final

import msgspec

from broker.errors import (
    BadRequest,
    DeviceNotFound,
    DomainError,
    Unauthorized,
    ValidationFailed,
)
from broker.limits.refusals import RateLimitExceeded
from broker.limits.sockets import TooManyConnections
from broker.routing.connections import CloseReason
from protocols.mqtt.answers import Reason
from protocols.mqtt.packets import ReasonCode
from protocols.refusals import device_text, rate_members, reason_members

#: Why the broker ends a connection, for peers that speak 5.0.
CLOSE_CODES: Final = {
    CloseReason.REPLACED: ReasonCode.SESSION_TAKEN_OVER,
    CloseReason.TOKEN_REVOKED: ReasonCode.NOT_AUTHORIZED,
    CloseReason.DEVICE_DISABLED: ReasonCode.ADMINISTRATIVE_ACTION,
    CloseReason.DEVICE_DELETED: ReasonCode.NOT_AUTHORIZED,
    CloseReason.PERMISSION_REMOVED: ReasonCode.NOT_AUTHORIZED,
    CloseReason.SHUTDOWN: ReasonCode.SERVER_SHUTTING_DOWN,
    CloseReason.NOT_STORED: ReasonCode.SERVER_SHUTTING_DOWN,
}


def connect_reason(error: DomainError) -> Reason:
    """Why a CONNECT is refused. Version 3 has return code 4 for wrong credentials, 5 for valid ones without permission,
    and 3 for all other refusals."""
    if isinstance(error, Unauthorized | DeviceNotFound):  # the device may have gone while it was looked up
        return Reason(ReasonCode.BAD_CREDENTIALS)
    if isinstance(error, RateLimitExceeded | TooManyConnections):
        return Reason(ReasonCode.QUOTA_EXCEEDED, device_text(error))
    text = reason_members(error).get("reason", "")
    return Reason(ReasonCode.NOT_AUTHORIZED if error.status == 403 else ReasonCode.SERVER_UNAVAILABLE, text)


def publish_reason(error: DomainError) -> Reason:
    """Why a PUBLISH was refused (reference 16.3)."""
    if isinstance(error, BadRequest | ValidationFailed):
        code = ReasonCode.PAYLOAD_FORMAT_INVALID
    elif error.status in {413, 429}:
        code = ReasonCode.QUOTA_EXCEEDED
    elif error.status == 403:
        code = ReasonCode.NOT_AUTHORIZED
    else:
        code = ReasonCode.IMPLEMENTATION_SPECIFIC
    return Reason(code, device_text(error))


def error_message(error: DomainError, error_id: str) -> bytes:
    """The payload of a message on the errors topic. `error_id` is also in the line of the log."""
    members = rate_members(error.standing) if isinstance(error, RateLimitExceeded) else {}
    return msgspec.json.encode(
        {"error": {"code": error.status, "message": device_text(error), **members, "id": error_id}}
    )
