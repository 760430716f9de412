"""A WebSocket whose handshake is done, for the device channel and the feeds (reference 19.1; RFC 6455).

The frames of a conversation all go through the outbox of its connection, so they never interleave. At the end, the
close frame follows the last answers, and the peer has a second for its own.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog
import trio

from broker.errors import DomainError
from config.limits import PING_SECONDS, SILENCE_SECONDS, WEBSOCKET_BACKLOG
from protocols.rooms import WebSocketRooms
from protocols.streams.connection import Need, StreamConnection
from protocols.streams.hub import Hub
from protocols.websocket.errors import code_and_text
from protocols.websocket.frames import FrameForm, ping
from protocols.websocket.wire import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL_CLOSURE,
    POLICY_VIOLATION,
    SERVICE_RESTART,
    TRY_AGAIN_LATER,
    CloseFrame,
    FrameReader,
    PingFrame,
    Received,
    WireError,
    encode_close_frame,
    encode_frame,
    encode_ping_frame,
    encode_pong_frame,
)
from storage.sql import StoreError

PONGS_OF_TURN: Final = 16
_SETTLE_SECONDS: Final = 3.0  # for the last answers, which wait for their commit
_REPLY_SECONDS: Final = 1.0  # for the peer's close frame

# A busy daemon may commit more than WEBSOCKET_BACKLOG messages at once, so the number of waiting frames alone does not
# show a slow peer. A peer is too slow when that many frames wait and it has read nothing for this time, or when far
# more frames wait.
SLOW_READER_SECONDS: Final = 1.0
MAX_WAITING_FRAMES: Final = 20 * WEBSOCKET_BACKLOG
_TOO_SLOW: Final = (TRY_AGAIN_LATER, "reads too slowly")

_EXPECTED_ENDS: Final = frozenset({NORMAL_CLOSURE, GOING_AWAY, SERVICE_RESTART})

_log = structlog.get_logger(__name__)


class WebSocket(StreamConnection):
    """Reads and writes the frames of a conversation, which subclasses are: the device channel and the feeds."""

    __slots__ = (
        "_behind_since",
        "_ending",
        "_heard",
        "_is_faulty",
        "_next_ping",
        "_offered",
        "_peer_closed",
        "_reader",
        "_rooms",
        "_said_all",
    )

    PROTOCOL = "websocket"
    GOODBYE_SECONDS = 3.0

    #: How the peer writes its frames; pings have the same form.
    form: FrameForm

    def __init__(self, rooms: WebSocketRooms, stream: trio.abc.Stream, hub: Hub) -> None:
        super().__init__(stream, hub)
        self._rooms = rooms
        self._reader = FrameReader()
        self.pace = rooms.limits.overhead.pace()
        self._offered = 0  # waiting frames that are no answers
        self._behind_since = math.inf  # since when too many wait and the peer has read none
        self._heard = trio.current_time()
        self._next_ping = self._heard + PING_SECONDS
        self._ending: tuple[int, str] | None = None
        self._said_all = self._peer_closed = self._is_faulty = False

    # --- What a conversation says ------------------------------------------------------------------------------------

    @abstractmethod
    def take_messages(self, messages: Sequence[str | bytes]) -> None:
        """Process the messages of one turn: `str` for text and `bytes` for binary."""

    async def check(self) -> None:
        """Check the peer's permissions again. Called before every ping; a DomainError closes the connection."""

    def pinged(self) -> None:
        """The peer has sent a protocol-level Ping, which has been answered."""

    def heard_overhead(self, frames: int, pings: int) -> None:
        """Count frames of the peer that are no messages: Pings, Pongs and fragments; `pings` of them are Pings."""

    # --- Receiving ---------------------------------------------------------------------------------------------------

    def take(self, data: bytes | bytearray) -> Need:
        if data or (self._reader.is_behind and not self.is_ended):
            received = self._feed(data)
            if received.controls or received.fragments:
                self._hear_controls(received)
            if received.messages:
                self.take_messages(received.messages)
        return self.next_need()

    def next_need(self) -> Need:
        if not self.has_room:
            return Need.DRAIN
        if self.pace.owed:
            return Need.PACE
        return Need.TURN if self._reader.is_behind else Need.READ

    def heard_end(self) -> Need:
        """The peer has ended: nothing sent would be read."""
        self.is_broken = True
        return Need.END

    def _hear_controls(self, received: Received) -> None:
        """The frames of a turn that are no messages."""
        pings: list[PingFrame] = []
        for control in received.controls:
            if isinstance(control, PingFrame):
                pings.append(control)
            elif isinstance(control, CloseFrame):
                self._peer_closed = True
                self.close(control.code, "")  # any code is a normal end (reference 19.1), and is echoed
        if pings:
            # RFC 6455, 5.5.3: of several Pings, only the latest must be answered, so Pongs may be dropped. Some are
            # answered one by one, because there are clients that count their Pongs.
            for ping in pings[-PONGS_OF_TURN:]:
                super().offer(encode_pong_frame(ping.payload))
            self.pinged()
        overhead = len(received.controls) + received.fragments
        self.pace.spend(overhead)
        self.heard_overhead(overhead, len(pings))

    def _feed(self, data: bytes | bytearray) -> Received:
        self._heard = trio.current_time()
        try:
            return self._reader.feed(data)
        except WireError as fault:
            self._is_faulty = True
            self.close(fault.code, fault.reason)
            return fault.received  # the frames before the fault are processed

    # --- Sending ---

    def say(self, frames: bytes) -> None:
        """Send encoded frames that answer the peer's frames. The caller stops reading while there is no room."""
        if not self._said_all:
            self.put(frames)

    def offer(self, frames: bytes, count: int = 1) -> bool:
        """Send encoded frames that are no answers; False when the connection ends. Closes a peer that does not read."""
        if self._offered >= MAX_WAITING_FRAMES:
            self.close(*_TOO_SLOW)
        if self._ending is not None:
            return False
        self._offered += count
        self.put(frames)
        self._note_taken()
        if self._offered >= WEBSOCKET_BACKLOG and self._behind_since == math.inf:
            self._behind_since = trio.current_time()
            self.set_alarm()
        return True

    def uncork(self) -> None:
        super().uncork()
        self._note_taken()

    def _note_taken(self) -> None:
        """Mostly the operating system takes frames at once; then no frame waits."""
        if self.is_empty:
            self._offered, self._behind_since = 0, math.inf

    async def _send(self, data: bytes) -> None:
        waited = self._offered  # the outbox hands over all that waits, so these frames are in `data`
        await super()._send(data)
        self._offered -= waited
        self._behind_since = trio.current_time() if self._offered >= WEBSOCKET_BACKLOG else math.inf

    # --- Pings, time limits, permissions ---

    def due(self) -> float:
        return min(self._next_ping, self._heard + SILENCE_SECONDS, self._behind_since + SLOW_READER_SECONDS)

    async def beat(self, now: float) -> None:
        if now >= self._heard + SILENCE_SECONDS:
            # While the peer does not read its answers, the server does not read: the peer is slow, not silent.
            is_slow = not self.has_room
            self.close(*(_TOO_SLOW if is_slow else (INTERNAL_ERROR, "no sign of life")))
        if now >= self._behind_since + SLOW_READER_SECONDS:
            self.close(*_TOO_SLOW)
        if now >= self._next_ping:
            self._next_ping += PING_SECONDS
            await self._check()
            if self._ending is None:
                beat = ping(self._rooms.core.clock.now_ms(), self.form)
                self.put(encode_frame(beat) + encode_ping_frame())

    async def _check(self) -> None:
        outage = self._rooms.core.life.outage("websocket_not_checked")
        try:
            await self.check()
            outage.succeeded()
        except DomainError as error:
            self.close(POLICY_VIOLATION, code_and_text(error)[1])
        except StoreError as error:
            outage.failed(error)  # the next ping asks again

    # --- The end ---

    def stop(self) -> None:
        self.close(GOING_AWAY, "server shuts down")

    def move(self) -> bool:
        self.close(SERVICE_RESTART, "another node serves: connect again")
        return True

    def close(self, code: int, reason: str) -> None:
        """Stop reading, then close the connection in order. The first code and reason count."""
        if self._ending is not None:
            return
        self._ending = (code, reason)
        self.end()
        if not self._peer_closed and code not in _EXPECTED_ENDS:
            self._rooms.core.refusals.note("websocket_closed", reason=reason, code=code)

    async def finish(self) -> None:
        if not self.is_broken:
            with trio.move_on_after(_SETTLE_SECONDS):
                await self.settle()
        self.leave()

    async def settle(self) -> None:
        """Wait until the last answers are sent."""

    def farewell(self) -> bytes:
        self._said_all = True
        self._ending = self._ending or (NORMAL_CLOSURE, "")
        return encode_close_frame(*self._ending)

    async def hear_out(self) -> None:
        """Read until the peer closes: unread bytes would reset the connection, and the last frames would be lost."""
        if self._peer_closed:
            return
        with trio.move_on_after(_REPLY_SECONDS), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            if self._is_faulty and isinstance(self.stream, trio.abc.HalfCloseableStream):
                # RFC 6455, 7.1.7: after a protocol error, no reply is waited for.
                await self.stream.send_eof()
            data: bytes | bytearray = b""
            while not self._is_faulty:
                if not self._reader.is_behind and not (data := await self.receive()):
                    return
                received = self._feed(data)
                if any(isinstance(one, CloseFrame) for one in received.controls):
                    return
                self.pace.spend(len(received.messages) + len(received.controls) + received.fragments)
                await self.pace.wait()
                data = b""
            while await self.receive():
                pass
