"""Common parts of TCP listeners: bind, accept, admit, TLS handshake, and containing the errors of a connection."""

import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
import structlog
import trio

from broker.life import Life
from broker.limits.sockets import Sockets
from broker.limits.strangers import Strangers
from broker.trace.origin import Origin, enter
from broker.trace.refusals import Refusals
from config.settings import Address, Settings
from protocols.streams.accepting import Episodes, accept_forever, at_once
from protocols.streams.binding import bound_address
from protocols.streams.inherited import open_tcp
from protocols.streams.lingering import LINGERING_BYTES, Lingering
from protocols.streams.peers import Peer, current_peer, ended, set_peer, turn_of_strangers
from protocols.streams.proxies import TrustedProxies
from protocols.streams.proxy_protocol import ProxyHeaderError, receive_source
from protocols.streams.tls import TlsContext, TlsStream, abandon, server_stream
from protocols.streams.turnstile import Turnstile

TLS_HANDSHAKE_SECONDS: Final = 10.0
PROXY_HEADER_SECONDS: Final = 3.0
BACKLOG: Final = 2048
_TOO_MANY: Final = "too many unauthenticated connections"

Stream = trio.SocketStream | TlsStream

_log = structlog.get_logger(__name__)


class Entrance(msgspec.Struct, frozen=True):
    """Peers that the listeners admit, and proxies that they trust about a client's address."""

    strangers: Strangers
    proxies: TrustedProxies
    sockets: Sockets | None = None
    _refusals: Episodes = msgspec.field(default_factory=Episodes)

    @classmethod
    def of(cls, strangers: Strangers, sockets: Sockets, settings: Settings) -> "Entrance":
        return cls(strangers, TrustedProxies.of(settings), sockets)

    def admit(self, stream: trio.SocketStream) -> Peer | None:
        """The peer that has connected; None if the connection has no place, or does not come from a proxy and must."""
        try:
            address, port = stream.socket.getpeername()[:2]
        except OSError:  # the peer has gone
            return None
        peer = Peer(address, port, is_proxy=self.proxies.trusts(address))
        if self.proxies.send_header:
            if not peer.is_proxy:
                self._log_refusal("the peer is no trusted proxy", address)
                return None
            return peer  # `client` gives it a place
        peer.place = self.strangers.enter(_limited(peer), stream.socket.close)
        if peer.place is None and not self.strangers.may_wait:
            self._log_refusal(_TOO_MANY, address)
            return None
        return peer

    async def wait_room(self, stream: trio.SocketStream) -> None:
        """Wait until `admit` has a place for the connection, or it is to wait for one of its own address."""
        address = _address_of(stream)
        await self.strangers.wait_room(None if self.proxies.trusts(address) else address)

    async def client(self, proxy: Peer, stream: trio.SocketStream) -> Peer | None:
        """The client that a proxy speaks for, else the peer; None if there is no place, or no valid header. Waits for a
        place while too many of the address are unauthenticated. Raises TooSlowError."""
        if not self.proxies.send_header:
            return proxy if await self._has_place(proxy, stream) else None
        try:
            with trio.fail_after(PROXY_HEADER_SECONDS):
                source = await receive_source(stream.socket)
        except ProxyHeaderError as error:
            self._log_refusal(str(error), proxy.address)
            return None
        peer = proxy
        if source is not None:
            peer = Peer(str(source[0]), source[1], is_proxy=self.proxies.trusts(str(source[0])))
        return peer if await self._has_place(peer, stream) else None

    async def _has_place(self, peer: Peer, stream: trio.SocketStream) -> bool:
        if peer.place is None:
            peer.place = await self.strangers.wait_place(_limited(peer), stream.socket.close)
        if peer.place is None:
            self._log_refusal(_TOO_MANY, peer.address)
        return peer.place is not None

    def _log_refusal(self, reason: str, address: str) -> None:
        if self._refusals.has_begun():
            _log.warning("connections_refused", reason=reason, peer=address)


def _limited(peer: Peer) -> str | None:
    """The address whose connections are limited."""
    return None if peer.is_proxy else peer.address


async def serve_tcp(
    bind: Address,
    handle: Callable[[Stream], Awaitable[None]],
    *,
    protocol: str,
    refusals: Refusals,
    life: Life,
    connections: trio.Nursery,
    entrance: Entrance | None = None,
    ssl_context: TlsContext | None = None,
    ends_with_move: bool = False,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections until cancelled.

    Args:
        bind: where to listen.
        handle: serves one connection; for TLS, after the handshake.
        protocol: the name in log entries.
        refusals: where failed TLS handshakes are logged.
        life: says when the daemon stops.
        connections: the nursery in which connections go on when this listener has ended.
        entrance: who is admitted; None where everybody is.
        ssl_context: for TLS; None for plain text.
        ends_with_move: accept nobody any more when the daemon moves its connections to other nodes: who is refused
            tries the next address.
        task_status: told the bound addresses, once the listener accepts connections.

    Raises:
        OSError: the address cannot be bound.
    """
    listeners = await open_tcp(bind, backlog=BACKLOG)
    task_status.started(bound_address([listener.socket for listener in listeners]))
    serve = partial(
        _contain,
        handle,
        protocol,
        refusals,
        entrance,
        ssl_context,
        Turnstile(connections),
        Lingering(connections, life),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                accept_forever,
                listeners,
                serve,
                _admit_all if entrance is None else entrance.admit,
                protocol=protocol,
                connections=connections,
                wait_room=at_once if entrance is None else entrance.wait_room,
            )
        )
        if ends_with_move:
            await life.moving.wait()
            nursery.cancel_scope.cancel()


def _admit_all(stream: trio.SocketStream) -> Peer:
    return Peer(_address_of(stream))


async def _contain(
    handle: Callable[[Stream], Awaitable[None]],
    protocol: str,
    refusals: Refusals,
    entrance: Entrance | None,
    ssl_context: TlsContext | None,
    turnstile: Turnstile,
    lingering: Lingering,
    socket_stream: trio.SocketStream,
    admitted: Peer,
) -> None:
    """Serve one connection. An error in it ends this connection only, and is logged once."""
    stream: Stream = socket_stream
    peer: Peer | None = admitted
    try:
        if entrance is not None:
            peer = await entrance.client(admitted, socket_stream)
        if peer is None:
            return
        peer.turnstile, peer.lingering = turnstile, lingering
        peer.sockets = None if entrance is None else entrance.sockets
        set_peer(peer)
        enter(Origin(peer.address))
        if ssl_context is not None:
            stream = server_stream(socket_stream, ssl_context)
            await _shake_hands(stream, protocol, refusals)
        await handle(stream)
    except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, ConnectionError):
        pass  # the peer has gone, or did not speak TLS
    except* Exception:  # noqa: BLE001 - a bug must end only its connection
        _log.exception("connection_failed", protocol=protocol)
    finally:
        try:
            await turn_of_strangers()  # they may have left at one moment
        finally:
            if peer is not None:
                ended(peer)
            if isinstance(stream, trio.SSLStream):
                await abandon(stream)
            socket_stream.socket.close()


def _address_of(stream: trio.SocketStream) -> str:
    try:
        address: str = stream.socket.getpeername()[0]
    except OSError:  # the peer has gone
        return ""
    return address


async def _shake_hands(stream: TlsStream, protocol: str, refusals: Refusals) -> None:
    try:
        with trio.fail_after(TLS_HANDSHAKE_SECONDS):
            await stream.do_handshake()
    except trio.TooSlowError:
        refusals.note("tls_refused", reason="took too long", protocol=protocol)
        raise
    except trio.BrokenResourceError as error:
        # The cause must not be a variable here: its traceback refers to this frame, and both to the stream.
        if reason := _fault_of(error):
            refusals.note("tls_refused", reason=reason, protocol=protocol)
        raise


def _fault_of(error: trio.BrokenResourceError) -> str:
    """The peer's fault as a text; empty if the peer has just gone."""
    cause = error.__cause__
    is_fault = isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError)
    return str(cause.args[-1]) if cause is not None and is_fault else ""


async def end_gently(stream: trio.abc.Stream, *, most: int = LINGERING_BYTES) -> None:
    """Send the end of the stream, then read and discard until the peer has closed. The caller sets a time limit.

    At most `most` bytes are read. When it is no more than usual, and a listener has accepted the connection, this
    returns at once: the listener's `Lingering` reads on when the caller has closed the stream.

    If a TCP connection were closed with unread bytes, it would be reset, and bytes on the way to the peer be lost.
    """
    below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    peer = current_peer()
    if peer.lingering is not None and isinstance(below, trio.SocketStream) and most <= LINGERING_BYTES:
        if peer.lingering.take(below.socket, peer.place):
            peer.place = None
        return
    if isinstance(below, trio.abc.HalfCloseableStream):
        await below.send_eof()
    unread = most
    while unread > 0 and (received := await below.receive_some(65536)):
        unread -= len(received)
