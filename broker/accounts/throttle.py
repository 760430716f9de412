"""Throttling of guesses: after `misses` failures within a window, attempts are refused for the length of the window."""

from collections import OrderedDict
from dataclasses import dataclass, field
from math import ceil, inf

from broker.clock import Clock
from broker.errors import TooManyAttempts

_HELD_MISSES = 500_000  # of all keys together: bounds the memory


@dataclass(slots=True)
class _Attempts:
    misses: list[int] = field(default_factory=list)
    refused_until: float = -inf


class Throttle:
    """Counts misses by key, in memory, so a restart forgets them. The key that was idle longest is forgotten first.

    The times are of the steady clock: a wall clock that is set back must not lock anybody out until it is there again.
    """

    def __init__(self, clock: Clock, *, misses: int, window_seconds: int) -> None:
        self._clock = clock
        self._remembered = _HELD_MISSES // misses
        self._misses = misses
        self._window_ms = window_seconds * 1000
        self._attempts: OrderedDict[str, _Attempts] = OrderedDict()

    def renew(self, *, misses: int) -> None:
        """Replace the limit of misses. Counted misses stay."""
        self._misses, self._remembered = misses, _HELD_MISSES // misses

    def check(self, *keys: str) -> None:
        """Raises TooManyAttempts when one of the keys has missed too often."""
        now = self._clock.steady_ms()
        refused_until = max((self._attempts[key].refused_until for key in keys if key in self._attempts), default=-inf)
        if refused_until > now:
            raise TooManyAttempts(ceil((refused_until - now) / 1000))

    def count(self, *keys: str) -> None:
        """Check the keys, and count a miss for each of them. Raises TooManyAttempts."""
        self.check(*keys)
        self.missed(*keys)

    def missed(self, *keys: str) -> None:
        now = self._clock.steady_ms()
        for key in keys:
            attempts = self._attempts.setdefault(key, _Attempts())
            self._attempts.move_to_end(key)
            attempts.misses = [at for at in attempts.misses if at > now - self._window_ms] + [now]
            if len(attempts.misses) >= self._misses:
                attempts.refused_until, attempts.misses = now + self._window_ms, []
        while len(self._attempts) > self._remembered:
            self._attempts.popitem(last=False)

    def forgive(self, *keys: str) -> None:
        """Forget the misses of these keys, after a right guess."""
        for key in keys:
            self._attempts.pop(key, None)
