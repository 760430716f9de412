"""Who is behind an address? RFC 9175, sections 2.3 and 2.4: no large answer to a peer that may be spoofed.

Until a peer has shown that it receives what we send, an answer may have three times the bytes of its request, or
FREE_BYTES. Anything larger becomes 4.01 with an Echo option; the peer repeats the request with the same value, which is
made from the address and the time, so that nothing is held for strangers.
"""

import hmac
import os
from typing import Final

from protocols.coap.messages import Message

FREE_BYTES: Final = 136  # RFC 9175 section 2.4, item 3
AMPLIFICATION: Final = 3
FRESH_SECONDS: Final = 60
_VALUE_BYTES = 8


class AmplificationGuard:
    def __init__(self, key: bytes, *, free_bytes: int = FREE_BYTES, factor: int = AMPLIFICATION) -> None:
        self._key = key
        self._free_bytes = free_bytes
        self._factor = factor

    def allows(self, answer_bytes: int, request: Message | None = None) -> bool:
        """Whether that much may be sent: in answer to a request, or unasked."""
        return answer_bytes <= self._free_bytes or (
            request is not None and answer_bytes <= self._factor * request.least_bytes
        )

    def challenge(self, address: object, now: float) -> bytes:
        return self._value(address, int(now // FRESH_SECONDS))

    def proves(self, echo: bytes, address: object, now: float) -> bool:
        """The value was ours, for this address, and not long ago."""
        tick = int(now // FRESH_SECONDS)
        return any(hmac.compare_digest(echo, self._value(address, one)) for one in (tick, tick - 1))

    def _value(self, address: object, tick: int) -> bytes:
        return hmac.digest(self._key, repr((address, tick)).encode(), "sha256")[:_VALUE_BYTES]


def new_guard() -> AmplificationGuard:
    """With a key of its own, which lives as long as the process."""
    return AmplificationGuard(os.urandom(32))
