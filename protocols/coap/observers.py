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
from broker.errors import Conflict, DomainError, SourceDeviceDisabled, StorageUnavailable, Unauthorized
from broker.routing.connections import CloseReason
from broker.services import Services
from protocols.coap.blockwise import MAX_EXPONENT, Block, cut
from protocols.coap.echo import AmplificationGuard
from protocols.coap.messages import CBOR, Code, Option, content_format, encode_options, uint
from protocols.coap.observe import Observation
from protocols.coap.requests import Answer, Request, answer_options, json_to, refusal
from protocols.coap.session import Observer, Session

LOST_PINGS: Final = 2


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
        self._presence = services.presence
        self._guard = guard
        self._now = now
        self._changed = changed
        self._observers = self._notifications = self._lost = 0

    def register(self, session: Session, request: Request, token: bytes, device: Device, caller: Caller) -> int:
        """Begin an observation, or refresh it; the Observe number of the answer."""
        known = session.observers.get(token)
        if known is not None and known.observation.path == request.path:
            return known.observation.next_number()
        if known is not None:
            self.end(known)
        exponent = MAX_EXPONENT if request.block2 is None else request.block2.exponent
        observation = Observation(token, request.path, request.answer_format, exponent)
        observer = Observer(session, device, observation)
        observer.connection.enter_context(
            self._services.connections.connect(
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
        return observation.next_number()

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
        """A message of ours was acknowledged; after a notification, the next one goes."""
        _knows_our_id(session, tag)
        if isinstance(tag, Observer):
            tag.observation.settled()
            self._notify(tag)

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
        payload = action.data.encode()
        if not observation.offer(json_to(observation.format, payload) if observation.format == CBOR else payload):
            self._lost += 1
            return False
        if observation.is_under_way:
            self._changed(observer.session)
        else:
            self._notify(observer)
        return True

    def _notify(self, observer: Observer) -> None:
        observation, session = observer.observation, observer.session
        payload = observation.take()
        if payload is None:
            return
        now = self._now()
        head: tuple[tuple[int, bytes], ...] = (
            (Option.OBSERVE, uint(observation.next_number())),
            content_format(observation.format),
        )
        if len(payload) > 16 << observation.exponent:
            head, payload = self._first_block(observer, payload, head, now)
        if self._guard is not None and not session.is_verified and not self._guard.allows(len(payload)):
            session.exchange.send(Code.EMPTY, b"", b"", b"", VERIFY, now)
        session.exchange.send(Code.CONTENT, observation.token, encode_options(head), payload, observer, now)
        self._notifications += 1
        self._changed(session)

    def _first_block(
        self, observer: Observer, payload: bytes, head: tuple[tuple[int, bytes], ...], now: float
    ) -> tuple[tuple[tuple[int, bytes], ...], bytes]:
        """RFC 7959 section 2.6: the notification has the first block, the peer fetches the others."""
        observation = observer.observation
        part = cut(payload, Block(0, more=False, exponent=observation.exponent))
        if part is None:
            return head, payload
        observer.session.blocks.offer((Code.GET, observation.path, ()), payload, now)
        options = (*head, (Option.ETAG, part.etag), (Option.BLOCK2, part.block.encode()))
        return tuple(sorted(options)), part.payload

    def statistics(self) -> ObserverStatistics:
        return ObserverStatistics(self._observers, self._notifications, self._lost)


def _knows_our_id(session: Session, tag: object) -> None:
    """Nobody can who does not receive what we send to this address."""
    session.is_verified = True
    if isinstance(tag, Probe):
        session.lost_pings = 0
