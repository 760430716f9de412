"""The state of one /websocket connection without I/O: client frames and verdicts in, typed events out.

A channel waits for its first registration, is registered while it has at least one device, and is closed once.
`receive` takes a client frame. Decisions of the broker leave as events and come back as verdicts:

    RegistrationRequested          ->  registration_accepted / registration_refused, in any order
    MessageOffered, ActionOffered  ->  settle, any number at a time, in any order
    (the registration timer)       ->  registration_timed_out
    (the broker ends a link)       ->  taken_over / access_ended
    (the socket is gone)           ->  disconnected

All frames of the channel leave through one queue, `_line`, in the order of the client's frames. So a client that sends
no `cid` can count the answers, and the last acknowledgements leave before a close. Refusals are ready at once and
acknowledgements after a commit; the queue restores their order. Without `ack` messages are not answered, and the queue
stays empty.

Every frame counts for the token of the registration that it names, or of the first registration; before that, for the
token of the handshake. A frame over the rate limit has no effect, and is answered with `ack` only. The server counts
frames that register, because it knows their caller.

While a registration is under way, the channel does not close for lack of devices.

A client without a token at the handshake is a stranger until its first registration: it is closed after a handful of
frames, whatever they are.

How the server uses the channel, with one reader task for each connection:

    verdicts = []
    offers = channel.receive_usual(payloads)         # str of a text frame, bytes of a binary one
    verdicts += submitted(offers)                    # as each MessageOffered below
    for payload in payloads[len(offers):]:
        for event in channel.receive(payload):
            match event:
                case MessageOffered():
                    try: ticket = ingest.submit(links[event.sdid].device, event.data, event.ts)
                    except DomainError as error: verdicts.append((event, error))
                    else: verdicts.append((event, ticket))
                case ChannelAnswer(frames): outbox.extend(frames)
                ...
    if channel.ack and verdicts:                     # one callback for all messages of one turn
        group = ingest.group
        ingest.after_commit(lambda error: act_on(channel.settle(as_mids(verdicts, group, error))))

With `ack`, every offer must be settled exactly once, also when storing has failed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import TypeAlias, assert_never

import msgspec

from broker.device_types.dropped import DroppedField
from broker.errors import REQUIRED, DeviceNotFound, DomainError, Unauthorized, ValidationFailed
from broker.limits.meters import Meter
from broker.limits.refusals import RateLimitExceeded
from config.limits import UNREGISTERED_FRAMES_MAX
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
    CID_MAX_CHARACTERS,
    ActionFrame,
    ClientFrame,
    FrameForm,
    ListFrame,
    MessageFrame,
    RefusedFrame,
    RegisterFrame,
    ServerFrame,
    UnregisterFrame,
    acknowledgement,
    decode_client_frame,
    device_list,
    error_frame,
    json_text,
    members_of_text,
    stored,
)
from protocols.websocket.wire import NORMAL_CLOSURE, POLICY_VIOLATION


class DeviceChannelState(Enum):
    AWAITING_REGISTRATION = auto()
    REGISTERED = auto()
    CLOSED = auto()


# --- Events -------------------------------------------------------------------------------------------------------


class RegistrationRequested(msgspec.Struct, frozen=True):
    """The server must check that `token` may READ and WRITE `sdid`, connect the device, and return a verdict."""

    sdid: str
    token: str
    cid: str | None = None
    form: FrameForm = FrameForm.JSON


class MessageOffered(msgspec.Struct, gc=False):
    """A data message of a registered device. `data` is JSON; `ts` is as the client sent it, negative if unreadable."""

    sdid: str
    data: bytes
    ts: int | float | str | None = None
    cid: str | None = None
    form: FrameForm = FrameForm.JSON
    answer: ServerFrame | None = None  # set by `settle`, and kept until the answer's turn in the queue
    warnings: tuple[DroppedField, ...] = ()  # the fields that were not kept


class ActionOffered(msgspec.Struct, gc=False):
    """An Action from a registered device; the server checks that it may WRITE `ddid`."""

    sdid: str
    ddid: str
    data: bytes
    ts: int | float | str | None = None
    cid: str | None = None
    form: FrameForm = FrameForm.JSON
    answer: ServerFrame | None = None  # as in MessageOffered
    warnings: tuple[DroppedField, ...] = ()


class DeviceUnregistered(msgspec.Struct, frozen=True):
    """The channel no longer has this device; the server must close its link."""

    sdid: str


class ChannelAnswer(msgspec.Struct, frozen=True):
    """Frames to send, in this order."""

    frames: tuple[ServerFrame, ...]


class ChannelClose(msgspec.Struct, frozen=True):
    """Close the socket after all frames before this event have been sent."""

    code: int
    reason: str


ChannelOffer: TypeAlias = MessageOffered | ActionOffered
ChannelEvent: TypeAlias = (
    MessageOffered | ActionOffered | RegistrationRequested | DeviceUnregistered | ChannelAnswer | ChannelClose
)


class ChannelStatistics(msgspec.Struct, frozen=True):
    registered: int
    registrations_under_way: int
    answers_waiting: int


# --- The conversation ---------------------------------------------------------------------------------------------


class DeviceChannel:
    """The state of one /websocket connection, without socket, clock and broker.

    Args:
        ack: the query parameter: answer every message.
        handshake_token: the token of the handshake, for register frames that carry none.
        handshake_meter: counts the frames while there is no registration.
    """

    def __init__(
        self, *, ack: bool = False, handshake_token: str | None = None, handshake_meter: Meter | None = None
    ) -> None:
        self.ack = ack
        self.form = FrameForm.JSON  # of the latest client frame; frames that are no answers take it
        self._handshake_token = handshake_token
        self._handshake_meter = handshake_meter
        self._closed = False
        #: Frames that a stranger may still send; None for a client that has shown a token.
        self._trust: int | None = UNREGISTERED_FRAMES_MAX if handshake_token is None else None
        self._registered: dict[str, Meter | None] = {}  # by sdid, in order of registration
        self._under_way: dict[str, RegistrationRequested] = {}
        self._line: deque[ChannelOffer | ChannelAnswer | ChannelClose] = deque()
        self._farewell: tuple[ChannelAnswer | ChannelClose, ...] | None = (
            None  # the last events, for when no device remains
        )

    @property
    def state(self) -> DeviceChannelState:
        if self._closed:
            return DeviceChannelState.CLOSED
        return DeviceChannelState.REGISTERED if self._registered else DeviceChannelState.AWAITING_REGISTRATION

    @property
    def registered(self) -> tuple[str, ...]:
        """The ids of the channel's devices, in the order of their registration."""
        return tuple(self._registered)

    @property
    def answers_waiting(self) -> int:
        """The answers and acknowledgements that have not left yet."""
        return len(self._line)

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(len(self._registered), len(self._under_way), len(self._line))

    # --- Frames of the client ---

    def receive_usual(self, payloads: Sequence[str | bytes]) -> list[MessageOffered]:
        """Process the client frames of one turn from the first one on, as long as each is a usual message, as nearly
        every frame is. The caller gives the frames behind them to `receive`, one by one.

        `receive` does the same with a usual message, and takes longer.
        """
        offers = list[MessageOffered]()
        if self._closed or self._trust is not None:
            return offers
        registered = self._registered
        for payload in payloads:
            if type(payload) is not str or (members := members_of_text(payload)) is None:
                break
            sdid, cid, kind = members.sdid, members.cid, members.type
            if (
                sdid not in registered
                or not (kind == "message" or (kind is None and members.ddid is None))
                or not (cid is None or (type(cid) is str and len(cid) <= CID_MAX_CHARACTERS))
                or (data := bytes(members.data))[:1] != b"{"
            ):
                break
            if (meter := registered[sdid]) is not None and not meter.try_count():
                break
            offers.append(MessageOffered(sdid, data, members.ts, cid))
        if offers:
            self.form = FrameForm.JSON
            if self.ack:
                self._line += offers
        return offers

    def receive(self, payload: str | bytes) -> tuple[ChannelEvent, ...]:
        """Process one client frame: `str` of a text frame, `bytes` of a binary one. Ignored after the close."""
        if self._closed:
            return ()
        if self._trust is not None and (ending := self._count_stranger(1)):
            return ending
        frame = decode_client_frame(payload)
        self.form = frame.form
        if not isinstance(frame, RegisterFrame) and (refusal := self._count(frame)) is not None:
            return self._refuse_message(refusal, frame)
        match frame:
            case MessageFrame():
                return self._offer_message(frame)
            case ActionFrame():
                return self._offer_action(frame)
            case RegisterFrame():
                return self._register(frame)
            case UnregisterFrame():
                return self._unregister(frame)
            case ListFrame():
                return self._say(ChannelAnswer((device_list(self.registered, frame.cid, frame.form),)))
            case RefusedFrame():
                return self._refuse_on_sight(frame)
            case _ as unreachable:
                assert_never(unreachable)

    def receive_overhead(self, frames: int, pings: int, floods: Callable[[int], bool]) -> tuple[ChannelEvent, ...]:
        """Process frames that are no messages: Pings, Pongs and fragments. `pings` of them are Pings, which count.

        Pings beyond the rate limit change nothing, because a device that has used it up still needs their Pongs. Only a
        flood of them closes the channel: `floods` says whether this number of further ones is a flood.
        """
        if self._closed:
            return ()
        if self._trust is not None:
            return self._count_stranger(frames)
        for counted in range(pings):
            if (refusal := self._count(None)) is not None:
                return self._end(str(refusal)) if floods(pings - counted) else ()
        return ()

    def _count_stranger(self, frames: int) -> tuple[ChannelEvent, ...]:
        """The end of a stranger that has sent more than a handful of frames."""
        self._trust = (self._trust or 0) - frames
        return self._end("no device is registered") if self._trust < 0 else ()

    def _end(self, reason: str) -> tuple[ChannelEvent, ...]:
        self._closed = True
        return self._say(ChannelClose(POLICY_VIOLATION, reason))

    def _count(self, frame: ClientFrame | None) -> RateLimitExceeded | None:
        meter = self._handshake_meter
        if registered := self._registered:
            sdid = None if frame is None or isinstance(frame, ListFrame | RefusedFrame) else frame.sdid
            meter = registered[sdid if sdid in registered else next(iter(registered))]
        try:
            if meter is not None:
                meter.count()
        except RateLimitExceeded as refusal:
            return refusal
        return None

    def _offer_message(self, frame: MessageFrame) -> tuple[ChannelEvent, ...]:
        if not self._registered:
            return ()  # reference 19.3: until the client has registered, its messages are discarded.
        sdid = self._source(frame)
        if isinstance(sdid, DomainError):
            return self._refuse_message(sdid, frame)
        if frame.data is None:
            return self._refuse_message(ValidationFailed.of("data", REQUIRED), frame)
        offer = MessageOffered(sdid, json_text(frame.data), frame.ts, frame.cid, frame.form)
        if self.ack:
            self._line.append(offer)
        return (offer,)

    def _offer_action(self, frame: ActionFrame) -> tuple[ChannelEvent, ...]:
        if not self._registered:
            return ()
        sdid = self._source(frame)
        if isinstance(sdid, DomainError):
            return self._refuse_message(sdid, frame)
        if not frame.ddid:
            return self._refuse_message(MissingDdid(), frame)
        if frame.data is None:
            return self._refuse_message(ValidationFailed.of("data", REQUIRED), frame)
        offer = ActionOffered(sdid, frame.ddid, json_text(frame.data), frame.ts, frame.cid, frame.form)
        if self.ack:
            self._line.append(offer)
        return (offer,)

    def _source(self, frame: MessageFrame | ActionFrame) -> str | DomainError:
        """The registered device that a frame names, or why there is none."""
        sdid = frame.sdid
        if sdid in self._registered:
            return sdid
        if sdid is None and len(self._registered) == 1:
            return next(iter(self._registered))
        return DeviceNotRegistered() if sdid else MissingSdid()

    def _refuse_message(
        self, error: DomainError, frame: ClientFrame | RegistrationRequested
    ) -> tuple[ChannelEvent, ...]:
        return self._refuse(error, frame.cid, frame.form) if self.ack else ()

    def _refuse_on_sight(self, frame: RefusedFrame) -> tuple[ChannelEvent, ...]:
        match frame.kind:
            case "message" | "action":
                return self._refuse_message(frame.error, frame) if self._registered else ()
            case None:
                # The frame may be a broken message, which is not answered without `ack`, or a broken first
                # registration, so with `ack` it is answered at any time.
                return self._refuse_message(frame.error, frame)
            case _:
                return self._refuse(frame.error, frame.cid, frame.form)

    def _register(self, frame: RegisterFrame) -> tuple[ChannelEvent, ...]:
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

    def _refuse_registration(self, error: DomainError, frame: RegisterFrame) -> tuple[ChannelEvent, ...]:
        if (refusal := self._count(frame)) is not None:
            return self._refuse_message(refusal, frame)
        return self._refuse(error, frame.cid, frame.form)

    def _unregister(self, frame: UnregisterFrame) -> tuple[ChannelEvent, ...]:
        sdid = frame.sdid
        if not sdid:
            return self._refuse(MissingSdid(), frame.cid, frame.form)
        if sdid not in self._registered:
            return self._refuse(DeviceNotFound(sdid), frame.cid, frame.form)
        del self._registered[sdid]
        ending = NoRegisteredDevice()
        self._farewell = (
            ChannelAnswer((error_frame(ending, frame.cid, frame.form),)),
            ChannelClose(NORMAL_CLOSURE, str(ending)),
        )
        return (
            DeviceUnregistered(sdid),
            *self._acknowledge(frame.cid, frame.form),
            *self._close_if_deserted(),
        )

    # --- Decisions of the broker ---

    def registration_accepted(self, sdid: str, meter: Meter | None = None) -> tuple[ChannelEvent, ...]:
        """The device is connected, and `meter` counts its frames.

        A channel that is already closed unregisters the device at once.
        """
        if self._closed:
            return (DeviceUnregistered(sdid),)
        request = self._under_way.pop(sdid)
        self._trust = None
        self._registered[sdid] = meter
        return self._acknowledge(request.cid, request.form)

    def registration_refused(self, sdid: str, error: DomainError) -> tuple[ChannelEvent, ...]:
        if self._closed:
            return ()
        request = self._under_way.pop(sdid)
        if isinstance(error, RateLimitExceeded):
            refusal = self._refuse_message(error, request)
        else:
            refusal = self._refuse(error, request.cid, request.form)
        return (*refusal, *self._close_if_deserted())

    def settle(self, verdicts: Iterable[tuple[ChannelOffer, str | DomainError]]) -> tuple[ChannelEvent, ...]:
        """Take the result of offers: for each, the mid of the stored message, or the refusal.

        The answers leave when all earlier offers are settled. Without `ack` there are no answers.
        """
        if not self.ack:
            return ()
        line = self._line
        frames: list[ServerFrame] = []
        for offer, verdict in verdicts:
            if isinstance(verdict, str):
                answer = stored(verdict, offer.cid, offer.form, offer.warnings)
            else:
                answer = error_frame(verdict, offer.cid, offer.form)
            if line and line[0] is offer:  # mostly the offers are settled in their order
                line.popleft()
                frames.append(answer)
            else:
                offer.answer = answer
        return self._what_is_due(frames)

    def registration_timed_out(self) -> tuple[ChannelEvent, ...]:
        """The time for the first registration is over. Called once; has no effect on a channel with devices."""
        if self._closed or self._registered:
            return ()
        if self._farewell is None:
            ending = RegistrationTimeout()
            self._farewell = (
                ChannelAnswer((error_frame(ending, None, self.form),)),
                ChannelClose(NORMAL_CLOSURE, str(ending)),
            )
        return self._close_if_deserted()

    def taken_over(self, sdid: str) -> tuple[ChannelEvent, ...]:
        """A newer connection has the device now (reference 16.1)."""
        return self.access_ended(sdid, Replaced())

    def access_ended(self, sdid: str, error: DomainError) -> tuple[ChannelEvent, ...]:
        """The channel loses a device; with its last device it closes with 1008."""
        if sdid not in self._registered:
            return ()
        del self._registered[sdid]
        self._farewell = (ChannelClose(POLICY_VIOLATION, code_and_text(error)[1]),)
        remains = self._registered or self._under_way
        return (
            DeviceUnregistered(sdid),
            *(self._refuse(error, None, self.form) if remains else self._close_if_deserted()),
        )

    def disconnected(self) -> tuple[DeviceUnregistered, ...]:
        """The connection has ended. No frame is sent any more; the events unregister the devices."""
        self._closed = True
        events = tuple(map(DeviceUnregistered, self._registered))
        self._registered.clear()
        self._under_way.clear()
        self._line.clear()
        return events

    # --- Frames to the client ---

    def _acknowledge(self, cid: str | None, form: FrameForm) -> tuple[ChannelEvent, ...]:
        return self._say(ChannelAnswer((acknowledgement(cid, form),))) if self.ack else ()

    def _refuse(self, error: DomainError, cid: str | None, form: FrameForm) -> tuple[ChannelEvent, ...]:
        return self._say(ChannelAnswer((error_frame(error, cid, form),)))

    def _close_if_deserted(self) -> tuple[ChannelEvent, ...]:
        if self._registered or self._under_way or self._farewell is None:
            return ()
        self._closed = True
        return self._say(*self._farewell)

    def _say(self, *said: ChannelAnswer | ChannelClose) -> tuple[ChannelEvent, ...]:
        if not self._line:
            return said
        self._line.extend(said)
        return ()

    def _what_is_due(self, frames: list[ServerFrame]) -> tuple[ChannelEvent, ...]:
        """These frames, and what waited for them alone."""
        line = self._line
        ending: tuple[ChannelClose, ...] = ()
        while line:
            head = line[0]
            if isinstance(head, ChannelAnswer):
                frames.extend(head.frames)
            elif isinstance(head, ChannelClose):
                ending = (head,)
            elif head.answer is not None:
                frames.append(head.answer)
            else:
                break
            line.popleft()
        return (ChannelAnswer(tuple(frames)), *ending) if frames else ending
