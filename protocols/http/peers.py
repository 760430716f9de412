"""Who is at the other end of a request's connection: the client certificate."""

from typing import Final

from broker.errors import PermissionDenied
from broker.registration.certificates import ClientCertificate
from protocols.http.this_request import this_request

#: The key of the certificate in ASGI's `state`, which the requests of one connection share.
STATE_KEY: Final = "client_certificate"


def request_certificate() -> ClientCertificate | None:
    """The certificate of the TLS handshake: always present on the secure listener, None on the others."""
    return this_request().certificate


def require_certificate() -> ClientCertificate:
    """The certificate of the TLS handshake.

    Raises:
        PermissionDenied: there is none.
    """
    shown = request_certificate()
    if shown is None:
        raise PermissionDenied("a client certificate")
    return shown
