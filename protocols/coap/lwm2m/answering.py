"""Answers to the requests of devices, the same over datagrams and streams."""

from broker.errors import DomainError
from protocols.coap.containment import Failure
from protocols.coap.errors import InternalError, response_code
from protocols.coap.lwm2m.server import Answer


def refusal(error: DomainError) -> Answer:
    """The answer for an error, with its text as diagnostic payload (RFC 7252, 5.5.2)."""
    return Answer(response_code(error), (), str(error).encode())


def internal_error(failure: Failure) -> Answer:
    """The answer after an exception that no code expects; its id is in the log."""
    return Answer(response_code(InternalError()), (), f"{InternalError()} {failure.error_id}".encode())
