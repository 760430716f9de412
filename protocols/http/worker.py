"""Hypercorn as a function of one connection: its configuration, its log, and how it stops.

Hypercorn shields what it sends from cancellation, so a peer that does not read could hold up a stopping daemon for
ever. Every wait for a peer therefore happens in a scope that this worker can end.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.logging import Logger
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    ConnectionState,
    Scope,
)

from protocols.http.heads import HEAD_BYTES, for_http_1, is_websocket_upgrade, read_head
from protocols.http.peers import STATE_KEY
from protocols.listeners import Stream
from protocols.streams import ReplayedStream
from protocols.tls import client_certificate

KEEP_ALIVE_SECONDS = 75
_SEND_SECONDS = 30.0
_DRAIN_SECONDS = 2.0
_HELD_BYTES = 64 * 1024

_log = structlog.get_logger(__name__)


class Patience:
    """Waits for peers that end when their time is over, and early when the daemon stops."""

    def __init__(self, *, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._scopes: dict[trio.CancelScope, float] = {}
        self._stopped_at = float("inf")

    @contextmanager
    def wait(self, seconds: float, *, in_flight: bool) -> Iterator[trio.CancelScope]:
        """After a stop, what is in flight has the grace period left; everything else ends at once."""
        grace = self._grace_seconds if in_flight else 0.0
        deadline = min(trio.current_time() + seconds, self._stopped_at + grace)
        with trio.CancelScope(deadline=deadline) as scope:
            self._scopes[scope] = grace
            try:
                yield scope
            finally:
                del self._scopes[scope]

    def stop(self, *, at_once: bool) -> None:
        if at_once:
            self._grace_seconds = 0.0
        self._stopped_at = trio.current_time()
        for scope, grace in self._scopes.items():
            scope.deadline = min(scope.deadline, self._stopped_at + min(grace, self._grace_seconds))


class Worker:
    """Serves one ASGI application on any number of connections."""

    def __init__(self, app: ASGIFramework, *, grace_seconds: float) -> None:
        self.patience = Patience(grace_seconds=grace_seconds)
        self._app = ASGIWrapper(_Drained(app))
        self._config = _config()
        self._context = WorkerContext(None)

    async def converse(self, head: bytes, stream: Stream) -> bytes:
        """Serve a connection to its end, or until it asks for a WebSocket; then give back the head that asks for it."""
        kind = _EncryptedHttpStream if isinstance(stream, trio.SSLStream) else _HttpStream
        http_stream = kind(head, stream, self.patience)
        await _Server(self._app, self._config, self._context, http_stream)
        return http_stream.upgrade

    async def stop_after(self, stopping: trio.Event) -> None:
        """Idle connections are closed, requests in flight are answered, later ones are not read any more."""
        at_once = True
        try:
            await stopping.wait()
            at_once = False
        finally:
            self.patience.stop(at_once=at_once)
            await self._context.terminated.set()


class _HttpStream(ReplayedStream):
    """The stream of one connection as Hypercorn sees it.

    An answer is held back until Hypercorn is ready for the next request, or it grows large. So it leaves in one piece,
    and whatever a client sends on seeing it is the beginning of a request.
    """

    def __init__(self, head: bytes, stream: Stream, patience: Patience) -> None:
        super().__init__(for_http_1(head), stream)
        self._patience = patience
        self._raw = stream
        self.certificate = client_certificate(stream)
        self._replayed = False
        self._held = bytearray()
        self._is_streaming = False
        self._sending = trio.Lock()
        self.is_idle = True
        #: The head of a request for a WebSocket. From then on Hypercorn is told that the peer has gone.
        self.upgrade = b""
        #: At the end of the stream. Hypercorn would keep the connection until its keep-alive time is over.
        self.stop_idling: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        received = b""
        try:
            received = await self._next(max_bytes)
        finally:
            if not received:
                await self.stop_idling()
        return received

    async def _next(self, max_bytes: int | None) -> bytes:
        if not self._replayed:
            self._replayed = True
            return await super().receive_some()
        received = await super().receive_some(max_bytes)
        if not received or not self.is_idle:
            return received
        # No request is under way, so a new one begins here.
        head = bytearray(received)
        await read_head(self._raw, head)
        if is_websocket_upgrade(head):
            self.upgrade = bytes(head)
            return b""
        return for_http_1(head)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._held += data
        if data[:9] == b"HTTP/1.1 ":
            self._is_streaming = data[9:10] == b"1" or b"transfer-encoding: chunked" in bytes(data).lower()
        if self._is_streaming or len(self._held) > _HELD_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send what is held. Raises BrokenResourceError, also when the peer does not read."""
        async with self._sending:
            data, self._held = self._held, bytearray()
            if not data:
                return
            with self._patience.wait(_SEND_SECONDS, in_flight=True) as scope:
                await super().send_all(data)
            if scope.cancelled_caught:
                raise trio.BrokenResourceError("the peer does not read")

    async def send_eof(self) -> None:
        # Hypercorn closes from inside the request that it has just told to end. Were the first step of it cancelled,
        # the second would never come, and the peer would wait for the end of `Connection: close`.
        with trio.CancelScope(shield=True):
            if not self.upgrade:
                await self.flush()
                await super().send_eof()

    async def aclose(self) -> None:
        if not self.upgrade:
            await super().aclose()


class _EncryptedHttpStream(_HttpStream):
    """What Hypercorn asks of an SSLStream. The handshake is over."""

    async def do_handshake(self) -> None:
        await trio.lowlevel.checkpoint()

    def selected_alpn_protocol(self) -> str:
        return "http/1.1"

    @property
    def transport_stream(self) -> ReplayedStream:
        return self


class _Server(TCPServer):
    """Tells its stream when no request is under way."""

    def __init__(self, app: ASGIWrapper, config: Config, context: WorkerContext, stream: _HttpStream) -> None:
        # TCPServer asks for an SSLStream and serves whatever has the methods that it uses.
        replayed: Any = stream
        super().__init__(app, config, context, ConnectionState({STATE_KEY: stream.certificate}), replayed)
        self._http_stream = stream
        stream.stop_idling = self.idle_task.stop

    async def protocol_send(self, event: Event) -> None:
        if not isinstance(event, Updated):
            await super().protocol_send(event)
            return
        self._http_stream.is_idle = event.idle
        # This, too, happens inside the request that was told to end; the timer of an idle connection must be set.
        with trio.CancelScope(shield=True):
            await super().protocol_send(event)
            if event.idle:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the reader will see it
                    await self._http_stream.flush()


class _Drained:
    """An application whose answers wait until the request has arrived.

    A peer that is still sending when the connection is closed gets a reset instead of the answer that explains why.
    """

    def __init__(self, app: ASGIFramework) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000, "reason": None})
            return
        arrived = trio.Event()

        async def receive_until_arrived() -> ASGIReceiveEvent:
            event = await receive()
            if not event.get("more_body", False):
                arrived.set()
            return event

        async def send_when_arrived(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start" and not arrived.is_set():
                with trio.move_on_after(_DRAIN_SECONDS):
                    await arrived.wait()
            await send(event)

        await self._app(scope, receive_until_arrived, send_when_arrived)


class _Log(Logger):
    """Hypercorn's own words go where everyone's go. Accesses are not logged."""

    async def access(self, *_about: Any) -> None:
        pass

    async def exception(self, message: str, *_args: Any, **_kwargs: Any) -> None:
        _log.exception("http_server_failed", reason=message)

    async def warning(self, message: str, *args: Any, **_kwargs: Any) -> None:
        _log.warning("http_server_warning", reason=message % args if args else message)


def _config() -> Config:
    config = Config()
    config.logger_class = _Log
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = HEAD_BYTES
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.keep_alive_max_requests = 1_000_000
    return config
