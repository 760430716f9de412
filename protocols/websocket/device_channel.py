"""One conversation on /websocket without I/O: client frames and verdicts in, typed events out.

Theory of operation. A channel waits for its first registration, is registered while it speaks for at least one device,
and is closed once. `receive` takes a client frame; what only the broker can decide leaves as an event and comes back as
a verdict:

    RegistrationRequested          ->  registration_accepted / registration_refused, in any order
    MessageOffered, ActionOffered  ->  settle, any number at a time, in any order
    (the registration timer)       ->  registration_timed_out
    (the broker ends a link)       ->  taken_over / access_ended
    (the socket is gone)           ->  disconnected

Everything the channel says leaves in one line: behind the answers to the messages that came before it. So a client that
sends no `cid` can count, and the last acknowledgements are out before a close. Storing is asynchronous and refusals are
not; the line is what puts them in order again. Without `ack` messages are not answered, and the line stays empty.

Every frame is counted for the token of the registration that it speaks for, or of the first one; before that, for the
token of the handshake. A frame over the rate limit does nothing, and is answered with `ack` only. The frame that
registers is counted by the shell, which knows its caller.

A registration under way counts as a device the channel may yet speak for: as long as there is one, the channel does not
close for want of devices.

How the shell uses it, with one reader task per connection:

    verdicts = []
    for payload in what_has_been_read:               # str of a text frame, bytes of a binary one
        for event in channel.receive(payload):
            match event:
                case MessageOffered():
                    try: position = ingest.submit(links[event.sdid].device, event.data, event.ts)
                    except DomainError as error: verdicts.append((event, error))
                    else: verdicts.append((event, position))
                case Answer(frames): outbox.extend(frames)
                ...
    if channel.ack and verdicts:                     # one callback for the whole chunk
        ingest.after_commit(lambda error: act_on(channel.settle(as_mids(verdicts, error))))

Every offer must be settled exactly once when `ack` is on, also when storing failed.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, assert_never

import msgspec

from broker.errors import DeviceNotFound, DomainError, Unauthorized, ValidationFailed
from broker.limits.meters import Meter
from broker.limits.refusals import RateLimitExceeded
from protocols.websocket.errors import (
    DeviceAlreadyRegistered,
    DeviceNotRegistered,
    MissingDdid,
    MissingSdid,
    NoRegisteredDevice,
    RegistrationTimeout,
    Replaced,
    code_and_text,
)
from protocols.websocket.frames import (
    Action,
    ClientFrame,
    Form,
    List,
    Message,
    Refused,
    Register,
    ServerFrame,
    Unregister,
    acknowledgement,
    decode,
    device_list,
    error_frame,
    json_text,
    stored,
)
from protocols.websocket.wire import NORMAL_CLOSURE, POLICY_VIOLATION


class State(Enum):
    AWAITING_REGISTRATION = auto()
    REGISTERED = auto()
    CLOSED = auto()


# --- Events -------------------------------------------------------------------------------------------------------


class RegistrationRequested(msgspec.Struct, frozen=True):
    """Check that `token` may READ and WRITE `sdid`, connect the device, and return a verdict."""

    sdid: str
    token: str
    cid: str | None = None
    form: Form = Form.JSON


class MessageOffered(msgspec.Struct, gc=False):
    """A data message of a registered device. `data` is JSON; `ts` is as the client sent it, negative if unreadable."""

    sdid: str
    data: bytes
    ts: int | float | None = None
    cid: str | None = None
    form: Form = Form.JSON
    answer: ServerFrame | None = None  # the channel's own: what `settle` made of it, until its turn comes


class ActionOffered(msgspec.Struct, gc=False):
    """An Action from a registered device; whether it may WRITE `ddid` is for the shell to check."""

    sdid: str
    ddid: str
    data: bytes
    ts: int | float | None = None
    cid: str | None = None
    form: Form = Form.JSON
    answer: ServerFrame | None = None  # as above


class DeviceUnregistered(msgspec.Struct, frozen=True):
    """The channel no longer speaks for this device; let its link go."""

    sdid: str


class Answer(msgspec.Struct, frozen=True):
    """Frames to send, in this order."""

    frames: tuple[ServerFrame, ...]


class Close(msgspec.Struct, frozen=True):
    """Close the socket once everything said before has been sent."""

    code: int
    reason: str


Offer: TypeAlias = MessageOffered | ActionOffered
Event: TypeAlias = MessageOffered | ActionOffered | RegistrationRequested | DeviceUnregistered | Answer | Close


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    registered: int
    registrations_under_way: int
    answers_waiting: int


# --- The conversation ---------------------------------------------------------------------------------------------


class DeviceChannel:
    """One /websocket conversation. Knows no socket, no clock, no broker.

    Args:
        ack: the query parameter: answer every message.
        handshake_token: the token of the handshake, for register frames that carry none.
        handshake_meter: counts its frames while there is no registration.
    """

    def __init__(
        self, *, ack: bool = False, handshake_token: str | None = None, handshake_meter: Meter | None = None
    ) -> None:
        self.ack = ack
        self.form = Form.JSON  # of the latest client frame; frames that answer nothing take it
        self._handshake_token = handshake_token
        self._handshake_meter = handshake_meter
        self._closed = False
        self._registered: dict[str, Meter | None] = {}  # in their order, with what counts their frames
        self._under_way: dict[str, RegistrationRequested] = {}
        self._line: deque[Offer | Answer | Close] = deque()
        self._farewell: tuple[Answer | Close, ...] | None = None  # what to say if no device remains

    @property
    def state(self) -> State:
        if self._closed:
            return State.CLOSED
        return State.REGISTERED if self._registered else State.AWAITING_REGISTRATION

    @property
    def registered(self) -> tuple[str, ...]:
        """The devices this channel speaks for, in the order they were registered."""
        return tuple(self._registered)

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(len(self._registered), len(self._under_way), len(self._line))

    # --- What the client says ---

    def receive(self, payload: str | bytes) -> tuple[Event, ...]:
        """Take one client frame: `str` of a text frame, `bytes` of a binary one. After the close all are ignored."""
        if self._closed:
            return ()
        frame = decode(payload)
        self.form = frame.form
        if not isinstance(frame, Register) and (refusal := self._count(frame)) is not None:
            return self._refuse_message(refusal, frame)
        match frame:
            case Message():
                return self._offer_message(frame)
            case Action():
                return self._offer_action(frame)
            case Register():
                return self._register(frame)
            case Unregister():
                return self._unregister(frame)
            case List():
                return self._say(Answer((device_list(self.registered, frame.cid, frame.form),)))
            case Refused():
                return self._refuse_on_sight(frame)
            case _ as unreachable:
                assert_never(unreachable)

    def _count(self, frame: ClientFrame) -> RateLimitExceeded | None:
        meter = self._handshake_meter
        if registered := self._registered:
            sdid = None if isinstance(frame, List | Refused) else frame.sdid
            meter = registered[sdid if sdid in registered else next(iter(registered))]
        try:
            if meter is not None:
                meter.count()
        except RateLimitExceeded as refusal:
            return refusal
        return None

    def _offer_message(self, frame: Message) -> tuple[Event, ...]:
        if not self._registered:
            return ()  # reference 19.3: until the client has registered, its messages are discarded.
        sdid = self._source(frame)
        if isinstance(sdid, DomainError):
            return self._refuse_message(sdid, frame)
        if frame.data is None:
            return self._refuse_message(ValidationFailed.of("data", "Required parameter"), frame)
        offer = MessageOffered(sdid, json_text(frame.data), frame.ts, frame.cid, frame.form)
        if self.ack:
            self._line.append(offer)
        return (offer,)

    def _offer_action(self, frame: Action) -> tuple[Event, ...]:
        if not self._registered:
            return ()
        sdid = self._source(frame)
        if isinstance(sdid, DomainError):
            return self._refuse_message(sdid, frame)
        if not frame.ddid:
            return self._refuse_message(MissingDdid(), frame)
        if frame.data is None:
            return self._refuse_message(ValidationFailed.of("data", "Required parameter"), frame)
        offer = ActionOffered(sdid, frame.ddid, json_text(frame.data), frame.ts, frame.cid, frame.form)
        if self.ack:
            self._line.append(offer)
        return (offer,)

    def _source(self, frame: Message | Action) -> str | DomainError:
        """Which registered device a frame speaks for."""
        sdid = frame.sdid
        if sdid in self._registered:
            return sdid
        if sdid is None and len(self._registered) == 1:
            return next(iter(self._registered))
        return DeviceNotRegistered() if sdid else MissingSdid()

    def _refuse_message(self, error: DomainError, frame: ClientFrame | RegistrationRequested) -> tuple[Event, ...]:
        return self._refuse(error, frame.cid, frame.form) if self.ack else ()

    def _refuse_on_sight(self, frame: Refused) -> tuple[Event, ...]:
        match frame.kind:
            case "message" | "action":
                return self._refuse_message(frame.error, frame) if self._registered else ()
            case None:
                # It may have been a message, so it is not answered without `ack`; it may have been a mistyped first
                # registration, so with `ack` it is answered at any time.
                return self._refuse_message(frame.error, frame)
            case _:
                return self._refuse(frame.error, frame.cid, frame.form)

    def _register(self, frame: Register) -> tuple[Event, ...]:
        token = self._handshake_token if frame.token is None else frame.token
        if not token:
            return self._refuse_registration(Unauthorized(), frame)
        sdid = frame.sdid
        if not sdid:
            return self._refuse_registration(MissingSdid(), frame)
        if sdid in self._registered or sdid in self._under_way:
            return self._refuse_registration(DeviceAlreadyRegistered(), frame)
        request = self._under_way[sdid] = RegistrationRequested(sdid, token, frame.cid, frame.form)
        return (request,)

    def _refuse_registration(self, error: DomainError, frame: Register) -> tuple[Event, ...]:
        if (refusal := self._count(frame)) is not None:
            return self._refuse_message(refusal, frame)
        return self._refuse(error, frame.cid, frame.form)

    def _unregister(self, frame: Unregister) -> tuple[Event, ...]:
        sdid = frame.sdid
        if not sdid:
            return self._refuse(MissingSdid(), frame.cid, frame.form)
        if sdid not in self._registered:
            return self._refuse(DeviceNotFound(sdid), frame.cid, frame.form)
        del self._registered[sdid]
        ending = NoRegisteredDevice()
        self._farewell = (
            Answer((error_frame(ending, frame.cid, frame.form),)),
            Close(NORMAL_CLOSURE, str(ending)),
        )
        return (
            DeviceUnregistered(sdid),
            *self._acknowledge(frame.cid, frame.form),
            *self._close_if_deserted(),
        )

    # --- What the broker decides ---

    def registration_accepted(self, sdid: str, meter: Meter | None = None) -> tuple[Event, ...]:
        """The device is connected, and `meter` counts its frames.

        A channel that has closed meanwhile gives it straight back.
        """
        if self._closed:
            return (DeviceUnregistered(sdid),)
        request = self._under_way.pop(sdid)
        self._registered[sdid] = meter
        return self._acknowledge(request.cid, request.form)

    def registration_refused(self, sdid: str, error: DomainError) -> tuple[Event, ...]:
        if self._closed:
            return ()
        request = self._under_way.pop(sdid)
        if isinstance(error, RateLimitExceeded):
            refusal = self._refuse_message(error, request)
        else:
            refusal = self._refuse(error, request.cid, request.form)
        return (*refusal, *self._close_if_deserted())

    def settle(self, verdicts: Iterable[tuple[Offer, str | DomainError]]) -> tuple[Event, ...]:
        """Take what became of offers: the mid each is durably stored under, or why it was refused.

        The answers come out as soon as nothing earlier is open. Without `ack` there is nothing to say.
        """
        if not self.ack:
            return ()
        for offer, verdict in verdicts:
            if isinstance(verdict, str):
                offer.answer = stored(verdict, offer.cid, offer.form)
            else:
                offer.answer = error_frame(verdict, offer.cid, offer.form)
        return self._what_is_due()

    def registration_timed_out(self) -> tuple[Event, ...]:
        """The time for the first registration is over. Call it once; a channel that has registered is not concerned."""
        if self._closed or self._registered:
            return ()
        if self._farewell is None:
            ending = RegistrationTimeout()
            self._farewell = (Answer((error_frame(ending, None, self.form),)), Close(NORMAL_CLOSURE, str(ending)))
        return self._close_if_deserted()

    def taken_over(self, sdid: str) -> tuple[Event, ...]:
        """A newer connection has the device now (reference 16.1)."""
        return self.access_ended(sdid, Replaced())

    def access_ended(self, sdid: str, error: DomainError) -> tuple[Event, ...]:
        """The channel may no longer speak for a device; with its last device it closes with 1008."""
        if sdid not in self._registered:
            return ()
        del self._registered[sdid]
        self._farewell = (Close(POLICY_VIOLATION, code_and_text(error)[1]),)
        remains = self._registered or self._under_way
        return (
            DeviceUnregistered(sdid),
            *(self._refuse(error, None, self.form) if remains else self._close_if_deserted()),
        )

    def disconnected(self) -> tuple[DeviceUnregistered, ...]:
        """The socket is gone, whoever ended it. Nothing is said any more; the devices are to be let go."""
        self._closed = True
        events = tuple(map(DeviceUnregistered, self._registered))
        self._registered.clear()
        self._under_way.clear()
        self._line.clear()
        return events

    # --- What the channel says ---

    def _acknowledge(self, cid: str | None, form: Form) -> tuple[Event, ...]:
        return self._say(Answer((acknowledgement(cid, form),))) if self.ack else ()

    def _refuse(self, error: DomainError, cid: str | None, form: Form) -> tuple[Event, ...]:
        return self._say(Answer((error_frame(error, cid, form),)))

    def _close_if_deserted(self) -> tuple[Event, ...]:
        if self._registered or self._under_way or self._farewell is None:
            return ()
        self._closed = True
        return self._say(*self._farewell)

    def _say(self, *said: Answer | Close) -> tuple[Event, ...]:
        if not self._line:
            return said
        self._line.extend(said)
        return ()

    def _what_is_due(self) -> tuple[Event, ...]:
        line = self._line
        frames: list[ServerFrame] = []
        ending: tuple[Close, ...] = ()
        while line:
            head = line[0]
            if isinstance(head, Answer):
                frames.extend(head.frames)
            elif isinstance(head, Close):
                ending = (head,)
            elif head.answer is not None:
                frames.append(head.answer)
            else:
                break
            line.popleft()
        return (Answer(tuple(frames)), *ending) if frames else ending
