"""Serving alone: a daemon over PostgreSQL takes the lease of the store before it reads anything else, and keeps it.

While another node has it, this one stands by: it opens the ports of HTTP alone, so that a balancer or a supervisor can
ask for its health, and no port for devices, so that devices go where they are served at once.
"""

import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from broker.cluster.keeper import DAEMON, Keeper
from broker.cluster.leases import Leases
from config.settings import Address, Settings
from protocols.errors import ListenerError, StateError
from protocols.operation import systemd
from protocols.streams.inherited import open_tcp
from protocols.streams.proxy_protocol import ProxyHeaderError, receive_source
from storage.lease_table import LeaseTable
from storage.leases import HeldLease, LeaseRecord
from storage.sql import StoreError

if TYPE_CHECKING:
    from storage.engines.postgresql import PostgresqlEngine

_HEAD_BYTES: Final = 8192
_SECONDS: Final = 5.0  # for one request
_CONNECTIONS: Final = 200
_BACKLOG: Final = 128
#: The server has this long to say for which connections it works.
_ASK_SECONDS: Final = 8.0
_BUSY: Final = b'{"error":{"code":503,"message":"This machine stands by: another one serves"}}'

_log = structlog.get_logger(__name__)


class Serving:
    """The right to serve, which this daemon has."""

    def __init__(self, keeper: Keeper) -> None:
        self.leases = Leases(keeper)
        #: Feeds systemd's watchdog until the store itself does.
        self.starting = trio.CancelScope()


@asynccontextmanager
async def serving_alone(
    engine: "PostgresqlEngine", settings: Settings, tls: Callable[[], ssl.SSLContext], stop: trio.Event | None
) -> AsyncIterator[Serving | None]:
    """Wait for the lease of the store, and keep it until the block has ended. None: the daemon was stopped before.

    Args:
        engine: writes nothing from then on that another daemon does not know of.
        settings: with the name of this node and the addresses of HTTP.
        tls: makes the context of HTTP with TLS.
        stop: ends the wait as a signal would.

    Raises:
        FencedError: within the block: another node has taken the lease over.
        ListenerError: an address cannot be bound.
        StoreError: the store cannot be reached.
    """
    table = LeaseTable(engine, end_sessions=engine.end_sessions)
    cluster = settings.cluster
    keeper = Keeper(table, cluster.name, engine.instance, cluster.lease_seconds)
    try:
        await table.prepare(engine.prepare_leases)
        if (held := await _lease(engine, keeper, settings, tls, stop)) is None:
            yield None
            return
        engine.fence_with(held)
        async with trio.open_nursery() as nursery:
            serving = Serving(keeper)
            nursery.start_soon(keeper.keep_forever)
            nursery.start_soon(cut_silent_forever, engine)
            nursery.start_soon(_feed_watchdog, serving.starting)
            try:
                yield serving
            finally:
                with trio.CancelScope(shield=True):
                    await keeper.give_back()
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await table.close()


@asynccontextmanager
async def alone_for_a_command(engine: "PostgresqlEngine", settings: Settings) -> AsyncIterator[None]:
    """As `serving_alone`, for a command that writes as a daemon does.

    Raises StateError: a daemon serves, on this machine or another one.
    """
    table = LeaseTable(engine, end_sessions=engine.end_sessions)
    cluster = settings.cluster
    keeper = Keeper(table, f"{cluster.name} (command)", engine.instance, cluster.lease_seconds)
    try:
        await table.prepare(engine.prepare_leases)
        if (held := await keeper.try_to_take()) is None:
            holder = await table.find(DAEMON)
            name = "another node" if holder is None else f"node {holder.node}"
            raise StateError(f"{engine}: {name} serves this store: give the command there, or stop the daemon")
        engine.fence_with(held)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.keep_forever)
            try:
                yield
            finally:
                with trio.CancelScope(shield=True):
                    await keeper.give_back()
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await table.close()


async def cut_silent_forever(engine: "PostgresqlEngine") -> None:
    """Break the connections that wait for an answer that will not come.

    A proxy may lose what goes through a connection that stays open, and a server may stand still: TCP notices neither.
    So when an answer has not come within the patience, the server is asked through another connection whether it still
    works for it. A long statement is left alone.
    """
    patience = max(engine.contact.patience_seconds, 1.0)
    while True:
        await trio.sleep(patience / 2)
        if not (silent := engine.silent(patience)):
            continue
        busy: set[str] = set()  # when the server does not say it
        with trio.move_on_after(_ASK_SECONDS), suppress(StoreError):
            busy = await trio.to_thread.run_sync(engine.are_busy, silent, abandon_on_cancel=True)
        still = engine.silent(patience)
        if cut := [one for one in silent if one in still and one.name not in busy]:
            _log.warning("store_silent", connections=len(cut), seconds=round(patience))
            for one in cut:
                one.cut()


async def _lease(
    engine: "PostgresqlEngine",
    keeper: Keeper,
    settings: Settings,
    tls: Callable[[], ssl.SSLContext],
    stop: trio.Event | None,
) -> HeldLease | None:
    held: HeldLease | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut_silent_forever, engine)
        waiting = _Waiting(nursery, settings, tls, stop)
        try:
            held = await keeper.take(waiting.begin)
        finally:
            waiting.end()
        nursery.cancel_scope.cancel()
    if waiting.problem is not None:
        raise waiting.problem
    if held is not None and waiting.has_begun:
        _log.info("taken_over", node=held.node, epoch=held.epoch)
        systemd.notify("STATUS=Takes over")
    return held


class _Waiting:
    """The time in which another node serves."""

    def __init__(
        self,
        nursery: trio.Nursery,
        settings: Settings,
        tls: Callable[[], ssl.SSLContext],
        stop: trio.Event | None,
    ) -> None:
        self._nursery = nursery
        self._settings = settings
        self._tls = tls
        self._stop = stop
        self._handler: object = None
        self.has_begun = False
        self.problem: ListenerError | None = None

    def begin(self, holder: LeaseRecord) -> None:
        _log.info("stands_by", serves=holder.node, epoch=holder.epoch)
        systemd.notify(f"READY=1\nSTATUS=Stands by: node {holder.node} serves")
        if self.has_begun:
            return
        self.has_begun = True
        self._handler = signal.signal(signal.SIGHUP, _read_later)
        self._nursery.start_soon(self._wait_for_stop)
        self._nursery.start_soon(_feed_watchdog, trio.CancelScope())
        self._nursery.start_soon(self._listen)

    def end(self) -> None:
        if self.has_begun:
            signal.signal(signal.SIGHUP, self._handler)  # type: ignore[arg-type] # as it was given

    async def _wait_for_stop(self) -> None:
        async with trio.open_nursery() as nursery:
            if self._stop is not None:
                nursery.start_soon(_cancel_when, self._stop, nursery.cancel_scope)
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                await anext(signals)
                nursery.cancel_scope.cancel()
        systemd.notify("STOPPING=1")
        self._nursery.cancel_scope.cancel()

    async def _listen(self) -> None:
        http = self._settings.http
        if "LISTEN_FDS" in os.environ:  # the sockets are systemd's: who connects waits for the take-over
            return
        places = trio.CapacityLimiter(_CONNECTIONS)
        try:
            async with trio.open_nursery() as nursery:
                is_proxied = http.proxy_protocol == "required"
                if http.bind is not None:
                    await nursery.start(_serve, http.bind, None, is_proxied, places)
                if http.tls_bind is not None:
                    await nursery.start(_serve, http.tls_bind, self._tls(), is_proxied, places)
        except OSError as error:
            self.problem = ListenerError(f"http cannot listen on {error.filename}: {error.strerror or error}")
            self._nursery.cancel_scope.cancel()


async def _serve(
    bind: Address,
    context: ssl.SSLContext | None,
    is_proxied: bool,
    places: trio.CapacityLimiter,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    listeners = await open_tcp(bind, backlog=_BACKLOG)
    task_status.started()
    try:
        await trio.serve_listeners(partial(_answer, context, is_proxied, places), listeners)
    finally:
        for listener in listeners:
            listener.socket.close()


async def _answer(
    context: ssl.SSLContext | None,
    is_proxied: bool,
    places: trio.CapacityLimiter,
    stream: trio.SocketStream,
) -> None:
    """Answer one request and close."""
    transport: trio.abc.Stream = stream
    try:
        places.acquire_nowait()
    except trio.WouldBlock:
        await trio.aclose_forcefully(stream)
        return
    try:
        with trio.move_on_after(_SECONDS):
            if is_proxied:
                await receive_source(stream.socket)
            if context is not None:
                transport = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
            head = b""
            while b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES:
                if not (received := await transport.receive_some(_HEAD_BYTES)):
                    return
                head += received
            await transport.send_all(_response(head))
            if context is None:  # closed with a body unread, the connection would be reset before the answer is read
                await stream.send_eof()
                while await stream.receive_some():
                    pass
            await transport.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError, ProxyHeaderError, OSError):
        pass
    finally:
        places.release()
        await trio.aclose_forcefully(stream)


def _response(head: bytes) -> bytes:
    path = head.split(b" ", 2)[1].partition(b"?")[0] if head.count(b" ") > 1 else b""
    status, kind, body = b"503 Service Unavailable", b"application/json", _BUSY
    if path == b"/healthz":
        status, kind, body = b"200 OK", b"text/plain; charset=utf-8", b"ok\n"
    elif path == b"/readyz":
        kind, body = b"text/plain; charset=utf-8", b"stands by: another node serves\n"
    retry = b"" if status.startswith(b"200") else b"Retry-After: 5\r\n"
    answer = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n" % (status, kind, len(body))
    answer += retry + b"Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    return answer if head.startswith(b"HEAD ") else answer + body


async def _feed_watchdog(scope: trio.CancelScope) -> None:
    """Until the store itself says that the daemon lives."""
    if (period := systemd.watchdog_seconds()) is None:
        return
    with scope:
        while True:
            systemd.notify("WATCHDOG=1")
            await trio.sleep(period / 3)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _read_later(_number: int, _frame: object) -> None:
    """Certificates are read at the take-over; what else SIGHUP reloads needs a restart of a daemon that stands by."""
