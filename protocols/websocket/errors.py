"""What a refusal looks like on the device channel: its code and its text (reference 19.5)."""

from dataclasses import dataclass
from typing import Final

import msgspec

from broker.errors import DeviceNotFound, DomainError, PermissionDenied, Unauthorized, ValidationFailed


@dataclass(eq=False)
class MissingSdid(DomainError):
    """No `sdid`, or one that is empty or not a text, where the frame needs it."""

    status = 400
    template = "Missing sdid value"


@dataclass(eq=False)
class MissingDdid(DomainError):
    status = 400
    template = "Missing ddid value"


@dataclass(eq=False)
class RegistrationTimeout(DomainError):
    status = 400
    template = "Registration timeout"


@dataclass(eq=False)
class NoRegisteredDevice(DomainError):
    """The last device has been unregistered; the socket closes."""

    status = 400
    template = "No registered device"


@dataclass(eq=False)
class DeviceNotRegistered(DomainError):
    status = 401
    template = "Device not registered"


@dataclass(eq=False)
class WrongCid(DomainError):
    """`cid` is neither a number nor a text of at most 256 characters."""

    status = 403
    template = "Wrong cid"


@dataclass(eq=False)
class DeviceAlreadyRegistered(DomainError):
    status = 409
    template = "Device already registered"


@dataclass(eq=False)
class Replaced(DomainError):
    """Another connection with the same device token has taken over (reference 16.1)."""

    status = 409
    template = "replaced by a newer connection"


@dataclass(eq=False)
class TokenEnded(DomainError):
    """The token that a connection came with is no longer valid."""

    status = 401
    template = "token revoked or expired"


# Where the device channel says it differently from REST. Exact types: a subclass with a text of its own keeps it.
_TEXTS: Final[dict[type[DomainError], str]] = {
    Unauthorized: "Please provide a valid authorization header",
    PermissionDenied: "You do not have the right permission: devices",
    DeviceNotFound: "Device(s) not found",
}


def code_and_text(error: DomainError) -> tuple[int, str]:
    """The two members that every error frame carries."""
    return error.code, _TEXTS.get(type(error)) or str(error)


def rest_body(error: DomainError, error_id: str) -> bytes:
    """The body of a refused handshake (reference 3.1)."""
    body: dict[str, object] = {"code": error.code, "message": str(error), "id": error_id}
    if isinstance(error, ValidationFailed):
        body["errors"] = [[{"field": one.field, "messages": one.messages} for one in error.findings]]
    return msgspec.json.encode({"error": body})
