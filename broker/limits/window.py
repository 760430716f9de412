"""The sliding minute: the time of every call of the last minute, so that no 60 seconds hold more calls than allowed.

Times are those of the steady clock, which cannot be set.
"""

from array import array
from bisect import bisect_right
from typing import Final

WINDOW_MS: Final = 60_000


class Window:
    """The times of the calls of the last minute, oldest first. Older times are removed when room is asked for.

    `Meter` reads `times` and `first` itself, to save a call for each message.
    """

    __slots__ = ("first", "times")

    def __init__(self) -> None:
        self.times = array("q")
        self.first = 0  # the times before this index are older than a minute

    def has_room(self, limit: int, now_ms: int) -> bool:
        """Whether one more call fits: fewer than `limit` were made after `now_ms` - 60 s."""
        if len(self.times) - self.first < limit:
            return True
        return self.calls(now_ms) < limit

    def add(self, now_ms: int, calls: int = 1) -> None:
        """Add calls made now; times must not decrease."""
        self.times.extend([now_ms] * calls)

    def calls(self, now_ms: int) -> int:
        """The number of calls in the last minute."""
        times = self.times
        self.first = first = bisect_right(times, now_ms - WINDOW_MS, self.first)
        # Removing costs time for each remaining entry, so it waits until half are old: constant time for each call.
        if first * 2 >= len(times):
            del times[:first]
            self.first = 0
        return len(times) - self.first

    def oldest(self, now_ms: int) -> int | None:
        """The time of the first call of the last minute; None without calls."""
        return self.times[self.first] if self.calls(now_ms) else None
