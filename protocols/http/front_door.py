"""One port for HTTP and WebSocket: reads the head of the first request and hands the stream on.

A head that is too long or too slow is refused here. What comes after it is the next server's business. Clients that
keep a connection may ask for a WebSocket on one that has served requests before: then it comes back from Hypercorn.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog
import trio

from broker.ids import new_id
from broker.services import Services
from config.settings import Address
from protocols.http.answers import error_body
from protocols.http.heads import HEAD_BYTES, is_websocket_upgrade, is_whole, read_head
from protocols.http.server import build_accounts_app, build_app
from protocols.http.worker import Worker
from protocols.listeners import Stream, serve_tcp
from protocols.streams import ReplayedStream
from protocols.tls import TlsContext

HEAD_SECONDS = 10.0
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1024 * 1024

WebSocketServer = Callable[[trio.abc.HalfCloseableStream], Awaitable[None]]

_log = structlog.get_logger(__name__)


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
    """Accept HTTP and WebSocket connections until cancelled. Raises OSError when the address cannot be bound.

    Args:
        websocket: gets every connection that asks to be a WebSocket, from the first byte of its request on; None where
            there are none, and asking for one says nothing.
        is_secure: whether this is the listener for devices with client certificates, which `ssl_context` asks for.
        is_accounts: whether this is the accounts server's own listener, with its paths at the root.
    """
    app = build_accounts_app(services) if is_accounts else build_app(services, is_secure=is_secure)
    worker = Worker(app, grace_seconds=services.core.settings.grace_seconds)
    connections.start_soon(worker.stop_after, services.core.life.stopping)
    await serve_tcp(
        bind,
        FrontDoor(worker, websocket).welcome,
        protocol="http",
        connections=connections,
        ssl_context=ssl_context,
        task_status=task_status,
    )


class FrontDoor:
    def __init__(self, worker: Worker, websocket: WebSocketServer | None) -> None:
        self._worker = worker
        self._websocket = websocket

    async def welcome(self, stream: Stream) -> None:
        """One connection, from its first byte to its last."""
        head = bytearray()
        with self._worker.patience.wait(HEAD_SECONDS, in_flight=False) as scope:
            await read_head(stream, head)
        if not head:
            return
        if scope.cancelled_caught:
            await _refuse(stream, HTTPStatus.REQUEST_TIMEOUT)
            return
        if len(head) >= HEAD_BYTES and not is_whole(head):
            await _refuse(stream, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        upgrade = bytes(head)
        if self._websocket is None:
            while upgrade:  # to be answered like any other request
                upgrade = await self._worker.converse(upgrade, stream)
            return
        if not is_websocket_upgrade(head):
            upgrade = await self._worker.converse(upgrade, stream)
        if upgrade:
            await self._websocket(ReplayedStream(upgrade, stream))


async def _refuse(stream: Stream, status: HTTPStatus) -> None:
    error_id = new_id()
    _log.info("http_head_refused", error_id=error_id, status=status.value)
    body = error_body(status.value, status.phrase, error_id)
    answer = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    with trio.move_on_after(_LINGER_SECONDS):
        await stream.send_all(answer + body)
        # Closed with unread bytes, the connection would be reset, and the answer with it.
        if isinstance(stream, trio.SocketStream):
            await stream.send_eof()
        unread = _LINGER_BYTES
        while unread > 0 and (received := await stream.receive_some(65536)):
            unread -= len(received)
