"""One port for HTTP and WebSocket: reads the head of the first request and hands the connection on.

A head that is too long or too slow is refused here. Clients may ask for a WebSocket on a connection that has served
requests before; then Hypercorn gives the connection back.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import trio

from broker.ids import new_id
from broker.services import Services
from broker.trace.refusals import Refusals
from config.settings import Address
from protocols.http.application import build_accounts_app, build_app
from protocols.http.heads import HEAD_BYTES, is_websocket_upgrade, is_whole, read_head, split_head
from protocols.http.hypercorn_adapter import HypercornAdapter
from protocols.listeners import Stream, end_gently, serve_tcp
from protocols.refusals import rest_error_body
from protocols.tls import TlsContext

HEAD_SECONDS: Final = 10.0
_LINGER_SECONDS: Final = 1.0

#: Called with the head of a request for a WebSocket, the bytes that came behind the head, and the connection.
WebSocketServer = Callable[[bytes, bytes, Stream], Awaitable[None]]


async def serve_http(
    services: Services,
    bind: Address,
    connections: trio.Nursery,
    *,
    websocket: WebSocketServer | None,
    ssl_context: TlsContext | None = None,
    is_secure: bool = False,
    is_accounts: bool = False,
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
        task_status: told the bound address.

    Raises:
        OSError: the address cannot be bound.
    """
    app = build_accounts_app(services) if is_accounts else build_app(services, is_secure=is_secure)
    adapter = HypercornAdapter(
        app, grace_seconds=services.core.settings.grace_seconds, overhead=services.limits.overhead
    )
    connections.start_soon(adapter.stop_after, services.core.life.stopping)
    await serve_tcp(
        bind,
        FrontDoor(adapter, websocket, services.core.refusals).serve_connection,
        protocol="http",
        refusals=services.core.refusals,
        connections=connections,
        ssl_context=ssl_context,
        task_status=task_status,
    )


class FrontDoor:
    def __init__(self, adapter: HypercornAdapter, websocket: WebSocketServer | None, refusals: Refusals) -> None:
        self._refusals = refusals
        self._adapter = adapter
        self._websocket = websocket

    async def serve_connection(self, stream: Stream) -> None:
        """Serve one connection from its first byte to its last."""
        head = bytearray()
        with self._adapter.timeouts.limit(HEAD_SECONDS, in_flight=False) as scope:
            await read_head(stream, head)
        if not head:
            return
        if scope.cancelled_caught:
            await self._refuse(stream, HTTPStatus.REQUEST_TIMEOUT)
            return
        if len(head) >= HEAD_BYTES and not is_whole(head):
            await self._refuse(stream, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        upgrade = bytes(head)
        if self._websocket is None:
            while upgrade:  # Hypercorn answers it as any other request
                upgrade = await self._adapter.serve_connection(upgrade, stream)
            return
        if not is_websocket_upgrade(head):
            upgrade = await self._adapter.serve_connection(upgrade, stream)
        if upgrade:
            await self._websocket(*split_head(upgrade), stream)

    async def _refuse(self, stream: Stream, status: HTTPStatus) -> None:
        error_id = new_id()
        self._refusals.note("http_head_refused", reason=status.phrase, error_id=error_id, status=status.value)
        await _answer(stream, status, error_id)


async def _answer(stream: Stream, status: HTTPStatus, error_id: str) -> None:
    body = rest_error_body(status.value, status.phrase, error_id)
    answer = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    with trio.move_on_after(_LINGER_SECONDS):
        await stream.send_all(answer + body)
        await end_gently(stream)
