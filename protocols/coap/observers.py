"""Devices that observe their Actions, as connections of the broker (RFC 7641, reference 16.1 and 17).

An observation counts as the device's persistent connection from its registration until the peer cancels or rejects it
or no longer answers. When the broker ends it, the peer gets a final notification: an error code, no Observe option.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.accounts.tokens import Caller
from broker.devices.registry import Device
from broker.envelope import Action
from broker.errors import BadRequest, Conflict, DomainError, SourceDeviceDisabled, StorageUnavailable, Unauthorized
from broker.routing.connections import CloseReason
from protocols.coap.blockwise import MAX_EXPONENT, BlockOption, block_of, etag_of
from protocols.coap.echo import AmplificationGuard
from protocols.coap.messages import Code, Option, content_format, encode_options, uint
from protocols.coap.observe import NotificationBody, Observation
from protocols.coap.requests import CoapRequest, CoapResponse, json_to, refusal_response, response_options
from protocols.coap.session import CoapSession, Observer
from protocols.rooms import CoapRooms
from storage.keys import DeviceKey

#: The path of the wanted values of a device; its token follows.
WANTED: Final = (b"v1.1", b"wanted")
#: An observation ends when this many pings in a row had no answer.
_LOST_PINGS: Final = 2
#: How long the rest of a notification waits for the peer to fetch the next block: MAX_TRANSMIT_WAIT. A client has given
#: up its own request for the block by then (RFC 7252, 4.8.2), so it will not ask any more.
FETCH_SECONDS: Final = 93.0


class _Ping:
    """The tag of a ping in the message layer."""


#: A ping because the peer has been silent.
_KEEP_ALIVE = _Ping()
#: A ping before a notification that is too large for an address that may be spoofed.
_VERIFY_ADDRESS = _Ping()

_FINAL: dict[CloseReason, DomainError] = {
    CloseReason.REPLACED: Conflict(CloseReason.REPLACED.value),
    CloseReason.TOKEN_REVOKED: Unauthorized(),
    CloseReason.DEVICE_DISABLED: SourceDeviceDisabled(),
    CloseReason.DEVICE_DELETED: Unauthorized(),
    CloseReason.PERMISSION_REMOVED: Unauthorized(),
    CloseReason.SHUTDOWN: StorageUnavailable(CloseReason.SHUTDOWN.value),
    CloseReason.NOT_STORED: StorageUnavailable(CloseReason.NOT_STORED.value),
}


class ObserverStatistics(msgspec.Struct, frozen=True):
    observers: int
    notifications: int
    notifications_lost: int  # refused because the device did not keep up


@dataclass(eq=False)
class Observers:
    """The observations of one listener.

    No observations.

    Args:
        rooms: the broker.
        guard: limits notifications to peers whose address is not verified.
        now: the endpoint's clock, in seconds.
        changed: called when a session has something to send, or fewer or more observers than before.
        contained: `Endpoint.contained`.
    """

    _rooms: CoapRooms
    _guard: AmplificationGuard | None
    _now: Callable[[], float]
    _changed: Callable[[CoapSession], None]
    _contained: Callable[..., object]

    def __post_init__(self) -> None:
        self._presence = self._rooms.devices.presence
        self._now_ms = self._rooms.core.clock.now_ms
        self._observers = self._notifications = self._lost = 0
        # The observers with a notification that is acknowledged but not fetched to its end; when its time is over.
        self._fetching: dict[Observer, float] = {}
        # Observers of wanted values: one for each device, as of Actions.
        self._of_wanted: dict[DeviceKey, Observer] = {}

    def register(self, session: CoapSession, request: CoapRequest, token: bytes, device: Device, caller: Caller) -> int:
        """Begin or refresh an observation of Actions, or of wanted values. Call `when_entered`, and
        `go_on` after the response.

        Returns the Observe number of the response.
        """
        known = session.observers.get(token)
        exponent = MAX_EXPONENT if request.block2 is None else request.block2.exponent
        if known is not None and known.observation.path == request.path:
            return self._refresh(known, request.answer_format, exponent)
        if known is not None:
            self.end(known)
        observation = Observation(token, request.path, request.answer_format, exponent)
        is_of_wanted = request.path[:-1] == WANTED
        observer = Observer(session, device, observation, is_of_wanted=is_of_wanted)
        if is_of_wanted:
            if (former := self._of_wanted.get(device.key)) is not None:
                self.end(former, _FINAL[CloseReason.REPLACED])
            self._of_wanted[device.key] = observer
        observer.link = observer.connection.enter_context(
            self._rooms.routing.connections.connect(
                device,
                protocol="COAP",
                token=caller.token,
                exclusive=not is_of_wanted,  # a device may observe both
                deliver=None if is_of_wanted else lambda action: self._deliver(observer, action),
                tell_wanted=(lambda document: self._tell_wanted(observer, document)) if is_of_wanted else None,
                close=lambda reason: self.end(observer, _FINAL[reason]),
            )
        )
        session.observers[token] = observer
        self._observers += 1
        self._changed(session)
        return observation.next_number(self._now_ms())

    def when_entered(self, session: CoapSession, token: bytes, answer: Callable[[DomainError | None], None]) -> None:
        """Call `answer` when an observation has its place among the device's connections, which others may have to
        hear of first; with an error when it has ended since."""
        observer = session.observers.get(token)
        if observer is None or observer.link is None:  # it could not be registered
            answer(_FINAL[CloseReason.NOT_STORED])
            return

        is_within = True  # the request, which has an answer for a failure

        def entered() -> None:
            if is_within:
                self._entered(observer, answer)
            else:
                self._contained(session.key, self._entered, observer, answer)

        self._rooms.routing.connections.when_entered(observer.link, entered)
        is_within = False

    def _entered(self, observer: Observer, answer: Callable[[DomainError | None], None]) -> None:
        if observer.session.observers.get(observer.observation.token) is observer:
            observer.is_told = True
            answer(None)
        else:
            answer(observer.ended_by or _FINAL[CloseReason.NOT_STORED])

    def _refresh(self, observer: Observer, format_: int, exponent: int) -> int:
        """Send the notification that is under way again, after the response to the registration.

        Its number is lower than that of the response, so the peer would drop it as old (RFC 7641, 3.4). If the peer has
        received it already, it arrives twice.
        """
        observation = observer.observation
        observer.session.message_layer.cancel(observer, self._now())
        self._fetching.pop(observer, None)
        observation.take_back()
        observation.format, observation.exponent = format_, exponent
        return observation.next_number(self._now_ms())

    def end_path(self, session: CoapSession, path: tuple[bytes, ...]) -> None:
        """The peer cancels its observations of this path."""
        for observer in [one for one in session.observers.values() if one.observation.path == path]:
            self.end(observer)

    def _end_all(self, session: CoapSession, reason: DomainError | None = None) -> None:
        """End all observations, also if ending one fails. Raises the last error."""
        with ExitStack() as stack:
            for observer in reversed(session.observers.values()):  # the stack turns them around again
                stack.callback(self.end, observer, reason)

    def shut_down(self, session: CoapSession) -> None:
        """End every observation of a session and tell the peer."""
        self._end_all(session, _FINAL[CloseReason.SHUTDOWN])

    def end(self, observer: Observer, reason: DomainError | None = None) -> None:
        """End an observation. Its notifications are not sent again; with a reason the peer is told."""
        session, observation = observer.session, observer.observation
        if session.observers.get(observation.token) is not observer:
            return
        del session.observers[observation.token]
        if self._of_wanted.get(observer.device.key) is observer:
            del self._of_wanted[observer.device.key]
        self._observers -= 1
        self._fetching.pop(observer, None)
        try:
            now = self._now()
            session.message_layer.cancel(observer, now)
            observer.ended_by = reason
            if reason is not None and observer.is_told:
                response = refusal_response(reason, None)
                response = CoapResponse(response.code, json_to(observation.format, response.body), observation.format)
                options = encode_options(response_options(response))
                session.message_layer.send(response.code, observation.token, options, response.body, None, now)
        finally:
            observer.connection.close()
        self._changed(session)

    # --- The fate of messages to the peer ----------------------------------------------------------------------------

    def heard(self, session: CoapSession) -> None:
        """An empty message of the peer came: the observed devices are present."""
        for observer in session.observers.values():
            self._presence.touch(observer.device.key)

    def ping(self, session: CoapSession, now: float) -> None:
        """Ask a silent peer whether it still observes."""
        session.message_layer.send(Code.EMPTY, b"", b"", b"", _KEEP_ALIVE, now)

    def delivered(self, session: CoapSession, tag: object) -> None:
        """The peer acknowledged a message.

        After a notification its blocks are awaited or, if it has none, the next notification is sent.
        """
        _verified(session, tag)
        if isinstance(tag, Observer):
            tag.observation.is_acknowledged = True
            if tag.is_of_wanted and not tag.observation.has_waiting:  # otherwise the peer lacks what has changed since
                self._rooms.wanted.given(tag.device.key)
            if tag.observation.body is None:
                self._settled(tag)
            else:
                self._fetching[tag] = self._now() + FETCH_SECONDS

    def rejected(self, session: CoapSession, tag: object) -> None:
        """The peer rejected a message: a notification, which ends the observation (RFC 7641, 3.6), or a ping.

        A Reset is the regular answer to a ping.
        """
        _verified(session, tag)
        if isinstance(tag, Observer):
            self.end(tag)

    def timed_out(self, session: CoapSession, tag: object, now: float) -> None:
        """The peer did not answer a message. Observations end; but after a first ping, another one is sent."""
        if isinstance(tag, Observer):
            self.end(tag)
        elif tag is _VERIFY_ADDRESS:
            self._end_all(session)
        elif tag is _KEEP_ALIVE:
            session.lost_pings += 1
            if session.lost_pings >= _LOST_PINGS:
                self._end_all(session)
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

    def _tell_wanted(self, observer: Observer, document: bytes) -> None:
        observer.observation.offer_state(document)
        if observer.observation.is_under_way:
            self._changed(observer.session)
        else:
            self._notify(observer)

    def go_on(self, session: CoapSession) -> None:
        """Send the notifications that waited for the response that the peer has just been given."""
        for observer in tuple(session.observers.values()):
            self._notify(observer)

    def _settled(self, observer: Observer) -> None:
        self._fetching.pop(observer, None)
        observer.observation.settled()
        self._notify(observer)

    def _notify(self, observer: Observer) -> None:
        observation, session = observer.observation, observer.session
        taken = observation.take() if observer.is_told else None
        if taken is None:
            return
        now = self._now()
        payload = json_to(observation.format, taken)
        number = observation.next_number(self._now_ms())
        if len(payload) > 16 << observation.exponent:
            options, payload = _first_block(observation, number, payload)
        else:
            options = _options(number, observation.format)
            if observer.is_of_wanted:
                options = _tagged(number, observation.format, payload)
        if self._guard is not None and not session.is_address_verified and not self._guard.allows(len(payload)):
            session.message_layer.send(Code.EMPTY, b"", b"", b"", _VERIFY_ADDRESS, now)
        session.message_layer.send(Code.CONTENT, observation.token, options, payload, observer, now)
        self._notifications += 1
        self._changed(session)

    # --- In blocks ---------------------------------------------------------------------------------------------------

    def rest(self, session: CoapSession, path: tuple[bytes, ...], wanted: BlockOption) -> CoapResponse:
        """A further block of a notification. Call `go_on` after the response.

        Raises:
            BadRequest: no notification of this path is being fetched, or the block is beyond its end.
        """
        for observer in session.observers.values():
            observation = observer.observation
            if observation.path == path and observation.body is not None:
                return self._next_block(observer, observation.body, wanted)
        raise BadRequest

    def _next_block(self, observer: Observer, body: NotificationBody, wanted: BlockOption) -> CoapResponse:
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
        return CoapResponse(Code.CONTENT, part.payload, body.format, options)

    def sweep(self, now: float) -> None:
        """Give up notifications whose blocks the peer no longer fetches. Call it every few seconds."""
        for observer in [one for one, until in self._fetching.items() if until <= now]:
            self._contained(observer.session.key, self._give_up, observer)

    def _give_up(self, observer: Observer) -> None:
        if observer in self._fetching:  # otherwise it has ended since, with the session of another one
            self._settled(observer)
            self._changed(observer.session)

    def statistics(self) -> ObserverStatistics:
        return ObserverStatistics(self._observers, self._notifications, self._lost)


def _options(number: int, format_: int) -> bytes:
    """Observe and Content-Format, encoded. Not by `encode_options`: its cache would fill with numbers used once."""
    observe, format_bytes = uint(number), uint(format_)
    after = Option.CONTENT_FORMAT - Option.OBSERVE
    return b"%c%b%c%b" % (
        Option.OBSERVE << 4 | len(observe),
        observe,
        after << 4 | len(format_bytes),
        format_bytes,
    )


def _tagged(number: int, format_: int, body: bytes) -> bytes:
    """Options of a notification of a state, with its ETag."""
    return encode_options(((Option.ETAG, etag_of(body)), (Option.OBSERVE, uint(number)), content_format(format_)))


def _first_block(observation: Observation, number: int, body: bytes) -> tuple[bytes, bytes]:
    """Options and payload of the first block of a notification. The peer fetches the others (RFC 7959, 2.6)."""
    part = block_of(body, BlockOption(0, more=False, exponent=observation.exponent))
    observation.keep(NotificationBody(observation.format, body))
    options = (
        (Option.ETAG, part.etag),
        (Option.OBSERVE, uint(number)),
        content_format(observation.format),
        (Option.BLOCK2, part.block.encode()),
    )
    return encode_options(options), part.payload


def _verified(session: CoapSession, tag: object) -> None:
    """The peer named the id of a message to it, so it receives what is sent to its address."""
    session.is_address_verified = True
    if isinstance(tag, _Ping):
        session.lost_pings = 0
