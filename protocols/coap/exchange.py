"""The message layer towards one peer, without I/O: RFC 7252 section 4, in both roles.

Theory of operation. Messages come in through `receive` and leave through `take_output`; what they mean comes back as
events. Time is a number that the caller passes in, the next moment at which something is due is `deadline`, and `tick`
does what is due. Nothing else happens by itself.

- A request is reported once. Its message id and token are remembered for EXCHANGE_LIFETIME, but never more than
  MAX_REMEMBERED of them: more than the specification's rate limits let a device send in that time. A duplicate is
  answered from memory: with the answer, with the empty ACK, or not at all while the answer is still to come.
- `respond` piggybacks the answer on the ACK if it comes within PIGGYBACK_SECONDS; after that the empty ACK has gone and
  the answer is a confirmable message of its own. A NON request gets a NON answer.
- One confirmable message of ours is under way at any time (NSTART = 1); the others wait in order. It is sent again with
  the timing of section 4.2, and ends in exactly one event: Delivered, Rejected or TimedOut, with the tag of its sender.
  The answer to a request of ours ends it likewise in ResponseReceived, Rejected or TimedOut.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from config.limits import COAP_EXCHANGE_SECONDS
from protocols.coap.messages import ACK, CON, NON, RST, Code, Message, empty, frame

ACK_TIMEOUT: Final = 2.0
ACK_RANDOM_FACTOR: Final = 1.5
MAX_RETRANSMIT: Final = 4
EXCHANGE_LIFETIME: Final = COAP_EXCHANGE_SECONDS

#: Clients send again after 2 s at the earliest; a commit rarely takes this long.
PIGGYBACK_SECONDS: Final = 1.0
MAX_REMEMBERED: Final = 512
#: What an entry weighs beside its bytes, for the account of bytes held: measured, rounded up.
ENTRY_BYTES: Final = 400


class Incoming:
    """A request of the peer's, from its first datagram until its duplicates cannot come any more."""

    __slots__ = ("answer", "expires", "is_acknowledged", "is_answered", "message", "token", "weight")

    def __init__(self, message: Message, expires: float) -> None:
        self.message = message
        self.token = message.token
        self.expires = expires
        self.is_acknowledged = message.type != CON
        self.is_answered = False
        self.weight = ENTRY_BYTES + len(message.payload)
        #: What a duplicate gets. A duplicate of a NON gets nothing (RFC 7252 section 4.3).
        self.answer: bytes | None = None

    def settle(self) -> int:
        """It is answered and its content let go of; by how much its weight changed."""
        self.is_answered = True
        self.message = self.message._replace(options=(), payload=b"")
        before, self.weight = self.weight, ENTRY_BYTES + len(self.answer or b"")
        return self.weight - before


# --- Events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A new request. Answer it with `respond`, now or later."""

    incoming: Incoming


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """The answer to the request that `tag` was given for."""

    tag: object
    message: Message


@dataclass(frozen=True, slots=True)
class Delivered:
    """The peer acknowledged a confirmable message."""

    tag: object


@dataclass(frozen=True, slots=True)
class Rejected:
    """The peer answered with a Reset. For a ping that is the pong."""

    tag: object


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The peer did not answer any of the transmissions, or the answer it promised never came."""

    tag: object


Event = RequestReceived | ResponseReceived | Delivered | Rejected | TimedOut


class _Transmission:
    """A confirmable message of ours, waiting or under way."""

    __slots__ = ("code", "datagram", "deadline", "message_id", "retransmissions", "tag", "timeout", "token")

    def __init__(self, code: int, token: bytes, message_id: int, datagram: bytes, tag: object) -> None:
        self.code = code
        self.token = token
        self.message_id = message_id
        self.datagram = datagram
        self.tag = tag
        self.retransmissions = 0
        self.timeout = 0.0
        self.deadline = inf

    @property
    def is_request(self) -> bool:
        return 0 < self.code < 32


@dataclass(frozen=True, slots=True)
class ExchangeStatistics:
    remembered: int
    unanswered: int
    waiting: int
    requests_under_way: int
    bytes_held: int
    duplicates: int
    retransmissions: int


class Exchange:
    """What one peer and we owe each other. Knows no socket, no clock, no resource."""

    __slots__ = (
        "_current",
        "_next_id",
        "_out",
        "_promised",
        "_random",
        "_remembered",
        "_unacknowledged",
        "_waiting",
        "bytes_held",
        "duplicates",
        "retransmissions",
        "unanswered",
    )

    def __init__(self, random: Callable[[], float]) -> None:
        """`random` gives numbers from 0 to 1: the first message id, and the spread of time-outs."""
        self._random = random
        self._next_id = int(random() * 0xFFFF)
        self._out: list[bytes] = []
        self._remembered: OrderedDict[int, Incoming] = OrderedDict()
        self._unacknowledged: dict[Incoming, float] = {}  # when the empty ACK is due; the first one is due first
        self._current: _Transmission | None = None
        self._waiting: deque[_Transmission] | None = None
        self._promised: dict[bytes, tuple[object, float]] | None = None  # acknowledged requests of ours, by token
        self.bytes_held = 0
        self.unanswered = 0
        self.duplicates = 0
        self.retransmissions = 0

    # --- In --------------------------------------------------------------------------------------------------------

    def receive(self, message: Message, now: float) -> tuple[Event, ...]:
        """What this message means. Answers that need no decision are left in the output."""
        if message.type == ACK:
            return self._acknowledged(message, now)
        if message.type == RST:
            return self._rejected(message, now)
        if message.code == Code.EMPTY:
            if message.type == CON:  # a ping (RFC 7252 section 4.3)
                self._out.append(empty(RST, message.message_id))
            return ()
        known = self._remembered.get(message.message_id)
        # A client that starts anew may use an id again at once; a retransmission has the same token.
        if known is not None and known.token == message.token and known.expires > now:
            self.duplicates += 1
            if known.answer is not None:
                self._out.append(known.answer)
            return ()
        if message.is_request:
            incoming = self._remember(message, now)
            self.unanswered += 1
            if message.type == CON:
                self._unacknowledged[incoming] = now + PIGGYBACK_SECONDS
            return (RequestReceived(incoming),)
        return self._answered(message, now)

    def _remember(self, message: Message, now: float) -> Incoming:
        remembered = self._remembered
        self.forget(now)
        if (former := remembered.pop(message.message_id, None)) is not None:
            self.bytes_held -= former.weight
        while len(remembered) >= MAX_REMEMBERED:
            self.bytes_held -= remembered.popitem(last=False)[1].weight
        incoming = Incoming(message, now + EXCHANGE_LIFETIME)
        remembered[message.message_id] = incoming
        self.bytes_held += incoming.weight
        return incoming

    def forget(self, now: float) -> None:
        """Let go of what can have no duplicates any more."""
        remembered = self._remembered
        while remembered:
            oldest = next(iter(remembered.values()))
            if oldest.expires > now:
                return
            remembered.popitem(last=False)
            self.bytes_held -= oldest.weight

    def _acknowledged(self, message: Message, now: float) -> tuple[Event, ...]:
        current = self._current
        if current is None or current.message_id != message.message_id:
            return ()  # late, or not ours
        if message.code == Code.EMPTY:
            self._finish(now)
            if current.is_request:
                self._promise(current, now)
                return ()
            return (Delivered(current.tag),)
        if current.is_request and message.is_response and message.token == current.token:
            self._finish(now)
            return (ResponseReceived(current.tag, message),)
        return ()

    def _rejected(self, message: Message, now: float) -> tuple[Event, ...]:
        current = self._current
        if current is None or current.message_id != message.message_id:
            return ()
        self._finish(now)
        return (Rejected(current.tag),)

    def _answered(self, message: Message, now: float) -> tuple[Event, ...]:
        """A separate response. It also says that the request arrived (RFC 7252 section 5.2.2)."""
        tag: object
        current = self._current
        if current is not None and current.is_request and current.token == message.token:
            self._finish(now)
            tag = current.tag
        elif self._promised is not None and message.token in self._promised:
            tag = self._promised.pop(message.token)[0]
        else:
            if message.type == CON:
                self._out.append(empty(RST, message.message_id))
            return ()
        incoming = self._remember(message, now)
        incoming.is_acknowledged = True
        if message.type == CON:
            incoming.answer = empty(ACK, message.message_id)
            self._out.append(empty(ACK, message.message_id))
        self._settle(incoming)
        return (ResponseReceived(tag, message),)

    def _promise(self, current: _Transmission, now: float) -> None:
        if self._promised is None:
            self._promised = {}
        self._promised[current.token] = (current.tag, now + EXCHANGE_LIFETIME)

    # --- Out -------------------------------------------------------------------------------------------------------

    def respond(self, incoming: Incoming, code: int, options: bytes, payload: bytes, now: float) -> None:
        """Answer a request, once."""
        if incoming.is_answered:
            raise RuntimeError("a request is answered once")
        request = incoming.message
        self.unanswered -= 1
        if request.type == NON:
            self._out.append(frame(NON, code, self._new_id(), request.token, options, payload))
        elif incoming.is_acknowledged:
            self.send(code, request.token, options, payload, None, now)
        else:
            self._unacknowledged.pop(incoming, None)
            incoming.is_acknowledged = True
            answer = frame(ACK, code, request.message_id, request.token, options, payload)
            incoming.answer = answer
            self._out.append(answer)
        self._settle(incoming)

    def ignore(self, incoming: Incoming) -> None:
        """A request that gets no answer, and neither do its duplicates."""
        self.unanswered -= 1
        self._unacknowledged.pop(incoming, None)
        self._settle(incoming)

    def _settle(self, incoming: Incoming) -> None:
        change = incoming.settle()
        if self._remembered.get(incoming.message.message_id) is incoming:  # it may be forgotten by now
            self.bytes_held += change

    def send(self, code: int, token: bytes, options: bytes, payload: bytes, tag: object, now: float) -> None:
        """Send a confirmable message when it is its turn: a request, a response of its own, a notification, a ping.

        Args:
            code: Code.EMPTY is a ping; its pong comes as Rejected.
            token: of the request that is answered, or a fresh one.
            options: encoded.
            payload: of the message.
            tag: what the event about its fate will carry.
            now: the time.
        """
        message_id = self._new_id()
        datagram = (
            frame(CON, code, message_id, token, options, payload) if code != Code.EMPTY else empty(CON, message_id)
        )
        transmission = _Transmission(code, token, message_id, datagram, tag)
        self.bytes_held += ENTRY_BYTES + len(datagram)
        if self._current is None:
            self._transmit(transmission, now)
        else:
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append(transmission)

    def cancel(self, tag: object, now: float) -> None:
        """Stop sending what was sent with this tag; no event will come about it."""
        if self._waiting:
            for one in [one for one in self._waiting if one.tag is tag]:
                self._waiting.remove(one)
                self.bytes_held -= ENTRY_BYTES + len(one.datagram)
        if self._promised:
            self._promised = {token: kept for token, kept in self._promised.items() if kept[0] is not tag}
        current = self._current
        if current is not None and current.tag is tag:
            self._out = [datagram for datagram in self._out if datagram is not current.datagram]
            self._finish(now)

    def _new_id(self) -> int:
        self._next_id = (self._next_id + 1) & 0xFFFF
        return self._next_id

    def _transmit(self, transmission: _Transmission, now: float) -> None:
        self._current = transmission
        transmission.timeout = ACK_TIMEOUT * (1 + (ACK_RANDOM_FACTOR - 1) * self._random())
        transmission.deadline = now + transmission.timeout
        self._out.append(transmission.datagram)

    def _finish(self, now: float) -> None:
        if self._current is not None:
            self.bytes_held -= ENTRY_BYTES + len(self._current.datagram)
        self._current = None
        if self._waiting:
            self._transmit(self._waiting.popleft(), now)

    def take_output(self) -> list[bytes]:
        """The datagrams to send since the last call, in order."""
        output = self._out
        if output:
            self._out = []
        return output

    # --- Time ------------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When `tick` has something to do; infinity when nothing is under way."""
        due = inf if self._current is None else self._current.deadline
        for first in self._unacknowledged.values():
            due = min(due, first)
            break
        if self._promised:
            due = min(due, *(expires for _, expires in self._promised.values()))
        return due

    def tick(self, now: float) -> tuple[Event, ...]:
        """Do what is due: promise an answer, send again, give up, forget."""
        self.forget(now)
        while self._unacknowledged:
            incoming, due = next(iter(self._unacknowledged.items()))
            if due > now:
                break
            del self._unacknowledged[incoming]
            incoming.is_acknowledged = True
            incoming.answer = empty(ACK, incoming.message.message_id)
            self._out.append(empty(ACK, incoming.message.message_id))
        events: list[Event] = []
        if self._promised:
            late = [token for token, (_, expires) in self._promised.items() if expires <= now]
            events.extend(TimedOut(self._promised.pop(token)[0]) for token in late)
        current = self._current
        if current is not None and current.deadline <= now:
            if current.retransmissions < MAX_RETRANSMIT:
                current.retransmissions += 1
                self.retransmissions += 1
                current.timeout *= 2
                current.deadline = now + current.timeout
                self._out.append(current.datagram)
            else:
                self._finish(now)
                events.append(TimedOut(current.tag))
        return tuple(events)

    def statistics(self) -> ExchangeStatistics:
        return ExchangeStatistics(
            remembered=len(self._remembered),
            unanswered=self.unanswered,
            waiting=(self._current is not None) + len(self._waiting or ()),
            requests_under_way=len(self._promised or ()),
            bytes_held=self.bytes_held,
            duplicates=self.duplicates,
            retransmissions=self.retransmissions,
        )
