"""Devices that observe their Actions: the meeting of an observation with the broker's one-connection rule.

An observer counts as a persistent connection from the answer to its registration until it is cancelled, rejected or
lost. When the broker ends it, the peer gets a final notification: an error code, without the Observe option.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import BadRequest, Conflict, DomainError, SourceDeviceDisabled, StorageUnavailable, Unauthorized
from broker.routing.connections import CloseReason
from broker.services import Services
from protocols.coap.blockwise import MAX_EXPONENT, Block, block_of
from protocols.coap.echo import AmplificationGuard
from protocols.coap.messages import Code, Option, content_format, encode_options, uint
from protocols.coap.observe import Body, Observation
from protocols.coap.requests import Answer, Request, answer_options, json_to, refusal
from protocols.coap.session import Observer, Session

LOST_PINGS: Final = 2
#: For so long the rest of a notification waits for the peer to ask for the next block. It is MAX_TRANSMIT_WAIT: after
#: that a client has given up a request of its own (RFC 7252 section 4.8.2), so whoever did not ask by then does not.
FETCH_SECONDS: Final = 93.0


class Probe:
    """The tag of a ping: it asks whether somebody is there."""


PING = Probe()
#: A ping before a notification that is too large for a peer which may be spoofed.
VERIFY = Probe()

_FINAL: dict[CloseReason, DomainError] = {
    CloseReason.REPLACED: Conflict(CloseReason.REPLACED.value),
    CloseReason.TOKEN_REVOKED: Unauthorized(),
    CloseReason.DEVICE_DISABLED: SourceDeviceDisabled(),
    CloseReason.PERMISSION_REMOVED: Unauthorized(),
    CloseReason.SHUTDOWN: StorageUnavailable(CloseReason.SHUTDOWN.value),
}


@dataclass(frozen=True, slots=True)
class ObserverStatistics:
    observers: int
    notifications: int
    notifications_lost: int  # refused because the device did not keep up


class Observers:
    def __init__(
        self,
        services: Services,
        guard: AmplificationGuard | None,
        now: Callable[[], float],
        changed: Callable[[Session], None],
    ) -> None:
        """`changed` is told when a session has something to send or fewer or more observers than before."""
        self._services = services
        self._presence = services.devices.presence
        self._guard = guard
        self._now = now
        self._changed = changed
        self._now_ms = services.core.clock.now_ms
        self._observers = self._notifications = self._lost = 0
        # Whose notification is acknowledged but not fetched to its end, and how long that is waited for.
        self._fetching: dict[Observer, float] = {}

    def register(self, session: Session, request: Request, token: bytes, device: Device, caller: Caller) -> int:
        """Begin an observation, or refresh it; the Observe number of the answer. Call `go_on` after the answer."""
        known = session.observers.get(token)
        exponent = MAX_EXPONENT if request.block2 is None else request.block2.exponent
        if known is not None and known.observation.path == request.path:
            return self._refresh(known, request.answer_format, exponent)
        if known is not None:
            self.end(known)
        observation = Observation(token, request.path, request.answer_format, exponent)
        observer = Observer(session, device, observation)
        observer.connection.enter_context(
            self._services.routing.connections.connect(
                device,
                protocol="COAP",
                token=caller.token,
                exclusive=True,
                deliver=lambda action: self._deliver(observer, action),
                close=lambda reason: self.end(observer, _FINAL[reason]),
            )
        )
        session.observers[token] = observer
        self._observers += 1
        self._changed(session)
        return observation.next_number(self._now_ms())

    def _refresh(self, observer: Observer, format_: int, exponent: int) -> int:
        """What is under way would arrive with a lower number than the answer, and be old: it goes anew after it.

        So it may arrive twice. It would not arrive at all otherwise (RFC 7641 section 3.4).
        """
        observation = observer.observation
        observer.session.exchange.cancel(observer, self._now())
        self._fetching.pop(observer, None)
        observation.take_back()
        observation.format, observation.exponent = format_, exponent
        return observation.next_number(self._now_ms())

    def end_path(self, session: Session, path: tuple[bytes, ...]) -> None:
        """The peer is no longer interested."""
        for observer in [one for one in session.observers.values() if one.observation.path == path]:
            self.end(observer)

    def end_all(self, session: Session, reason: DomainError | None = None) -> None:
        for observer in tuple(session.observers.values()):
            self.end(observer, reason)

    def shut_down(self, session: Session) -> None:
        self.end_all(session, _FINAL[CloseReason.SHUTDOWN])

    def end(self, observer: Observer, reason: DomainError | None = None) -> None:
        """End an observation; with a reason the peer is told. What is under way for it is not sent again."""
        session, observation = observer.session, observer.observation
        if session.observers.get(observation.token) is not observer:
            return
        del session.observers[observation.token]
        self._observers -= 1
        self._fetching.pop(observer, None)
        now = self._now()
        session.exchange.cancel(observer, now)
        if reason is not None:
            answer = refusal(reason, None)
            answer = Answer(answer.code, json_to(observation.format, answer.body), observation.format)
            options = encode_options(answer_options(answer))
            session.exchange.send(answer.code, observation.token, options, answer.body, None, now)
        observer.connection.close()
        self._changed(session)

    # --- What becomes of our messages --------------------------------------------------------------------------------

    def heard(self, session: Session) -> None:
        """A sign of life of somebody who observes."""
        for observer in session.observers.values():
            self._presence.touch(observer.device.key)

    def ping(self, session: Session, now: float) -> None:
        session.exchange.send(Code.EMPTY, b"", b"", b"", PING, now)

    def delivered(self, session: Session, tag: object) -> None:
        """A message of ours was acknowledged; after a notification, the next one goes, or its blocks are awaited."""
        _knows_our_id(session, tag)
        if isinstance(tag, Observer):
            tag.observation.is_acknowledged = True
            if tag.observation.body is None:
                self._settled(tag)
            else:
                self._fetching[tag] = self._now() + FETCH_SECONDS

    def rejected(self, session: Session, tag: object) -> None:
        """RFC 7641 section 3.6: no longer interested. For a ping that is the pong."""
        _knows_our_id(session, tag)
        if isinstance(tag, Observer):
            self.end(tag)

    def timed_out(self, session: Session, tag: object, now: float) -> None:
        """Nobody there, it seems; after a ping that is asked once more."""
        if isinstance(tag, Observer):
            self.end(tag)
        elif tag is VERIFY:
            self.end_all(session)
        elif tag is PING:
            session.lost_pings += 1
            if session.lost_pings >= LOST_PINGS:
                self.end_all(session)
            else:
                self.ping(session, now)

    # --- Notifications -----------------------------------------------------------------------------------------------

    def _deliver(self, observer: Observer, action: Action) -> bool:
        observation = observer.observation
        if not observation.offer(action.data.encode()):
            self._lost += 1
            return False
        if observation.is_under_way:
            self._changed(observer.session)
        else:
            self._notify(observer)
        return True

    def go_on(self, session: Session) -> None:
        """Send what became free to go with the answer that the peer has just been given."""
        for observer in tuple(session.observers.values()):
            self._notify(observer)

    def _settled(self, observer: Observer) -> None:
        self._fetching.pop(observer, None)
        observer.observation.settled()
        self._notify(observer)

    def _notify(self, observer: Observer) -> None:
        observation, session = observer.observation, observer.session
        taken = observation.take()
        if taken is None:
            return
        now = self._now()
        payload = json_to(observation.format, taken)
        number = observation.next_number(self._now_ms())
        if len(payload) > 16 << observation.exponent:
            options, payload = _first_block(observation, number, payload)
        else:
            options = _options(number, observation.format)
        if self._guard is not None and not session.is_verified and not self._guard.allows(len(payload)):
            session.exchange.send(Code.EMPTY, b"", b"", b"", VERIFY, now)
        session.exchange.send(Code.CONTENT, observation.token, options, payload, observer, now)
        self._notifications += 1
        self._changed(session)

    # --- In blocks ---------------------------------------------------------------------------------------------------

    def rest(self, session: Session, path: tuple[bytes, ...], wanted: Block) -> Answer:
        """A further block of a notification. Call `go_on` after the answer. Raises BadRequest when there is none."""
        for observer in session.observers.values():
            observation = observer.observation
            if observation.path == path and observation.body is not None:
                return self._next_block(observer, observation.body, wanted)
        raise BadRequest

    def _next_block(self, observer: Observer, body: Body, wanted: Block) -> Answer:
        part = block_of(body.content, wanted)
        observation = observer.observation
        if not part.block.more:
            observation.fetched()
        if observation.is_acknowledged:
            if part.block.more:
                self._fetching[observer] = self._now() + FETCH_SECONDS
            else:
                self._fetching.pop(observer, None)
                observation.settled()
        options = (Option.ETAG, part.etag), (Option.BLOCK2, part.block.encode())
        return Answer(Code.CONTENT, part.payload, body.format, options)

    def sweep(self, now: float) -> None:
        """Go on where the peer no longer asks for blocks. Call it every few seconds."""
        for observer in [one for one, until in self._fetching.items() if until <= now]:
            if observer in self._fetching:  # and did not end with another one's session meanwhile
                self._settled(observer)
                self._changed(observer.session)

    def statistics(self) -> ObserverStatistics:
        return ObserverStatistics(self._observers, self._notifications, self._lost)


def _options(number: int, format_: int) -> bytes:
    """Observe and Content-Format as they stand in a message: no number comes again, so nothing is to be remembered."""
    observe, format_bytes = uint(number), uint(format_)
    after = Option.CONTENT_FORMAT - Option.OBSERVE
    return b"%c%b%c%b" % (
        Option.OBSERVE << 4 | len(observe),
        observe,
        after << 4 | len(format_bytes),
        format_bytes,
    )


def _first_block(observation: Observation, number: int, body: bytes) -> tuple[bytes, bytes]:
    """RFC 7959 section 2.6: the notification has the first block, the peer fetches the others."""
    part = block_of(body, Block(0, more=False, exponent=observation.exponent))
    observation.keep(Body(observation.format, body))
    options = (
        (Option.ETAG, part.etag),
        (Option.OBSERVE, uint(number)),
        content_format(observation.format),
        (Option.BLOCK2, part.block.encode()),
    )
    return encode_options(options), part.payload


def _knows_our_id(session: Session, tag: object) -> None:
    """Nobody can who does not receive what we send to this address."""
    session.is_verified = True
    if isinstance(tag, Probe):
        session.lost_pings = 0
