"""Messages to one peer. One confirmable message is under way at any time (NSTART = 1: RFC 7252, 4.7), others wait.

The one under way is sent again with the timing of RFC 7252, 4.2, until the peer acknowledges or rejects it or
MAX_RETRANSMIT is reached. A request to the peer that it acknowledged without a response is promised one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from protocols.coap.incoming import EXCHANGE_LIFETIME
from protocols.coap.messages import CON, Code, empty, frame

ACK_TIMEOUT: Final = 2.0
ACK_RANDOM_FACTOR: Final = 1.5
MAX_RETRANSMIT: Final = 4
_ENTRY_BYTES: Final = 200  # the memory of a message beside its datagram: measured, rounded up


class Transmission:
    """A confirmable message to the peer, waiting or under way."""

    __slots__ = ("datagram", "deadline", "is_request", "message_id", "retransmissions", "tag", "timeout", "token")

    def __init__(self, token: bytes, message_id: int, datagram: bytes, tag: object, *, is_request: bool) -> None:
        self.token = token
        self.message_id = message_id
        self.datagram = datagram
        self.tag = tag
        self.is_request = is_request
        self.retransmissions = 0
        self.timeout = 0.0
        self.deadline = inf

    @property
    def weight(self) -> int:
        """Bytes held."""
        return _ENTRY_BYTES + len(self.datagram)


@dataclass(eq=False, slots=True)
class Outgoing:
    """The queue of messages to one peer, and their retransmissions.

    `random` gives numbers from 0 to 1, for the first message id and the spread of time-outs.
    """

    _random: Callable[[], float]
    _next_id: int = field(init=False)
    _out: list[bytes] = field(default_factory=list)
    _waiting: deque[Transmission] | None = None
    _promised: dict[bytes, tuple[object, float]] | None = None
    current: Transmission | None = None
    answers: int = 0  # messages among `waiting` without a tag: responses to the peer
    bytes_held: int = 0
    retransmissions: int = 0

    def __post_init__(self) -> None:
        self._next_id = int(self._random() * 0xFFFF)

    def new_id(self) -> int:
        """The next message id."""
        self._next_id = (self._next_id + 1) & 0xFFFF
        return self._next_id

    def put(self, datagram: bytes) -> None:
        """Send a datagram now, and only once."""
        self._out.append(datagram)

    def take(self) -> list[bytes]:
        """The datagrams to send that are new since the last call, in order."""
        output = self._out
        if output:
            self._out = []
        return output

    def send(self, code: int, token: bytes, options: bytes, payload: bytes, tag: object, now: float) -> None:
        """Send a confirmable message when it is its turn."""
        message_id = self.new_id()
        datagram = (
            frame(CON, code, message_id, token, options, payload) if code != Code.EMPTY else empty(CON, message_id)
        )
        transmission = Transmission(token, message_id, datagram, tag, is_request=0 < code < 32)
        self.bytes_held += transmission.weight
        self.answers += tag is None
        if self.current is None:
            self._transmit(transmission, now)
        else:
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append(transmission)

    def _transmit(self, transmission: Transmission, now: float) -> None:
        self.current = transmission
        transmission.timeout = ACK_TIMEOUT * (1 + (ACK_RANDOM_FACTOR - 1) * self._random())
        transmission.deadline = now + transmission.timeout
        self._out.append(transmission.datagram)

    def finish(self, now: float) -> None:
        """The message under way was answered or timed out; send the next one."""
        if self.current is not None:
            self.bytes_held -= self.current.weight
            self.answers -= self.current.tag is None
        self.current = None
        if self._waiting:
            self._transmit(self._waiting.popleft(), now)

    def promise(self, request: Transmission, now: float) -> None:
        """The peer acknowledged a request without a response, which will come in a message of its own."""
        if self._promised is None:
            self._promised = {}
        self._promised[request.token] = (request.tag, now + EXCHANGE_LIFETIME)

    def answered(self, token: bytes, now: float) -> object | None:
        """A response with this token came in a message of its own.

        It also acknowledges its request (RFC 7252, 5.2.2).

        Returns the tag of the request; None if there was no request.
        """
        current = self.current
        if current is not None and current.is_request and current.token == token:
            self.finish(now)
            return current.tag
        return None if self._promised is None else self._promised.pop(token, (None, 0.0))[0]

    def cancel(self, tag: object, now: float) -> None:
        """Do not send the messages with this tag any more. The tag is not None."""
        if self._waiting:
            for one in [one for one in self._waiting if one.tag is tag]:
                self._waiting.remove(one)
                self.bytes_held -= one.weight
        if self._promised:
            self._promised = {token: kept for token, kept in self._promised.items() if kept[0] is not tag}
        current = self.current
        if current is not None and current.tag is tag:
            self._out = [datagram for datagram in self._out if datagram is not current.datagram]
            self.finish(now)

    @property
    def deadline(self) -> float:
        """The time of the next work of `tick`; infinity if there is none."""
        due = inf if self.current is None else self.current.deadline
        if self._promised:
            due = min(due, *(expires for _, expires in self._promised.values()))
        return due

    def tick(self, now: float) -> list[object]:
        """Send again what is due. Returns the tags of the messages that timed out."""
        timed_out: list[object] = []
        if self._promised:
            late = [token for token, (_, expires) in self._promised.items() if expires <= now]
            timed_out.extend(self._promised.pop(token)[0] for token in late)
        current = self.current
        if current is not None and current.deadline <= now:
            if current.retransmissions < MAX_RETRANSMIT:
                current.retransmissions += 1
                self.retransmissions += 1
                current.timeout *= 2
                current.deadline = now + current.timeout
                self._out.append(current.datagram)
            else:
                self.finish(now)
                timed_out.append(current.tag)
        return timed_out
