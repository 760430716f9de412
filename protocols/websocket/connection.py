"""An open WebSocket, whatever is spoken over it (reference 19.1).

One task reads for the conversation, one writes, one beats: it pings, ends what is silent, and hears that the daemon
stops. All that is said goes through one outbox, so frames never interleave.

However a connection ends, the order is the same: reading stops, the conversation gets its last answers out, the close
frame follows, and the peer has a moment to reply. A peer that is gone is spared all that.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import structlog
import trio

from broker.errors import DomainError
from broker.services import Services
from config.limits import PING_SECONDS, SILENCE_SECONDS, WEBSOCKET_BACKLOG
from protocols.listeners import sender_at_once
from protocols.outbox import Outbox
from protocols.websocket.errors import code_and_text
from protocols.websocket.frames import Form, ping
from protocols.websocket.wire import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL_CLOSURE,
    POLICY_VIOLATION,
    TRY_AGAIN_LATER,
    Close,
    FrameReader,
    Ping,
    WireError,
    encode,
    encode_close,
    encode_ping,
    encode_pong,
)
from storage.sql import StoreError

READ_BYTES: Final = 32 * 1024
GOODBYE_SECONDS: Final = 3.0  # for the last answers to become durable and be written
REPLY_SECONDS: Final = 1.0  # for the peer's close frame

# A busy daemon commits more than WEBSOCKET_BACKLOG messages at once, so their number alone says nothing about the peer.
# It reads too slowly when so many wait and it has not taken what it was sent for a while, or when there are far more.
PATIENCE_SECONDS: Final = 1.0
MOST_FRAMES: Final = 20 * WEBSOCKET_BACKLOG
_TOO_SLOW: Final = (TRY_AGAIN_LATER, "reads too slowly")

_EXPECTED_ENDS: Final = frozenset({NORMAL_CLOSURE, GOING_AWAY})

_log = structlog.get_logger(__name__)


class Conversation(Protocol):
    """What is spoken over a connection."""

    @property
    def form(self) -> Form:
        """How the peer writes; pings take it."""

    @property
    def deadline(self) -> float:
        """When `expired` is due."""

    async def talk(self) -> None:
        """Take what `Connection.receive` gives until there is no more."""

    async def check(self) -> None:
        """Is the peer still allowed what it was? Asked before every ping. A DomainError closes the connection."""

    def expired(self) -> None:
        """The deadline has passed."""

    def pinged(self) -> None:
        """The peer sent a protocol-level Ping; it has been answered."""

    async def finish(self) -> None:
        """Nothing is read any more: let the last answers out."""

    def leave(self) -> None:
        """The connection is over. Called once, whatever has happened."""


class Connection:
    def __init__(
        self,
        services: Services,
        stream: trio.abc.Stream,
        early: bytes,
        converse: "Callable[[Connection], Conversation]",
    ) -> None:
        """`early` is what the peer had sent behind its handshake."""
        self._services = services
        self._stream = stream
        self._early = early
        self._reader = FrameReader()
        self._outbox = Outbox(self._send, send_now=sender_at_once(stream))
        self._offered = 0  # frames that wait for the peer and answer nothing
        self._behind_since = math.inf  # since when there are too many of them and none was taken
        self._nap = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._goodbye = trio.CancelScope(shield=True)
        self._heard = trio.current_time()
        self._ending: tuple[int, str] | None = None
        self._said_all = self._peer_closed = self._peer_gone = self._faulty = False
        self._conversation = converse(self)

    async def run(self) -> None:
        """Until one of the two ends it."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_forever)
                nursery.start_soon(self._beat_until_stopped)
                with self._reading:
                    await self._conversation.talk()
                await self._say_goodbye()
                nursery.cancel_scope.cancel()
        finally:
            self._conversation.leave()

    # --- What the peer says ---

    async def receive(self) -> list[str | bytes] | None:
        """The next messages, `str` of text and `bytes` of binary ones; None at the end."""
        if self._ending is not None or self._peer_gone:
            return None
        data, self._early = self._early or await self._receive_some(), b""
        if not data:
            return None
        self._heard = trio.current_time()
        try:
            received = self._reader.feed(data)
        except WireError as fault:
            received = fault.received  # what came before it counts
            self._faulty = True
            self.close(fault.code, fault.reason)
        for control in received.controls:
            if isinstance(control, Ping):
                # RFC 6455, 5.5.3: of several Pings only the latest need be answered, so a flood of them does no harm.
                self._outbox.offer(encode_pong(control.payload))
                self._conversation.pinged()
            elif isinstance(control, Close):
                self._peer_closed = True
                self.close(control.code, "")  # any code is a normal end (reference 19.1), and is echoed
        return received.messages

    async def _receive_some(self) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        if not data:
            self._peer_gone = True
        return data

    # --- What we say ---

    def say(self, frames: bytes) -> None:
        """Encoded frames that answer what the peer has sent. Whoever reads from it stops while there is no room."""
        if not self._said_all:
            self._outbox.put(frames)

    def offer(self, frames: bytes, count: int = 1) -> bool:
        """Encoded frames that the peer did not ask for just now. One that does not read them loses its connection."""
        if self._offered >= MOST_FRAMES:
            self.close(*_TOO_SLOW)
        if self._ending is not None:
            return False
        self._offered += count
        self._outbox.put(frames)
        self._note_taken()
        if self._offered >= WEBSOCKET_BACKLOG and self._behind_since == math.inf:
            self._behind_since = trio.current_time()
            self._nap.deadline = min(self._nap.deadline, self._behind_since + PATIENCE_SECONDS)
        return True

    @contextmanager
    def in_one_go(self) -> Iterator[None]:
        """What is said in this block goes out together, at its end."""
        self._outbox.cork()
        try:
            yield
        finally:
            self._outbox.uncork()
            self._note_taken()

    @property
    def has_room(self) -> bool:
        return self._outbox.has_room

    async def wait_written(self) -> None:
        await self._outbox.wait_empty()

    def _note_taken(self) -> None:
        """Most frames are on the wire as soon as they are said, and then none of them waits."""
        if self._outbox.is_empty:
            self._offered, self._behind_since = 0, math.inf

    async def _write_forever(self) -> None:
        try:
            await self._outbox.send_forever()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._peer_gone = True
            self._reading.cancel()
            self._goodbye.cancel()

    async def _send(self, data: bytes) -> None:
        waited = self._offered  # the outbox hands over all it has, so these are in `data`
        await self._stream.send_all(data)
        self._offered -= waited
        self._behind_since = trio.current_time() if self._offered >= WEBSOCKET_BACKLOG else math.inf

    # --- Alive, and allowed ---

    async def _beat_until_stopped(self) -> None:
        next_ping = trio.current_time() + PING_SECONDS
        conversation = self._conversation
        while self._ending is None:
            self._nap = trio.CancelScope()
            self._nap.deadline = min(
                next_ping,
                self._heard + SILENCE_SECONDS,
                self._behind_since + PATIENCE_SECONDS,
                conversation.deadline,
            )
            with self._nap:
                await self._services.core.life.stopping.wait()
                self.close(GOING_AWAY, "server shuts down")
                return
            now = trio.current_time()
            if now >= conversation.deadline:
                conversation.expired()
            if now >= self._heard + SILENCE_SECONDS:
                # One that is not read from, because it does not read its answers, is not silent but slow.
                slow = not self._outbox.has_room
                self.close(*(_TOO_SLOW if slow else (INTERNAL_ERROR, "no sign of life")))
            if now >= self._behind_since + PATIENCE_SECONDS:
                self.close(*_TOO_SLOW)
            if now >= next_ping:
                next_ping += PING_SECONDS
                await self._check()
                if self._ending is None:
                    beat = ping(self._services.core.clock.now_ms(), conversation.form)
                    self._outbox.put(encode(beat) + encode_ping())

    async def _check(self) -> None:
        try:
            await self._conversation.check()
        except DomainError as error:
            self.close(POLICY_VIOLATION, code_and_text(error)[1])
        except StoreError as error:
            _log.warning("websocket_not_checked", reason=str(error))  # the next ping asks again

    # --- The end ---

    def close(self, code: int, reason: str) -> None:
        """Stop reading; then say goodbye. The first reason counts."""
        if self._ending is not None:
            return
        self._ending = (code, reason)
        self._reading.cancel()
        if not self._peer_closed and code not in _EXPECTED_ENDS:
            _log.info("websocket_closed", code=code, reason=reason)

    async def _say_goodbye(self) -> None:
        self._goodbye.deadline = trio.current_time() + GOODBYE_SECONDS
        with self._goodbye:
            if self._peer_gone:
                return
            await self._conversation.finish()
            self._outbox.put(encode_close(*(self._ending or (NORMAL_CLOSURE, ""))))
            self._said_all = True
            await self._outbox.wait_empty()
            if not self._peer_closed:
                await self._wait_for_reply()

    async def _wait_for_reply(self) -> None:
        """Bytes left unread would reset the connection, and take our last words with them."""
        with trio.move_on_after(REPLY_SECONDS):
            if self._faulty and isinstance(self._stream, trio.abc.HalfCloseableStream):
                # RFC 6455, 7.1.7: one who broke the protocol is not asked for a reply.
                await self._stream.send_eof()
            while data := await self._receive_some():
                try:
                    if not self._faulty and any(isinstance(one, Close) for one in self._reader.feed(data).controls):
                        return
                except WireError:
                    self._faulty = True
