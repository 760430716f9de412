"""Refusals carry data; the text and the numbers that clients see are derived from the data."""

from broker import errors
from broker.errors import DomainError, Finding, ValidationFailed
from tests.rows import each_row


@each_row(
    ("error", "status", "code", "text"),
    [
        (errors.BadRequest(), 400, 400, "Bad Request"),
        (errors.InvalidTimestamp(), 400, 400, "Invalid ts value"),
        (errors.TimestampInFuture(), 400, 400, "Invalid ts value (in future)"),
        (ValidationFailed.of("a.b", "no"), 400, 4001, "Validation Error"),
        (errors.Unauthorized(), 401, 401, "Please provide a valid authorization header"),
        (errors.PermissionDenied("X {y}"), 403, 403, "You don't have the right permissions: X {y}"),
        (errors.SourceDeviceDisabled(), 403, 403, "Source device is disconnected"),
        (errors.DestinationDeviceDisabled(), 403, 403, "Destination device is disconnected"),
        (errors.NotFound(), 404, 404, "Not Found"),
        (errors.DeviceNotFound("d"), 404, 404, "Not Found"),
        (errors.DeviceTypeNotFound(), 404, 1101, "Device type does not exist."),
        (errors.UserNotFound(), 404, 1201, "User does not exist."),
        (errors.Conflict("taken"), 409, 409, "taken"),
        (
            errors.PayloadTooLarge("o", "d"),
            413,
            413,
            "Plan quota exceeded for organization o. Reason: Max payload size limit",
        ),
        (errors.BodyTooLarge(), 413, 413, "Request body too large"),
        (errors.StorageUnavailable("disk full"), 503, 503, "Service Unavailable"),
    ],
)
def test_status_code_and_text_of_a_refusal(error: DomainError, status: int, code: int, text: str) -> None:
    assert (error.status, error.code, str(error)) == (status, code, text)


def test_a_validation_error_names_its_field() -> None:
    assert ValidationFailed.of("data.actions", "a", "b").findings == (Finding("data.actions", ("a", "b")),)
