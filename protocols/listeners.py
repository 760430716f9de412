"""What all TCP listeners share: bind, accept, TLS handshake, and containing the errors of one connection."""

import os
import ssl
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio

from broker.trace.origin import Origin, enter
from broker.trace.refusals import Refusals
from config.settings import Address
from protocols.tls import TlsContext, TlsStream, server_stream

TLS_HANDSHAKE_SECONDS = 10.0
BACKLOG = 2048
_LINGER_BYTES = 1024 * 1024

Stream = trio.SocketStream | TlsStream

_log = structlog.get_logger(__name__)


class ListenerError(Exception):
    """A listener cannot be opened. The text names it and its address."""


async def serve_tcp(
    bind: Address,
    handle: Callable[[Stream], Awaitable[None]],
    *,
    protocol: str,
    refusals: Refusals,
    connections: trio.Nursery,
    ssl_context: TlsContext | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections until cancelled.

    Args:
        bind: where to listen.
        handle: serves one connection; for TLS, after the handshake.
        protocol: the name in log entries.
        refusals: where failed TLS handshakes are logged.
        connections: the nursery in which connections go on when this listener has ended.
        ssl_context: for TLS; None for plain text.
        task_status: told the bound address, once the listener accepts connections.

    Raises:
        OSError: the address cannot be bound.
    """
    listeners = await trio.open_tcp_listeners(bind.port, host=bind.host, backlog=BACKLOG)
    host, port = listeners[0].socket.getsockname()[:2]
    task_status.started(Address(host, port))
    await trio.serve_listeners(
        partial(_contain, handle, protocol, refusals, ssl_context), listeners, handler_nursery=connections
    )


async def _contain(
    handle: Callable[[Stream], Awaitable[None]],
    protocol: str,
    refusals: Refusals,
    ssl_context: TlsContext | None,
    socket_stream: trio.SocketStream,
) -> None:
    """Serve one connection. An error in it ends this connection only, and is logged once."""
    stream: Stream = socket_stream
    try:
        enter(Origin(_address_of(socket_stream)))
        socket_stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        if ssl_context is not None:
            stream = server_stream(socket_stream, ssl_context)
            await _shake_hands(stream, protocol, refusals)
        await handle(stream)
    except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        pass  # the peer has gone, or did not speak TLS
    except* Exception:  # noqa: BLE001 - a bug must end only its connection
        _log.exception("connection_failed", protocol=protocol)
    finally:
        await trio.aclose_forcefully(stream)


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
        cause = error.__cause__
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):  # otherwise the peer has gone
            refusals.note("tls_refused", reason=str(cause.args[-1]), protocol=protocol)
        raise


def sender_at_once(stream: trio.abc.Stream) -> Callable[[bytes], int] | None:
    """A `send_now` for an `Outbox`: writes what the operating system takes without waiting, and returns how much.

    None for TLS streams, which cannot do that. The function must not run while another task sends on this stream.
    """
    return partial(_send_at_once, stream.socket) if isinstance(stream, trio.SocketStream) else None


def _send_at_once(socket: trio.socket.SocketType, data: bytes) -> int:
    try:
        return os.write(socket.fileno(), data)
    except OSError:  # full or broken: the task that sends the rest waits, or gets the error
        return 0


async def end_gently(stream: trio.abc.Stream) -> None:
    """Send the end of the stream, then read and discard until the peer has closed. The caller sets a time limit.

    If a TCP connection were closed with unread bytes, it would be reset, and bytes on the way to the peer be lost.
    """
    below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    if isinstance(below, trio.abc.HalfCloseableStream):
        await below.send_eof()
    unread = _LINGER_BYTES
    while unread > 0 and (received := await below.receive_some(65536)):
        unread -= len(received)
