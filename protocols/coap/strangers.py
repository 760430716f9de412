"""Fairness between sources: which datagrams of peers without a valid token are served (reference 17).

UDP has no back-pressure: the kernel drops what is not read in time, from any sender. So every datagram is read at
once, and those of strangers are served within limits: a few for each source, so that sources that have sent enough take
nothing from a new one, and a number for all, because a sender may forge any number of sources. The rest is dropped
before it is decoded. A peer sends again (RFC 7252, 4.2), and is authenticated after its first valid request.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from broker.limits.overhead import TokenBucket

SOURCE_AT_ONCE: Final = 64  # as many as one session may have under way
SOURCE_PER_SECOND: Final = 0.1
#: Requests of strangers, of which each may be looked up in the store; ClientHellos, of which each costs a hash.
REQUESTS_PER_SECOND: Final = 1_000
HELLOS_PER_SECOND: Final = 4_000
#: Of all together. Others wait while a burst is served, for some 0.1 ms each.
_BURST_SECONDS: Final = 0.1
#: The first datagrams of a source are counted apart from those of sources that have sent more.
_FIRSTS: Final = 8
_SOURCES_REMEMBERED: Final = 4_096


class _Source:
    __slots__ = ("bucket", "firsts")

    def __init__(self) -> None:
        self.bucket = TokenBucket(at_once=SOURCE_AT_ONCE, per_second=SOURCE_PER_SECOND)
        self.firsts = _FIRSTS


class DatagramStrangers:
    """Counts the datagrams of strangers. The source that was silent longest is forgotten first."""

    def __init__(self, now: Callable[[], float], *, per_second: float) -> None:
        """`now` is the clock, in seconds; `per_second` is the limit for all together, a tenth of it at once."""
        self._now = now
        burst = per_second * _BURST_SECONDS
        self._of_new = TokenBucket(at_once=burst, per_second=per_second)
        self._of_others = TokenBucket(at_once=burst, per_second=per_second)
        self._sources: OrderedDict[Hashable, _Source] = OrderedDict()
        self.dropped = 0

    def admits(self, address: Hashable) -> bool:
        """Count a datagram; whether to serve it."""
        now = self._now()
        source = self._sources.get(address)
        if source is None:
            source = self._sources[address] = _Source()
            if len(self._sources) > _SOURCES_REMEMBERED:
                self._sources.popitem(last=False)
        else:
            self._sources.move_to_end(address)
        if source.bucket.take(now):
            together = self._of_new if source.firsts else self._of_others
            source.firsts -= source.firsts > 0
            if together.take(now):
                return True
        self.dropped += 1
        return False
