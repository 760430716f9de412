"""Refusals on MQTT: return codes and error messages."""

import json

from broker.errors import (
    BadRequest,
    DeviceNotFound,
    DomainError,
    PayloadTooLarge,
    PermissionDenied,
    SourceDeviceDisabled,
    StorageUnavailable,
    Unauthorized,
    ValidationFailed,
)
from broker.limits.refusals import RateLimitExceeded, Standing
from config.rates import Rate
from protocols.mqtt.answers import answers_for
from protocols.mqtt.errors import connect_reason, error_message
from protocols.refusals import PublishForbidden, SubscribeForbidden
from tests.factories import ACME, KITCHEN
from tests.rows import each_row

STANDING = Standing(limit=Rate(1, 1), remaining=Rate(0, 0), reset_seconds=Rate(1, 1))


@each_row(
    ("error", "code", "reason"),
    [
        (Unauthorized(), 4, 0x86),
        (DeviceNotFound(KITCHEN), 4, 0x86),
        (PermissionDenied("the token of a device"), 5, 0x87),
        (SourceDeviceDisabled(), 5, 0x87),
        (RateLimitExceeded(7, "MINUTE", STANDING), 3, 0x97),
        (StorageUnavailable("disk full"), 3, 0x88),
    ],
)
def test_connack(error: DomainError, code: int, reason: int) -> None:
    """reference 16.2."""
    refusal = connect_reason(error)
    assert answers_for(4).connack(refusal)[3] == code
    assert answers_for(5).connack(refusal)[3] == refusal.code == reason


@each_row(
    ("error", "code", "message"),
    [
        (BadRequest(), 400, "Bad Request"),
        (ValidationFailed.of("data", "Required parameter"), 400, "Bad Request"),
        (PublishForbidden(), 403, "You do not have publish permission to topic"),
        (SubscribeForbidden(), 403, "You do not have subscribe permission to topic"),
        (SourceDeviceDisabled(), 403, "Source device is disconnected"),
        (
            PayloadTooLarge(organization_id=ACME, device_id=KITCHEN),
            413,
            f"Plan quota exceeded for device {KITCHEN}. Reason: Max payload Size limit",
        ),
    ],
)
def test_errors_topic(error: DomainError, code: int, message: str) -> None:
    """reference 16.4."""
    body = json.loads(error_message(error, "its id"))
    assert body == {"error": {"code": code, "message": message, "id": "its id"}}
