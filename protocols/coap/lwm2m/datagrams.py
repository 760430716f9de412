"""The endpoint of LWM2M behind a DTLS listener: sessions, the requests of devices, and requests to them.

Everything is synchronous but registrations, which a few tasks authenticate. A session without a registration ends after
COAP_IDLE_SECONDS without a datagram.
"""

import random
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final

import trio

from broker.device_management.sessions import SessionLostError
from broker.errors import DomainError, StorageUnavailable
from broker.registration.certificates import ClientCertificate
from broker.trace.origin import enter
from config.limits import COAP_IDLE_SECONDS
from protocols.coap.blockwise import BlockOption
from protocols.coap.containment import Failure, contain, contain_async
from protocols.coap.errors import BadOption
from protocols.coap.incoming import Incoming
from protocols.coap.lwm2m.answering import internal_error, refusal
from protocols.coap.lwm2m.device import RegisteredDevice
from protocols.coap.lwm2m.exchanges import Exchange
from protocols.coap.lwm2m.requests import DeviceRequest, read_request
from protocols.coap.lwm2m.server import Answer, Lwm2mServer
from protocols.coap.message_layer import MessageEvent, MessageLayer, RequestReceived, ResponseReceived
from protocols.coap.messages import (
    ACK,
    CON,
    NON,
    RST,
    CoapMessage,
    Code,
    MalformedMessage,
    Option,
    decode_message,
    empty,
    encode_options,
)
from protocols.coap.session import CoapSession, CoapSessions, SessionLimits, SessionRank
from protocols.coap.statistics import EndpointStatistics

_SWEEP_SECONDS: Final = 5.0
#: Registrations that are authenticated at once, and that may wait for it.
_WORKERS, _WAITING = 4, 1024

_random = random.random


class DeviceSession(CoapSession):
    """A DTLS session, as `server.Peer`."""

    __slots__ = ("endpoint", "registered")

    endpoint: "Lwm2mEndpoint"
    registered: RegisteredDevice | None

    @property
    def is_stream(self) -> bool:
        return False

    async def ask(self, exchange: Exchange) -> CoapMessage:
        """Send a request and wait for its answer (RFC 7252, 4.2 and 5.2.2). Raises SessionLostError."""
        return await self.endpoint.ask(self, exchange)

    def close(self) -> None:
        """End the session with close_notify."""
        self.endpoint.close(self)

    def unregistered(self) -> None:
        """The registration over this session has ended; the session may be used for another one."""
        self.registered = None
        self.endpoint.unregistered(self)


class Lwm2mEndpoint:
    """The sessions of one DTLS listener."""

    def __init__(
        self, server: Lwm2mServer, *, limits: SessionLimits | None = None, chance: Callable[[], float] = _random
    ) -> None:
        """An endpoint without sessions; `chance` gives numbers from 0 to 1."""
        self._server = server
        self._limits = limits or SessionLimits()
        self._chance = chance
        self.now = server.now
        self.contained: Callable[..., object] = partial(contain, "lwm2m_session_failed", self._close_failed)
        self.submitted: Callable[[], None] = _nothing
        self._sessions = CoapSessions(self._limits)
        self._exchanges: dict[CoapSession, set[Exchange]] = {}
        self._registrations, self._waiting = trio.open_memory_channel[tuple[DeviceSession, Incoming, DeviceRequest]](
            _WAITING
        )
        self._sooner = trio.Event()
        self._wakes_at = inf
        self._next_sweep = inf
        self._requests = self._dropped = self._malformed = self._evicted = self._notifications = 0
        self._overhead_dropped = 0
        self._duplicates = self._retransmissions = 0

    # --- Sessions ----------------------------------------------------------------------------------------------------

    def open(
        self,
        key: Hashable,
        send: Callable[[bytes], None],
        end: Callable[[], None],
        *,
        idle_seconds: float = COAP_IDLE_SECONDS,
        is_address_verified: bool = True,
        certificate: ClientCertificate | None = None,
    ) -> CoapSession:
        """Open a session (arguments as of CoapSession). When a limit is exceeded, one ends; it may be the new one."""
        session = DeviceSession(
            key,
            MessageLayer(self._chance),
            send,
            end,
            idle_seconds=idle_seconds,
            is_address_verified=is_address_verified,
            now=self.now(),
        )
        session.endpoint, session.registered = self, None
        session.certificate = certificate
        self._sessions.add(session)
        self._make_room(session)
        if self._next_sweep == inf:
            self._next_sweep = self.now() + _SWEEP_SECONDS
            self._wake_up(self._next_sweep)
        return session

    def find(self, key: Hashable) -> CoapSession | None:
        """The open session of a peer."""
        return self._sessions.find(key)

    def close(self, session: CoapSession) -> None:
        """End a session. What is registered over it stays: the device can come back over another one."""
        contain("lwm2m_session_failed", None, session.key, self._close, session)

    def _close(self, session: CoapSession) -> None:
        if session.is_closed:
            return
        self._sessions.remove(session)
        self._duplicates += session.message_layer.duplicates
        self._retransmissions += session.message_layer.retransmissions
        try:
            session.flush()
        finally:
            session.end()
            for exchange in self._exchanges.pop(session, ()):
                exchange.lost()

    def _close_failed(self, key: Hashable) -> None:
        session = self._sessions.find(key)
        if session is not None:
            self._close(session)

    def _make_room(self, latest: CoapSession) -> None:
        while (session := self._sessions.surplus(latest)) is not None:
            self._evicted += 1
            self.close(session)

    def unregistered(self, session: DeviceSession) -> None:
        """A session without a registration ends when it is idle."""
        if session.rank is SessionRank.OBSERVER:
            self._sessions.rise(session, SessionRank.AUTHENTICATED)

    # --- In ----------------------------------------------------------------------------------------------------------

    def receive(self, session: CoapSession, datagram: bytes) -> None:
        """Take a datagram of a session, unless the peer has sent too many that answer nothing.

        The caller contains exceptions (`contained`).
        """
        now = self.now()
        if session.overhead is not None and session.overhead.is_empty(now):
            self._overhead_dropped += 1
            return
        try:
            message = decode_message(datagram)
        except MalformedMessage as malformed:
            self._malformed += 1
            session.spend(now)
            if malformed.answer is not None:
                session.send(malformed.answer)
            return
        if isinstance(session, DeviceSession) and not session.is_closed:
            self._receive(session, message)

    def _receive(self, session: DeviceSession, message: CoapMessage) -> None:
        now = self.now()
        layer = session.message_layer
        self._sessions.heard(session, now)
        if not message.is_response or message.type != ACK:  # everything but an answer to a request of the server
            session.spend(now)
        if message.is_response and message.type in (CON, NON) and self._notified(session, message):
            return
        if message.is_request and layer.owed >= self._limits.requests_per_session and not layer.knows(message, now):
            self._dropped += 1
            return
        for event in layer.receive(message, now):
            self._handle(session, event)
        self._settle(session)
        self._make_room(session)

    def _notified(self, session: DeviceSession, message: CoapMessage) -> bool:
        """Take a notification. Returns whether the message is one."""
        registered = session.registered
        if registered is None or not registered.observes(message.token):
            return False
        self._notifications += 1
        goes_on = self._server.notified(session, message)
        if message.type == CON:
            session.send(empty(ACK if goes_on else RST, message.message_id))
        return True

    def _handle(self, session: DeviceSession, event: MessageEvent) -> None:
        if isinstance(event, RequestReceived):
            self._requests += 1
            failure = contain("lwm2m_request_failed", None, session.key, self._request, session, event.incoming)
            if failure is not None and not event.incoming.is_answered:
                self._answer(session, event.incoming, internal_error(failure))
        elif isinstance(event.tag, Exchange):
            if isinstance(event, ResponseReceived):
                event.tag.answered(event.message)
            else:  # rejected or timed out
                event.tag.lost()

    def _request(self, session: DeviceSession, incoming: Incoming) -> None:
        try:
            request = read_request(incoming.message)
            blocks = self._collected(session, request)
            if isinstance(blocks, Answer):
                self._answer(session, incoming, blocks)
            elif self._server.is_registration(request):
                self._registrations.send_nowait((session, incoming, blocks))
            else:
                self._answer(session, incoming, self._server.answer(session, blocks))
        except trio.WouldBlock:
            self._answer(session, incoming, refusal(StorageUnavailable("too many registrations at once")))
        except BadOption as error:
            if incoming.message.type == NON:  # RFC 7252, 5.4.1: rejected, that is, ignored
                session.message_layer.ignore(incoming)
            else:
                self._answer(session, incoming, refusal(error))
        except DomainError as error:
            enter(session.origin)
            self._server.note_refusal(error)
            self._answer(session, incoming, refusal(error))

    def _collected(self, session: DeviceSession, request: DeviceRequest) -> DeviceRequest | Answer:
        """The request with its whole body, or the answer that asks for the next block. Raises DomainError."""
        block = request.block1
        if block is None or (block.number == 0 and not block.more):
            return request
        operation = request.method, request.path, request.queries
        body = session.blocks.collect(operation, block, request.payload, self.now())
        if body is None:
            return Answer(Code.CONTINUE, (_block1(block),))
        return request._replace(payload=body)

    async def register_forever(self) -> None:
        """Authenticate registrations until cancelled. Several tasks may do so."""
        async for session, incoming, request in self._waiting:
            answer = await contain_async("lwm2m_request_failed", session.key, self._register, session, request)
            self.contained(session.key, self._registered, session, incoming, request, answer)

    async def _register(self, session: DeviceSession, request: DeviceRequest) -> Answer:
        enter(session.origin)
        try:
            return await self._server.register(session, request)
        except DomainError as error:
            self._server.note_refusal(error)
            return refusal(error)

    def _registered(
        self, session: DeviceSession, incoming: Incoming, request: DeviceRequest, answer: Answer | Failure
    ) -> None:
        if session.is_closed:
            return
        if isinstance(answer, Failure):
            answer = internal_error(answer)
        if request.block1 is not None:
            answer = answer._replace(options=(*answer.options, _block1(request.block1)))
        if session.registered is not None:
            self._sessions.rise(session, SessionRank.OBSERVER)
        self._answer(session, incoming, answer)
        self._settle(session)
        if answer.code == Code.CREATED:
            self._server.begin(session)

    # --- Out ---------------------------------------------------------------------------------------------------------

    def _answer(self, session: CoapSession, incoming: Incoming, answer: Answer) -> None:
        options = encode_options(tuple(sorted(answer.options, key=lambda option: option[0])))
        session.message_layer.respond(incoming, answer.code, options, answer.payload, self.now())

    async def ask(self, session: CoapSession, exchange: Exchange) -> CoapMessage:
        """Send a request and wait for its answer. Raises SessionLostError."""
        if session.is_closed:
            raise SessionLostError
        waiting = self._exchanges.setdefault(session, set())
        waiting.add(exchange)
        session.message_layer.send(
            exchange.code, exchange.token, exchange.options, exchange.payload, exchange, self.now()
        )
        self._settle(session)
        try:
            return await exchange.answer()
        finally:
            waiting.discard(exchange)
            if not waiting and self._exchanges.get(session) is waiting:
                del self._exchanges[session]
            if not exchange.is_answered:  # the next request must not wait for the retransmissions of this one
                session.message_layer.cancel(exchange, self.now())
                if not session.is_closed:
                    self._settle(session)

    def _settle(self, session: CoapSession) -> None:
        session.flush()
        self._sessions.account(session)
        self._sessions.schedule(session)
        self._wake_up(session.scheduled)

    def _wake_up(self, at: float) -> None:
        if at < self._wakes_at:
            self._sooner.set()

    # --- Time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due at `now`: retransmissions, time-outs, and the sweep every few seconds."""
        for session in self._sessions.due(now):
            self.contained(session.key, self._tick, session, now)
        if self._next_sweep <= now:
            for session in self._sessions.with_blocks():
                self.contained(session.key, self._forget_blocks, session, now)
            for session in self._sessions.silent(now, SessionRank.UNAUTHENTICATED, SessionRank.AUTHENTICATED):
                self.close(session)
            self._next_sweep = now + _SWEEP_SECONDS if len(self._sessions) else inf

    def _forget_blocks(self, session: CoapSession, now: float) -> None:
        session.blocks.forget(now)
        self._sessions.account(session)

    def _tick(self, session: CoapSession, now: float) -> None:
        for event in session.message_layer.tick(now):
            if isinstance(session, DeviceSession):
                self._handle(session, event)
        if not session.is_closed:
            self._settle(session)

    async def tick_forever(self) -> None:
        """Call `tick` whenever something is due, until cancelled."""
        while True:
            self._sooner = trio.Event()
            self._wakes_at = min(self._sessions.next_due, self._next_sweep)
            with trio.move_on_after(max(0.0, self._wakes_at - self.now())):
                await self._sooner.wait()
            self.tick(self.now())

    def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks that an endpoint needs for as long as it serves."""
        nursery.start_soon(self.tick_forever)
        for _ in range(_WORKERS):
            nursery.start_soon(self.register_forever)

    async def stop(self) -> None:
        """Close every session."""
        for session in self._sessions:
            with suppress(Exception):  # `close` contains them
                self.close(session)

    def statistics(self) -> EndpointStatistics:
        layers = [session.message_layer for session in self._sessions]
        return EndpointStatistics(
            sessions=len(self._sessions),
            strangers=self._sessions.count(SessionRank.UNAUTHENTICATED),
            observers=self._sessions.count(SessionRank.OBSERVER),
            bytes_held=self._sessions.bytes_held,
            requests=self._requests,
            requests_dropped=self._dropped,
            malformed=self._malformed,
            duplicates=self._duplicates + sum(one.duplicates for one in layers),
            retransmissions=self._retransmissions + sum(one.retransmissions for one in layers),
            notifications=self._notifications,
            notifications_lost=0,
            challenges=0,
            evicted=self._evicted,
            datagrams_lost=0,
            overhead_dropped=self._overhead_dropped,
            strangers_dropped=0,
        )


def _block1(block: BlockOption) -> tuple[int, bytes]:
    return Option.BLOCK1, block.encode()


def _nothing() -> None:
    """Requests are answered one by one, so there is nothing to do after those of one wake-up."""
