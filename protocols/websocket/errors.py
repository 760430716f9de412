"""Refusals on the device channel: their codes and texts (reference 19.5)."""

from dataclasses import dataclass
from typing import Final

from broker.errors import DeviceNotFound, DomainError, PermissionDenied, Unauthorized


@dataclass(eq=False)
class MissingSdid(DomainError):
    """The frame needs an `sdid`, and its `sdid` is missing, empty or no text."""

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
    """The token of the connection is no longer valid."""

    status = 401
    template = "token revoked or expired"


# Texts of the device channel that differ from REST's. Exact types: a subclass with a text of its own keeps that text.
_TEXTS: Final[dict[type[DomainError], str]] = {
    Unauthorized: "Please provide a valid authorization header",
    PermissionDenied: "You do not have the right permission: devices",
    DeviceNotFound: "Device(s) not found",
}


def code_and_text(error: DomainError) -> tuple[int, str]:
    """The `code` and `message` of an error frame."""
    return error.code, _TEXTS.get(type(error)) or str(error)
