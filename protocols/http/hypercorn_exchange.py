"""One request that Hypercorn serves: passes the peer's bytes to Hypercorn's protocol object, and sends the answer.

Hypercorn's own server of connections is not used. Of Hypercorn the exchange needs `H11Protocol` with its events, and
the tasks and the context that it asks for; of h11 its public interface.
"""

from typing import Any, Final, Protocol

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
from protocols.http.bodies import HeldBody
from protocols.http.heads import HEAD_BYTES
from protocols.http.request_context import CERTIFICATE_KEY
from protocols.streams.peers import current_peer, turn_of_strangers
from protocols.streams.tls import peer_certificate
from protocols.streams.turnstile import Turnstile

#: The key of the `HypercornExchange` in ASGI's `state`.
EXCHANGE_KEY: Final = "exchange"
_HELD_BYTES: Final = 64 * 1024
#: States of a client whose request is whole.
_ALL_HAS_COME: Final = frozenset({h11.DONE, h11.MUST_CLOSE, h11.MIGHT_SWITCH_PROTOCOL})  # type: ignore[attr-defined]  # documented


class RequestCarrier(Protocol):
    """Interface of the connection that a request has come on: a `StreamConnection`."""

    stream: trio.abc.Stream

    @property
    def has_room(self) -> bool: ...
    async def receive_some(self) -> bytes | bytearray: ...
    def put(self, data: bytes) -> None: ...
    async def wait_empty(self) -> None: ...


class _Request:
    """The request, of which h11 reads nothing that follows it: Hypercorn takes this for the `h11.Connection`.

    Refuses requests that h11 would accept: other versions than HTTP/1, and two lengths of one body, which servers read
    in different ways (RFC 9112, 6.1). The request loses the header `Upgrade`, which Hypercorn would grant.
    """

    def __init__(self, bodies: BodyBudget) -> None:
        self._bodies = bodies
        #: The body, if it is a long one.
        self.held: HeldBody | None = None
        #: The bytes that have come behind the request.
        self.behind = b""
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._has_ended = False

    @property
    def our_state(self) -> Any:
        return self._h11.our_state

    @property
    def their_state(self) -> Any:
        return self._h11.their_state

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        return self._h11.they_are_waiting_for_100_continue

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        return self._h11.trailing_data

    def receive_data(self, data: bytes) -> None:
        if self._h11.their_state not in _ALL_HAS_COME:
            self._h11.receive_data(data)
            return
        self._has_ended = not data
        if self._h11.their_state is not h11.MUST_CLOSE:  # no request begins behind the last one (RFC 9112, 9.6)
            self.behind += data

    def next_event(self) -> Any:
        if self._h11.their_state in _ALL_HAS_COME:
            return h11.ConnectionClosed() if self._has_ended else h11.NEED_DATA
        try:
            event = self._h11.next_event()
        except h11.RemoteProtocolError as error:
            raise error.with_traceback(None) from None  # it has passed a frame that refers to it
        if isinstance(event, h11.EndOfMessage) and self._h11.their_state is not h11.MUST_CLOSE:
            self.behind = bytes(self._h11.trailing_data[0])
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
        sent: bytes | None = self._h11.send(event)
        return sent

    def start_next_cycle(self) -> None:
        """The next request has an exchange of its own."""


class HypercornExchange:
    """One request and its answer.

    The answer is held back until it is whole, or large. So an answer leaves in one piece, and what a client sends after
    receiving the answer is the beginning of a request.

    A body that is held is not read before the application wants it.
    """

    def __init__(self, connection: RequestCarrier, bodies: BodyBudget, turnstile: Turnstile | None) -> None:
        """Strangers wait at the `turnstile` before Hypercorn gets what they have sent."""
        self._connection = connection
        self._turnstile = turnstile
        self._request = _Request(bodies)
        self._unsent = bytearray()
        self._is_streaming = False
        self._is_over = False
        self._waiting = trio.CancelScope()  # of the task that reads
        #: Whether no request can follow, and whether the peer may still send a body that nobody wants.
        self.is_last = self.left_body = False
        #: Whether anything was read after the head, and whether that was the end of the stream.
        self.has_read = self.has_left = False

    @property
    def held(self) -> HeldBody | None:
        """The body of the request, if it is a long one."""
        return self._request.held

    def take_behind(self) -> bytes:
        """The bytes that have come behind the request."""
        behind, self._request.behind = self._request.behind, b""
        return behind

    async def run(self, received: bytes, app: ASGIWrapper, config: Config, context: WorkerContext) -> None:
        """Serve the request that begins with these bytes, which are its whole head at least. The caller flushes."""
        stream, peer = self._connection.stream, current_peer()
        state = ConnectionState({CERTIFICATE_KEY: peer_certificate(stream), EXCHANGE_KEY: self})
        is_encrypted = isinstance(stream, trio.SSLStream)
        await trio.lowlevel.checkpoint()
        await turn_of_strangers(self._turnstile)
        async with TaskGroup() as tasks:
            protocol = H11Protocol(
                app, config, context, tasks, state, is_encrypted, (peer.address, peer.port), _bound(stream), self._send
            )
            request: Any = self._request
            protocol.connection = request
            await protocol.handle(RawData(received))
            await self._give_rest(protocol)
            await protocol.handle(Closed())

    async def _give_rest(self, protocol: H11Protocol) -> None:
        """Read until the exchange is over: the rest of the request, and then, whether the peer closes."""
        while not self._is_over:
            received: bytes | bytearray | None = None
            with trio.CancelScope() as self._waiting:
                if self.held is not None:
                    await self.held.opened.wait()
                if self._request.behind:
                    await trio.sleep_forever()
                try:
                    received = await self._connection.receive_some()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    received = b""
            if received is None:
                return
            self.has_read = True
            await turn_of_strangers(self._turnstile)
            await protocol.handle(RawData(bytes(received)))
            if not received:
                self.is_last = self.has_left = True
                return

    async def _send(self, event: Event) -> None:
        """Take an event of Hypercorn: bytes, or the begin or end of the request, or of the connection."""
        if isinstance(event, RawData):
            await self.send(event.data)
        elif isinstance(event, Closed):
            self.is_last = True
            self.left_body = self.held is not None and not self.held.opened.is_set()
            self._end()
        elif isinstance(event, Updated) and event.idle:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._waiting.cancel()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send with the rest of the answer; wait while the peer does not read."""
        self._unsent += data
        if data[:9] == b"HTTP/1.1 ":
            self._is_streaming = data[9:10] == b"1" or b"transfer-encoding: chunked" in bytes(data).lower()
        if self._is_streaming or len(self._unsent) > _HELD_BYTES:
            self.flush()
            if not self._connection.has_room:
                await self._connection.wait_empty()

    def flush(self) -> None:
        """Send what is held back."""
        data, self._unsent = bytes(self._unsent), bytearray()
        self._connection.put(data)


def _bound(stream: trio.abc.Stream) -> tuple[str, int] | None:
    """The address of this end."""
    below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    if not isinstance(below, trio.SocketStream):
        return None
    try:
        host, port = below.socket.getsockname()[:2]
    except OSError:  # it is closed
        return None
    return host, port
