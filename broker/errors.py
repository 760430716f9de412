"""The refusals of the service: exceptions with data, which each protocol renders in its own form.

Any exception that is not a `DomainError` is a bug. `status` is the HTTP status, `code` the number inside the error body
(reference 3.2 gives some refusals a number of their own), and `str(error)` the REST text.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec

from config.limits import BODY_VALUES_MAX
from storage.sql import StoreError


@dataclass(eq=False)
class DomainError(Exception):
    """A refusal the caller can act on."""

    status: ClassVar[int]
    template: ClassVar[str]

    @property
    def code(self) -> int:
        return self.status

    def __str__(self) -> str:
        return self.template.format(**vars(self))


@dataclass(eq=False)
class BadRequest(DomainError):
    """The body or frame is not well-formed."""

    status = 400
    template = "Bad Request"


@dataclass(eq=False)
class InvalidTimestamp(DomainError):
    status = 400
    template = "Invalid ts value"


@dataclass(eq=False)
class TimestampInFuture(DomainError):
    status = 400
    template = "Invalid ts value (in future)"


# The texts of findings

REQUIRED: Final = "Required parameter"
TEXT_ONLY: Final = "Text field only"
BOOLEAN_ONLY: Final = "Boolean field only"
NUMERIC_ONLY: Final = "Numeric field only"


def invalid(reason: str) -> str:
    """The text of a finding for which there is no other: `reason` says what is wrong, or what would be right."""
    return f"Invalid value: {reason}"


def choice(values: Iterable[str]) -> str:
    """The reason of `invalid` where there is a choice."""
    return f"must be one of {', '.join(values)}"


def too_short(least: int) -> str:
    return f"Minimum length {least}"


def too_long(most: int) -> str:
    return f"Maximum length {most}"


def too_low(least: float) -> str:
    return f"Minimum value {least}"


def too_high(most: float) -> str:
    return f"Maximum value {most}"


class Finding(msgspec.Struct, frozen=True):
    """One refused member: its dotted path and what is wrong with it."""

    field: str
    messages: tuple[str, ...]


@dataclass(eq=False)
class ValidationFailed(DomainError):
    """One or more members have invalid values; every finding names its field."""

    status = 400
    template = "Validation Error"
    findings: tuple[Finding, ...] = ()

    @property
    def code(self) -> int:
        return 4001

    @classmethod
    def of(cls, path: str, *messages: str) -> "ValidationFailed":
        return cls((Finding(path, messages),))


@dataclass(eq=False)
class Unauthorized(DomainError):
    """The token is missing, malformed, unknown, expired or revoked."""

    status = 401
    template = "Please provide a valid authorization header"


@dataclass(eq=False)
class PermissionDenied(DomainError):
    """The token is valid but does not allow this. `missing` names what it lacks, e.g. `WRITE on device 1234`."""

    status = 403
    template = "You don't have the right permissions: {missing}"
    missing: str


@dataclass(eq=False)
class SourceDeviceDisabled(DomainError):
    """A *disconnected* device (reference 6.1): its owner disabled it."""

    status = 403
    template = "Source device is disconnected"


@dataclass(eq=False)
class DestinationDeviceDisabled(DomainError):
    status = 403
    template = "Destination device is disconnected"


@dataclass(eq=False)
class NotFound(DomainError):
    status = 404
    template = "Not Found"


@dataclass(eq=False)
class DeviceNotFound(NotFound):
    """No such device. REST answers `Not Found`; the device channel has its own text."""

    device_id: str = ""


@dataclass(eq=False)
class DeviceTypeNotFound(NotFound):
    template = "Device type does not exist."

    @property
    def code(self) -> int:
        return 1101


@dataclass(eq=False)
class UserNotFound(NotFound):
    template = "User does not exist."

    @property
    def code(self) -> int:
        return 1201


@dataclass(eq=False)
class Conflict(DomainError):
    """The object's state does not allow the call."""

    status = 409
    template = "{reason}"
    reason: str


@dataclass(eq=False)
class EmailTaken(DomainError):
    status = 409
    template = "Email already registered."

    @property
    def code(self) -> int:
        return 1202


@dataclass(eq=False)
class TryLater(DomainError):
    """A limit is reached; the caller may try again in `retry_seconds`."""

    status = 429
    retry_seconds: int


@dataclass(eq=False)
class TooManyAttempts(TryLater):
    """Too many wrong guesses."""

    template = "Too many attempts. Try again in {retry_seconds} seconds"


@dataclass(eq=False)
class TooManyWrongTokens(TooManyAttempts):
    """Too many unknown bearer tokens (reference 28.3). Nobody's account is locked by this."""


@dataclass(eq=False)
class Gone(DomainError):
    """The object existed and is gone for ever."""

    status = 410
    template = "Gone"


@dataclass(eq=False)
class PayloadTooLarge(DomainError):
    """`data` is over the plan's limit. MQTT and CoAP name the device, other protocols the organization."""

    status = 413
    template = "Plan quota exceeded for organization {organization_id}. Reason: Max payload size limit"
    organization_id: str
    device_id: str


@dataclass(eq=False)
class BodyTooLarge(DomainError):
    status = 413
    template = "Request body too large"


@dataclass(eq=False)
class TooManyValues(BodyTooLarge):
    """The bytes of the body are within its limit, its JSON values or form parameters are not (reference 1.3)."""

    template = f"Request body has more than {BODY_VALUES_MAX} values"


@dataclass(eq=False)
class EncodingNotTaken(DomainError):
    status = 415
    template = "No Content-Encoding but identity is taken: send the body as it is"


@dataclass(eq=False)
class StorageUnavailable(DomainError):
    """The store could not be read or written; nothing of the request was stored, unless `told` says so. `reason` is for
    the log only, `told` for everybody."""

    status = 503
    template = "Service Unavailable"
    reason: str = field(default="", repr=True)
    told: str = ""
    retry_seconds: ClassVar[int] = 5

    @classmethod
    def of(cls, error: StoreError) -> "StorageUnavailable":
        return cls(str(error), error.told)


@dataclass(eq=False)
class LinkOver(Gone):
    """The code of a one-time link is unknown, was used or has expired. The answer does not say which."""

    template = "This link has expired or was used already."
