"""Requests of the peer's, from the first datagram until their duplicates cannot come any more.

They are remembered for EXCHANGE_LIFETIME (RFC 7252 section 4.8.2), but never more than MAX_REMEMBERED of them: more
than the specification's rate limits let a device send in that time.
"""

from collections import OrderedDict
from typing import Final

from config.limits import COAP_EXCHANGE_SECONDS
from protocols.coap.messages import CON, RST, Code, Message

EXCHANGE_LIFETIME: Final = COAP_EXCHANGE_SECONDS
MAX_REMEMBERED: Final = 512
#: What an entry weighs beside its bytes, for the account of bytes held: measured, rounded up.
ENTRY_BYTES: Final = 400

_LET_GO: Final = Message(RST, Code.EMPTY, 0)


class Incoming:
    """One request, and what its duplicates get."""

    __slots__ = (
        "answer",
        "expires",
        "is_acknowledged",
        "is_answered",
        "message",
        "message_id",
        "token",
        "type",
        "weight",
    )

    def __init__(self, message: Message, expires: float) -> None:
        self.message = message  # until it is answered
        self.type = message.type
        self.message_id = message.message_id
        self.token = message.token
        self.expires = expires
        self.is_acknowledged = message.type != CON
        self.is_answered = False
        self.weight = ENTRY_BYTES + len(message.payload)
        #: What a duplicate gets. A duplicate of a NON gets nothing (RFC 7252 section 4.3).
        self.answer: bytes | None = None


class Remembered:
    """The requests of one peer by message id, the oldest first."""

    __slots__ = ("_by_id", "bytes_held")

    def __init__(self) -> None:
        self._by_id: OrderedDict[int, Incoming] = OrderedDict()
        self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def duplicate(self, message: Message, now: float) -> Incoming | None:
        """The request that this one repeats. A client that starts anew may use an id again, with another token."""
        known = self._by_id.get(message.message_id)
        return known if known is not None and known.token == message.token and known.expires > now else None

    def add(self, message: Message, now: float) -> Incoming:
        by_id = self._by_id
        self.forget(now)
        if (former := by_id.pop(message.message_id, None)) is not None:
            self.bytes_held -= former.weight
        while len(by_id) >= MAX_REMEMBERED:
            self.bytes_held -= by_id.popitem(last=False)[1].weight
        incoming = by_id[message.message_id] = Incoming(message, now + EXCHANGE_LIFETIME)
        self.bytes_held += incoming.weight
        return incoming

    def settle(self, incoming: Incoming) -> None:
        """It is answered: its content is let go of, its answer kept."""
        incoming.is_answered = True
        incoming.message = _LET_GO
        before, incoming.weight = incoming.weight, ENTRY_BYTES + len(incoming.answer or b"")
        if self._by_id.get(incoming.message_id) is incoming:  # it may be forgotten by now
            self.bytes_held += incoming.weight - before

    def forget(self, now: float) -> None:
        """Let go of what can have no duplicates any more."""
        by_id = self._by_id
        while by_id:
            oldest = next(iter(by_id.values()))
            if oldest.expires > now:
                return
            by_id.popitem(last=False)
            self.bytes_held -= oldest.weight
