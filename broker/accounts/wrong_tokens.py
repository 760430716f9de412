"""Unknown bearer tokens, counted by address and by token (reference 28.3).

A broken device sends one wrong token again and again: that is one guess, and its answer stays the same. When it comes
too often, it is given without a look-up. The other devices behind its address are not affected. A peer that sends many
different tokens guesses; then every token from that address that is not in memory is refused for a while without a
look-up.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from broker.accounts.throttle import Throttle
from broker.clock import Clock
from broker.errors import TooManyAttempts, TooManyWrongTokens, Unauthorized
from broker.trace.origin import address_key, current_origin
from config.limits import WRONG_TOKEN_TRIES, WRONG_TOKEN_WINDOW_SECONDS

_REMEMBERED: Final = 10_000
_WINDOW_MS: Final = WRONG_TOKEN_WINDOW_SECONDS * 1000


@dataclass(slots=True)
class _Tried:
    since_ms: int
    tries: int = 1


class WrongTokens:
    def __init__(self, clock: Clock, *, limit: int | None) -> None:
        """`limit` is how many of one address are too many within a minute; None where nothing is counted."""
        self._are_limited = limit is not None
        self._clock = clock
        self._by_address = Throttle(clock, misses=limit or 1, window_seconds=WRONG_TOKEN_WINDOW_SECONDS)
        self._tried: OrderedDict[bytes, _Tried] = OrderedDict()

    def renew(self, limit: int) -> None:
        """Replace the limit. Without a limit at the start, nothing changes."""
        if self._are_limited:
            self._by_address.renew(misses=limit)

    def check(self, hashed: bytes) -> None:
        """Refuse what needs no look-up.

        Raises:
            Unauthorized: this token was wrong too often.
            TooManyWrongTokens: too many different tokens from this task's origin were wrong.
        """
        tried = self._recent(hashed)
        if tried is None:
            try:
                self._by_address.check(_source())
            except TooManyAttempts as refused:
                raise TooManyWrongTokens(refused.retry_seconds) from None
        elif tried.tries >= WRONG_TOKEN_TRIES:
            raise Unauthorized

    def note(self, hashed: bytes) -> None:
        """The store does not have this token."""
        if not self._are_limited:
            return
        tried = self._recent(hashed)
        if tried is not None:
            tried.tries += 1
            return
        self._tried[hashed] = _Tried(self._clock.steady_ms())
        self._tried.move_to_end(hashed)
        if len(self._tried) > _REMEMBERED:
            self._tried.popitem(last=False)
        self._by_address.missed(_source())

    def _recent(self, hashed: bytes) -> _Tried | None:
        tried = self._tried.get(hashed)
        return tried if tried is not None and self._clock.steady_ms() - tried.since_ms < _WINDOW_MS else None

    def clear(self) -> None:
        """Tokens that were wrong may have been given to somebody."""
        self._tried.clear()


def _source() -> str:
    """The key by which guesses count. Forged datagrams must not lock an address out of unforgeable protocols."""
    origin = current_origin()
    key = address_key(origin.address)
    return f"{key} in datagrams" if origin.is_forgeable else key
