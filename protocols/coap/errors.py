"""Refusals as CoAP tells them: a response code, and the error body in the peer's format (reference 16.4, 17).

RFC 7252 chose its codes after HTTP's: 404 is 4.04. So a status is a code, once class and detail are packed.
"""

from dataclasses import dataclass
from typing import Any

from broker.errors import DomainError
from protocols.refusals import device_text


@dataclass(eq=False)
class BadOption(DomainError):
    """A critical option that we do not know, or that may not stand there."""

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
    """Blocks came out of order, or some did not come at all; the peer must begin again."""

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
    """The class in three bits, the detail in five."""
    kind, detail = divmod(error.status, 100)
    return kind << 5 | detail


def error_body(error: DomainError) -> dict[str, Any]:
    return {"error": {"code": error.status, "message": device_text(error)}}
