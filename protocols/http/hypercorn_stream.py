"""The stream of one connection as Hypercorn sees it."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import trio

from broker.limits.overhead import Overhead
from broker.trace.refusals import Refusals
from protocols.http.bodies import HeldBody
from protocols.http.direct import SEND_SECONDS, DirectCalls
from protocols.http.heads import HEAD_SECONDS, is_websocket_upgrade, is_whole, read_head, refuse_head
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.http.pipelining import Pipeline
from protocols.streams.listeners import Stream, end_gently
from protocols.streams.peers import turn_of_strangers
from protocols.streams.turnstile import Turnstile

_HELD_BYTES: Final = 64 * 1024
#: Hypercorn keeps ten chunks of a body that its application has not read yet.
_CHUNK_BYTES: Final = 16 * 1024
#: Of a body for which there is room. Its way through Hypercorn and Quart takes 0.1 ms for each chunk.
_BODY_CHUNK_BYTES: Final = 64 * 1024
_LINGER_SECONDS: Final = 2.0
_LINGER_BYTES: Final = 16 * 1024 * 1024
_LAST_BLANK: Final = 0x20
#: How many connections may be read at the same time only to throw away what comes.
_LINGERING: Final = trio.CapacityLimiter(4)


class HypercornStream(trio.abc.HalfCloseableStream):
    """Gives Hypercorn the head that front_door.py has read, then what the peer sends.

    An answer is held back until Hypercorn is ready for the next request, or until the answer grows large. So an answer
    leaves in one piece, and what a client sends after receiving the answer is the beginning of a request.

    A body that is held is not read. If the connection is closed without it, what the peer has sent meanwhile is read
    and thrown away: otherwise the peer would get a reset instead of the answer.
    """

    def __init__(
        self,
        head: bytes,
        stream: Stream,
        timeouts: PeerTimeouts,
        overhead: Overhead,
        refusals: Refusals,
        turnstile: Turnstile | None = None,
    ) -> None:
        """Strangers wait at the `turnstile` before Hypercorn gets what they have sent."""
        self.pipeline = Pipeline(overhead)
        self._refusals = refusals
        self._turnstile = turnstile
        self._head = head
        self._stream = stream
        self._timeouts = timeouts
        self._held = bytearray()
        self._is_streaming = False
        self._is_closed = False
        self._sending = trio.Lock()
        #: Hypercorn's tasks for reading and for a request may both end the connection, at the same time.
        self._ending = trio.Lock()
        self.is_idle = True
        #: Whether Hypercorn has bytes of the next request already. They came behind the request before.
        self.has_begun_head = False
        self._head_due: float | None = None
        #: The body of the request that is under way, if it is a long one.
        self.held: HeldBody | None = None
        #: Answers the plain calls that follow an answer of Hypercorn's.
        self.direct: DirectCalls | None = None
        #: Whether a request for a WebSocket ends the stream for Hypercorn.
        self.takes_upgrades = True
        #: The head of a request for a WebSocket. After this request, the stream reports end of file to Hypercorn.
        self.upgrade = b""
        #: Called at the end of the stream, because Hypercorn would keep the connection for its keep-alive time.
        self.stop_idling: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    def turn(self, *, is_idle: bool, has_begun_head: bool) -> None:
        """A request begins, or has been answered."""
        self.is_idle, self.has_begun_head, self._head_due = is_idle, has_begun_head, None

    @property
    def is_encrypted(self) -> bool:
        return isinstance(self._stream, trio.SSLStream)

    @property
    def bound(self) -> tuple[str, int]:
        """The address of this end."""
        below = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
        host, port = below.socket.getsockname()[:2]
        return host, port

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        received = b""
        try:
            received = await self._next(max_bytes)
        finally:
            if not received:
                await self.stop_idling()
        return received

    async def _next(self, max_bytes: int | None) -> bytes:
        if self.upgrade:
            await trio.lowlevel.checkpoint()
            return b""
        if self._head:
            await trio.lowlevel.checkpoint()
            await turn_of_strangers(self._turnstile)
            head, self._head = self._head, b""
            return head
        longest = _CHUNK_BYTES
        if self.held is not None and not self.is_idle:
            await self.held.opened.wait()
            longest = _BODY_CHUNK_BYTES
        if self._is_closed:
            # Raise what the closed socket would raise, without its traceback cycle (Python 3.13).
            raise trio.ClosedResourceError
        most = min(max_bytes or longest, longest)
        if self.is_idle and self.has_begun_head:
            return await self._rest_of_head(most)
        received = bytes(await self._stream.receive_some(most))
        await turn_of_strangers(self._turnstile)
        self.pipeline.read()
        if not received or not self.is_idle:
            return received
        # No request is under way, so these bytes begin a new one.
        begun = received
        if received[0] <= _LAST_BLANK or not is_whole(received):
            following = bytearray(received)
            with self._timeouts.limit(HEAD_SECONDS, in_flight=False) as scope:
                await read_head(self._stream, following)
            if scope.cancelled_caught:
                return await self._refuse_slow_head()
            begun = bytes(following)
        if self.direct is not None and begun:
            begun = await self.direct.serve(begun, self._stream, self._take_turn)
            self.pipeline.read()
        if self.takes_upgrades and is_websocket_upgrade(begun):
            self.upgrade = begun
            return b""
        return begun

    async def _rest_of_head(self, most: int) -> bytes:
        """What continues a head that Hypercorn has a part of. Only Hypercorn can tell where that head ends."""
        if self._head_due is None:
            self._head_due = trio.current_time() + HEAD_SECONDS
        with self._timeouts.limit(self._head_due - trio.current_time(), in_flight=False) as scope:
            received = bytes(await self._stream.receive_some(most))
            await turn_of_strangers(self._turnstile)
        if scope.cancelled_caught:
            return await self._refuse_slow_head()
        self.pipeline.read()
        return received

    async def _take_turn(self) -> None:
        """From here on the short way sends, and measures how long the connection is idle."""
        await self.stop_idling()
        await self.flush()  # a client may have begun a request before it has read the answer to the one before

    async def _refuse_slow_head(self) -> bytes:
        await refuse_head(self._stream, HTTPStatus.REQUEST_TIMEOUT, self._refusals)
        return b""

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
            with self._timeouts.limit(SEND_SECONDS, in_flight=True) as scope:
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
            async with self._ending:
                await self.flush()
                if isinstance(self._stream, trio.SSLStream):  # TLS has no half-closed connections
                    await trio.lowlevel.checkpoint()
                else:
                    await self._stream.send_eof()

    async def aclose(self) -> None:
        if self.upgrade:
            return
        if self.held is not None and not self.held.opened.is_set():
            # Shielded as in `send_eof`.
            with trio.CancelScope(shield=True):
                async with self._ending:
                    if not self.held.opened.is_set():
                        await linger(self._stream, self._timeouts)
                        self.held.opened.set()  # the task that reads finds the end
        self._is_closed = True
        await self._stream.aclose()


async def linger(stream: Stream, timeouts: PeerTimeouts) -> None:
    """Send the end of the stream, and throw away the body that the peer sends."""
    below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    gone = suppress(trio.BrokenResourceError, trio.ClosedResourceError)
    with timeouts.limit(_LINGER_SECONDS, in_flight=False), gone:
        async with _LINGERING:
            await end_gently(below, most=_LINGER_BYTES)
