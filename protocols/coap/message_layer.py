"""The message layer towards one peer, without I/O, as server and as client (RFC 7252, 4).

Messages come in through `receive`, which returns events; datagrams to send are taken with `take_output`. The caller
passes the time in as a number and calls `tick` at `deadline`.

- A request is reported once (incoming.py remembers it). A duplicate gets what the request got: the response, the empty
  ACK, or nothing while the response is still to come.
- `respond` sends the response in the ACK (piggybacked) within PIGGYBACK_SECONDS. After that `tick` has sent the empty
  ACK, and the response is a confirmable message of its own. A NON request gets a NON response.
- A confirmable message to the peer (outgoing.py) ends in exactly one event, with its sender's tag: Delivered, Rejected
  or TimedOut. A request to the peer ends in ResponseReceived, Rejected or TimedOut.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from protocols.coap.incoming import Incoming, Remembered
from protocols.coap.messages import ACK, CON, NON, RST, CoapMessage, Code, empty, frame
from protocols.coap.outgoing import Outgoing

#: Clients send again after 2 s at the earliest (RFC 7252, 4.2), and a commit rarely takes 1 s.
PIGGYBACK_SECONDS: Final = 1.0


# --- Events -------------------------------------------------------------------------------------------------------


class RequestReceived(msgspec.Struct, frozen=True):
    """A new request. Answer it with `respond`, now or later."""

    incoming: Incoming


class ResponseReceived(msgspec.Struct, frozen=True):
    """The response to a request to the peer that was sent with this tag."""

    tag: object
    message: CoapMessage


class Delivered(msgspec.Struct, frozen=True):
    """The peer acknowledged a confirmable message with this tag."""

    tag: object


class Rejected(msgspec.Struct, frozen=True):
    """The peer answered a confirmable message with a Reset, as it does to every ping (RFC 7252, 4.3)."""

    tag: object


class TimedOut(msgspec.Struct, frozen=True):
    """The peer did not answer any transmission of a message, or never sent the response that it promised."""

    tag: object


MessageEvent = RequestReceived | ResponseReceived | Delivered | Rejected | TimedOut


class MessageLayer:
    """The messages between one peer and the endpoint. Knows no socket, no clock and no resource."""

    __slots__ = ("_outgoing", "_remembered", "_unacknowledged", "duplicates", "take_output", "unanswered")

    def __init__(self, random: Callable[[], float]) -> None:
        """`random` gives numbers from 0 to 1, for the first message id and the spread of time-outs."""
        self._outgoing = Outgoing(random)
        self._remembered = Remembered()
        self._unacknowledged: dict[Incoming, float] = {}  # when the empty ACK is due, in this order
        self.unanswered = 0
        self.duplicates = 0
        #: The datagrams to send that are new since the last call, in order.
        self.take_output: Callable[[], list[bytes]] = self._outgoing.take

    @property
    def bytes_held(self) -> int:
        return self._remembered.bytes_held + self._outgoing.bytes_held

    @property
    def owed(self) -> int:
        """Responses that the peer does not have: not given yet, or waiting to be sent."""
        return self.unanswered + self._outgoing.answers

    @property
    def retransmissions(self) -> int:
        return self._outgoing.retransmissions

    # --- In --------------------------------------------------------------------------------------------------------

    def knows(self, message: CoapMessage, now: float) -> bool:
        """Whether this request is a duplicate."""
        return self._remembered.duplicate(message, now) is not None

    def receive(self, message: CoapMessage, now: float) -> tuple[MessageEvent, ...]:
        """Take a message. Acknowledgements, Resets and answers to duplicates are put into the output at once."""
        if message.type == ACK:
            return self._acknowledged(message, now)
        if message.type == RST:
            return self._rejected(message, now)
        if message.code == Code.EMPTY:
            if message.type == CON:  # a ping (RFC 7252, 4.3)
                self._outgoing.put(empty(RST, message.message_id))
            return ()
        known = self._remembered.duplicate(message, now)
        if known is not None:
            self.duplicates += 1
            if known.answer is not None:
                self._outgoing.put(known.answer)
            return ()
        if message.is_request:
            return (RequestReceived(self._begin(message, now)),)
        return self._answered(message, now)

    def receive_new(self, message: CoapMessage, now: float) -> Incoming | None:
        """Take a request whose message id is new, as `receive` does; otherwise None, and nothing has changed."""
        return None if self._remembered.has(message.message_id) else self._begin(message, now)

    def _begin(self, message: CoapMessage, now: float) -> Incoming:
        incoming = self._remembered.add(message, now)
        self.unanswered += 1
        if message.type == CON:
            self._unacknowledged[incoming] = now + PIGGYBACK_SECONDS
        return incoming

    def _acknowledged(self, message: CoapMessage, now: float) -> tuple[MessageEvent, ...]:
        outgoing, current = self._outgoing, self._outgoing.current
        if current is None or current.message_id != message.message_id:
            return ()  # late, or of no message that was sent
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

    def _rejected(self, message: CoapMessage, now: float) -> tuple[MessageEvent, ...]:
        current = self._outgoing.current
        if current is None or current.message_id != message.message_id:
            return ()
        self._outgoing.finish(now)
        return (Rejected(current.tag),)

    def _answered(self, message: CoapMessage, now: float) -> tuple[MessageEvent, ...]:
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
        """Answer a request, once. Raises RuntimeError for a second answer."""
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

    def release(self, incoming: Incoming) -> None:
        """Keep nothing for duplicates of an answered request, which may be served twice."""
        self._remembered.release(incoming)

    def ignore(self, incoming: Incoming) -> None:
        """Give a request and its duplicates no answer."""
        self.unanswered -= 1
        self._unacknowledged.pop(incoming, None)
        self._remembered.settle(incoming)

    def send(self, code: int, token: bytes, options: bytes, payload: bytes, tag: object, now: float) -> None:
        """Send a confirmable message when it is its turn: a request, a separate response, a notification or a ping.

        Args:
            code: Code.EMPTY for a ping, which ends in Rejected.
            token: of the request that is answered, or a new one.
            options: encoded.
            payload: of the message.
            tag: returned in the event that ends the message; not None for a request.
            now: the time.
        """
        self._outgoing.send(code, token, options, payload, tag, now)

    def cancel(self, tag: object, now: float) -> None:
        """Do not send the messages with this tag any more. No event will come of them."""
        self._outgoing.cancel(tag, now)

    # --- Time ------------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """The time of the next work of `tick`; infinity if there is none."""
        due = self._outgoing.deadline
        for first in self._unacknowledged.values():
            return min(due, first)
        return due

    def tick(self, now: float) -> tuple[MessageEvent, ...]:
        """Do what is due at `now`: empty ACKs, retransmissions, time-outs, forgetting old requests."""
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
