"""Common base of the endpoints of CoAP and LWM2M: sessions from their opening to their end, and timers.

Everything is synchronous except `tick_forever`. An exception that no code expects ends one session (`contained`).
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import partial
from math import inf
from typing import Any, Final, Generic

import trio

from broker.registration.certificates import ClientCertificate
from protocols.coap.containment import contain
from protocols.coap.message_layer import MessageEvent, MessageLayer
from protocols.coap.messages import CoapMessage, MalformedMessage, decode_message
from protocols.coap.session import CoapSessions, S, SessionLimits, SessionRank
from protocols.coap.statistics import EndpointStatistics

SESSION_SWEEP_SECONDS: Final = 5.0

#: For the first message id and the spread of time-outs. Both are no secrets, and SystemRandom makes a system call.
chance_of_time_outs: Final = random.random


class SessionEndpoint(ABC, Generic[S]):
    """The sessions of one listener. A subclass says what follows from their messages."""

    def __init__(
        self,
        new_session: Callable[..., S],
        *,
        failure: str,
        limits: SessionLimits | None,
        now: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        """An endpoint without sessions.

        Args:
            new_session: makes a session from the arguments of CoapSession.
            failure: the event in the log when an exception has ended a session.
            limits: of the sessions.
            now: the clock, in seconds.
            chance: gives numbers from 0 to 1.
        """
        self._new_session = new_session
        self._failure = failure
        self._limits = limits or SessionLimits()
        self._chance = chance
        self.now = now
        #: Takes a key, a function and its arguments: an exception ends the session with the key and nothing else.
        self.contained: Callable[..., object] = partial(contain, failure, self._close_failed)
        self._sessions: CoapSessions[S] = CoapSessions(self._limits)
        self._sooner = trio.Event()
        self._wakes_at = inf
        self._next_sweep = inf
        self._requests = self._dropped = self._malformed = self._evicted = self._overhead_dropped = 0
        self._duplicates = self._retransmissions = 0

    # --- Sessions ----------------------------------------------------------------------------------------------------

    def open(
        self,
        key: Hashable,
        send: Callable[[bytes], None],
        end: Callable[[], None],
        *,
        idle_seconds: float,
        is_address_verified: bool,
        certificate: ClientCertificate | None = None,
    ) -> S:
        """Open a session (arguments as of CoapSession). When a limit is exceeded, one ends; it may be the new one."""
        now = self.now()
        session = self._new_session(
            key,
            MessageLayer(self._chance),
            send,
            end,
            idle_seconds,
            is_address_verified,
            now,
        )
        session.certificate = certificate
        self._sessions.add(session)
        self._make_room(session)
        if self._next_sweep == inf:
            self._next_sweep = now + SESSION_SWEEP_SECONDS
            if self._next_sweep < self._wakes_at:
                self._sooner.set()
        return session

    def find(self, key: Hashable) -> S | None:
        """The open session of a peer."""
        return self._sessions.find(key)

    def replaced(self, former: S, session: S) -> None:
        """The peer of a session that has ended has begun this one from the same address."""

    def close(self, session: S) -> None:
        """End a session and forget it. An exception on the way is logged, and the session ends."""
        contain(self._failure, None, session.key, self._close, session)

    def _close(self, session: S) -> None:
        if session.is_closed:
            return
        try:
            self._ending(session)
            session.flush()
        finally:
            self._sessions.remove(session)
            self._duplicates += session.message_layer.duplicates
            self._retransmissions += session.message_layer.retransmissions
            session.end()

    @abstractmethod
    def _ending(self, session: S) -> None:
        """Notify the dependants of a session that it ends now."""

    def _close_failed(self, key: Hashable) -> None:
        session = self._sessions.find(key)
        if session is not None:
            self._close(session)

    def close_all(self) -> None:
        """Close every session. One that fails does not keep the others open."""
        for session in self._sessions:
            self.close(session)

    def _make_room(self, latest: S) -> None:
        while (session := self._sessions.surplus(latest)) is not None:
            self._evicted += 1
            self.close(session)

    # --- In and out --------------------------------------------------------------------------------------------------

    def receive(self, session: S, datagram: bytes) -> None:
        """Take a datagram of a session, unless its peer has sent too many that carry no message.

        The caller contains exceptions (`contained`).
        """
        if self._admission(session.key, session):
            self._take(session, datagram)

    def _take(self, session: S, datagram: bytes) -> CoapMessage | None:
        """Process a datagram that was admitted. Returns its message; None for one that is malformed or as usual."""
        try:
            message = decode_message(datagram)
        except MalformedMessage as malformed:
            self._reject(malformed, session, session.send)
            return None
        self._receive(session, message)
        return message

    def _admission(self, _key: Hashable, session: S | None) -> int:
        """The weight of the next datagram of a peer; 0 when it is dropped."""
        if session is not None and session.overhead is not None and session.overhead.is_empty(self.now()):
            self._overhead_dropped += 1
            return 0
        return 1

    def _reject(self, malformed: MalformedMessage, session: S | None, send: Callable[[bytes], None]) -> None:
        self._malformed += 1
        if session is not None:
            session.spend(self.now())
        if malformed.answer is not None:
            send(malformed.answer)

    @abstractmethod
    def _receive(self, session: S, message: CoapMessage) -> None:
        """Process a message of a session."""

    @abstractmethod
    def _handle(self, session: S, event: MessageEvent, now: float) -> None:
        """Process an event of the session's message layer."""

    def _settle(self, session: S) -> None:
        """Send what the message layer has to send, and note how much the session holds and its deadline."""
        session.flush()
        self._sessions.account(session)
        self._sessions.schedule(session)
        if session.scheduled < self._wakes_at:
            self._sooner.set()

    # --- Time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due at `now`: retransmissions, time-outs, and the sweep of all sessions every few seconds."""
        for session in self._sessions.due(now):
            self.contained(session.key, self._tick, session, now)
        if self._next_sweep <= now:
            self._sweep(now)
            self._next_sweep = now + SESSION_SWEEP_SECONDS if len(self._sessions) else inf

    def _tick(self, session: S, now: float) -> None:
        for event in session.message_layer.tick(now):
            self._handle(session, event, now)
        if not session.is_closed:
            self._settle(session)

    def _sweep(self, now: float) -> None:
        """Bound in time what no datagram may ever end: block-wise transfers, and sessions of silent peers."""
        for session in self._sessions.with_blocks():
            self.contained(session.key, self._forget_blocks, session, now)
        for session in self._sessions.silent(now, SessionRank.UNAUTHENTICATED, SessionRank.AUTHENTICATED):
            self.close(session)

    def _forget_blocks(self, session: S, now: float) -> None:
        session.blocks.forget(now)
        self._sessions.account(session)

    async def tick_forever(self) -> None:
        """Call `tick` whenever something is due, until cancelled."""
        while True:
            self._sooner = trio.Event()
            self._wakes_at = min(self._sessions.next_due, self._next_sweep)
            with trio.move_on_after(max(0.0, self._wakes_at - self.now())):
                await self._sooner.wait()
            self.tick(self.now())

    def _statistics(self, **others: Any) -> EndpointStatistics:
        """The statistics, with the fields that only the subclass knows."""
        message_layers = [session.message_layer for session in self._sessions]
        return EndpointStatistics(
            sessions=len(self._sessions),
            strangers=self._sessions.count(SessionRank.UNAUTHENTICATED),
            bytes_held=self._sessions.bytes_held,
            requests=self._requests,
            requests_dropped=self._dropped,
            overhead_dropped=self._overhead_dropped,
            malformed=self._malformed,
            duplicates=self._duplicates + sum(one.duplicates for one in message_layers),
            retransmissions=self._retransmissions + sum(one.retransmissions for one in message_layers),
            evicted=self._evicted,
            **others,
        )
