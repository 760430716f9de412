"""The endpoint between datagrams and resources, the same for the UDP and the DTLS listener.

A listener hands over all datagrams that it has read at one wake-up, then calls `submitted`. Everything is synchronous
except `stop` and the tasks of `start`. A datagram to send goes to `CoapSession.send`, which sends it at once or loses
it.

An exception that no code expects is contained: in a request it is answered with 5.00, anywhere else it ends one session
(`contained`).
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from math import inf

import trio

from broker.errors import DomainError, StorageUnavailable
from broker.registration.certificates import ClientCertificate
from config.limits import COAP_EXCHANGE_SECONDS
from protocols.coap.containment import Failure, contain
from protocols.coap.echo import AmplificationGuard
from protocols.coap.errors import BadOption, InternalError
from protocols.coap.incoming import Incoming
from protocols.coap.message_layer import (
    PIGGYBACK_SECONDS,
    Delivered,
    MessageEvent,
    Rejected,
    RequestReceived,
    ResponseReceived,
    TimedOut,
)
from protocols.coap.messages import (
    CON,
    JSON,
    NON,
    RST,
    CoapMessage,
    Code,
    MalformedMessage,
    Option,
    content_format,
    decode_message,
    empty,
    encode_options,
)
from protocols.coap.observers import Observers
from protocols.coap.requests import CoapRequest, CoapResponse, read_request, refusal_response, response_options
from protocols.coap.resources import Resources
from protocols.coap.session import CoapSession, SessionLimits, SessionRank
from protocols.coap.session_endpoint import SessionEndpoint, chance_of_time_outs
from protocols.coap.sockets import STRANGER_WEIGHT
from protocols.coap.statistics import EndpointStatistics
from protocols.coap.strangers import REQUESTS_PER_SECOND, DatagramStrangers
from protocols.coap.usual import MAX_USUAL_BYTES, UsualPost, usual_post
from protocols.rooms import CoapRooms

LOOKUP_WORKERS = 4
IMAGE_READERS = 2
_COMMIT_SECONDS = 1.0  # of `stop`
#: The responses to a message, and to a part of one. All others are overhead.
_OF_MESSAGE, _OF_PART = int(Code.CREATED), int(Code.CONTINUE)  # hashing or finding a member costs more than the rest
_POST = int(Code.POST)
_JSON_OPTIONS = encode_options((content_format(JSON),))


class CoapEndpoint(SessionEndpoint[CoapSession]):
    """The sessions of one listener and their requests."""

    def __init__(
        self,
        rooms: CoapRooms,
        *,
        guard: AmplificationGuard | None = None,
        limits: SessionLimits | None = None,
        now: Callable[[], float] = trio.current_time,
        chance: Callable[[], float] = chance_of_time_outs,
    ) -> None:
        """An endpoint without sessions.

        Args:
            rooms: the broker.
            guard: limits answers to peers whose address is not verified; None where the listener verifies addresses.
            limits: of the sessions.
            now: the clock, in seconds.
            chance: gives numbers from 0 to 1.
        """
        super().__init__(CoapSession, failure="coap_session_failed", limits=limits, now=now, chance=chance)
        self._rooms = rooms
        self._ingest = rooms.messages.ingest
        self._guard = guard
        self._observers = Observers(rooms, guard, now, self._changed, self.contained)
        self._resources = Resources(
            rooms, self._observers, self._reply, self._created, self._authenticated, self.contained
        )
        self._strangers = DatagramStrangers(now, per_second=REQUESTS_PER_SECOND)
        self._challenges = 0
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
        is_address_verified: bool = False,
        certificate: ClientCertificate | None = None,
    ) -> CoapSession:
        """Open a session, by default of an unproven address; see `SessionEndpoint.open`."""
        return super().open(
            key,
            send,
            end,
            idle_seconds=idle_seconds,
            is_address_verified=is_address_verified,
            certificate=certificate,
        )

    def _ending(self, session: CoapSession) -> None:
        self._observers.shut_down(session)

    def _authenticated(self, session: CoapSession) -> None:
        self._sessions.rise(session, SessionRank.AUTHENTICATED)

    def _changed(self, session: CoapSession) -> None:
        if session.is_closed:
            return
        if session.observers:
            self._sessions.rise(session, SessionRank.OBSERVER)
        elif session.rank is SessionRank.OBSERVER:
            self._sessions.rise(session, SessionRank.AUTHENTICATED)
        self._settle(session)

    # --- In ----------------------------------------------------------------------------------------------------------

    def receive_from(self, send_to: Callable[[Hashable, bytes], None], key: Hashable, datagram: bytes) -> int:
        """Take a datagram from an address, unless the peer has sent too many that carry no message.

        Only a request opens a session. Another message of an unknown peer is rejected if it is confirmable, and leaves
        nothing behind.

        Args:
            send_to: sends a datagram to an address or loses it, without waiting.
            key: the address.
            datagram: what came.

        Returns:
            The weight of the datagram in its wake-up, as `sockets.read_forever` needs it; 0 when it was dropped.
        """
        session = self._sessions.find(key)
        weight = 1
        # Of a device that has sent nothing but messages, nothing is asked: every message comes through here.
        if session is None or session.overhead is not None or session.rank is SessionRank.UNAUTHENTICATED:
            weight = self._admission(key, session)
            if not weight:
                return 0
        self.contained(key, self._receive_from, send_to, key, session, datagram)
        return weight

    def _admission(self, key: Hashable, session: CoapSession | None) -> int:
        if session is None or session.rank is SessionRank.UNAUTHENTICATED:
            return STRANGER_WEIGHT if self._strangers.admits(key) else 0
        return super()._admission(key, session)

    def _receive_from(
        self,
        send_to: Callable[[Hashable, bytes], None],
        key: Hashable,
        session: CoapSession | None,
        datagram: bytes,
    ) -> None:
        if session is not None:
            self._take(session, datagram)
            return
        try:
            message = decode_message(datagram)
        except MalformedMessage as malformed:
            self._reject(malformed, None, partial(send_to, key))
            return
        if message.is_request and message.type in (CON, NON):
            self._receive(self.open(key, partial(send_to, key), _nothing), message)
        elif message.type == CON:
            send_to(key, empty(RST, message.message_id))

    def _take(self, session: CoapSession, datagram: bytes) -> CoapMessage | None:
        if session.usual is not None and self._receive_usual(session, session.usual, datagram):
            return None
        message = super()._take(session, datagram)
        if message is not None and message.code == _POST and session.rank is not SessionRank.UNAUTHENTICATED:
            self._learn(session, message, datagram)
        return message

    def _receive_usual(self, session: CoapSession, usual: UsualPost, datagram: bytes) -> bool:
        """Take a datagram at less cost than `_receive`, with the same outcome. Returns whether it was taken."""
        message, message_layer = usual.read(datagram), session.message_layer
        if message is None or session.is_closed or message_layer.owed >= self._limits.requests_per_session:
            return False
        now = self.now()
        incoming = message_layer.receive_new(message, now)
        if incoming is None:
            return False
        self._sessions.heard(session, now)
        self._requests += 1
        failure = contain("coap_request_failed", None, session.key, self._post, session, incoming, usual, now)
        if failure is not None and not incoming.is_answered:
            self._answer_failure(session, incoming, failure)
        # Nothing is to be sent, and its empty ACK is all that is due, mostly later than what has been noted.
        if incoming.is_answered or session.scheduled > now + PIGGYBACK_SECONDS:
            self._settle(session)
        else:
            self._sessions.account(session)
        self._make_room(session)
        return True

    def _post(self, session: CoapSession, incoming: Incoming, usual: UsualPost, now: float) -> None:
        try:
            self._resources.post(session, incoming, usual, now)
        except DomainError as error:
            self._resources.note_refusal(session, error)
            self._answer(session, incoming, refusal_response(error, usual.request))

    def _learn(self, session: CoapSession, message: CoapMessage, datagram: bytes) -> None:
        """Note what is usual for the session when the same options come twice in a row."""
        encoded = datagram[4 + len(message.token) : len(datagram) - len(message.payload)]
        if len(encoded) > MAX_USUAL_BYTES:
            return
        if encoded != session.repeated:
            session.repeated = encoded
        elif message.type == CON and message.payload:
            session.usual = usual_post(self._rooms, message, encoded) or session.usual

    def _receive(self, session: CoapSession, message: CoapMessage) -> None:
        if session.is_closed:
            return
        now = self.now()
        message_layer = session.message_layer
        self._sessions.heard(session, now)
        if (
            message.is_request
            and message_layer.owed >= self._limits.requests_per_session
            and not message_layer.knows(message, now)
        ):
            self._dropped += 1
            session.spend(now)
            return
        if message.code == Code.EMPTY and session.observers:
            self._observers.heard(session)
        events = message_layer.receive(message, now)
        if not events:  # a ping, a duplicate, or an acknowledgement of nothing
            session.spend(now)
        for event in events:
            self._handle(session, event, now)
        self._settle(session)
        self._make_room(session)

    def _handle(self, session: CoapSession, event: MessageEvent, now: float) -> None:
        match event:
            case RequestReceived(incoming):
                self._requests += 1
                failure = contain("coap_request_failed", None, session.key, self._request, session, incoming, now)
                if failure is not None and not incoming.is_answered:
                    self._answer_failure(session, incoming, failure)
            case Delivered(tag):
                self._observers.delivered(session, tag)
            case Rejected(tag):
                self._observers.rejected(session, tag)
            case TimedOut(tag):
                self._observers.timed_out(session, tag, now)
            case ResponseReceived():
                pass  # no request is sent to these peers

    def _request(self, session: CoapSession, incoming: Incoming, now: float) -> None:
        request: CoapRequest | None = None
        try:
            request = read_request(incoming.message)
            if request.echo is not None and self._guard is not None and not session.is_address_verified:
                session.is_address_verified = self._guard.proves(request.echo, session.key, now)
            self._resources.handle(session, incoming, request, now)
        except BadOption as error:
            if incoming.message.type == NON:  # RFC 7252, 5.4.1: rejected, that is, ignored
                session.message_layer.ignore(incoming)
            else:
                self._answer(session, incoming, refusal_response(error, request))
        except DomainError as error:
            self._resources.note_refusal(session, error)
            self._answer(session, incoming, refusal_response(error, request))

    def _answer_failure(self, session: CoapSession, incoming: Incoming, failure: Failure) -> None:
        request: CoapRequest | None = None
        with suppress(DomainError):
            request = read_request(incoming.message)
        self._answer(session, incoming, refusal_response(InternalError(), request, error_id=failure.error_id))

    # --- Out ---------------------------------------------------------------------------------------------------------

    def _reply(self, session: CoapSession, incoming: Incoming, response: CoapResponse) -> None:
        if not session.is_closed:
            self._answer(session, incoming, response)
            self._settle(session)

    def _created(self, session: CoapSession, incoming: Incoming, body: bytes) -> None:
        """The reply to most messages, at half the cost of `_reply`."""
        guard = self._guard
        if guard is not None and not session.is_address_verified:
            response_bytes = 4 + len(incoming.token) + len(_JSON_OPTIONS) + 1 + len(body)
            if not guard.allows(response_bytes, incoming.message):
                self._reply(session, incoming, CoapResponse(Code.CREATED, body))
                return
        if session.is_closed:
            return
        is_alone = incoming.is_acknowledged  # then the response is a message of its own, and may be due again
        session.message_layer.respond(incoming, _OF_MESSAGE, _JSON_OPTIONS, body, self.now())
        if is_alone:
            self._settle(session)
        else:
            session.flush()
            self._sessions.account(session)

    def _answer(self, session: CoapSession, incoming: Incoming, response: CoapResponse) -> None:
        now = self.now()
        if response.code != _OF_MESSAGE and response.code != _OF_PART and not response.is_repeatable:  # noqa: PLR1714 - see there
            session.spend(now)
        options = encode_options(response_options(response))
        if self._guard is not None and not session.is_address_verified:
            response_bytes = 4 + len(incoming.token) + len(options) + 1 + len(response.body)
            if not self._guard.allows(response_bytes, incoming.message):
                self._challenges += 1
                challenge = ((Option.ECHO, self._guard.challenge(session.key, now)),)
                response, options = CoapResponse(Code.UNAUTHORIZED), encode_options(challenge)
        session.message_layer.respond(incoming, response.code, options, response.body, now)
        if response.is_repeatable:
            session.message_layer.release(incoming)

    # --- Time --------------------------------------------------------------------------------------------------------

    def _sweep(self, now: float) -> None:
        super()._sweep(now)
        self._observers.sweep(now)
        for session in self._sessions.silent(now, SessionRank.OBSERVER):
            self.contained(session.key, self._ping, session, now)

    def _ping(self, session: CoapSession, now: float) -> None:
        if session.message_layer.deadline == inf:  # otherwise a message is under way that also asks
            self._observers.ping(session, now)
        self._tick(session, now)

    async def read_images_forever(self) -> None:
        """Read parts of firmware images, until cancelled."""
        await self._resources.images.read_forever(self.now)

    async def look_up_forever(self) -> None:
        """Look up unknown device tokens in the store, until cancelled."""
        await self._resources.look_up_forever(self.now, self.submitted)

    def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks that an endpoint needs for as long as it serves."""
        nursery.start_soon(self.tick_forever)
        for _ in range(LOOKUP_WORKERS):
            nursery.start_soon(self.look_up_forever)
        for _ in range(IMAGE_READERS):
            nursery.start_soon(self.read_images_forever)

    async def stop(self) -> None:
        """Answer what was accepted, once it is durable but waiting 1 s at most; then close every session."""
        with trio.move_on_after(_COMMIT_SECONDS, shield=True), suppress(StorageUnavailable):
            self.submitted()
            await self._ingest.wait_committed()
        self.close_all()

    def statistics(self) -> EndpointStatistics:
        observers = self._observers.statistics()
        return self._statistics(
            observers=observers.observers,
            strangers_dropped=self._strangers.dropped,
            notifications=observers.notifications,
            notifications_lost=observers.notifications_lost,
            challenges=self._challenges,
            datagrams_lost=self.datagrams_lost,
        )


def _nothing() -> None:
    """An address has nothing to close."""
