"""Answers to the requests of devices, the same over datagrams and streams."""

from broker.errors import DomainError
from protocols.coap.containment import Failure
from protocols.coap.errors import InternalError, response_code
from protocols.coap.lwm2m.server import Lwm2mResponse


def refusal(error: DomainError) -> Lwm2mResponse:
    """The answer for an error, with its text as diagnostic payload (RFC 7252, 5.5.2)."""
    return Lwm2mResponse(response_code(error), (), str(error).encode())


def internal_error(failure: Failure) -> Lwm2mResponse:
    """The answer after an exception that no code expects; its id is in the log."""
    return Lwm2mResponse(response_code(InternalError()), (), f"{InternalError()} {failure.error_id}".encode())
