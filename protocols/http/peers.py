"""Who is at the other end of a request's connection: the client certificate that it has shown, if it has."""

from typing import Final

from quart import request

from broker.errors import PermissionDenied
from broker.registration.certificates import ClientCertificate

#: Where a request's `state` (ASGI's, here that of a connection) has the certificate.
STATE_KEY: Final = "client_certificate"


def client_certificate() -> ClientCertificate | None:
    """What the peer has shown in its handshake: always something on the secure listener, nothing on the others."""
    shown = request.scope.get("state", {}).get(STATE_KEY)
    return shown if isinstance(shown, ClientCertificate) else None


def require_certificate() -> ClientCertificate:
    """Raises PermissionDenied."""
    shown = client_certificate()
    if shown is None:
        raise PermissionDenied("a client certificate")
    return shown
