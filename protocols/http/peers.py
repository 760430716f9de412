"""Who is at the other end of a request's connection: the address, and the client certificate."""

from typing import Final

from quart import request

from broker.errors import PermissionDenied
from broker.registration.certificates import ClientCertificate
from broker.trace.origin import Origin, enter

#: The key of the certificate in ASGI's `state`, which the requests of one connection share.
STATE_KEY: Final = "client_certificate"


def request_certificate() -> ClientCertificate | None:
    """The certificate of the TLS handshake: always present on the secure listener, None on the others."""
    shown = request.scope.get("state", {}).get(STATE_KEY)
    return shown if isinstance(shown, ClientCertificate) else None


def require_certificate() -> ClientCertificate:
    """The certificate of the TLS handshake.

    Raises:
        PermissionDenied: there is none.
    """
    shown = request_certificate()
    if shown is None:
        raise PermissionDenied("a client certificate")
    return shown


async def note_origin() -> None:
    """What the request leads to, comes from its client's address."""
    enter(Origin(request.remote_addr or ""))
