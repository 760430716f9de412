"""The rate limit of requests without a counted token: a number per minute and address (reference 21.1)."""

from collections import OrderedDict
from typing import Final

import msgspec

from broker.clock import Clock
from broker.limits.refusals import TooManyRequests
from broker.limits.window import WINDOW_MS, Window
from broker.trace.origin import address_key

_REMEMBERED: Final = 10_000


class AddressStatistics(msgspec.Struct, frozen=True):
    remembered: int
    refused: int


class AddressLimit:
    """Counts requests by address. The address without a request for the longest time is forgotten first."""

    def __init__(self, limit: int | None, clock: Clock) -> None:
        """`limit` is in requests a minute; None is no limit."""
        self._limit = limit
        self._clock = clock
        self._windows: OrderedDict[str, Window] = OrderedDict()
        self._refused = 0

    def count(self, address: str) -> None:
        """Count a request. Raises TooManyRequests; a refused request is not counted."""
        if self._limit is None:
            return
        now_ms, key = self._clock.steady_ms(), address_key(address)
        window = self._windows.setdefault(key, Window())
        self._windows.move_to_end(key)
        if len(self._windows) > _REMEMBERED:
            self._windows.popitem(last=False)
        if not window.has_room(self._limit, now_ms):
            self._refused += 1
            wait_ms = (window.oldest(now_ms) or 0) + WINDOW_MS - now_ms
            raise TooManyRequests(-(-wait_ms // 1000))
        window.add(now_ms)

    def renew(self, limit: int) -> None:
        """Replace the limit. Without a limit at the start, nothing changes."""
        if self._limit is not None:
            self._limit = limit

    def statistics(self) -> AddressStatistics:
        return AddressStatistics(len(self._windows), self._refused)
