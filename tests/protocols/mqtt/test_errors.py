"""Refusals on MQTT: return codes and error messages."""

import json
import re

import pytest

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
from protocols.mqtt.errors import connack_code, error_message
from protocols.refusals import PublishForbidden, SubscribeForbidden
from tests.factories import ACME, KITCHEN


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unauthorized(), 4),
        (DeviceNotFound(KITCHEN), 4),
        (PermissionDenied("the token of a device"), 5),
        (SourceDeviceDisabled(), 5),
        (StorageUnavailable("disk full"), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_connack(error: DomainError, code: int) -> None:
    assert connack_code(error) == code


@pytest.mark.parametrize(
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
    ids=lambda value: type(value).__name__,
)
def test_errors_topic(error: DomainError, code: int, message: str) -> None:
    """reference 16.4."""
    body = json.loads(error_message(error))
    assert re.fullmatch("[0-9a-f]{32}", body["error"].pop("id"))
    assert body == {"error": {"code": code, "message": message}}
