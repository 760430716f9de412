"""Count, extremes, sum, mean and variance of numbers that arrive in any order and are merged in any order.

The mean is kept in two doubles, high and low part, because the variance of merged groups hangs on the differences of
their means: with an offset of 1e9 and a spread of 1e-3 a single double would leave nothing of them. Groups are merged
by the formula of Chan, Golub and LeVeque.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

Number = int | float
_EXACT = 2**53
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Of at least one number. `m2` is the sum of squared deviations from the mean."""

    count: int
    min: Number
    max: Number
    sum: Number
    mean_high: float
    mean_low: float
    m2: float

    @classmethod
    def of(cls, values: Sequence[Number]) -> "Aggregate":
        count = len(values)
        total: Number = sum(values) if all(type(value) is int for value in values) else fsum(values)
        mean = total / count
        deviations = [value - mean for value in values]
        low = fsum(deviations) / count
        return cls(
            count=count,
            min=min(values),
            max=max(values),
            sum=_storable(total),
            mean_high=mean,
            mean_low=low,
            m2=fsum((deviation - low) ** 2 for deviation in deviations),
        )

    def merged(self, other: "Aggregate") -> "Aggregate":
        count = self.count + other.count
        delta = (other.mean_high - self.mean_high) + (other.mean_low - self.mean_low)
        shift = delta * (other.count / count)
        high, low = _sum_of_two(self.mean_high, shift)
        return Aggregate(
            count=count,
            min=min(self.min, other.min),
            max=max(self.max, other.max),
            sum=_storable(self.sum + other.sum),
            mean_high=high,
            mean_low=low + self.mean_low,
            m2=self.m2 + other.m2 + delta * shift * self.count,
        )

    @property
    def mean(self) -> Number:
        return plain(self.sum / self.count if isinstance(self.sum, int) else self.mean_high + self.mean_low)

    @property
    def variance(self) -> Number:
        """Of the population (compatibility.md 9.5)."""
        return plain(self.m2 / self.count)


def merge_all(parts: Iterable[Aggregate | None]) -> Aggregate | None:
    """All of them as one; None of none."""
    merged: Aggregate | None = None
    for part in parts:
        if part is not None:
            merged = part if merged is None else merged.merged(part)
    return merged


def plain(number: Number) -> Number:
    """A whole number without its fraction, as JSON writes it shortest."""
    return int(number) if isinstance(number, float) and abs(number) < _EXACT and number == int(number) else number


def _sum_of_two(a: float, b: float) -> tuple[float, float]:
    """Knuth's TwoSum: the rounded sum and, exactly, what rounding took away."""
    high = a + b
    bigger = high - a
    return high, (a - (high - bigger)) + (b - bigger)


def _storable(number: Number) -> Number:
    """Engines keep integers in 64 bits; a larger sum goes on as a double."""
    return float(number) if isinstance(number, int) and abs(number) > _LARGEST else number
