"""Hypercorn as a function of one connection: its configuration, its log, and how it stops.

It speaks HTTP/1.1 only: a request for an upgrade is answered as if it did not ask (RFC 9110, 7.8), and a client that
begins with HTTP/2 gets 505. Hypercorn would grant both. WebSockets never come here: front_door.py hands them on.

What is sent is shielded from cancellation, so a peer that does not read could keep a stopping daemon waiting without
end. Therefore each wait for a peer is in a scope of `PeerTimeouts`, which the adapter can end.

Hypercorn documents none of the classes that hypercorn_connection.py drives. So pyproject.toml allows only the version
that was tested, and tests/protocols/http/test_hypercorn_adapter.py names each attribute that is relied on.
"""

import time
from typing import Any, Final

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.logging import Logger
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
    Scope,
)

from broker.limits.bodies import BodyBudget
from broker.limits.overhead import Overhead
from broker.trace.refusals import Refusals
from protocols.http.bodies import STATE_KEY as BODY_KEY
from protocols.http.direct import DirectCalls
from protocols.http.forwarded import Forwarded
from protocols.http.hypercorn_connection import CONNECTION_KEY, HypercornConnection
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.metrics.vitals import Traffic
from protocols.streams.listeners import Stream
from protocols.streams.peers import Peer, current_peer
from protocols.streams.proxies import TrustedProxies
from protocols.streams.turnstile import Turnstile

_DRAIN_SECONDS: Final = 2.0

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
        connection = HypercornConnection(
            head,
            stream,
            self.timeouts,
            self._overhead,
            self._refusals,
            self._turnstile,
            bodies=self._bodies,
            direct=self._direct,
            takes_upgrades=self._takes_upgrades,
        )
        if not self._open:
            self._none_open = trio.Event()
        self._open += 1
        try:
            return await connection.run(self._app, self._config, self._context)
        finally:
            self._open -= 1
            if not self._open:
                self._none_open.set()

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
        connection: HypercornConnection = scope["state"].pop(CONNECTION_KEY)
        held = scope["state"][BODY_KEY] = connection.held
        await connection.wait_turn()
        began = time.perf_counter()
        _name_client(scope, current_peer(), self._proxies)
        arrived = trio.Event()

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
    config.keep_alive_max_requests = 1_000_000
    return config
