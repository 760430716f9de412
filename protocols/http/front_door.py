"""One port for HTTP and WebSocket: reads the head of the first request and hands the connection on.

Plain REST calls are answered directly (direct.py).

A head that is too long or too slow is refused here. Clients may ask for a WebSocket on a connection that has served
requests before; then Hypercorn gives the connection back.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from broker.services import Services
from broker.trace.origin import Origin, current_listener, enter
from broker.trace.refusals import Refusals
from config.limits import TURNS_BETWEEN_LONG_WAYS
from config.settings import Address
from protocols.http.answers import add_hsts
from protocols.http.application import build_accounts_app, build_app, short_way
from protocols.http.direct import DirectCalls
from protocols.http.forwarded import Forwarded
from protocols.http.heads import (
    HEAD_SECONDS,
    has_refused,
    headers_of,
    is_websocket_upgrade,
    read_head,
    split_head,
)
from protocols.http.hypercorn_adapter import HypercornAdapter
from protocols.http.long_forms import LongForms
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.metrics.vitals import Vitals
from protocols.streams.hub import Hub
from protocols.streams.listeners import Entrance, Stream, serve_tcp
from protocols.streams.peers import current_peer
from protocols.streams.proxies import TrustedProxies
from protocols.streams.tls import TlsContext
from protocols.streams.turnstile import Turnstile

#: Called with the head of a request for a WebSocket, the bytes that came behind the head, and the connection.
WebSocketServer = Callable[[bytes, bytes, Stream], Awaitable[None]]
#: Hypercorn and Quart take some 2 ms for a request on a small gateway, in thirty steps of their tasks.
_LONG_WAYS_PER_SECOND: Final = 100.0


async def serve_http(
    services: Services,
    bind: Address,
    connections: trio.Nursery,
    *,
    websocket: WebSocketServer | None,
    ssl_context: TlsContext | None = None,
    is_secure: bool = False,
    is_accounts: bool = False,
    vitals: Vitals | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept HTTP and WebSocket connections until cancelled.

    Args:
        services: the broker.
        bind: where to listen.
        connections: the nursery in which connections go on when this listener has ended.
        websocket: serves each connection that asks to be a WebSocket; None where there are no WebSockets, and such a
            request is answered as any other.
        ssl_context: for TLS; None for plain text.
        is_secure: whether this is the listener for devices with client certificates, which `ssl_context` asks for.
        is_accounts: whether this is the accounts server's own listener, with its paths at the root.
        vitals: counts the requests, and answers /metrics and /readyz; by default one of its own.
        task_status: told the bound address.

    Raises:
        OSError: the address cannot be bound.
    """
    settings = services.core.settings
    entrance = Entrance.of(services.limits.strangers, services.limits.sockets, settings)
    vitals = vitals or Vitals(services.core)
    app = build_accounts_app(services) if is_accounts else build_app(services, is_secure=is_secure, vitals=vitals)
    hsts_seconds = 0 if ssl_context is None else settings.http.hsts_seconds
    if hsts_seconds:
        app.after_request(partial(add_hsts, hsts_seconds))
    refusals, limits = services.core.refusals, services.limits
    timeouts, traffic = PeerTimeouts(grace_seconds=settings.grace_seconds), vitals.traffic_of(current_listener())
    hub = Hub(connections, services.core.life) if ssl_context is None else None
    direct = short_way(app, services, timeouts, traffic, hub=hub, hsts_seconds=hsts_seconds)
    site = services.core.site
    root = site.own_accounts if is_accounts else site.accounts
    long_forms = LongForms(root, refusals, timeouts, traffic, entrance.proxies, hsts_seconds=hsts_seconds)
    adapter = HypercornAdapter(
        app,
        timeouts=timeouts,
        refusals=refusals,
        overhead=limits.overhead,
        bodies=limits.bodies,
        proxies=entrance.proxies,
        takes_upgrades=websocket is not None,
        traffic=traffic,
        direct=direct,
        turnstile=Turnstile(connections, at_once=1, turns=TURNS_BETWEEN_LONG_WAYS, per_second=_LONG_WAYS_PER_SECOND),
    )
    connections.start_soon(adapter.stop_after, services.core.life.stopping)
    await serve_tcp(
        bind,
        FrontDoor(adapter, websocket, refusals, entrance.proxies, direct, long_forms).serve_connection,
        protocol="http",
        refusals=refusals,
        life=services.core.life,
        connections=connections,
        entrance=entrance,
        ssl_context=ssl_context,
        task_status=task_status,
    )


class FrontDoor:
    def __init__(
        self,
        adapter: HypercornAdapter,
        websocket: WebSocketServer | None,
        refusals: Refusals,
        proxies: TrustedProxies | None = None,
        direct: DirectCalls | None = None,
        long_forms: LongForms | None = None,
    ) -> None:
        self._direct = direct
        self._long_forms = long_forms
        self._refusals = refusals
        self._adapter = adapter
        self._websocket = websocket
        self._proxies = proxies or TrustedProxies()

    async def serve_connection(self, stream: Stream) -> None:
        """Serve one connection from its first byte to its last."""
        head = bytearray()
        with self._adapter.timeouts.limit(HEAD_SECONDS, in_flight=False) as scope:
            await read_head(stream, head)
        upgrade = bytes(head)
        if await has_refused(upgrade, stream, self._refusals, is_late=scope.cancelled_caught):
            return
        if self._direct is not None:
            upgrade = await self._direct.serve(upgrade, stream)
            if await has_refused(upgrade, stream, self._refusals):
                return
        if self._long_forms is not None and await self._long_forms.refuse(upgrade, stream):
            return
        if self._websocket is None or not is_websocket_upgrade(upgrade):
            upgrade = await self._adapter.serve_connection(upgrade, stream)
        if upgrade and self._websocket is not None:
            _name_client(upgrade, self._proxies)
            await self._websocket(*split_head(upgrade), stream)


def _name_client(head: bytes, proxies: TrustedProxies) -> None:
    """A WebSocket that comes through a trusted proxy is one of the client that the proxy names."""
    peer = current_peer()
    if peer.is_proxy:
        peer.address, peer.port = Forwarded(headers_of(head)).client(peer.address, proxies), 0
        enter(Origin(peer.address))
