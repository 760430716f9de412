"""/healthz, /readyz and /metrics (reference 27.11)."""

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from quart import Blueprint, Response, request

from broker.errors import DomainError
from protocols.metrics.collecting import Exposition
from protocols.metrics.vitals import Vitals
from protocols.streams.peers import current_peer
from protocols.streams.proxies import plain_address

_TEXT: Final = "text/plain; charset=utf-8"
_NOT_STORED: Final = {"Cache-Control": "no-store"}
#: Headers that proxies add.
_FORWARDED: Final = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP")


class MetricsForbidden(DomainError):
    status = 403
    template = "Metrics are only for this machine and the networks in metrics.allow"


class StrangeHost(DomainError):
    """A page of somebody else, whose name leads a browser to this machine, must not read what is for the machine."""

    status = 421
    template = "Host is no address or name of this service: metrics.hosts may name it"


def health_blueprint(vitals: Vitals) -> Blueprint:
    routes = Blueprint("health", __name__)
    exposition = Exposition(vitals)

    @routes.before_request
    async def check_host() -> None:
        if not _is_ours(request.headers.get("Host", ""), vitals.hosts):
            raise StrangeHost

    @routes.get("/healthz")
    async def alive() -> Response:
        return Response("ok\n", 200, _NOT_STORED, content_type=_TEXT)

    @routes.get("/readyz")
    async def ready() -> Response:
        problem = await vitals.problem()
        return Response(f"{problem or 'ok'}\n", 503 if problem else 200, _NOT_STORED, content_type=_TEXT)

    @routes.get("/metrics")
    async def metrics() -> Response:
        if not _may_read(vitals):
            raise MetricsForbidden
        content, content_type = await exposition.text(request.headers.get("Accept", ""))
        return Response(content, 200, _NOT_STORED, content_type=content_type)

    return routes


def _is_ours(host: str, hosts: Collection[str]) -> bool:
    """Whether a request with this Host (RFC 9112 3.2) can be meant for this machine.

    Nobody can make an IP address, localhost or a name without a dot lead here who is not in the same network.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    return "." not in name or name.endswith(".localhost") or plain_address(name) is not None or name in hosts


def _may_read(vitals: Vitals) -> bool:
    """Whether the client is on this machine or in an allowed network.

    A proxy on this machine connects from loopback for everybody, and the loopback of another machine is not this one.
    So who comes through a proxy may read only as a client in an allowed network, named by a trusted proxy.
    """
    client, peer = request.remote_addr or "", current_peer()
    address = plain_address(client)
    if address is None:
        return False
    is_allowed = any(address in network for network in vitals.allowed)
    if any(name in request.headers for name in _FORWARDED):
        return is_allowed and peer.is_proxy and client != peer.address
    return is_allowed or address.is_loopback
