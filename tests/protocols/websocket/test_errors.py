"""The table of WebSocket errors (reference 19.5): code and text of every refusal on the device channel."""

from dataclasses import dataclass

from broker.errors import (
    BadRequest,
    Conflict,
    DestinationDeviceDisabled,
    DeviceNotFound,
    DeviceTypeNotFound,
    DomainError,
    InvalidTimestamp,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    SourceDeviceDisabled,
    StorageUnavailable,
    TimestampInFuture,
    Unauthorized,
    ValidationFailed,
)
from broker.limits.refusals import (
    DailyQuotaExceeded,
    MonthlyQuotaExceeded,
    PlanLimitsNotSet,
    RateLimitExceeded,
    Standing,
)
from config.rates import Rate
from protocols.websocket.errors import (
    DeviceAlreadyRegistered,
    DeviceNotRegistered,
    MissingDdid,
    MissingSdid,
    NoRegisteredDevice,
    RegistrationTimeout,
    Replaced,
    WrongCid,
    code_and_text,
)
from tests.rows import each_row

ORGANIZATION = "0f" * 16
STANDING = Standing(limit=Rate(1, 1), remaining=Rate(0, 0), reset_seconds=Rate(1, 1))


@dataclass(eq=False)
class MorePreciselyDenied(PermissionDenied):
    template = "no {missing} here"


MONTHLY = f"Plan quota exceeded for organization {ORGANIZATION}. Reason: Monthly message limit"

SPECIFICATION_TABLE = [
    (BadRequest(), 400, "Bad Request"),
    (MissingSdid(), 400, "Missing sdid value"),
    (MissingDdid(), 400, "Missing ddid value"),
    (RegistrationTimeout(), 400, "Registration timeout"),
    (InvalidTimestamp(), 400, "Invalid ts value"),
    (TimestampInFuture(), 400, "Invalid ts value (in future)"),
    (Unauthorized(), 401, "Please provide a valid authorization header"),
    (DeviceNotRegistered(), 401, "Device not registered"),
    (PermissionDenied("WRITE on device 1234"), 403, "You do not have the right permission: devices"),
    (WrongCid(), 403, "Wrong cid"),
    (DeviceNotFound("1234"), 404, "Device(s) not found"),
    (RateLimitExceeded(60, "DAILY", STANDING), 429, "DAILY rate limit exceeded"),
    (MonthlyQuotaExceeded(60, ORGANIZATION), 429, MONTHLY),
    (
        PayloadTooLarge(organization_id=ORGANIZATION, device_id="1234"),
        413,
        f"Plan quota exceeded for organization {ORGANIZATION}. Reason: Max payload size limit",
    ),
    (
        PlanLimitsNotSet(ORGANIZATION, "1234"),
        400,
        f"Quota validation error for organization {ORGANIZATION}. Reason: Plan limits have not been set",
    ),
    (NoRegisteredDevice(), 400, "No registered device"),
]

COMPATIBILITY_RULES = [
    (RateLimitExceeded(60, "MINUTE", STANDING), 429, "MINUTE rate limit exceeded"),
    (DailyQuotaExceeded(60, "1234"), 429, "Plan quota exceeded for device 1234. Reason: Daily message limit."),
    (DeviceAlreadyRegistered(), 409, "Device already registered"),
    (Replaced(), 409, "replaced by a newer connection"),
    (SourceDeviceDisabled(), 403, "Source device is disconnected"),
    (DestinationDeviceDisabled(), 403, "Destination device is disconnected"),
    (StorageUnavailable("disk full"), 503, "Service Unavailable"),
]

EVERYTHING_ELSE = [
    (NotFound(), 404, "Not Found"),
    (DeviceTypeNotFound(), 1101, "Device type does not exist."),
    (ValidationFailed.of("data.actions", "Required parameter"), 4001, "Validation Error"),
    (Conflict("not now"), 409, "not now"),
    (MorePreciselyDenied("WRITE"), 403, "no WRITE here"),
]


@each_row(("error", "code", "text"), SPECIFICATION_TABLE + COMPATIBILITY_RULES + EVERYTHING_ELSE)
def test_code_and_text(error: DomainError, code: int, text: str) -> None:
    assert code_and_text(error) == (code, text)
