"""The conversation of an HTTP connection: from its bytes to the calls and pages.

The fast path answers a request of the usual form for most calls (fast_path.py), and a message of a device even in the
turn that reads it. Any other request is a task of the slow path, from its first byte on: Hypercorn and Quart answer it
(hypercorn_exchange.py). A request for a WebSocket or a stream of events ends the conversation; its bytes are then in
`upgrade`.

One request is answered at a time. Requests that are sent ahead wait here in their order, and count as overhead
(reference 21.5).
"""

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
import trio

from broker.accounts.tokens import Caller, TokenKind
from broker.limits.overhead import Overhead
from broker.trace.origin import current_origin, enter
from broker.trace.refusals import Refusals
from protocols.http.calls import AfterCommit
from protocols.http.dispatch import Begun
from protocols.http.fast_path import FastPath, Route
from protocols.http.heads import (
    HEAD_BYTES,
    RequestHead,
    asks_for_events,
    head_refusal,
    is_websocket_upgrade,
    is_whole,
    no_head,
    parse_head,
    refused_head,
    without_empty_lines,
)
from protocols.http.hypercorn_adapter import HypercornAdapter
from protocols.http.oversized_forms import OversizedForms
from protocols.http.request_context import RequestContext, set_current_request
from protocols.streams.connection import LifePhase, Need, StreamConnection
from protocols.streams.hub import Hub
from protocols.streams.lingering import LINGERING_BYTES
from protocols.streams.listeners import Stream, end_gently
from protocols.streams.peers import Peer, current_peer, turn_of_strangers
from protocols.streams.tls import peer_certificate
from storage.sql import StoreError

#: From the first byte of a head to its last; for the first head of a connection, from the connection's begin.
HEAD_SECONDS: Final = 10.0
#: From an answer to the first byte of the next head.
KEEP_ALIVE_SECONDS: Final = 75
#: A client that asks less often is moved to another node without an answer that tells it so.
_SELDOM_SECONDS: Final = 1.0
#: For the peer to take an answer.
SEND_SECONDS: Final = 30.0
#: A request that came in one read with the one before it costs as much as this number of small frames (reference 21.5).
REQUEST_FRAMES: Final = 100
#: A request whose body takes longer to come goes to Hypercorn, where it has more time.
_BODY_SECONDS: Final = 1.0
#: Most bytes of a body that nobody wants which are read so that the peer gets its answer.
_UNWANTED_BYTES: Final = 16 * 1024 * 1024
#: How many connections may be read at the same time only to throw away such a body.
_LINGERING: Final = trio.CapacityLimiter(4)


class HttpListener(msgspec.Struct, frozen=True):
    """Parts that the connections of one listener share. Without `takes_upgrades`, a request for a WebSocket is answered
    as any other."""

    hub: Hub
    hypercorn: HypercornAdapter
    refusals: Refusals
    overhead: Overhead
    fast_path: FastPath | None = None
    oversized_forms: OversizedForms | None = None
    takes_upgrades: bool = True


class HttpConnection(StreamConnection):
    __slots__ = (
        "_begun",
        "_certificate",
        "_committed",
        "_deadline",
        "_device",
        "_head",
        "_head_bytes",
        "_in_flight",
        "_is_ahead",
        "_is_exchanging",
        "_is_last",
        "_is_reading_head",
        "_job",
        "_lingers",
        "_listener",
        "_origin",
        "_peer",
        "_received",
        "_route",
        "parks",
        "upgrade",
    )

    PROTOCOL = "http"
    GOODBYE_SECONDS = 2.0
    READ_BYTES = HEAD_BYTES
    LIMIT = 64 * 1024

    def __init__(self, listener: HttpListener, stream: Stream) -> None:
        super().__init__(stream, listener.hub)
        self._listener = listener
        self._origin = current_origin()
        self._peer = current_peer()
        self._certificate = peer_certificate(stream)
        self._received = b""  # and not processed
        # The latest head of the fast path: most clients send the same one again and again.
        self._head_bytes = b""
        self._head: RequestHead | None = None
        self._route: Route | None = None
        self._job: Callable[[], Awaitable[None]] | None = None  # of `work`
        self._begun: tuple[RequestContext, Begun] | None = None  # a message that `work` goes on with
        self._in_flight = False  # a message of which the answer is due after the commit
        self._committed: trio.Event | None = None  # while somebody waits for that
        # The latest caller, if that is a device whose own connection this is, and its Authorization.
        self._device: tuple[str, Caller] | None = None
        self._is_exchanging = False  # Hypercorn answers the request
        self._is_ahead = False  # nothing was read since the latest request began
        self._is_last = False  # no request follows
        self._is_reading_head = True
        self._deadline = trio.current_time() + HEAD_SECONDS  # of the head, or of an idle connection
        self._lingers = 0  # the number of bytes that are read after the last answer
        self.parks = False  # the latest request was answered without waiting
        #: The head of the request for a WebSocket or a stream of events, with the bytes that came behind it; or empty.
        self.upgrade = b""

    # --- The conversation --------------------------------------------------------------------------------------------

    def take(self, data: bytes | bytearray) -> Need:
        if data:
            self._received = self._received + data if self._received else bytes(data)
            self._is_ahead = False
        if self._in_flight:
            return self._have_done(self._wait_committed) if self._received else Need.READ
        if self._waiting_bytes:
            return Need.DRAIN
        if self._is_last:
            return Need.END
        return self._begin_request() if self._received else Need.READ

    def _begin_request(self) -> Need:
        if self.is_ended:
            return Need.END
        if self._head is None or not self._received.startswith(self._head_bytes):
            self._read_head()
        head, route = self._head, self._route
        if head is None or route is None:
            return self._begin_other()
        if self._is_ahead and self._owes():
            return Need.PACE
        self._is_ahead = True
        if self._device is not None and route.endpoint.has_nowait:
            size = head.head_length + head.body_length
            if len(self._received) >= size:
                body, self._received = self._received[head.head_length : size], self._received[size:]
                if self._submit(head, route, body, self._device):
                    self.parks = True
                    return self.take(b"") if self._received or not self._in_flight else Need.READ
        return self._have_done(self._answer)

    def _read_head(self) -> None:
        """The head of the next request, if the fast path has an answer."""
        fast_path = self._listener.fast_path
        self._head = head = None if fast_path is None else parse_head(self._received)
        if fast_path is not None and head is not None:
            self._route = fast_path.route(head.method, head.path)
            self._head_bytes = self._received[: head.head_length]
            if self._route is None:
                self._head = None

    def _begin_other(self) -> Need:
        """A request that is not for the fast path, or no whole head."""
        self._received = received = without_empty_lines(self._received)
        if not received:
            return Need.READ
        if (refusal := head_refusal(received, self._listener.refusals)) is not None:
            return self._refuse(refusal)
        if not is_whole(received):
            if not self._is_reading_head:
                self._is_reading_head = True
                self._deadline = trio.current_time() + HEAD_SECONDS
                self.hub.alarms.set(self, self._deadline)
            return Need.READ
        if self._listener.takes_upgrades and (is_websocket_upgrade(received) or asks_for_events(received)):
            self.upgrade = received
            return Need.END
        forms = self._listener.oversized_forms
        if forms is not None and (form := forms.refusal(received)) is not None:
            return self._refuse(form.answer, _UNWANTED_BYTES if form.length > LINGERING_BYTES else LINGERING_BYTES)
        if self._is_ahead and self._owes():
            return Need.PACE
        self._is_ahead = True
        return self._have_done(self._exchange)

    def _owes(self) -> bool:
        """Count a request that was sent ahead. A client that waits for each answer waits as long as the daemon works,
        so it cannot do more than its share. One that sends hundreds in a segment can."""
        self._is_ahead = False
        if not hasattr(self, "pace"):
            self.pace = self._listener.overhead.pace()
        self.pace.spend(REQUEST_FRAMES)
        return bool(self.pace.owed)

    def _refuse(self, answer: bytes, lingers: int = LINGERING_BYTES) -> Need:
        self.put(answer)
        self._lingers = lingers
        return Need.END

    def heard_end(self) -> Need:
        if self._received:
            self.put(no_head())
        return Need.END

    def _have_done(self, job: Callable[[], Awaitable[None]]) -> Need:
        self.parks = False
        self._job = job
        return Need.TASK

    async def work(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            await job()

    # --- Requests of the fast path -----------------------------------------------------------------------------------

    async def _answer(self) -> None:
        head, route, fast_path = self._head, self._route, self._listener.fast_path
        if head is None or route is None or fast_path is None:
            raise AssertionError("this is no request of the fast path")
        if self._begun is None:
            size = head.head_length + head.body_length
            if len(self._received) < size and not await self._has_read(size):
                await self._exchange()
                return
            body, self._received = self._received[head.head_length : size], self._received[size:]
            request, begun = fast_path.request(head, body, self._peer, self._certificate), None
        else:
            (request, begun), self._begun = self._begun, None
        self.put(await fast_path.answer(request, route, begun))
        self._device = _device_of(request, self._peer)
        self._forget_caller()
        self._note_answered()

    async def _has_read(self, size: int) -> bool:
        """Read the body of a request. Returns whether it is whole."""
        with trio.move_on_after(_BODY_SECONDS):
            while len(self._received) < size and (more := await self.receive_some()):
                self._received += more
                self._is_ahead = False
                await turn_of_strangers()
        return len(self._received) >= size

    def _submit(self, head: RequestHead, route: Route, body: bytes, device: tuple[str, Caller]) -> bool:
        """Accept a message in this turn; the answer follows the commit. Returns False when it has to wait before."""
        fast_path = self._listener.fast_path
        if fast_path is None:
            return False
        request = fast_path.request(head, body, self._peer, self._certificate)
        if head.authorization == device[0]:
            request.known = device[1]
        context = copy_context()  # the caller is of this request alone
        try:
            begun = context.run(fast_path.begin, request, route)
            if not isinstance(begun, AfterCommit):
                self._begun = request, begun
                return False
            self._in_flight = True
            due = partial(self._answer_committed, fast_path, request, route, begun)
            begun.ingest.after_commit(partial(context.run, due))
        except Exception as error:  # noqa: BLE001 - a bug must end only its request
            self.put(context.run(fast_path.refused, request, error, route))
            self._note_answered()
        return True

    def _answer_committed(
        self,
        fast_path: FastPath,
        request: RequestContext,
        route: Route,
        begun: AfterCommit[Any],
        error: StoreError | None,
    ) -> None:
        self._in_flight = False
        self.put(fast_path.committed(request, route, begun, error))
        self._note_answered()
        if self._is_last:
            self.end()
        if self._committed is not None:
            self._committed.set()

    async def _wait_committed(self) -> None:
        if self._in_flight:
            self._committed = trio.Event()
            await self._committed.wait()
            self._committed = None

    def _note_answered(self) -> None:
        self._deadline = trio.current_time() + KEEP_ALIVE_SECONDS
        self._is_reading_head = False
        if self.hub.life.moving.is_set():  # the answer says so, unless it was under way
            self._is_last = True

    def _forget_caller(self) -> None:
        """The next request may be somebody else's, and an idle connection should hold nothing."""
        enter(self._origin)
        set_current_request(None)

    # --- Requests of the slow path -----------------------------------------------------------------------------------

    async def _exchange(self) -> None:
        received, self._received = self._received, b""
        self._is_exchanging = True
        exchange = await self._listener.hypercorn.serve(received, self)
        self._is_exchanging = False
        exchange.flush()
        self._received = exchange.take_behind()
        self._is_ahead = self._is_ahead and not exchange.has_read
        if exchange.is_last:
            self._is_last, self.has_left = True, exchange.has_left
            self._lingers = _UNWANTED_BYTES if exchange.left_body else LINGERING_BYTES
        self._note_answered()

    # --- Time, and the end -------------------------------------------------------------------------------------------

    def due(self) -> float:
        is_waiting = self.need is Need.READ and not self._in_flight
        return self._deadline if is_waiting else trio.current_time() + KEEP_ALIVE_SECONDS

    async def beat(self, now: float) -> None:
        if now >= self.due():
            if self._received:
                self._refuse(refused_head(HTTPStatus.REQUEST_TIMEOUT, self._listener.refusals))
            self.end()

    def stop(self) -> None:
        if self.state is LifePhase.WAITING and self.need in (Need.TASK, Need.DRAIN):
            self.is_ended = True  # the request is answered
        else:
            self.end()

    def move(self) -> bool:
        """The next answer says that it is the last one. A client that asks seldom hears the end of the stream; to one
        that asks often that could look like a refusal of its next request."""
        answered = self._deadline - KEEP_ALIVE_SECONDS
        is_idle = self.state in (LifePhase.OPENING, LifePhase.READING) and not (self._received or self._in_flight)
        if is_idle and trio.current_time() - answered > _SELDOM_SECONDS:
            self.end()
            return True
        return False

    async def finish(self) -> None:
        await self._wait_committed()
        await self.wait_empty()

    # --- The outbox --------------------------------------------------------------------------------------------------

    def _want(self) -> None:
        """The task of the connection sends the answer before it reads on: a second task for each would be a quarter of
        an idle TLS connection. It cannot while it waits for bytes, of the next request or of a body."""
        is_reading = self._is_exchanging or self.state in (LifePhase.OPENING, LifePhase.READING)
        if is_reading or self._writing is not None:
            super()._want()
        else:
            self._is_wanted = True

    async def wait_empty(self) -> None:
        if self._is_wanted and self._writing is None:
            await self.send_waiting()
        else:
            await super().wait_empty()

    async def hear_out(self) -> None:
        if self._lingers > LINGERING_BYTES:
            async with _LINGERING:
                below = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
                await end_gently(below, most=self._lingers)
        elif self._lingers:
            await end_gently(self.stream)

    async def _send(self, data: bytes) -> None:
        with trio.fail_after(SEND_SECONDS):
            await super()._send(data)


def _device_of(request: RequestContext, peer: Peer) -> tuple[str, Caller] | None:
    """The Authorization and the caller of a request, if the peer is a device that has shown its token, and no proxy.
    Strangers may lose their connections at any time."""
    caller = request.caller
    is_device = caller is not None and caller.kind is TokenKind.DEVICE and peer.place is None and not peer.is_proxy
    return (request.authorization, caller) if caller is not None and is_device else None
