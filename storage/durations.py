"""A histogram of durations that costs what it counts next to nothing: two additions and a search among a few bounds."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

#: The upper bounds of the buckets, in seconds; one more bucket has what took longer.
BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Durations:
    """Counts durations since the start. One thread uses it."""

    __slots__ = ("_counts", "seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        #: The sum of all durations.
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    @property
    def counts(self) -> Sequence[int]:
        """The number of durations within each bucket and above the one before. The last one has no upper bound."""
        return tuple(self._counts)
