"""Between datagrams and resources: what the UDP and the DTLS listener share.

Everything here is synchronous but the two tasks at the end. A listener hands over what it has read in one go and says
`submitted`; whatever there is to send goes to `Session.send`, which takes it at once or loses it, as networks do.
"""

import random
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from math import inf

import structlog
import trio

from broker.errors import DomainError
from broker.ids import new_id
from broker.registration.certificates import ClientCertificate
from broker.services import Services
from config.limits import COAP_EXCHANGE_SECONDS, COAP_SILENCE_SECONDS
from protocols.coap.echo import AmplificationGuard
from protocols.coap.errors import BadOption, InternalError
from protocols.coap.exchange import Delivered, Event, Exchange, Rejected, RequestReceived, ResponseReceived, TimedOut
from protocols.coap.incoming import Incoming
from protocols.coap.messages import (
    CON,
    NON,
    RST,
    Code,
    MalformedMessage,
    Message,
    Option,
    decode,
    empty,
    encode_options,
)
from protocols.coap.observers import Observers
from protocols.coap.requests import Answer, Request, answer_options, read_request, refusal
from protocols.coap.resources import Resources
from protocols.coap.session import Rank, Session, SessionLimits, Sessions
from protocols.coap.statistics import EndpointStatistics

SWEEP_SECONDS = 5.0
LOOKUP_WORKERS = 4

#: For the first message id and the spread of time-outs: no secrets, and SystemRandom asks the kernel each time.
_chance = random.random
_log = structlog.get_logger(__name__)


class Endpoint:
    """The sessions of one listener and what they ask for."""

    def __init__(
        self,
        services: Services,
        *,
        guard: AmplificationGuard | None = None,
        limits: SessionLimits | None = None,
        now: Callable[[], float] = trio.current_time,
        chance: Callable[[], float] = _chance,
    ) -> None:
        """`guard` stands before peers whose address nothing else proves."""
        self._guard = guard
        self._limits = limits or SessionLimits()
        self.now = now
        self._chance = chance
        self._sessions = Sessions(self._limits)
        self._observers = Observers(services, guard, now, self._changed)
        self._resources = Resources(services, self._observers, self._reply, self._member)
        self._sooner = trio.Event()
        self._wakes_at = inf
        self._next_sweep = inf
        self._requests = self._dropped = self._malformed = self._challenges = self._evicted = 0
        self._duplicates = self._retransmissions = 0
        self.datagrams_lost = 0
        self.submitted = self._resources.submitted

    # --- Sessions ----------------------------------------------------------------------------------------------------

    def open(
        self,
        key: Hashable,
        send: Callable[[bytes], None],
        end: Callable[[], None],
        *,
        idle_seconds: float = COAP_EXCHANGE_SECONDS,
        is_verified: bool = False,
        certificate: ClientCertificate | None = None,
    ) -> Session:
        """A new session; another one may have to go for it."""
        now = self.now()
        session = Session(
            key, Exchange(self._chance), send, end, idle_seconds=idle_seconds, is_verified=is_verified, now=now
        )
        session.certificate = certificate
        self._sessions.add(session)
        self._make_room(session)
        if self._next_sweep == inf:
            self._next_sweep = now + SWEEP_SECONDS
            self._wake_by(self._next_sweep)
        return session

    def find(self, key: Hashable) -> Session | None:
        return self._sessions.find(key)

    def close(self, session: Session) -> None:
        """The peer is gone, or has to go."""
        if session.is_closed:
            return
        try:
            self._observers.shut_down(session)
            session.flush()
        finally:  # it may be a bug of ours that ends it
            self._sessions.remove(session)
            self._duplicates += session.exchange.duplicates
            self._retransmissions += session.exchange.retransmissions
            session.end()

    def _failed(self, session: Session | None) -> None:
        """At the edge of one peer: what was raised there ends its session and touches nothing else."""
        _log.exception("coap_session_failed")
        if session is not None:
            with suppress(Exception):  # the same bug may be in the way of a goodbye
                self.close(session)

    def close_all(self) -> None:
        """The listener is closing."""
        for session in self._sessions:
            self.close(session)

    def _make_room(self, latest: Session) -> None:
        while (session := self._sessions.surplus(latest)) is not None:
            self._evicted += 1
            self._let_go(session)

    def _let_go(self, session: Session) -> None:
        """A bug of ours met with one that has to go is nobody else's."""
        try:
            self.close(session)
        except Exception:  # noqa: BLE001 - as in `receive_from`
            self._failed(session)

    def _member(self, session: Session) -> None:
        self._sessions.rise(session, Rank.MEMBER)

    def _changed(self, session: Session) -> None:
        if session.is_closed:
            return
        if session.observers:
            self._sessions.rise(session, Rank.OBSERVER)
        elif session.rank is Rank.OBSERVER:
            self._sessions.rise(session, Rank.MEMBER)
        self._settle(session)

    # --- In ----------------------------------------------------------------------------------------------------------

    def receive_from(self, key: Hashable, datagram: bytes, send_to: Callable[[Hashable, bytes], None]) -> None:
        """A datagram from an address. Only a request makes a session; anything else is answered and forgotten."""
        try:
            message = decode(datagram)
            session = self._sessions.find(key)
            if session is not None:
                self._receive(session, message)
            elif message.is_request and message.type in (CON, NON):
                self._receive(self.open(key, partial(send_to, key), _nothing), message)
            elif message.type == CON:
                send_to(key, empty(RST, message.message_id))
        except MalformedMessage as malformed:
            self._reject(malformed, partial(send_to, key))
        except Exception:  # noqa: BLE001 - the one catch for bugs of ours with a peer that has no connection
            self._failed(self._sessions.find(key))

    def receive(self, session: Session, datagram: bytes) -> None:
        """A datagram of a session. What is raised is a bug of ours, and its session must not go on."""
        try:
            message = decode(datagram)
        except MalformedMessage as malformed:
            self._reject(malformed, session.send)
            return
        self._receive(session, message)

    def _reject(self, malformed: MalformedMessage, send: Callable[[bytes], None]) -> None:
        self._malformed += 1
        if malformed.answer is not None:
            send(malformed.answer)

    def _receive(self, session: Session, message: Message) -> None:
        if session.is_closed:
            return
        now = self.now()
        exchange = session.exchange
        self._sessions.heard(session, now)
        if (
            message.is_request
            and exchange.owed >= self._limits.requests_per_session
            and not exchange.knows(message, now)
        ):
            self._dropped += 1
            return
        if message.code == Code.EMPTY and session.observers:
            self._observers.heard(session)
        for event in exchange.receive(message, now):
            self._handle(session, event, now)
        self._settle(session)
        self._make_room(session)

    def _handle(self, session: Session, event: Event, now: float) -> None:
        match event:
            case RequestReceived(incoming):
                self._requests += 1
                self._request(session, incoming, now)
            case Delivered(tag):
                self._observers.delivered(session, tag)
            case Rejected(tag):
                self._observers.rejected(session, tag)
            case TimedOut(tag):
                self._observers.timed_out(session, tag, now)
            case ResponseReceived():
                pass  # nothing is asked of these peers

    def _request(self, session: Session, incoming: Incoming, now: float) -> None:
        request: Request | None = None
        try:
            request = read_request(incoming.message)
            if request.echo is not None and self._guard is not None and not session.is_verified:
                session.is_verified = self._guard.proves(request.echo, session.key, now)
            self._resources.handle(session, incoming, request, now)
        except BadOption as error:
            if incoming.message.type == NON:  # RFC 7252 section 5.4.1: rejected, that is, ignored
                session.exchange.ignore(incoming)
            else:
                self._answer(session, incoming, refusal(error, request))
        except DomainError as error:
            self._answer(session, incoming, refusal(error, request))
        except Exception:  # noqa: BLE001 - the one catch for bugs of ours in a request
            error_id = new_id()
            _log.exception("coap_request_failed", error_id=error_id)
            if not incoming.is_answered:
                self._answer(session, incoming, refusal(InternalError(), request, error_id=error_id))

    # --- Out ---------------------------------------------------------------------------------------------------------

    def _reply(self, session: Session, incoming: Incoming, answer: Answer) -> None:
        if not session.is_closed:
            self._answer(session, incoming, answer)
            self._settle(session)

    def _answer(self, session: Session, incoming: Incoming, answer: Answer) -> None:
        now = self.now()
        options = encode_options(answer_options(answer))
        if self._guard is not None and not session.is_verified:
            answer_bytes = 4 + len(incoming.token) + len(options) + 1 + len(answer.body)
            if not self._guard.allows(answer_bytes, incoming.message):
                self._challenges += 1
                challenge = ((Option.ECHO, self._guard.challenge(session.key, now)),)
                answer, options = Answer(Code.UNAUTHORIZED), encode_options(challenge)
        session.exchange.respond(incoming, answer.code, options, answer.body, now)

    def _settle(self, session: Session) -> None:
        """Send what there is to send, and note what the session holds and when it is due."""
        session.flush()
        self._sessions.account(session)
        self._sessions.schedule(session)
        self._wake_by(session.scheduled)

    # --- Time --------------------------------------------------------------------------------------------------------

    def _wake_by(self, moment: float) -> None:
        if moment < self._wakes_at:
            self._sooner.set()

    def tick(self, now: float) -> None:
        """Do what is due."""
        for session in self._sessions.due(now):
            self._tick(session, now)
        if self._next_sweep <= now:
            self._sweep(now)

    def _tick(self, session: Session, now: float) -> None:
        try:
            for event in session.exchange.tick(now):
                self._handle(session, event, now)
            if not session.is_closed:
                self._settle(session)
        except Exception:  # noqa: BLE001 - the one catch for bugs of ours when time is up
            self._failed(session)

    def _sweep(self, now: float) -> None:
        try:
            self._sessions.forget_blocks(now)
            self._observers.sweep(now)
        except Exception:  # noqa: BLE001 - as in `_tick`, but of no one session
            self._failed(None)
        for session in self._sessions.idle(now):
            self._let_go(session)
        for session in self._sessions.silent_observers(now, COAP_SILENCE_SECONDS):
            if session.exchange.deadline == inf:  # otherwise something is under way that asks as well
                self._observers.ping(session, now)
            self._tick(session, now)
        self._next_sweep = now + SWEEP_SECONDS if len(self._sessions) else inf

    async def tick_forever(self) -> None:
        while True:
            self._sooner = trio.Event()
            self._wakes_at = min(self._sessions.next_due, self._next_sweep)
            with trio.move_on_at(self._wakes_at):
                await self._sooner.wait()
            self.tick(self.now())

    async def look_up_forever(self) -> None:
        await self._resources.look_up_forever(self.now, self.submitted)

    def start(self, nursery: trio.Nursery) -> None:
        """The tasks of an endpoint, for as long as it serves."""
        nursery.start_soon(self.tick_forever)
        for _ in range(LOOKUP_WORKERS):
            nursery.start_soon(self.look_up_forever)

    def shut_down(self) -> None:
        """Tell every observer."""
        for session in self._sessions:
            self._observers.shut_down(session)

    def statistics(self) -> EndpointStatistics:
        observers = self._observers.statistics()
        exchanges = [session.exchange for session in self._sessions]
        return EndpointStatistics(
            sessions=len(self._sessions),
            strangers=self._sessions.count(Rank.STRANGER),
            observers=observers.observers,
            bytes_held=self._sessions.bytes_held,
            requests=self._requests,
            requests_dropped=self._dropped,
            malformed=self._malformed,
            duplicates=self._duplicates + sum(one.duplicates for one in exchanges),
            retransmissions=self._retransmissions + sum(one.retransmissions for one in exchanges),
            notifications=observers.notifications,
            notifications_lost=observers.notifications_lost,
            challenges=self._challenges,
            evicted=self._evicted,
            datagrams_lost=self.datagrams_lost,
        )


def _nothing() -> None:
    """An address has nothing to close."""
