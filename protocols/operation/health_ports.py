"""The ports of HTTP of a daemon that does not serve yet: they answer /healthz and /readyz, and refuse everything else.

Nobody authenticates here, so a stranger must not be able to keep a balancer from its answer. A request has little time,
and while all places are taken, the oldest connection of the address that has the most of them makes room.
"""

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import trio

from broker.trace.origin import address_key
from config.settings import Address
from protocols.streams.inherited import open_tcp
from protocols.streams.proxy_protocol import ProxyHeaderError, receive_source
from protocols.streams.tls import TlsContext, server_stream

_HEAD_BYTES: Final = 8192
_HEAD_SECONDS: Final = 2.0  # for the head of the request, and a handshake of TLS before it
_SECONDS: Final = 5.0  # for the answer, too
_CONNECTIONS: Final = 200
_BACKLOG: Final = 128
_ERROR: Final = b'{"error":{"code":503,"message":"%b"}}'


class StartingAnswers(NamedTuple):
    """Answers of HTTP by a daemon that does not serve yet."""

    readyz: bytes
    message: bytes  # of everything else


STANDS_BY: Final = StartingAnswers(b"stands by: another node serves", b"This machine stands by: another one serves")
DATABASE_AWAY: Final = StartingAnswers(b"waits: the database does not answer", b"The database does not answer")


class Places:
    """The places of the connections to all these ports."""

    def __init__(self, number: int = _CONNECTIONS) -> None:
        self._number = number
        self._taken: dict[trio.CancelScope, str] = {}  # the addresses, the oldest connection first

    @contextmanager
    def place(self, address: str) -> Iterator[None]:
        """A place for the block, which is cancelled when another connection needs the place."""
        if len(self._taken) >= self._number:
            self._make_room()
        with trio.CancelScope() as scope:
            self._taken[scope] = address_key(address)
            try:
                yield
            finally:
                self._taken.pop(scope, None)

    def _make_room(self) -> None:
        numbers = Counter(self._taken.values())
        most = max(numbers.values())
        oldest = next(scope for scope, address in self._taken.items() if numbers[address] == most)
        del self._taken[oldest]
        oldest.cancel()


async def serve_health(
    bind: Address,
    context: TlsContext | None,
    *,
    is_proxied: bool,
    places: Places,
    answers: Callable[[], StartingAnswers],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a port until cancelled.

    Args:
        context: of TLS.
        is_proxied: whether each connection begins with a header of the PROXY protocol.
        answers: the answers of the moment.

    Raises OSError: the address cannot be bound.
    """

    async def answer(stream: trio.SocketStream) -> None:
        try:
            with places.place(str(stream.socket.getpeername()[0])):
                await _answer(stream, context, answers, is_proxied=is_proxied)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ProxyHeaderError, OSError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    listeners = await open_tcp(bind, backlog=_BACKLOG)
    task_status.started()
    try:
        await trio.serve_listeners(answer, listeners)
    finally:
        for listener in listeners:
            listener.socket.close()


async def refuse(sock: socket.socket) -> None:
    """End each connection to a socket that systemd has opened, so that its device tries the next address; or read its
    datagrams, which nobody should find later. Until cancelled."""
    if sock.type == socket.SOCK_DGRAM:
        with trio.socket.from_stdlib_socket(sock) as datagrams:
            while True:
                await datagrams.recv(1)
    await trio.serve_listeners(trio.aclose_forcefully, [trio.SocketListener(trio.socket.from_stdlib_socket(sock))])


async def _answer(
    stream: trio.SocketStream, context: TlsContext | None, answers: Callable[[], StartingAnswers], *, is_proxied: bool
) -> None:
    """Answer one request."""
    transport: trio.abc.Stream = stream
    with trio.move_on_after(_SECONDS):
        head = b""
        with trio.move_on_after(_HEAD_SECONDS) as in_time:
            if is_proxied:
                await receive_source(stream.socket)
            if context is not None:
                transport = server_stream(stream, context)
            while b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES:
                if not (received := await transport.receive_some(_HEAD_BYTES)):
                    return
                head += received
        if in_time.cancelled_caught:
            return
        await transport.send_all(_response(head, answers()))
        if context is None:  # closed with a body unread, the connection would be reset before the answer is read
            await stream.send_eof()
            while await stream.receive_some():
                pass
        await transport.aclose()


def _response(head: bytes, answers: StartingAnswers) -> bytes:
    path = head.split(b" ", 2)[1].partition(b"?")[0] if head.count(b" ") > 1 else b""
    status, kind, body = b"503 Service Unavailable", b"application/json", _ERROR % answers.message
    if path == b"/healthz":
        status, kind, body = b"200 OK", b"text/plain; charset=utf-8", b"ok\n"
    elif path == b"/readyz":
        kind, body = b"text/plain; charset=utf-8", answers.readyz + b"\n"
    retry = b"" if status.startswith(b"200") else b"Retry-After: 5\r\n"
    answer = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n" % (status, kind, len(body))
    answer += retry + b"Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    return answer if head.startswith(b"HEAD ") else answer + body
