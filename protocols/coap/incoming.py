"""The requests of one peer, from the first datagram until no duplicate can come any more.

A request is remembered for EXCHANGE_LIFETIME (RFC 7252, 4.8.2). At most MAX_REMEMBERED are, which is more than the rate
limits (reference 21.1) let a device send in that time.
"""

from typing import Final

from config.limits import COAP_EXCHANGE_SECONDS
from protocols.coap.messages import CON, RST, CoapMessage, Code

EXCHANGE_LIFETIME: Final = COAP_EXCHANGE_SECONDS
MAX_REMEMBERED: Final = 512
#: The memory of a request beside its payload, and of an answered request beside its response: measured with many of
#: them, rounded up.
ENTRY_BYTES: Final = 470
ANSWERED_BYTES: Final = 320

_PASSED_AT_ONCE: Final = 64

_NO_MESSAGE: Final = CoapMessage(RST, Code.EMPTY, 0)


class Incoming:
    """One request, and the answer to its duplicates. Busy peers make the daemon hold many, so it is kept small."""

    __slots__ = (
        "answer",
        "expires",
        "is_acknowledged",
        "is_answered",
        "is_forgotten",
        "message",
        "message_id",
        "token",
        "type",
    )

    def __init__(self, message: CoapMessage, expires: float) -> None:
        self.message = message  # replaced when the request is answered
        self.type = message.type
        self.message_id = message.message_id
        self.token = message.token
        self.expires = expires
        self.is_acknowledged = message.type != CON
        self.is_answered = False
        self.is_forgotten = False  # and so its bytes do not count
        #: The datagram for a duplicate. A duplicate of a NON gets none (RFC 7252, 4.3).
        self.answer: bytes | None = None

    @property
    def weight(self) -> int:
        """Bytes held."""
        if self.is_answered:
            return ANSWERED_BYTES + len(self.answer or b"")
        return ENTRY_BYTES + len(self.message.payload)


class Remembered:
    """The requests of one peer by message id, the oldest first.

    The dictionary alone would do, but it finds its oldest entry by passing over all that were removed before it: 4 µs
    for each new request when one is removed for each.
    """

    __slots__ = ("_by_id", "_order", "_passed", "bytes_held")

    def __init__(self) -> None:
        self._by_id: dict[int, Incoming] = {}  # 64 bytes less for each than an OrderedDict
        #: From `_passed` on. It counts also the ones whose message id has been used again.
        self._order: list[Incoming | None] = []
        self._passed = 0
        self.bytes_held = 0

    def duplicate(self, message: CoapMessage, now: float) -> Incoming | None:
        """The request that this one repeats.

        The token counts as well: a client that restarts may use a message id again at once, with another token.
        """
        known = self._by_id.get(message.message_id)
        return known if known is not None and known.token == message.token and known.expires > now else None

    def has(self, message_id: int) -> bool:
        """Whether a request with this message id is remembered, whether it can still have duplicates or not."""
        return message_id in self._by_id

    def add(self, message: CoapMessage, now: float) -> Incoming:
        """Remember a new request."""
        self.forget(now, MAX_REMEMBERED - 1)
        incoming = self._by_id[message.message_id] = Incoming(message, now + EXCHANGE_LIFETIME)
        self._order.append(incoming)
        self.bytes_held += ENTRY_BYTES + len(message.payload)
        return incoming

    def settle(self, incoming: Incoming) -> None:
        """Mark a request as answered: drop its content, keep the answer for duplicates."""
        if not incoming.is_forgotten:
            answer = ANSWERED_BYTES + len(incoming.answer or b"")
            self.bytes_held += answer - ENTRY_BYTES - len(incoming.message.payload)
        incoming.is_answered = True
        incoming.message = _NO_MESSAGE

    def release(self, incoming: Incoming) -> None:
        """Keep no answer: a duplicate is a new request (RFC 7252, 4.5). The place is kept until its time."""
        if not incoming.is_forgotten:
            self.bytes_held -= len(incoming.answer or b"")
        incoming.answer = None
        if self._by_id.get(incoming.message_id) is incoming:
            del self._by_id[incoming.message_id]

    def forget(self, now: float, most: int = MAX_REMEMBERED) -> None:
        """Forget the requests that can have no duplicates any more, and the oldest ones over `most`."""
        order, at = self._order, self._passed
        while at < len(order):
            oldest = order[at]
            assert oldest is not None  # noqa: S101 - only those before `_passed` are
            if oldest.expires > now and len(order) - at <= most:
                break
            order[at] = None
            at += 1
            oldest.is_forgotten = True
            self.bytes_held -= oldest.weight
            if self._by_id.get(oldest.message_id) is oldest:  # otherwise another one has its message id
                del self._by_id[oldest.message_id]
        if at >= _PASSED_AT_ONCE:
            del order[:at]
            at = 0
        self._passed = at
