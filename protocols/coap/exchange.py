"""The message layer towards one peer, without I/O: RFC 7252 section 4, in both roles.

Theory of operation. Messages come in through `receive` and leave through `take_output`; what they mean comes back as
events. Time is a number that the caller passes in, the next moment at which something is due is `deadline`, and `tick`
does what is due. Nothing else happens by itself.

- A request is reported once (incoming.py remembers it). A duplicate is answered from memory: with the answer, with the
  empty ACK, or not at all while the answer is still to come.
- `respond` piggybacks the answer on the ACK if it comes within PIGGYBACK_SECONDS; after that the empty ACK has gone and
  the answer is a confirmable message of its own. A NON request gets a NON answer.
- A confirmable message of ours (outgoing.py) ends in exactly one event: Delivered, Rejected or TimedOut, with its
  sender's tag. The answer to a request of ours ends it likewise in ResponseReceived, Rejected or TimedOut.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocols.coap.incoming import Incoming, Remembered
from protocols.coap.messages import ACK, CON, NON, RST, Code, Message, empty, frame
from protocols.coap.outgoing import Outgoing

#: Clients send again after 2 s at the earliest; a commit rarely takes this long.
PIGGYBACK_SECONDS: Final = 1.0


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

    __slots__ = ("_outgoing", "_remembered", "_unacknowledged", "duplicates", "take_output", "unanswered")

    def __init__(self, random: Callable[[], float]) -> None:
        """`random` gives numbers from 0 to 1: the first message id, and the spread of time-outs."""
        self._outgoing = Outgoing(random)
        self._remembered = Remembered()
        self._unacknowledged: dict[Incoming, float] = {}  # when the empty ACK is due; the first one is due first
        self.unanswered = 0
        self.duplicates = 0
        #: The datagrams to send since the last call, in order.
        self.take_output: Callable[[], list[bytes]] = self._outgoing.take

    @property
    def bytes_held(self) -> int:
        return self._remembered.bytes_held + self._outgoing.bytes_held

    @property
    def owed(self) -> int:
        """Answers that the peer does not have yet: not given, or waiting for their turn."""
        return self.unanswered + self._outgoing.answers

    @property
    def retransmissions(self) -> int:
        return self._outgoing.retransmissions

    # --- In --------------------------------------------------------------------------------------------------------

    def knows(self, message: Message, now: float) -> bool:
        """Whether this request repeats one that is remembered."""
        return self._remembered.duplicate(message, now) is not None

    def receive(self, message: Message, now: float) -> tuple[Event, ...]:
        """What this message means. Answers that need no decision are left in the output."""
        if message.type == ACK:
            return self._acknowledged(message, now)
        if message.type == RST:
            return self._rejected(message, now)
        if message.code == Code.EMPTY:
            if message.type == CON:  # a ping (RFC 7252 section 4.3)
                self._outgoing.put(empty(RST, message.message_id))
            return ()
        known = self._remembered.duplicate(message, now)
        if known is not None:
            self.duplicates += 1
            if known.answer is not None:
                self._outgoing.put(known.answer)
            return ()
        if message.is_request:
            incoming = self._remembered.add(message, now)
            self.unanswered += 1
            if message.type == CON:
                self._unacknowledged[incoming] = now + PIGGYBACK_SECONDS
            return (RequestReceived(incoming),)
        return self._answered(message, now)

    def _acknowledged(self, message: Message, now: float) -> tuple[Event, ...]:
        outgoing, current = self._outgoing, self._outgoing.current
        if current is None or current.message_id != message.message_id:
            return ()  # late, or not ours
        if message.code == Code.EMPTY:
            outgoing.finish(now)
            if current.is_request:
                outgoing.promise(current, now)
                return ()
            return (Delivered(current.tag),)
        if current.is_request and message.is_response and message.token == current.token:
            outgoing.finish(now)
            return (ResponseReceived(current.tag, message),)
        return ()

    def _rejected(self, message: Message, now: float) -> tuple[Event, ...]:
        current = self._outgoing.current
        if current is None or current.message_id != message.message_id:
            return ()
        self._outgoing.finish(now)
        return (Rejected(current.tag),)

    def _answered(self, message: Message, now: float) -> tuple[Event, ...]:
        """A separate response."""
        tag = self._outgoing.answered(message.token, now)
        if tag is None:
            if message.type == CON:
                self._outgoing.put(empty(RST, message.message_id))
            return ()
        incoming = self._remembered.add(message, now)
        incoming.is_acknowledged = True
        if message.type == CON:
            incoming.answer = empty(ACK, message.message_id)
            self._outgoing.put(incoming.answer)
        self._remembered.settle(incoming)
        return (ResponseReceived(tag, message),)

    # --- Out -------------------------------------------------------------------------------------------------------

    def respond(self, incoming: Incoming, code: int, options: bytes, payload: bytes, now: float) -> None:
        """Answer a request, once."""
        if incoming.is_answered:
            raise RuntimeError("a request is answered once")
        self.unanswered -= 1
        outgoing = self._outgoing
        if incoming.type == NON:
            outgoing.put(frame(NON, code, outgoing.new_id(), incoming.token, options, payload))
        elif incoming.is_acknowledged:
            outgoing.send(code, incoming.token, options, payload, None, now)
        else:
            self._unacknowledged.pop(incoming, None)
            incoming.is_acknowledged = True
            incoming.answer = frame(ACK, code, incoming.message_id, incoming.token, options, payload)
            outgoing.put(incoming.answer)
        self._remembered.settle(incoming)

    def ignore(self, incoming: Incoming) -> None:
        """A request that gets no answer, and neither do its duplicates."""
        self.unanswered -= 1
        self._unacknowledged.pop(incoming, None)
        self._remembered.settle(incoming)

    def send(self, code: int, token: bytes, options: bytes, payload: bytes, tag: object, now: float) -> None:
        """Send a confirmable message when it is its turn: a request, a response of its own, a notification, a ping.

        Args:
            code: Code.EMPTY is a ping; its pong comes as Rejected.
            token: of the request that is answered, or a fresh one.
            options: encoded.
            payload: of the message.
            tag: what the event about its fate will carry; not None for a request.
            now: the time.
        """
        self._outgoing.send(code, token, options, payload, tag, now)

    def cancel(self, tag: object, now: float) -> None:
        """Stop sending what was sent with this tag; no event will come about it."""
        self._outgoing.cancel(tag, now)

    # --- Time ------------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When `tick` has something to do; infinity when nothing is under way."""
        due = self._outgoing.deadline
        for first in self._unacknowledged.values():
            return min(due, first)
        return due

    def tick(self, now: float) -> tuple[Event, ...]:
        """Do what is due: promise an answer, send again, give up, forget."""
        self._remembered.forget(now)
        while self._unacknowledged:
            incoming, due = next(iter(self._unacknowledged.items()))
            if due > now:
                break
            del self._unacknowledged[incoming]
            incoming.is_acknowledged = True
            incoming.answer = empty(ACK, incoming.message_id)
            self._outgoing.put(incoming.answer)
        return tuple(TimedOut(tag) for tag in self._outgoing.tick(now))

    def statistics(self) -> ExchangeStatistics:
        return ExchangeStatistics(
            remembered=len(self._remembered),
            unanswered=self.unanswered,
            waiting=self._outgoing.waiting,
            requests_under_way=self._outgoing.promised,
            bytes_held=self.bytes_held,
            duplicates=self.duplicates,
            retransmissions=self._outgoing.retransmissions,
        )
