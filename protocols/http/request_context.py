"""The request that the current task answers, on either path: through Quart, or straight from its connection.

Tokens, limits and bodies are read from it, so that one set of rules serves both paths.
"""

import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.errors import BodyTooLarge, PermissionDenied
from broker.limits.meters import Channel
from broker.limits.refusals import Standing
from broker.registration.certificates import ClientCertificate
from protocols.http.forwarded import Headers


@dataclass(eq=False, slots=True)
class RequestContext:
    """The current request, and notes about it while it is answered."""

    method: str
    address: str  # of the client
    authorization: str  # the header, empty without one
    query: bytes
    #: The certificate of the TLS handshake.
    certificate: ClientCertificate | None
    #: The body, if all of it was there before anything was checked; else the function that reads it, up to a number of
    #: bytes, which raises BodyTooLarge and TooManyBodies.
    body: bytes | None = None
    read_body: Callable[[int], Awaitable[bytes]] | None = None
    headers: Headers = ()  # names in lower case
    #: The `time.perf_counter` when it had come.
    began: float = field(default_factory=time.perf_counter)
    #: The ETag of the answer, without quotes; empty: it has none.
    etag: str = ""
    caller: Caller | None = None
    #: The caller that the same Authorization had in an earlier request of the connection.
    known: Caller | None = None
    #: The row of the rate limits that the call was counted in, and where the caller stands in it.
    channel: Channel | None = None
    standing: Standing | None = None
    #: The devices whose quotas were charged: of the organization, and by day.
    charged: tuple[Device, Device | None] | None = None

    def body_within(self, limit: int) -> bytes:
        """The body that was there. Raises BodyTooLarge."""
        body = self.body or b""
        if len(body) > limit:
            raise BodyTooLarge
        return body

    def header(self, name: bytes) -> str:
        """The first header of this name, which is in lower case; empty without one."""
        return next((value.decode("latin-1") for one, value in self.headers if one == name), "")


def require_certificate() -> ClientCertificate:
    """The certificate of the TLS handshake, which is always there on the secure listener. Raises PermissionDenied."""
    shown = current_request().certificate
    if shown is None:
        raise PermissionDenied("a client certificate")
    return shown


#: The key of the client certificate in ASGI's `state`, which the requests of one connection share.
CERTIFICATE_KEY: Final = "client_certificate"

_current: Final[ContextVar[RequestContext | None]] = ContextVar("current_request", default=None)


def current_request() -> RequestContext:
    """Raises LookupError in a task that answers no request."""
    request = _current.get()
    if request is None:
        raise LookupError("no request is answered here")
    return request


def set_current_request(request: RequestContext | None) -> None:
    """Set the request that the current task answers; None: it answers none."""
    _current.set(request)
