"""Hypercorn as a function of one connection: its configuration, its log, and how it stops.

It speaks HTTP/1.1 only: a request for an upgrade is answered as if it did not ask (RFC 9110, 7.8), and a client that
begins with HTTP/2 gets 505. Hypercorn would grant both. WebSockets never come here: front_door.py hands them on.

Hypercorn shields what it sends from cancellation, so a peer that does not read could keep a stopping daemon waiting
without end. Therefore each wait for a peer is in a scope of `PeerTimeouts`, which the adapter can end.

This module subclasses `TCPServer` and relies on details that Hypercorn does not document. So pyproject.toml bounds
Hypercorn's version above, and tests/protocols/http/test_hypercorn_adapter.py fails when one of these details changes.
"""

import re
import time
from contextlib import suppress
from typing import Any, Final

import h11
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.logging import Logger
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    ConnectionState,
    HTTPScope,
    Scope,
)

from broker.limits.bodies import BodyBudget
from broker.limits.overhead import Overhead
from broker.registration.certificates import ClientCertificate
from broker.trace.refusals import Refusals
from protocols.http.bodies import STATE_KEY as BODY_KEY
from protocols.http.bodies import HeldBody
from protocols.http.direct import DirectCalls
from protocols.http.forwarded import Forwarded
from protocols.http.heads import HEAD_BYTES, is_websocket_upgrade
from protocols.http.hypercorn_stream import HypercornStream
from protocols.http.parked import KEEP_ALIVE_SECONDS
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.http.peers import STATE_KEY
from protocols.http.pipelining import PIPELINE_KEY
from protocols.metrics.vitals import Traffic
from protocols.streams.listeners import Stream
from protocols.streams.peers import Peer, current_peer
from protocols.streams.proxies import TrustedProxies
from protocols.streams.tls import peer_certificate
from protocols.streams.turnstile import Turnstile

_DRAIN_SECONDS: Final = 2.0
#: A connection whose time is over and for which bytes have come at the same moment needs so many turns of the loop to
#: notice its request.
_TURNS_TO_READ: Final = 10
#: The key of the connection's stream in the state that its requests share.
_STREAM: Final = "stream"
_EMPTY_LINES: Final = re.compile(rb"(?:\r?\n)+")

_log = structlog.get_logger(__name__)


class HypercornAdapter:
    """Serves one ASGI application on any number of connections."""

    def __init__(
        self,
        app: ASGIFramework,
        *,
        timeouts: PeerTimeouts,
        refusals: Refusals,
        overhead: Overhead,
        bodies: BodyBudget | None = None,
        proxies: TrustedProxies | None = None,
        takes_upgrades: bool = True,
        traffic: Traffic | None = None,
        direct: DirectCalls | None = None,
        turnstile: Turnstile | None = None,
    ) -> None:
        """`bodies` is the budget of all listeners, `proxies` those whose word about clients counts, `traffic` counts.

        `direct` gets each connection back after an answer, for the plain calls that follow. Strangers wait at the
        `turnstile`.

        Without `takes_upgrades`, a request for a WebSocket is answered as any other.
        """
        self._takes_upgrades = takes_upgrades
        self.timeouts = timeouts
        self._direct = direct
        self._refusals = refusals
        self._overhead = overhead
        self._turnstile = turnstile
        self._app = ASGIWrapper(_Requests(app, proxies or TrustedProxies(), traffic or Traffic()))
        self._config = _config()
        self._bodies = bodies or BodyBudget()
        self._context = WorkerContext(None)
        self._open = 0  # connections
        self._none_open = trio.Event()  # replaced when a connection opens
        self._none_open.set()

    async def serve_connection(self, head: bytes, stream: Stream) -> bytes:
        """Serve a connection to its end, or until a request asks for a WebSocket.

        Returns:
            The head of the request for a WebSocket, with the bytes that came behind it; empty at the connection's end.
        """
        http_stream = HypercornStream(head, stream, self.timeouts, self._overhead, self._refusals, self._turnstile)
        http_stream.takes_upgrades = self._takes_upgrades
        http_stream.direct = self._direct
        if not self._open:
            self._none_open = trio.Event()
        self._open += 1
        try:
            await _Server(self._app, self._config, self._context, http_stream, peer_certificate(stream), self._bodies)
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


class _Http1Connection(h11.Connection):
    """Refuses what h11 would accept, and keeps requests for an upgrade from Hypercorn, which would grant them.

    Refused are other versions than HTTP/1, and two lengths of one body: what one server takes for the end of a request,
    another one takes for a part of it (RFC 9112, 6.1).
    """

    def __init__(self, stream: HypercornStream, **options: Any) -> None:
        super().__init__(h11.SERVER, **options)
        self._stream = stream

    def next_event(self) -> Any:
        if self.their_state is h11.MUST_CLOSE and (behind := self.trailing_data[0]):
            # No request begins behind the last one (RFC 9112, 9.6), and many small devices send an empty line there.
            # h11 takes it for an error, for which Hypercorn would end the last request, too.
            self._receive_buffer.maybe_extract_at_most(len(behind))
        if self.their_state is h11.IDLE and (empty := _EMPTY_LINES.match(self.trailing_data[0])) is not None:
            # Before a request (RFC 9112, 2.2). All at once: one by one, thousands of them would stop the loop.
            self._receive_buffer.maybe_extract_at_most(empty.end())
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            raise error.with_traceback(None) from None  # it has passed a frame that refers to it
        if not isinstance(event, h11.Request):
            return event
        if not event.http_version.startswith(b"1."):
            raise h11.RemoteProtocolError("not HTTP/1", error_status_hint=505)
        names = {name for name, _ in event.headers}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise h11.RemoteProtocolError("two lengths of one body", error_status_hint=400)
        if b"upgrade" not in names:
            return event
        if self._stream.takes_upgrades and is_websocket_upgrade(head := _head_of(event)):
            # It came behind another request, in one segment: others never get here.
            self._stream.upgrade = head + self.trailing_data[0]
            return h11.NEED_DATA
        kept = [(name, value) for name, value in event.headers if name != b"upgrade"]
        return h11.Request(method=event.method, target=event.target, headers=kept, http_version=event.http_version)


def _head_of(request: h11.Request) -> bytes:
    """The head as it was sent."""
    lines = [b"%b %b HTTP/%b" % (request.method, request.target, request.http_version)]
    lines += [b"%b: %b" % header for header in request.headers.raw_items()]
    return b"\r\n".join([*lines, b"", b""])


class _Http1(H11Protocol):
    def __init__(self, http_stream: HypercornStream, bodies: BodyBudget, *args: Any) -> None:
        super().__init__(*args)
        self._http_stream = http_stream
        self._bodies = bodies
        self.connection = _Http1Connection(http_stream, max_incomplete_event_size=self.config.h11_max_incomplete_size)

    async def _create_stream(self, request: h11.Request) -> None:
        # Before the task that reads asks the stream for more.
        self._http_stream.held = HeldBody.of(request.headers, self._bodies)
        await super()._create_stream(request)

    @property
    def has_begun_head(self) -> bool:
        """Whether bytes of the next request have come; empty lines before it are none of them."""
        behind = self.connection.trailing_data[0]
        return bool(behind) and _EMPTY_LINES.fullmatch(behind) is None


class _Server(TCPServer):
    """Speaks HTTP/1.1, and tells its stream when no request is under way."""

    def __init__(
        self,
        app: ASGIWrapper,
        config: Config,
        context: WorkerContext,
        stream: HypercornStream,
        certificate: ClientCertificate | None,
        bodies: BodyBudget,
    ) -> None:
        # TCPServer's annotation says SSLStream, but TCPServer serves every stream that has the methods that it uses.
        replaced: Any = stream
        state = ConnectionState({STATE_KEY: certificate, PIPELINE_KEY: stream.pipeline, _STREAM: stream})
        super().__init__(app, config, context, state, replaced)
        self._bodies = bodies
        self._http_stream = stream
        stream.stop_idling = self.idle_task.stop

    async def run(self) -> None:
        """As TCPServer's, for HTTP/1.1 on a stream whose TLS handshake is over."""
        peer = current_peer()
        try:
            async with TaskGroup() as task_group:
                self._task_group = task_group
                http: Any = _Http1(
                    self._http_stream,
                    self._bodies,
                    self.app,
                    self.config,
                    self.context,
                    task_group,
                    ConnectionState(self.state),
                    self._http_stream.is_encrypted,
                    (peer.address, peer.port),
                    self._http_stream.bound,
                    self.protocol_send,
                )
                self.protocol = self._http = http
                await self.idle_task.restart(task_group, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass
        finally:
            await self._close()
            self._break_cycles()

    def _break_cycles(self) -> None:
        """All tasks of the connection have ended. Its objects refer to each other, and strangers decide how many
        connections end: the garbage collector would stop the loop for tens of milliseconds."""
        self._http_stream.stop_idling = trio.lowlevel.checkpoint
        own = vars(self)
        for one in (own.get("_http"), own.get("_task_group"), self):
            if one is not None:
                vars(one).clear()

    async def _idle_timeout(self) -> None:
        """As TCPServer's; but after a pause of the whole process, what lies in the socket is read first."""
        with trio.move_on_after(self.config.keep_alive_timeout):
            await self.context.terminated.wait()
        for _ in range(_TURNS_TO_READ):
            await trio.lowlevel.checkpoint()  # is cancelled when a request begins
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()

    async def protocol_send(self, event: Event) -> None:
        if not isinstance(event, Updated):
            await super().protocol_send(event)
            return
        self._http_stream.turn(is_idle=event.idle, has_begun_head=event.idle and self._http.has_begun_head)
        # Hypercorn calls this method, too, from the task of a request that it has just cancelled. The shield makes sure
        # that the timer of the idle connection is set.
        with trio.CancelScope(shield=True):
            await super().protocol_send(event)
            if event.idle:
                # The task that reads gets the same error.
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._http_stream.flush()


class _Requests:
    """The application as Hypercorn calls it: each request with its client's address, and perhaps with a held body.

    An answer waits until the request has arrived: if the connection were closed while the peer still sends, the peer
    would get a reset instead of the answer. Where a held body has not been taken, the stream takes care of that.
    """

    def __init__(self, app: ASGIFramework, proxies: TrustedProxies, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000, "reason": None})
            return
        await scope["state"][PIPELINE_KEY].wait_turn()
        began = time.perf_counter()
        _name_client(scope, current_peer(), self._proxies)
        arrived, held = trio.Event(), _held(scope)

        async def receive_until_arrived() -> ASGIReceiveEvent:
            event = await receive()
            if not event.get("more_body", False):
                arrived.set()
            return event if held is None else held.counted(event)

        async def send_when_arrived(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start":
                self._traffic.answered(time.perf_counter() - began, event["status"])
                if not arrived.is_set():
                    if held is not None and not held.opened.is_set():
                        event["headers"] = [*event["headers"], (b"connection", b"close")]
                    else:
                        with trio.move_on_after(_DRAIN_SECONDS):
                            await arrived.wait()
            await send(event)

        try:
            await self._app(scope, receive_until_arrived, send_when_arrived)
        finally:
            if held is not None:
                if arrived.is_set():  # also a body that nobody took: it came together with its head
                    held.opened.set()
                held.release()


def _held(scope: HTTPScope) -> HeldBody | None:
    """The body of the request, if it is held; the application finds it in the same state."""
    stream: HypercornStream = scope["state"].pop(_STREAM)
    scope["state"][BODY_KEY] = stream.held
    return stream.held


def _name_client(scope: HTTPScope, peer: Peer, proxies: TrustedProxies) -> None:
    """Put the address and the scheme of the client into a request that a trusted proxy has sent."""
    if not peer.is_proxy:
        return
    forwarded = Forwarded(scope["headers"])
    scope["client"] = (forwarded.client(peer.address, proxies), 0)
    if forwarded.is_https is not None:
        scope["scheme"] = "https" if forwarded.is_https else "http"


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
