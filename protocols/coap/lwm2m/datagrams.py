"""The endpoint of LWM2M behind a DTLS listener: sessions, the requests of devices, and requests to them.

Everything is synchronous but registrations and Sends, which a few tasks store. A session without a registration ends
after COAP_IDLE_SECONDS without a datagram.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from broker.device_management.sessions import SessionLostError
from broker.errors import DomainError, StorageUnavailable
from broker.trace.origin import enter
from protocols.coap.blockwise import BlockOption
from protocols.coap.containment import Failure, contain, contain_async
from protocols.coap.errors import BadOption
from protocols.coap.incoming import Incoming
from protocols.coap.lwm2m.device import RegisteredDevice
from protocols.coap.lwm2m.exchanges import Exchange
from protocols.coap.lwm2m.formats.content import ANSWER_BYTES
from protocols.coap.lwm2m.requests import DeviceRequest, read_device_request
from protocols.coap.lwm2m.server import Lwm2mResponse, Lwm2mServer, internal_error, lwm2m_refusal
from protocols.coap.message_layer import MessageEvent, RequestReceived, ResponseReceived
from protocols.coap.messages import (
    ACK,
    CON,
    NON,
    RST,
    CoapMessage,
    Code,
    Option,
    empty,
    encode_options,
)
from protocols.coap.session import CoapSession, SessionLimits, SessionRank
from protocols.coap.session_endpoint import SessionEndpoint, chance_of_time_outs
from protocols.coap.statistics import EndpointStatistics

#: Registrations and Sends that are stored at once, most of them in one commit, and that may wait for it.
_WORKERS, _WAITING = 32, 1024


class DatagramPeer(CoapSession):
    """A DTLS session, as `server.Peer`."""

    __slots__ = ("_endpoint", "registered", "unstored")

    def __init__(self, endpoint: "Lwm2mEndpoint", *arguments: Any, **named: Any) -> None:
        """A session of this endpoint; the other arguments are those of CoapSession."""
        super().__init__(*arguments, **named)
        self._endpoint = endpoint
        self.registered: RegisteredDevice | None = None
        self.unstored: set[int] = set()  # ids of notifications that are being stored

    @property
    def is_stream(self) -> bool:
        return False

    async def ask(self, exchange: Exchange) -> CoapMessage:
        """Send a request and wait for its answer (RFC 7252, 4.2 and 5.2.2). Raises SessionLostError."""
        return await self._endpoint.ask(self, exchange)

    def close(self) -> None:
        """End the session with close_notify."""
        self._endpoint.close(self)

    def unregistered(self) -> None:
        """The registration over this session has ended; the session may be used for another one."""
        self.registered = None
        self._endpoint.unregistered(self)


class Lwm2mEndpoint(SessionEndpoint[DatagramPeer]):
    """The sessions of one DTLS listener."""

    def __init__(
        self,
        server: Lwm2mServer,
        *,
        limits: SessionLimits | None = None,
        chance: Callable[[], float] = chance_of_time_outs,
    ) -> None:
        """An endpoint without sessions; `chance` gives numbers from 0 to 1."""
        super().__init__(
            partial(DatagramPeer, self), failure="lwm2m_session_failed", limits=limits, now=server.now, chance=chance
        )
        self._server = server
        self.submitted: Callable[[], None] = _nothing
        self._exchanges: dict[DatagramPeer, set[Exchange]] = {}
        self._storing, self._waiting = trio.open_memory_channel[tuple[DatagramPeer, Incoming, DeviceRequest]](_WAITING)
        self._notifications = 0

    # --- Sessions ----------------------------------------------------------------------------------------------------

    def _ending(self, session: DatagramPeer) -> None:
        """End the exchanges of a session. Its registration stays: the device can come back over another session."""
        for exchange in self._exchanges.pop(session, ()):
            exchange.lost()

    def replaced(self, former: DatagramPeer, session: DatagramPeer) -> None:
        """The registration of a device goes on over its new session."""
        if (registered := self._server.moved(former, session)) is not None:
            self._sessions.rise(session, SessionRank.OBSERVER)
            session.proved(registered.device.id)

    def unregistered(self, session: DatagramPeer) -> None:
        """A session without a registration ends when it is idle."""
        if session.rank is SessionRank.OBSERVER:
            self._sessions.rise(session, SessionRank.AUTHENTICATED)

    # --- In ----------------------------------------------------------------------------------------------------------

    def _receive(self, session: DatagramPeer, message: CoapMessage) -> None:
        if session.is_closed:
            return
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
            self._handle(session, event, now)
        self._settle(session)
        self._make_room(session)

    def _notified(self, session: DatagramPeer, message: CoapMessage) -> bool:
        """Take a notification. Returns whether the message is one."""
        registered = session.registered
        if registered is None or not registered.observes(message.token):
            return False
        self._notifications += 1
        if message.type != CON:
            self._server.notified(session, message)
        elif message.message_id not in session.unstored:  # else it came again before it was stored
            on_stored = partial(self._notification_stored, session, message.message_id)
            session.unstored.add(message.message_id)
            goes_on = self._server.notified(session, message, on_stored)
            if goes_on is not None:
                session.unstored.discard(message.message_id)
                session.send(empty(ACK if goes_on else RST, message.message_id))
        return True

    def _notification_stored(self, session: DatagramPeer, message_id: int, is_stored: bool) -> None:
        """Acknowledge what is durable. The device sends again what could not be stored (RFC 7252, 4.2)."""
        session.unstored.discard(message_id)
        if is_stored and not session.is_closed:
            session.send(empty(ACK, message_id))

    def _handle(self, session: DatagramPeer, event: MessageEvent, _now: float) -> None:
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

    def _request(self, session: DatagramPeer, incoming: Incoming) -> None:
        try:
            request = read_device_request(incoming.message)
            blocks = self._collected(session, request)
            if isinstance(blocks, Lwm2mResponse):
                self._answer(session, incoming, blocks)
            elif self._server.needs_store(request):
                self._storing.send_nowait((session, incoming, blocks))
            else:
                self._answer(session, incoming, self._server.answer(session, blocks))
        except trio.WouldBlock:
            self._answer(
                session, incoming, lwm2m_refusal(StorageUnavailable("too many registrations and Sends at once"))
            )
        except BadOption as error:
            if incoming.message.type == NON:  # RFC 7252, 5.4.1: rejected, that is, ignored
                session.message_layer.ignore(incoming)
            else:
                self._answer(session, incoming, lwm2m_refusal(error))
        except DomainError as error:
            enter(session.origin)
            self._server.note_refusal(session, error)
            self._answer(session, incoming, lwm2m_refusal(error))

    def _collected(self, session: DatagramPeer, request: DeviceRequest) -> DeviceRequest | Lwm2mResponse:
        """The request with its whole body, or the answer that asks for the next block. Raises DomainError."""
        block = request.block1
        if block is None or (block.number == 0 and not block.more):
            return request
        operation = request.method, request.path, request.queries
        body = session.blocks.collect(operation, block, request.payload, self.now(), most=ANSWER_BYTES)
        if body is None:
            return Lwm2mResponse(Code.CONTINUE, (_block1(block),))
        return request._replace(payload=body)

    async def store_forever(self) -> None:
        """Answer registrations and Sends until cancelled. Several tasks may do so."""
        async for session, incoming, request in self._waiting:
            answer = await contain_async("lwm2m_request_failed", session.key, self._store, session, request)
            self.contained(session.key, self._stored, session, incoming, request, answer)

    async def _store(self, session: DatagramPeer, request: DeviceRequest) -> Lwm2mResponse:
        enter(session.origin)
        try:
            return await self._server.answer_stored(session, request)
        except DomainError as error:
            self._server.note_refusal(session, error)
            return lwm2m_refusal(error)

    def _stored(
        self, session: DatagramPeer, incoming: Incoming, request: DeviceRequest, answer: Lwm2mResponse | Failure
    ) -> None:
        if session.is_closed:
            return
        if isinstance(answer, Failure):
            answer = internal_error(answer)
        if request.block1 is not None:
            answer = answer._replace(options=(*answer.options, _block1(request.block1)))
        if session.registered is not None:
            self._sessions.rise(session, SessionRank.OBSERVER)
            session.proved(session.registered.device.id)
        self._answer(session, incoming, answer)
        self._settle(session)
        if answer.code == Code.CREATED:
            self._server.begin(session)

    # --- Out ---------------------------------------------------------------------------------------------------------

    def _answer(self, session: DatagramPeer, incoming: Incoming, answer: Lwm2mResponse) -> None:
        options = encode_options(tuple(sorted(answer.options, key=lambda option: option[0])))
        session.message_layer.respond(incoming, answer.code, options, answer.payload, self.now())

    async def ask(self, session: DatagramPeer, exchange: Exchange) -> CoapMessage:
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

    # --- Life --------------------------------------------------------------------------------------------------------

    def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks that an endpoint needs for as long as it serves."""
        nursery.start_soon(self.tick_forever)
        for _ in range(_WORKERS):
            nursery.start_soon(self.store_forever)

    async def stop(self) -> None:
        """Close every session."""
        self.close_all()

    def statistics(self) -> EndpointStatistics:
        return self._statistics(
            observers=self._sessions.count(SessionRank.OBSERVER),
            strangers_dropped=0,
            notifications=self._notifications,
            notifications_lost=0,
            challenges=0,
            datagrams_lost=0,
        )


def _block1(block: BlockOption) -> tuple[int, bytes]:
    return Option.BLOCK1, block.encode()


def _nothing() -> None:
    """Requests are answered one by one, so there is nothing to do after those of one wake-up."""
