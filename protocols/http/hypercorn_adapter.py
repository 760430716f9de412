"""Hypercorn as a function of one connection: its configuration, its log, and how it stops.

Hypercorn shields what it sends from cancellation, so a peer that does not read could keep a stopping daemon waiting
without end. Therefore each wait for a peer is in a scope of `PeerTimeouts`, which the adapter can end.

This module subclasses `TCPServer` and relies on details that Hypercorn does not document. So pyproject.toml bounds
Hypercorn's version above, and tests/protocols/http/test_hypercorn_adapter.py fails when one of these details changes.
"""

from contextlib import suppress
from typing import Any, Final

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

from broker.limits.overhead import Overhead
from broker.registration.certificates import ClientCertificate
from protocols.http.heads import HEAD_BYTES
from protocols.http.hypercorn_stream import EncryptedHypercornStream, HypercornStream
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.http.peers import STATE_KEY
from protocols.http.pipelining import PIPELINE_KEY
from protocols.listeners import Stream
from protocols.tls import peer_certificate

KEEP_ALIVE_SECONDS: Final = 75
_DRAIN_SECONDS: Final = 2.0

_log = structlog.get_logger(__name__)


class HypercornAdapter:
    """Serves one ASGI application on any number of connections."""

    def __init__(self, app: ASGIFramework, *, grace_seconds: float, overhead: Overhead) -> None:
        self.timeouts = PeerTimeouts(grace_seconds=grace_seconds)
        self._overhead = overhead
        self._app = ASGIWrapper(_Drained(app))
        self._config = _config()
        self._context = WorkerContext(None)
        self._open = 0  # connections
        self._none_open = trio.Event()  # replaced when a connection opens
        self._none_open.set()

    async def serve_connection(self, head: bytes, stream: Stream) -> bytes:
        """Serve a connection to its end, or until a request asks for a WebSocket.

        Returns:
            The head of the request for a WebSocket, with the bytes that came behind it; empty at the connection's end.
        """
        kind = EncryptedHypercornStream if isinstance(stream, trio.SSLStream) else HypercornStream
        http_stream = kind(head, stream, self.timeouts, self._overhead)
        if not self._open:
            self._none_open = trio.Event()
        self._open += 1
        try:
            await _Server(self._app, self._config, self._context, http_stream, peer_certificate(stream))
        finally:
            self._open -= 1
            if not self._open:
                self._none_open.set()
        return http_stream.upgrade

    async def stop_after(self, stopping: trio.Event) -> None:
        """After `stopping`, close idle connections, and answer requests in flight but none that begin later.

        Returns when no connection is open. A cancellation ends the grace period of the requests in flight.
        """
        try:
            await stopping.wait()
            await self._stop(at_once=False)
            await self._none_open.wait()
        except trio.Cancelled:
            await self._stop(at_once=True)
            raise

    async def _stop(self, *, at_once: bool) -> None:
        self.timeouts.stop(at_once=at_once)
        await self._context.terminated.set()  # Hypercorn's events set without waiting


class _Server(TCPServer):
    """Tells its stream when no request is under way."""

    def __init__(
        self,
        app: ASGIWrapper,
        config: Config,
        context: WorkerContext,
        stream: HypercornStream,
        certificate: ClientCertificate | None,
    ) -> None:
        # TCPServer's annotation says SSLStream, but TCPServer serves every stream that has the methods that it uses.
        replaced: Any = stream
        state = ConnectionState({STATE_KEY: certificate, PIPELINE_KEY: stream.pipeline})
        super().__init__(app, config, context, state, replaced)
        self._http_stream = stream
        stream.stop_idling = self.idle_task.stop

    async def protocol_send(self, event: Event) -> None:
        if not isinstance(event, Updated):
            await super().protocol_send(event)
            return
        self._http_stream.is_idle = event.idle
        # Hypercorn calls this method, too, from the task of a request that it has just cancelled. The shield makes sure
        # that the timer of the idle connection is set.
        with trio.CancelScope(shield=True):
            await super().protocol_send(event)
            if event.idle:
                # The task that reads gets the same error.
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._http_stream.flush()


class _Drained:
    """An application whose answers wait until the request has arrived.

    If the connection were closed while the peer still sends, the peer would get a reset instead of the answer.
    """

    def __init__(self, app: ASGIFramework) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000, "reason": None})
            return
        await scope["state"][PIPELINE_KEY].wait_turn()
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
    """Sends Hypercorn's warnings and errors to the daemon's log. Accesses are not logged."""

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
