"""The sliding minute: when each of the last calls was made, so that no 60 seconds ever hold one too many.

Times are those of the steady clock, which nobody can set.
"""

from array import array
from bisect import bisect_right
from typing import Final

WINDOW_MS: Final = 60_000


class Window:
    """Every call of the last minute, oldest first. What is over is let go when somebody asks for room.

    `times` and `first` are for `Meter`, which has no time for calls.
    """

    __slots__ = ("first", "times")

    def __init__(self) -> None:
        self.times = array("q")
        self.first = 0  # what stands before it is over

    def has_room(self, limit: int, now_ms: int) -> bool:
        """Whether one more call fits: fewer than `limit` were made after `now_ms` - 60 s."""
        if len(self.times) - self.first < limit:
            return True
        return self.calls(now_ms) < limit

    def add(self, now_ms: int, calls: int = 1) -> None:
        """In the order of their times."""
        self.times.extend([now_ms] * calls)

    def calls(self, now_ms: int) -> int:
        """How many there were in the last minute."""
        times = self.times
        self.first = first = bisect_right(times, now_ms - WINDOW_MS, self.first)
        # Removing costs as much as what stays, so it waits until half is over: constant time for each call.
        if first * 2 >= len(times):
            del times[:first]
            self.first = 0
        return len(times) - self.first

    def oldest(self, now_ms: int) -> int | None:
        """The first call of the last minute."""
        return self.times[self.first] if self.calls(now_ms) else None
