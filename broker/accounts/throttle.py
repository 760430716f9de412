"""Slowing down those who guess: so many misses in a window, then none are looked at for as long."""

from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from broker.clock import Clock
from broker.errors import TooManyAttempts

_HELD_MISSES = 500_000  # of all together, whoever fills the memory


@dataclass(slots=True)
class _Guesser:
    misses: list[int] = field(default_factory=list)
    refused_until: int = 0


class Throttle:
    """Counts misses by key, in memory: a restart forgives. What was idle longest is forgotten first."""

    def __init__(self, clock: Clock, *, misses: int, window_seconds: int) -> None:
        self._clock = clock
        self._remembered = _HELD_MISSES // misses
        self._misses = misses
        self._window_ms = window_seconds * 1000
        self._guessers: OrderedDict[str, _Guesser] = OrderedDict()

    def check(self, *keys: str) -> None:
        """Raises TooManyAttempts when one of the keys has missed too often."""
        now = self._clock.now_ms()
        refused_until = max((self._guessers[key].refused_until for key in keys if key in self._guessers), default=0)
        if refused_until > now:
            raise TooManyAttempts(-(-(refused_until - now) // 1000))

    def missed(self, *keys: str) -> None:
        now = self._clock.now_ms()
        for key in keys:
            guesser = self._guessers.setdefault(key, _Guesser())
            self._guessers.move_to_end(key)
            guesser.misses = [at for at in guesser.misses if at > now - self._window_ms] + [now]
            if len(guesser.misses) >= self._misses:
                guesser.refused_until, guesser.misses = now + self._window_ms, []
        while len(self._guessers) > self._remembered:
            self._guessers.popitem(last=False)

    def forgive(self, *keys: str) -> None:
        """What they guessed was right."""
        for key in keys:
            self._guessers.pop(key, None)


def address_key(address: str) -> str:
    """One key for everyone behind one address; a single IPv6 customer has a whole /64."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return f"address {address}"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return f"address {parsed.ipv4_mapped}"
        return f"address {parsed.exploded[:19]}/64"
    return f"address {parsed}"
