"""An open WebSocket, for the device channel and the feeds (reference 19.1).

Each connection has one task, which reads for the conversation. Where the connection is a plain socket and the
conversation can take messages without waiting, the task parks the socket, and the hub reads (hub.py). A second task
writes as soon as the operating system has not taken all at once. What comes with time, pings and the end of silent
connections, is done by a task that lives as long as that takes; alarms.py starts it. All frames go through one outbox,
so they never interleave.

A connection always ends in the same order: reading stops, the conversation sends its last answers, the close frame
follows, and the peer has a second for its own close frame. If the peer has gone, the connection ends at once.
"""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import structlog
import trio

from broker.errors import DomainError
from broker.limits.overhead import Pace
from config.limits import PING_SECONDS, SILENCE_SECONDS, WEBSOCKET_BACKLOG
from protocols.streams.hub import Hub
from protocols.streams.listeners import sender_at_once
from protocols.streams.outbox import Outbox
from protocols.streams.peers import turn_of_strangers
from protocols.websocket.alarms import Alarm, Alarms
from protocols.websocket.errors import code_and_text
from protocols.websocket.frames import FrameForm, ping
from protocols.websocket.rooms import WebSocketRooms
from protocols.websocket.wire import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL_CLOSURE,
    POLICY_VIOLATION,
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

READ_BYTES: Final = 32 * 1024
PONGS_OF_TURN: Final = 16
_GOODBYE_SECONDS: Final = 3.0  # for the last answers, which wait for their commit
_REPLY_SECONDS: Final = 1.0  # for the peer's close frame

# A busy daemon may commit more than WEBSOCKET_BACKLOG messages at once, so the number of waiting frames alone does not
# show a slow peer. A peer is too slow when so many frames wait and it has read nothing for this time, or when far more
# frames wait.
SLOW_READER_SECONDS: Final = 1.0
MAX_WAITING_FRAMES: Final = 20 * WEBSOCKET_BACKLOG
_TOO_SLOW: Final = (TRY_AGAIN_LATER, "reads too slowly")

_EXPECTED_ENDS: Final = frozenset({NORMAL_CLOSURE, GOING_AWAY})

_log = structlog.get_logger(__name__)


#: Processes the messages of one turn without waiting; False when some are left, which `talk` goes on with.
Take = Callable[[Sequence[str | bytes]], bool]


class Conversation(Protocol):
    """The protocol on top of a connection: the device channel or a feed."""

    @property
    def form(self) -> FrameForm:
        """How the peer writes its frames; pings have the same form."""

    @property
    def deadline(self) -> float:
        """When to call `expired`, on trio's clock."""

    async def talk(self) -> None:
        """Process the messages of `OpenWebSocket.receive` until it returns None."""

    async def check(self) -> None:
        """Check the peer's permissions again. Called before every ping; a DomainError closes the connection."""

    def expired(self) -> None:
        """The deadline has passed."""

    def pinged(self) -> None:
        """The peer has sent a protocol-level Ping, which has been answered."""

    def heard_overhead(self, frames: int, pings: int) -> None:
        """The peer has sent so many frames that are no messages: Pings, Pongs and fragments; `pings` are Pings."""

    async def finish(self) -> None:
        """Reading has stopped: send the last answers."""

    def leave(self) -> None:
        """The connection has ended, for any reason. Called once."""


class OpenWebSocket:
    __slots__ = (
        "_alarm",
        "_alarms",
        "_behind_since",
        "_conversation",
        "_early",
        "_ending",
        "_faulty",
        "_goodbye",
        "_heard",
        "_hub",
        "_is_beating",
        "_is_taking",
        "_is_writing",
        "_next_ping",
        "_nursery",
        "_offered",
        "_outbox",
        "_peer_closed",
        "_peer_gone",
        "_reader",
        "_reading",
        "_rooms",
        "_said_all",
        "_send_at_once",
        "_stream",
        "_take",
        "pace",
    )

    def __init__(
        self,
        rooms: WebSocketRooms,
        alarms: Alarms,
        stream: trio.abc.Stream,
        early: bytes,
        converse: "Callable[[OpenWebSocket], Conversation]",
        hub: Hub | None = None,
    ) -> None:
        """`early` is what the peer has sent behind its handshake. `alarms` must be ringing (`Alarms.ring_forever`).
        The hub reads from the stream where it is a plain socket."""
        self._rooms = rooms
        self._stream = stream
        self._early = early
        self._hub = hub if isinstance(stream, trio.SocketStream) else None
        self._take: Take | None = None  # while the hub reads
        self._is_taking = False  # the hub has read, and the task that is parked will be woken if the connection ends
        self._reader = FrameReader()
        self.pace: Pace = rooms.limits.overhead.pace()
        self._send_at_once = sender_at_once(stream)
        self._outbox = Outbox(self._send, send_now=None if self._send_at_once is None else self._send_now)
        self._is_writing = self._send_at_once is None
        self._nursery: trio.Nursery | None = None  # while the connection is served
        self._offered = 0  # waiting frames that are no answers
        self._behind_since = math.inf  # since when too many wait and the peer has read none
        self._alarms = alarms
        self._alarm = Alarm(self._wake)
        self._is_beating = False
        self._next_ping = trio.current_time() + PING_SECONDS
        self._reading = trio.CancelScope()
        self._goodbye = trio.CancelScope()
        self._heard = trio.current_time()
        self._ending: tuple[int, str] | None = None
        self._said_all = self._peer_closed = self._peer_gone = self._faulty = False
        self._conversation = converse(self)

    async def run(self) -> None:
        """Serve the connection until the client or the server ends it."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._is_writing or not self._outbox.is_empty:
                    self._is_writing = True
                    nursery.start_soon(self._write_forever)
                self._set_alarm()
                with self._reading:
                    await self._conversation.talk()
                await self._say_goodbye()
                nursery.cancel_scope.cancel()
                self._nursery = None
        finally:
            self._nursery = None
            self._alarms.unset(self._alarm)
            self._conversation.leave()
            # From now on nothing is offered, so no alarm is set. These three refer back to this object: it would wait
            # for the garbage collector, and strangers decide how many connections end.
            self._ending = self._ending or (NORMAL_CLOSURE, "")
            self._outbox.end()
            del self._conversation, self._alarm

    # --- Receiving ---

    async def receive(self, take: Take | None = None) -> Sequence[str | bytes] | None:
        """The next messages, `str` for text and `bytes` for binary; None at the end.

        With `take`, messages may go there instead, turn by turn. This returns when it has returned False, or when
        something is to be awaited before more is read; the caller checks whether its own queues have room.
        """
        if self._ending is not None or self._peer_gone:
            return None
        if self.pace.owed:
            await self.pace.wait()
        if take is not None and self._hub is not None and not (self._reader.is_behind or self._early):
            await self._park(self._hub, take)
            return ()
        received = await self._receive_turn()
        return None if received is None else self._messages(received)

    async def _park(self, hub: Hub, take: Take) -> None:
        """Have the hub process what comes, until something is to be awaited or the connection is over."""
        assert isinstance(self._stream, trio.SocketStream)  # noqa: S101 - otherwise there is no hub
        self._take = take
        try:
            if not await hub.read(self._stream.socket, self._take_read):
                self._hub = None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._peer_gone = True
        if self._ending is not None:
            self._reading.cancel()

    def _take_read(self, data: bytes) -> bool:
        """Process what the hub has read. Returns whether it may go on."""
        if not data:
            self._peer_gone = True
            return False
        take = self._take
        assert take is not None  # noqa: S101 - `_park` has set it
        # A connection that ends now ends after the messages that came before: the task must not be cancelled yet.
        self._is_taking = True
        try:
            received = self._feed(data)
            if received.controls or received.fragments:
                self._hear_controls(received)
            goes_on = take(received.messages)
        finally:
            self._is_taking = False
        return goes_on and self._ending is None and not (self._reader.is_behind or self.pace.owed)

    def _messages(self, received: Received) -> Sequence[str | bytes]:
        if received.controls or received.fragments:
            self._hear_controls(received)
        return received.messages

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
                self._outbox.offer(encode_pong_frame(ping.payload))
            self._conversation.pinged()
        overhead = len(received.controls) + received.fragments
        self.pace.spend(overhead)
        self._conversation.heard_overhead(overhead, len(pings))

    async def _receive_turn(self) -> Received | None:
        """The frames of the connection's next turn; None at the end of the stream."""
        if self.pace.owed:
            await self.pace.wait()
        data: bytes | bytearray = b""
        if self._reader.is_behind:
            await trio.lowlevel.checkpoint()
        else:
            data, self._early = self._early or await self._receive_some(), b""
            if not data:
                return None
        return self._feed(data)

    def _feed(self, data: bytes | bytearray) -> Received:
        self._heard = trio.current_time()
        try:
            return self._reader.feed(data)
        except WireError as fault:
            self._faulty = True
            self.close(fault.code, fault.reason)
            return fault.received  # the frames before the fault are processed

    async def _receive_some(self) -> bytes | bytearray:
        try:
            if isinstance(self._stream, trio.SocketStream):
                data: bytes | bytearray = await _read_when_ready(self._stream.socket)
            else:
                data = await self._stream.receive_some(READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            data = b""
        if not data:
            self._peer_gone = True
        await turn_of_strangers()
        return data

    # --- Sending ---

    def say(self, frames: bytes) -> None:
        """Send encoded frames that answer the peer's frames. The caller stops reading while there is no room."""
        if not self._said_all:
            self._outbox.put(frames)

    def offer(self, frames: bytes, count: int = 1) -> bool:
        """Send encoded frames that are no answers; False when the connection ends. Closes a peer that does not read."""
        if self._offered >= MAX_WAITING_FRAMES:
            self.close(*_TOO_SLOW)
        if self._ending is not None:
            return False
        self._offered += count
        self._outbox.put(frames)
        self._note_taken()
        if self._offered >= WEBSOCKET_BACKLOG and self._behind_since == math.inf:
            self._behind_since = trio.current_time()
            if not self._is_beating:
                self._set_alarm()
        return True

    def cork(self) -> None:
        """The frames that are sent from now on leave together, at `uncork`."""
        self._outbox.cork()

    def uncork(self) -> None:
        self._outbox.uncork()
        self._note_taken()

    @property
    def has_room(self) -> bool:
        return self._outbox.has_room

    async def wait_written(self) -> None:
        await self._outbox.wait_empty()

    def _note_taken(self) -> None:
        """Mostly the operating system takes frames at once; then no frame waits."""
        if self._outbox.is_empty:
            self._offered, self._behind_since = 0, math.inf

    def _send_now(self, data: bytes) -> int:
        sent = 0 if self._send_at_once is None else self._send_at_once(data)
        if sent < len(data) and not self._is_writing and self._nursery is not None:
            self._is_writing = True
            self._nursery.start_soon(self._write_forever)
        return sent

    async def _write_forever(self) -> None:
        try:
            await self._outbox.send_forever()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._peer_gone = True
            self._reading.cancel()
            self._goodbye.cancel()

    async def _send(self, data: bytes) -> None:
        waited = self._offered  # the outbox hands over all that waits, so these frames are in `data`
        await self._stream.send_all(data)
        self._offered -= waited
        self._behind_since = trio.current_time() if self._offered >= WEBSOCKET_BACKLOG else math.inf

    # --- Pings, time limits, permissions ---

    def _set_alarm(self) -> None:
        due = (
            self._next_ping,
            self._heard + SILENCE_SECONDS,
            self._behind_since + SLOW_READER_SECONDS,
            self._conversation.deadline,
        )
        self._alarms.set(self._alarm, min(due))

    def _wake(self) -> None:
        """Something is due, or the daemon stops."""
        if self._rooms.core.life.stopping.is_set():
            self.close(GOING_AWAY, "server shuts down")
        elif self._nursery is not None and self._ending is None:
            self._is_beating = True
            self._nursery.start_soon(self._beat)

    async def _beat(self) -> None:
        await trio.lowlevel.checkpoint()  # after a pause of the whole process, what lies in the socket is read first
        now, conversation = trio.current_time(), self._conversation
        if now >= conversation.deadline:
            conversation.expired()
        if now >= self._heard + SILENCE_SECONDS:
            # While the peer does not read its answers, the server does not read: the peer is slow, not silent.
            is_slow = not self._outbox.has_room
            self.close(*(_TOO_SLOW if is_slow else (INTERNAL_ERROR, "no sign of life")))
        if now >= self._behind_since + SLOW_READER_SECONDS:
            self.close(*_TOO_SLOW)
        if now >= self._next_ping:
            self._next_ping += PING_SECONDS
            await self._check()
            if self._ending is None:
                beat = ping(self._rooms.core.clock.now_ms(), conversation.form)
                self._outbox.put(encode_frame(beat) + encode_ping_frame())
        self._is_beating = False
        if self._ending is None:
            self._set_alarm()

    async def _check(self) -> None:
        try:
            await self._conversation.check()
        except DomainError as error:
            self.close(POLICY_VIOLATION, code_and_text(error)[1])
        except StoreError as error:
            _log.warning("websocket_not_checked", reason=str(error))  # the next ping asks again

    # --- The end ---

    def close(self, code: int, reason: str) -> None:
        """Stop reading, then close the connection in order. The first code and reason count."""
        if self._ending is not None:
            return
        self._ending = (code, reason)
        if not self._is_taking:
            self._reading.cancel()
        if not self._peer_closed and code not in _EXPECTED_ENDS:
            self._rooms.core.refusals.note("websocket_closed", reason=reason, code=code)

    async def _say_goodbye(self) -> None:
        self._goodbye.deadline = trio.current_time() + _GOODBYE_SECONDS
        with self._goodbye:
            if self._peer_gone:
                return
            await self._conversation.finish()
            self._outbox.put(encode_close_frame(*(self._ending or (NORMAL_CLOSURE, ""))))
            self._said_all = True
            await self._outbox.wait_empty()
            if not self._peer_closed:
                await self._wait_for_reply()

    async def _wait_for_reply(self) -> None:
        """Read until the peer closes: unread bytes would reset the connection, and the last frames would be lost."""
        with trio.move_on_after(_REPLY_SECONDS):
            if self._faulty and isinstance(self._stream, trio.abc.HalfCloseableStream):
                # RFC 6455, 7.1.7: after a protocol error, no reply is waited for.
                await self._stream.send_eof()
            while not self._faulty:
                received = await self._receive_turn()
                if received is None or any(isinstance(one, CloseFrame) for one in received.controls):
                    return
                self.pace.spend(len(received.messages) + len(received.controls) + received.fragments)
            while await self._receive_some():
                pass


async def _read_when_ready(socket: trio.socket.SocketType) -> bytes:
    """What has come, at least one byte; nothing at the end. Raises OSError, trio.ClosedResourceError.

    A device mostly sends its next messages after the answers to its last ones. So this waits first, where
    `SocketStream.receive_some` tries to read, fails, waits, and reads: a third of its time.
    """
    while socket.fileno() >= 0:  # strangers lose their sockets when there are too many
        await trio.lowlevel.wait_readable(socket)
        with suppress(BlockingIOError):
            return os.read(socket.fileno(), READ_BYTES)
    return b""
