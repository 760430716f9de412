"""Mitigation of amplification: no large response to an address that may be spoofed (RFC 9175, 2.3 and 2.4).

Until a peer has shown that it receives what is sent to its address, a response may have three times the bytes of its
request, or FREE_BYTES. A larger one is replaced by 4.01 with an Echo option, and the peer repeats its request with this
option. The option's value is a keyed hash of address and time, so no state is held for an unverified address.
"""

import hmac
import os
from typing import Final

from protocols.coap.messages import CoapMessage

FREE_BYTES: Final = 136  # RFC 9175, 2.4, item 3
AMPLIFICATION: Final = 3
FRESH_SECONDS: Final = 60
_VALUE_BYTES = 8


class AmplificationGuard:
    """Decides which answers an unverified address may get, and makes and checks Echo values."""

    def __init__(self, key: bytes, *, free_bytes: int = FREE_BYTES, factor: int = AMPLIFICATION) -> None:
        self._key = key
        self._free_bytes = free_bytes
        self._factor = factor

    def allows(self, answer_bytes: int, request: CoapMessage | None = None) -> bool:
        """Whether an unverified address may get `answer_bytes`: in response to `request`, or as a notification."""
        return answer_bytes <= self._free_bytes or (
            request is not None and answer_bytes <= self._factor * request.least_bytes
        )

    def challenge(self, address: object, now: float) -> bytes:
        """The Echo value for an address; `now` in seconds."""
        return self._value(address, int(now // FRESH_SECONDS))

    def proves(self, echo: bytes, address: object, now: float) -> bool:
        """Whether `echo` was made for this address in the last one to two minutes."""
        tick = int(now // FRESH_SECONDS)
        return any(hmac.compare_digest(echo, self._value(address, one)) for one in (tick, tick - 1))

    def _value(self, address: object, tick: int) -> bytes:
        return hmac.digest(self._key, repr((address, tick)).encode(), "sha256")[:_VALUE_BYTES]


def new_guard() -> AmplificationGuard:
    """A guard with a random key, so Echo values do not outlive the process."""
    return AmplificationGuard(os.urandom(32))
