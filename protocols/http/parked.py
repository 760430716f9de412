"""A connection of a device that posts messages: the hub reads from it, and a message costs no turn of a task.

What is to be waited for before the commit ends the wait: the connection's task answers it, as if it had read it itself.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, Protocol

import trio
from quart import Response

from broker.trace.origin import Origin, enter
from protocols.http.answers import Answer
from protocols.http.calls import AfterCommit
from protocols.http.heads import HEAD_BYTES
from protocols.http.peer_timeouts import PeerTimeouts
from protocols.http.plain_requests import PlainRequest, plain_request
from protocols.http.this_request import ThisRequest, answering, within
from protocols.streams.hub import Hub
from protocols.streams.listeners import sending_at_once
from storage.sql import StoreError

KEEP_ALIVE_SECONDS: Final = 75
#: The body of a request is at hand here, and nobody reads it.
_NO_BODY: Final = partial(within, b"")


class Endpoint(Protocol):
    is_at_once: bool

    def reply_at_once(self, request: ThisRequest, body: bytes) -> AfterCommit[Any] | None:
        """Begin to answer `this_request` without waiting; None where that cannot be. Raises DomainError."""

    def committed(self, begun: AfterCommit[Any]) -> Answer:
        """The answer after the commit."""

    async def reply(self, names: Mapping[str, str]) -> Answer | Response:
        """Answer `this_request`. Raises DomainError, StoreError."""


class Listener(Protocol):
    """Interface of a parked connection's listener: `direct.py: DirectCalls`."""

    timeouts: PeerTimeouts

    def at_once(self, asked: PlainRequest) -> Endpoint | None: ...
    def finished(self, request: ThisRequest, began: float, answer: Answer) -> bytes: ...
    def refused_message(self, error: Exception) -> Answer: ...


def _run(context: Context, committed: Callable[[StoreError | None], None], error: StoreError | None) -> None:
    context.run(committed, error)


class ParkedConnection:
    """One connection, from its first message on. One request is in flight, as on the other way."""

    __slots__ = (
        "_address",
        "_answered_at",
        "_asked",
        "_endpoint",
        "_head",
        "_hub",
        "_idle",
        "_in_flight",
        "_left",
        "_listener",
        "_origin",
        "_scope",
        "_send_now",
        "_socket",
        "_unsent",
        "has_answered",
    )

    def __init__(self, listener: Listener, hub: Hub, stream: trio.SocketStream, *, address: str) -> None:
        """The connection of a device that has shown its token, from this address and through no proxy."""
        self._listener = listener
        self._hub = hub
        self._socket = stream.socket
        self._send_now = sending_at_once(stream)
        self._address = address
        self._origin = Origin(address)
        self._asked: PlainRequest | None = None
        self._endpoint: Endpoint | None = None  # of the same request
        self._head = b""
        self._left = b""
        self._unsent = b""
        self._in_flight = False
        self._idle: trio.Event | None = None  # while the task waits for the answer in flight
        self._scope: trio.CancelScope | None = None  # while the hub reads
        self._answered_at = 0.0
        #: Whether the latest `wait` has answered anything.
        self.has_answered = False

    @property
    def deadline(self) -> float:
        """The time at which the connection has been idle for too long."""
        return self._answered_at + KEEP_ALIVE_SECONDS

    async def wait(self, send: Callable[[bytes], Awaitable[None]]) -> bytes | None:
        """Answer messages until something else comes.

        Args:
            send: sends the rest of an answer that the operating system has not taken. Raises BrokenResourceError.

        Returns:
            What has come and is not answered; nothing at the end of the connection. None when the hub cannot read.

        Raises:
            BrokenResourceError, ClosedResourceError: the connection is broken or closed.
        """
        self._answered_at, self.has_answered = trio.current_time(), False
        while True:
            # The time limit does not move with each message: when it comes, it is known whether there was one.
            is_read = True
            with self._listener.timeouts.until(self.deadline, in_flight=False) as self._scope:
                is_read = await self._hub.read(self._socket, self._take)
            waited, self._scope = self._scope, None
            if self._in_flight:
                self._idle = trio.Event()
                await self._idle.wait()
                self._idle = None
            if self._unsent:
                rest, self._unsent = self._unsent, b""
                await send(rest)
                self._answered_at = trio.current_time()
            if not is_read:
                return None
            if not waited.cancelled_caught:
                left, self._left = self._left, b""
                return left
            if self._listener.timeouts.is_stopped:
                return b""
            if trio.current_time() >= self.deadline:
                return self._late()

    def _late(self) -> bytes:
        """Bytes in the socket although the time is over: the daemon was paused."""
        try:
            return os.read(self._socket.fileno(), HEAD_BYTES)
        except OSError:
            return b""

    def _take(self, received: bytes) -> bool:
        """Accept the message that the hub has read. Returns whether the hub may go on."""
        if self._in_flight or not self._accept(received):
            self._left = received
            return False
        return True

    def _accept(self, received: bytes) -> bool:
        asked = self._asked
        # Most clients send the same head again and again.
        if asked is None or not received.startswith(self._head):
            asked = self._asked = plain_request(received)
            self._endpoint = None if asked is None else self._listener.at_once(asked)
            if asked is None or self._endpoint is None:
                self._asked = None
                return False
            self._head = received[: asked.head_length]
        if self._endpoint is None or len(received) != asked.head_length + asked.body_length:
            return False
        began = time.perf_counter()
        request = ThisRequest(
            asked.method,
            self._address,
            asked.authorization,
            asked.query,
            None,
            _NO_BODY,
        )
        answering(request)
        try:
            begun = self._endpoint.reply_at_once(request, received[asked.head_length :])
        except Exception as error:  # noqa: BLE001 - a bug must end only its request
            self._answer(request, began, self._listener.refused_message(error))
        else:
            if begun is None:
                return False
            self._in_flight = True
            committed = partial(self._committed, request, began, self._endpoint, begun)
            begun.ingest.after_commit(partial(_run, copy_context(), committed))
        finally:
            # Forget the caller: the next request may be somebody else's, and an idle connection should hold nothing.
            enter(self._origin)
            answering(None)
        return True

    def _committed(
        self,
        request: ThisRequest,
        began: float,
        endpoint: Endpoint,
        begun: AfterCommit[Any],
        error: StoreError | None,
    ) -> None:
        try:
            answer = endpoint.committed(begun) if error is None else self._listener.refused_message(error)
        except Exception as bug:  # noqa: BLE001 - as above
            answer = self._listener.refused_message(bug)
        self._in_flight = False
        if self._idle is not None:
            self._idle.set()  # the task goes on after this call
        self._answer(request, began, answer)

    def _answer(self, request: ThisRequest, began: float, answer: Answer) -> None:
        self.has_answered = True
        rendered = self._listener.finished(request, began, answer)
        self._answered_at = trio.current_time()
        sent = self._send_now(rendered)
        if sent < len(rendered):
            self._unsent = rendered[sent:]
            if self._scope is not None:
                self._scope.cancel()  # the task sends the rest
