"""One connection that Hypercorn serves: passes the peer's bytes to Hypercorn's protocol object, and sends the answers.

Hypercorn's own server of connections is not used. Of Hypercorn the connection needs `H11Protocol` with its events, and
the tasks and the context that it asks for; of h11 its public interface.

At most one request is under way. Bytes after it stay here, so each request begins in the same place: with its whole
head, which goes to direct.py if it is plain, and to the server of WebSockets if it asks for one.
"""

import select
from contextlib import suppress
from typing import Any, Final

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from broker.limits.bodies import BodyBudget
from broker.limits.overhead import Overhead
from broker.trace.refusals import Refusals
from protocols.http.bodies import HeldBody
from protocols.http.direct import SEND_SECONDS, DirectCalls
from protocols.http.heads import (
    HEAD_BYTES,
    HEAD_SECONDS,
    drop_empty_lines,
    has_refused,
    is_websocket_upgrade,
    is_whole,
    read_head,
)
from protocols.http.parked import KEEP_ALIVE_SECONDS
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.http.this_request import CERTIFICATE_KEY
from protocols.streams.listeners import Stream, end_gently
from protocols.streams.peers import current_peer, turn_of_strangers
from protocols.streams.tls import peer_certificate
from protocols.streams.turnstile import Turnstile

#: The key of the `HypercornConnection` in ASGI's `state`, which the requests of one connection share.
CONNECTION_KEY: Final = "connection"
#: A request that came in one segment with the one before it costs as much as this number of small frames (reference
#: 21.5).
REQUEST_FRAMES: Final = 100
_HELD_BYTES: Final = 64 * 1024
#: Hypercorn keeps ten chunks of a body that its application has not read yet.
_CHUNK_BYTES: Final = 16 * 1024
_LINGER_SECONDS: Final = 2.0
_LINGER_BYTES: Final = 16 * 1024 * 1024
#: How many connections may be read at the same time only to throw away what comes.
_LINGERING: Final = trio.CapacityLimiter(4)
#: States of a client whose request is whole.
_ALL_HAS_COME: Final = frozenset({h11.DONE, h11.MUST_CLOSE, h11.MIGHT_SWITCH_PROTOCOL})  # type: ignore[attr-defined]  # documented
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class _Requests:
    """The requests of one connection, each with an h11 of its own: Hypercorn takes this for the `h11.Connection`.

    Refuses requests that h11 would accept: other versions than HTTP/1, and two lengths of one body, which servers read
    in different ways (RFC 9112, 6.1). Requests lose the header `Upgrade`, which
    Hypercorn would grant.
    """

    def __init__(self, bodies: BodyBudget) -> None:
        self._bodies = bodies
        #: The body of the latest request, if it is a long one.
        self.held: HeldBody | None = None
        self._now = _new_h11()
        self._behind = b""  # the request: of the next one
        self._has_ended = False

    @property
    def our_state(self) -> Any:
        return self._now.our_state

    @property
    def their_state(self) -> Any:
        return self._now.their_state

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        return self._now.they_are_waiting_for_100_continue

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        return self._now.trailing_data

    @property
    def has_more(self) -> bool:
        """Whether bytes have come behind the request that is under way."""
        return bool(self._behind)

    def take_behind(self) -> bytes:
        behind, self._behind = self._behind, b""
        return behind

    def receive_data(self, data: bytes) -> None:
        if self._now.their_state not in _ALL_HAS_COME:
            self._now.receive_data(data)
            return
        self._has_ended = not data
        if self._now.their_state is not h11.MUST_CLOSE:  # no request begins behind the last one (RFC 9112, 9.6)
            self._behind += data

    def next_event(self) -> Any:
        if self._now.their_state in _ALL_HAS_COME:
            return h11.ConnectionClosed() if self._has_ended else h11.NEED_DATA
        try:
            event = self._now.next_event()
        except h11.RemoteProtocolError as error:
            raise error.with_traceback(None) from None  # it has passed a frame that refers to it
        if isinstance(event, h11.EndOfMessage) and self._now.their_state is not h11.MUST_CLOSE:
            self._behind = bytes(self._now.trailing_data[0])
        return self._checked(event) if isinstance(event, h11.Request) else event

    def _checked(self, event: h11.Request) -> h11.Request:
        if not event.http_version.startswith(b"1."):
            raise h11.RemoteProtocolError("not HTTP/1", error_status_hint=505)
        names = {name for name, _ in event.headers}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise h11.RemoteProtocolError("two lengths of one body", error_status_hint=400)
        self.held = HeldBody.of(event.headers, self._bodies)
        if b"upgrade" not in names:
            return event
        kept = [(name, value) for name, value in event.headers if name != b"upgrade"]
        return h11.Request(method=event.method, target=event.target, headers=kept, http_version=event.http_version)

    def send(self, event: Any) -> bytes | None:
        sent: bytes | None = self._now.send(event)
        return sent

    def start_next_cycle(self) -> None:
        self._now = _new_h11()


def _new_h11() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)


class HypercornConnection:
    """One connection, from the head of its first request on.

    An answer is held back until Hypercorn is ready for the next request, or until the answer grows large. So an answer
    leaves in one piece, and what a client sends after receiving the answer is the beginning of a request.

    A body that is held is not read. If the connection is closed without it, what the peer has sent since is read
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
        *,
        bodies: BodyBudget | None = None,
        direct: DirectCalls | None = None,
        takes_upgrades: bool = True,
    ) -> None:
        """Strangers wait at the `turnstile` before Hypercorn gets what they have sent. `direct` answers the plain calls
        that follow an answer of Hypercorn's. `takes_upgrades`: a request for a WebSocket leaves Hypercorn."""
        self._head = head
        self._stream = stream
        self._timeouts = timeouts
        self._pace = overhead.pace()
        self._refusals = refusals
        self._turnstile = turnstile
        self._direct = direct
        self._takes_upgrades = takes_upgrades
        self._requests = _Requests(bodies or BodyBudget())
        self._protocol: H11Protocol | None = None
        self._since_read = 0  # requests
        self._unsent = bytearray()
        self._is_streaming = False
        self._is_closed = False
        self._sending = trio.Lock()
        #: The tasks that read and that answer may both end the connection, at the same time.
        self._ending = trio.Lock()
        self._is_idle = True  # no request is under way
        self._reading: trio.CancelScope | None = None  # while a request is under way
        self._turned = trio.Event()  # replaced at each end of a request

    @property
    def held(self) -> HeldBody | None:
        """The body of the request that is under way, if it is a long one."""
        return self._requests.held

    async def run(self, app: ASGIWrapper, config: Config, context: WorkerContext) -> bytes:
        """Serve requests until the connection ends, or until one asks for a WebSocket.

        Returns:
            The head of the request for a WebSocket, with the bytes that came behind it; empty at the connection's end.
        """
        peer, upgrade = current_peer(), b""
        state = ConnectionState({CERTIFICATE_KEY: peer_certificate(self._stream), CONNECTION_KEY: self})
        is_encrypted = isinstance(self._stream, trio.SSLStream)
        try:
            async with TaskGroup() as tasks:
                protocol = self._protocol = H11Protocol(
                    app, config, context, tasks, state, is_encrypted, (peer.address, peer.port), self._bound, self._send
                )
                requests: Any = self._requests
                protocol.connection = requests
                upgrade = await self._give_to(protocol)
                await protocol.handle(Closed())
        except OSError:
            pass
        finally:
            if not upgrade:
                await self._end()
            # The objects of a connection refer to each other, and strangers decide how many connections end: the
            # garbage collector would stop the loop for tens of milliseconds.
            self._protocol = None
        return upgrade

    async def _give_to(self, protocol: H11Protocol) -> bytes:
        with suppress(*_GONE):
            while received := await self.receive():
                if self._is_idle and self._takes_upgrades and is_websocket_upgrade(received):
                    return received
                await protocol.handle(RawData(received))
            if not self._is_idle and not self._is_closed:
                await protocol.handle(RawData(b""))
        return b""

    @property
    def _bound(self) -> tuple[str, int]:
        """The address of this end."""
        host, port = _below(self._stream).socket.getsockname()[:2]
        return host, port

    async def wait_turn(self) -> None:
        """A request begins. Wait when it came in one read with the one before it (reference 21.5).

        A client that sends its next request after the answer waits as long as the daemon works, so it cannot do more
        than its share. One that sends hundreds in a segment can.
        """
        self._since_read += 1
        if self._since_read > 1:
            self._pace.spend(REQUEST_FRAMES)
            await self._pace.wait()

    # --- Reading -----------------------------------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """The next bytes for Hypercorn: of the request under way, or the whole head of the next one with the bytes
        after it. Empty at the end.

        Raises BrokenResourceError, ClosedResourceError.
        """
        if self._head:
            await trio.lowlevel.checkpoint()
            await turn_of_strangers(self._turnstile)
            head, self._head = self._head, b""
            return head
        received = b""
        while not (received or self._is_idle or self._is_closed):
            turned = self._turned
            if self.held is not None:
                await self.held.opened.wait()
            if self._is_closed or self._is_idle:
                break
            if self._requests.has_more:
                await turned.wait()
                continue
            with trio.CancelScope() as self._reading:
                received = bytes(await self._stream.receive_some(_CHUNK_BYTES))
                if not received:
                    return b""
            self._reading = None
        if received:
            await self._note_read()
        if self._is_closed:
            return b""
        return await self._next_request(received) if self._is_idle else received

    async def _note_read(self) -> None:
        await turn_of_strangers(self._turnstile)
        self._since_read = 0

    async def _next_request(self, received: bytes) -> bytes:
        begun = bytearray(self._requests.take_behind() + received)
        drop_empty_lines(begun)
        while not begun:
            begun += (more := await self._when_idle())
            if not more:
                return b""
            drop_empty_lines(begun)
        if not is_whole(begun):
            with self._timeouts.limit(HEAD_SECONDS, in_flight=False) as scope:
                await read_head(self._stream, begun)
            if await has_refused(bytes(begun), self._stream, self._refusals, is_late=scope.cancelled_caught):
                return b""
            await self._note_read()
        head = bytes(begun)
        if self._direct is not None:
            left = await self._direct.serve(head, self._stream, self.flush)
            if left is not head:
                self._since_read = 0
            head = left
        return b"" if await has_refused(head, self._stream, self._refusals) else head

    async def _when_idle(self) -> bytes:
        """The first bytes of a request; empty at the end, and when the connection has been idle for too long."""
        with self._timeouts.limit(KEEP_ALIVE_SECONDS, in_flight=False) as scope:
            received = bytes(await self._stream.receive_some(_CHUNK_BYTES))
        if scope.cancelled_caught:
            if self._timeouts.is_stopped or not _has_bytes(self._stream):
                return b""
            # The process was paused, and the request lies in the socket.
            with self._timeouts.limit(HEAD_SECONDS, in_flight=False) as scope:
                received = bytes(await self._stream.receive_some(_CHUNK_BYTES))
            if scope.cancelled_caught:
                return b""
        await self._note_read()
        return received

    # --- Sending -----------------------------------------------------------------------------------------------------

    async def _send(self, event: Event) -> None:
        """Take an event of Hypercorn: bytes, or the begin or end of a request, or of the connection. It also calls this
        from the task of a request that it has just cancelled."""
        with trio.CancelScope(shield=True):
            if isinstance(event, RawData):
                try:
                    await self.send(event.data)
                except _GONE:
                    await self._close()
            elif isinstance(event, Closed):
                await self._end()
                await self._close()
            elif isinstance(event, Updated):
                self._is_idle = event.idle
                if event.idle:
                    with suppress(*_GONE):  # the task that reads gets the same error
                        await self.flush()
                    self._turn()

    async def _close(self) -> None:
        if self._protocol is not None:
            await self._protocol.handle(Closed())

    def _turn(self) -> None:
        """The task that reads goes on with the next request, or with the end."""
        self._turned.set()
        self._turned = trio.Event()
        if self._reading is not None:
            self._reading.cancel()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send with the rest of the answer. Raises what `flush` raises."""
        self._unsent += data
        if data[:9] == b"HTTP/1.1 ":
            self._is_streaming = data[9:10] == b"1" or b"transfer-encoding: chunked" in bytes(data).lower()
        if self._is_streaming or len(self._unsent) > _HELD_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send what is held back. Raises BrokenResourceError, also when the peer does not read."""
        async with self._sending:
            data, self._unsent = self._unsent, bytearray()
            if not data:
                return
            with self._timeouts.limit(SEND_SECONDS, in_flight=True) as scope:
                await self._stream.send_all(data)
            if scope.cancelled_caught:
                raise trio.BrokenResourceError("the peer does not read")

    async def _end(self) -> None:
        """Send what is held back and the end, and close."""
        with trio.CancelScope(shield=True):
            async with self._ending:
                if self._is_closed:
                    return
                with suppress(*_GONE, trio.BusyResourceError):
                    await self.flush()
                    if self.held is not None and not self.held.opened.is_set():
                        await linger(self._stream, self._timeouts)
                    elif not isinstance(self._stream, trio.SSLStream):  # TLS has no half-closed connections
                        await self._stream.send_eof()
                self._is_closed = True
        if self.held is not None:
            self.held.opened.set()
        self._turn()
        await self._stream.aclose()


def _below(stream: Stream) -> trio.SocketStream:
    return stream.transport_stream if isinstance(stream, trio.SSLStream) else stream


def _has_bytes(stream: Stream) -> bool:
    readable = select.poll()
    readable.register(_below(stream).socket.fileno(), select.POLLIN)
    return bool(readable.poll(0))


async def linger(stream: Stream, timeouts: PeerTimeouts) -> None:
    """Send the end of the stream, and throw away the body that the peer sends."""
    with timeouts.limit(_LINGER_SECONDS, in_flight=False), suppress(*_GONE):
        async with _LINGERING:
            await end_gently(_below(stream), most=_LINGER_BYTES)
