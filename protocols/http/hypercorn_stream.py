"""The stream of one connection as Hypercorn sees it."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from broker.limits.overhead import Overhead
from protocols.http.heads import for_http_1, is_websocket_upgrade, read_head
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.http.pipelining import Pipeline
from protocols.listeners import Stream

_SEND_SECONDS: Final = 30.0
_HELD_BYTES: Final = 64 * 1024


class HypercornStream(trio.abc.HalfCloseableStream):
    """Gives Hypercorn the head that front_door.py has read, then what the peer sends.

    An answer is held back until Hypercorn is ready for the next request, or until the answer grows large. So an answer
    leaves in one piece, and what a client sends after receiving the answer is the beginning of a request.
    """

    def __init__(self, head: bytes, stream: Stream, timeouts: PeerTimeouts, overhead: Overhead) -> None:
        self.pipeline = Pipeline(overhead)
        self._head = for_http_1(head)
        self._stream = stream
        self._timeouts = timeouts
        self._held = bytearray()
        self._is_streaming = False
        self._sending = trio.Lock()
        self.is_idle = True
        #: The head of a request for a WebSocket. After this request, the stream reports end of file to Hypercorn.
        self.upgrade = b""
        #: Called at the end of the stream, because Hypercorn would keep the connection for its keep-alive time.
        self.stop_idling: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    @property
    def socket(self) -> trio.socket.SocketType:
        """The socket below, for the addresses of both ends."""
        below = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
        return below.socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        received = b""
        try:
            received = await self._next(max_bytes)
        finally:
            if not received:
                await self.stop_idling()
        return received

    async def _next(self, max_bytes: int | None) -> bytes:
        if self._head:
            await trio.lowlevel.checkpoint()
            head, self._head = self._head, b""
            return head
        received = bytes(await self._stream.receive_some(max_bytes))
        self.pipeline.read()
        if not received or not self.is_idle:
            return received
        # No request is under way, so these bytes begin a new one.
        following = bytearray(received)
        await read_head(self._stream, following)
        if is_websocket_upgrade(following):
            self.upgrade = bytes(following)
            return b""
        return for_http_1(following)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._held += data
        if data[:9] == b"HTTP/1.1 ":
            self._is_streaming = data[9:10] == b"1" or b"transfer-encoding: chunked" in bytes(data).lower()
        if self._is_streaming or len(self._held) > _HELD_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send what is held. Raises BrokenResourceError, also when the peer does not read."""
        async with self._sending:
            data, self._held = self._held, bytearray()
            if not data:
                return
            with self._timeouts.limit(_SEND_SECONDS, in_flight=True) as scope:
                await self._stream.send_all(data)
            if scope.cancelled_caught:
                raise trio.BrokenResourceError("the peer does not read")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        # Hypercorn closes the stream from the task of the request that it has just cancelled. Without the shield, the
        # cancellation would end this method before `send_eof`, and after `Connection: close` the peer would wait.
        with trio.CancelScope(shield=True):
            if self.upgrade:
                return
            await self.flush()
            if isinstance(self._stream, trio.SSLStream):  # TLS has no half-closed connections
                await trio.lowlevel.checkpoint()
            else:
                await self._stream.send_eof()

    async def aclose(self) -> None:
        if not self.upgrade:
            await self._stream.aclose()


class EncryptedHypercornStream(HypercornStream):
    """What Hypercorn uses of an SSLStream, after the handshake."""

    async def do_handshake(self) -> None:
        await trio.lowlevel.checkpoint()

    def selected_alpn_protocol(self) -> str:
        return "http/1.1"

    @property
    def transport_stream(self) -> HypercornStream:
        return self
