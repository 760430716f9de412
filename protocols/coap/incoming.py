"""Requests of the peer's, from the first datagram until their duplicates cannot come any more.

They are remembered for EXCHANGE_LIFETIME (RFC 7252 section 4.8.2), but never more than MAX_REMEMBERED of them: more
than the rate limits (reference 21.1) let a device send in that time.
"""

from typing import Final

from config.limits import COAP_EXCHANGE_SECONDS
from protocols.coap.messages import CON, RST, Code, Message

EXCHANGE_LIFETIME: Final = COAP_EXCHANGE_SECONDS
MAX_REMEMBERED: Final = 512
#: What a request weighs beside its payload, and an answered one beside its answer, for the account of bytes held:
#: measured with many of them, rounded up.
ENTRY_BYTES: Final = 450
ANSWERED_BYTES: Final = 300

_LET_GO: Final = Message(RST, Code.EMPTY, 0)


class Incoming:
    """One request, and what its duplicates get. Most of what busy peers make us hold are these: it is kept small."""

    __slots__ = ("answer", "expires", "is_acknowledged", "is_answered", "message", "message_id", "token", "type")

    def __init__(self, message: Message, expires: float) -> None:
        self.message = message  # until it is answered
        self.type = message.type
        self.message_id = message.message_id
        self.token = message.token
        self.expires = expires
        self.is_acknowledged = message.type != CON
        self.is_answered = False
        #: What a duplicate gets. A duplicate of a NON gets nothing (RFC 7252 section 4.3).
        self.answer: bytes | None = None

    @property
    def weight(self) -> int:
        if self.is_answered:
            return ANSWERED_BYTES + len(self.answer or b"")
        return ENTRY_BYTES + len(self.message.payload)


class Remembered:
    """The requests of one peer by message id, the oldest first."""

    __slots__ = ("_by_id", "bytes_held")

    def __init__(self) -> None:
        self._by_id: dict[int, Incoming] = {}  # 64 bytes less for each than an OrderedDict
        self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def duplicate(self, message: Message, now: float) -> Incoming | None:
        """The request that this one repeats. A client that starts anew may use an id again, with another token."""
        known = self._by_id.get(message.message_id)
        return known if known is not None and known.token == message.token and known.expires > now else None

    def add(self, message: Message, now: float) -> Incoming:
        if (former := self._by_id.pop(message.message_id, None)) is not None:
            self.bytes_held -= former.weight
        self.forget(now, MAX_REMEMBERED - 1)
        incoming = self._by_id[message.message_id] = Incoming(message, now + EXCHANGE_LIFETIME)
        self.bytes_held += ENTRY_BYTES + len(message.payload)
        return incoming

    def settle(self, incoming: Incoming) -> None:
        """It is answered: its content is let go of, its answer kept."""
        if self._by_id.get(incoming.message_id) is incoming:  # it may be forgotten by now
            answer = ANSWERED_BYTES + len(incoming.answer or b"")
            self.bytes_held += answer - ENTRY_BYTES - len(incoming.message.payload)
        incoming.is_answered = True
        incoming.message = _LET_GO

    def forget(self, now: float, most: int = MAX_REMEMBERED) -> None:
        """Let go of what can have no duplicates any more, and of the oldest over `most`."""
        by_id = self._by_id
        while by_id:
            oldest = next(iter(by_id.values()))
            if oldest.expires > now and len(by_id) <= most:
                return
            del by_id[oldest.message_id]
            self.bytes_held -= oldest.weight
