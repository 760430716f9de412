"""Errors as CoAP responses: response codes and the members of the error body (reference 16.4, 17).

RFC 7252 took its response codes from HTTP: status 404 is code 4.04.
"""

from dataclasses import dataclass
from typing import Any

from broker.errors import BadRequest, DomainError
from protocols.refusals import device_text, reason_members


@dataclass(eq=False)
class Unfit(BadRequest):
    """A parameter or a body that cannot be read. `reason` is a sentence without its full stop."""

    template = "Bad Request: {reason}"
    reason: str


@dataclass(eq=False)
class BadOption(DomainError):
    """A critical option that is unknown, repeated or of a wrong length (RFC 7252, 5.4)."""

    status = 402
    template = "Bad Option {number}"
    number: int


class MethodNotAllowed(DomainError):
    status = 405
    template = "Method Not Allowed"


class NotAcceptable(DomainError):
    status = 406
    template = "Not Acceptable"


class RequestIncomplete(DomainError):
    """Blocks of a body came out of order or are missing. The peer must send the body again (RFC 7959, 2.9.2)."""

    status = 408
    template = "Request Entity Incomplete"


class UnsupportedFormat(DomainError):
    status = 415
    template = "Unsupported Content-Format"


class InternalError(DomainError):
    status = 500
    template = "Internal Server Error"


class ProxyingNotSupported(DomainError):
    status = 505
    template = "Proxying Not Supported"


def response_code(error: DomainError) -> int:
    """The response code of an error: its class in three bits, its detail in five (RFC 7252, 3)."""
    kind, detail = divmod(error.status, 100)
    return kind << 5 | detail


def error_document(error: DomainError) -> dict[str, Any]:
    """The error body (reference 16.4), before it is encoded in the peer's format."""
    return {"error": {"code": error.status, "message": device_text(error), **reason_members(error)}}
