"""What every TCP listener does alike: bind, accept, shake hands for TLS, contain what goes wrong in a connection."""

import os
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio

from config.settings import Address
from protocols.tls import TlsContext, TlsStream, server_stream

TLS_HANDSHAKE_SECONDS = 10.0
BACKLOG = 2048
_LINGER_BYTES = 1024 * 1024

Stream = trio.SocketStream | TlsStream

_log = structlog.get_logger(__name__)


async def serve_tcp(
    bind: Address,
    handle: Callable[[Stream], Awaitable[None]],
    *,
    protocol: str,
    connections: trio.Nursery,
    ssl_context: TlsContext | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept until cancelled; connections live on in their own nursery. Started means listening, on the given address.

    Raises OSError when the address cannot be bound.
    """
    listeners = await trio.open_tcp_listeners(bind.port, host=bind.host, backlog=BACKLOG)
    host, port = listeners[0].socket.getsockname()[:2]
    task_status.started(Address(host, port))
    await trio.serve_listeners(partial(_contain, handle, protocol, ssl_context), listeners, handler_nursery=connections)


async def _contain(
    handle: Callable[[Stream], Awaitable[None]],
    protocol: str,
    ssl_context: TlsContext | None,
    socket_stream: trio.SocketStream,
) -> None:
    """The edge of one connection: what is raised in it ends it, is logged once, and touches nothing else."""
    stream: Stream = socket_stream
    try:
        socket_stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        if ssl_context is not None:
            stream = server_stream(socket_stream, ssl_context)
            with trio.fail_after(TLS_HANDSHAKE_SECONDS):
                await stream.do_handshake()
        await handle(stream)
    except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        pass  # the peer is gone, or never spoke TLS
    except* Exception:  # noqa: BLE001 - the one catch for bugs of ours in a connection
        _log.exception("connection_failed", protocol=protocol)
    finally:
        await trio.aclose_forcefully(stream)


def sender_at_once(stream: trio.abc.Stream) -> Callable[[bytes], int] | None:
    """For an `Outbox`: sends what the operating system takes without waiting. None where that cannot be had (TLS).

    Not while somebody else sends on this stream.
    """
    return partial(_send_at_once, stream.socket) if isinstance(stream, trio.SocketStream) else None


def _send_at_once(socket: trio.socket.SocketType, data: bytes) -> int:
    try:
        return os.write(socket.fileno(), data)
    except OSError:  # full or broken: whoever sends the rest will wait, or hear why it cannot be sent
        return 0


async def end_gently(stream: trio.abc.Stream) -> None:
    """Say that nothing more will come, then read until the peer has closed. To be bounded in time by the caller.

    Closed with unread bytes, a TCP connection would be reset, and what is still on its way to the peer lost with it.
    """
    below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    if isinstance(below, trio.abc.HalfCloseableStream):
        await below.send_eof()
    unread = _LINGER_BYTES
    while unread > 0 and (received := await below.receive_some(65536)):
        unread -= len(received)
