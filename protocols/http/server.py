"""The listener of HTTP and WebSocket: one port for both.

`connection.py` is the conversation of a connection. One that asks for a WebSocket or a stream of events, at its first
request or at a later one, is handed on.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from broker.services import Services
from broker.trace.origin import Origin, current_listener, enter
from config.limits import TURNS_BETWEEN_SLOW_PATHS
from config.settings import Address
from protocols.http.answers import add_hsts
from protocols.http.application import build_accounts_app, build_app, fast_path
from protocols.http.connection import HttpConnection, HttpListener
from protocols.http.forwarded import Forwarded
from protocols.http.heads import headers_of, split_head
from protocols.http.hypercorn_adapter import HypercornAdapter
from protocols.http.oversized_forms import OversizedForms
from protocols.metrics.vitals import Vitals
from protocols.streams.hub import Hub
from protocols.streams.listeners import Entrance, Stream, serve_tcp
from protocols.streams.peers import current_peer
from protocols.streams.proxies import TrustedProxies
from protocols.streams.tls import TlsContext
from protocols.streams.turnstile import Turnstile

#: Called with the head of a request for a WebSocket or a stream of events, the bytes that came behind the head, and the
#: connection.
WebSocketServer = Callable[[bytes, bytes, Stream], Awaitable[None]]
#: Hypercorn and Quart take some 2 ms for a request on a small gateway, in thirty steps of their tasks.
_SLOW_PATHS_PER_SECOND: Final = 100.0


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
    refusals, limits, root = services.core.refusals, services.limits, services.core.site.accounts
    if is_accounts:
        root = services.core.site.own_accounts
    traffic = vitals.traffic_of(current_listener())
    hypercorn = HypercornAdapter(
        app,
        bodies=limits.bodies,
        proxies=entrance.proxies,
        traffic=traffic,
        turnstile=Turnstile(connections, at_once=1, turns=TURNS_BETWEEN_SLOW_PATHS, per_second=_SLOW_PATHS_PER_SECOND),
        is_moving=services.core.life.moving.is_set,
    )
    listener = HttpListener(
        Hub(connections, services.core.life),
        hypercorn,
        refusals,
        limits.overhead,
        fast_path(app, services, traffic, hsts_seconds=hsts_seconds),
        OversizedForms(root, refusals, traffic, entrance.proxies, hsts_seconds=hsts_seconds),
        takes_upgrades=websocket is not None,
    )
    await serve_tcp(
        bind,
        partial(serve_http_connection, listener, websocket, entrance.proxies),
        protocol="http",
        refusals=refusals,
        life=services.core.life,
        connections=connections,
        entrance=entrance,
        ssl_context=ssl_context,
        task_status=task_status,
    )


async def serve_http_connection(
    listener: HttpListener, websocket: WebSocketServer | None, proxies: TrustedProxies, stream: Stream
) -> None:
    """Serve one connection from its first byte to its last."""
    connection = HttpConnection(listener, stream)
    await connection.run()
    if connection.upgrade and websocket is not None:
        upgrade = connection.upgrade
        del connection  # the WebSocket may live for months
        _name_client(upgrade, proxies)
        await websocket(*split_head(upgrade), stream)


def _name_client(head: bytes, proxies: TrustedProxies) -> None:
    """A connection through a trusted proxy is one of the client that the proxy names."""
    peer = current_peer()
    if peer.is_proxy:
        peer.address, peer.port = Forwarded(headers_of(head)).client(peer.address, proxies), 0
        enter(Origin(peer.address))
