"""Hypercorn as a function of one request: its configuration and its log.

It speaks HTTP/1.1 only: a request for an upgrade is answered as if it did not ask (RFC 9110, 7.8), and a client that
begins with HTTP/2 gets 505. Hypercorn would grant both. WebSockets never come here: server.py hands them on.

Hypercorn documents none of the classes that hypercorn_exchange.py drives. So pyproject.toml allows only the version
that was tested, and tests/protocols/http/test_hypercorn_adapter.py names each attribute that is relied on.
"""

import re
import time
from collections.abc import Callable
from http import HTTPStatus
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
    HTTPResponseStartEvent,
    HTTPScope,
    Scope,
)

from broker.limits.bodies import BodyBudget
from protocols.http.bodies import STATE_KEY as BODY_KEY
from protocols.http.forwarded import Forwarded
from protocols.http.hypercorn_exchange import EXCHANGE_KEY, HypercornExchange, RequestCarrier
from protocols.metrics.vitals import Traffic
from protocols.streams.peers import Peer, current_peer
from protocols.streams.proxies import TrustedProxies
from protocols.streams.turnstile import Turnstile

_DRAIN_SECONDS: Final = 2.0
_SERVER_ITSELF: Final = "*"
_ABSOLUTE: Final = re.compile(r"https?://[^/]+(/.*)?", re.IGNORECASE | re.DOTALL)
#: To what is no target, and to what is no host: as Hypercorn's answer to what is no head.
_NO_REQUEST: Final[HTTPResponseStartEvent] = {
    "type": "http.response.start",
    "status": HTTPStatus.BAD_REQUEST.value,
    "headers": [(b"content-length", b"0"), (b"connection", b"close")],
}

_log = structlog.get_logger(__name__)


class HypercornAdapter:
    """Serves one ASGI application on any number of connections."""

    def __init__(
        self,
        app: ASGIFramework,
        *,
        bodies: BodyBudget | None = None,
        proxies: TrustedProxies | None = None,
        traffic: Traffic | None = None,
        turnstile: Turnstile | None = None,
        is_moving: Callable[[], bool] = lambda: False,
    ) -> None:
        """`bodies` is the budget of all listeners, `proxies` those whose word about clients counts, `traffic` counts.
        Strangers wait at the `turnstile`. `is_moving`: whether each answer is the last one of its connection."""
        self._turnstile = turnstile
        self._app = ASGIWrapper(_Requests(app, proxies or TrustedProxies(), traffic or Traffic(), is_moving))
        self._config = _config()
        self._bodies = bodies or BodyBudget()
        self._context = WorkerContext(None)

    async def serve(self, received: bytes, connection: RequestCarrier) -> HypercornExchange:
        """Answer the request that begins with these bytes, which are its whole head at least."""
        exchange = HypercornExchange(connection, self._bodies, self._turnstile)
        await exchange.run(received, self._app, self._config, self._context)
        return exchange


class _Requests:
    """The application as Hypercorn calls it: each request with its client's address, and perhaps with a held body.

    An answer waits until the request has arrived: if the connection were closed while the peer still sends, the peer
    would get a reset instead of the answer. Where a held body has not been taken, the stream takes care of that.
    """

    def __init__(
        self, app: ASGIFramework, proxies: TrustedProxies, traffic: Traffic, is_moving: Callable[[], bool]
    ) -> None:
        self._app = app
        self._is_moving = is_moving
        self._traffic = traffic
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000, "reason": None})
            return
        exchange: HypercornExchange = scope["state"].pop(EXCHANGE_KEY)
        held = scope["state"][BODY_KEY] = exchange.held
        began = time.perf_counter()
        path = _path_of(scope["path"])
        if path is None or not _is_host(scope):
            self._traffic.answered(time.perf_counter() - began, HTTPStatus.BAD_REQUEST)
            await send(_NO_REQUEST)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        scope["path"] = path
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
                if self._is_moving():
                    event["headers"] = [*event["headers"], (b"connection", b"close")]
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


def _path_of(target: str) -> str | None:
    """The path of a request's target without its query (RFC 9112, 3.2); None for a text that is no target.

    Quart would fail for those.
    """
    if target.startswith("/") or target == _SERVER_ITSELF:
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    return None if absolute is None else absolute[1] or "/"


def _is_host(scope: HTTPScope) -> bool:
    """Whether the host of a request can be one (RFC 9112, 3.2; RFC 1034, 3.1). Quart would fail for another."""
    for name, value in scope["headers"]:
        if name == b"host":
            try:
                value.decode("latin-1").lower().partition(":")[0].encode("idna")
            except UnicodeError:
                return False
    return True


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
