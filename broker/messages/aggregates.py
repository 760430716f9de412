"""Count, extremes, sum, mean and variance of numbers that arrive in any order and are merged in any order.

The mean is kept in two doubles, a high and a low part, because the variance of merged groups depends on the
differences of their means: with an offset of 1e9 and a spread of 1e-3, a single double would lose these differences.
Groups are merged by the formula of Chan, Golub and LeVeque.
"""

from collections.abc import Iterable, Sequence
from math import dist, fsum, inf, isfinite
from operator import mul
from sys import float_info

import msgspec

Number = int | float
_EXACT = 2**53
_LARGEST = 2**63 - 1
_DOUBLE = float_info.max
_SCALE = 2.0**-80  # exact, and room for 2**80 numbers
_SPLIT = 2.0**27 + 1  # leaves 26 of the 53 bits of a double, and the rest of them
_MANY = 32  # values from which on a call of a function in C pays
_ROUNDABLE = 2.0**48  # doubles that went through some operations are less than 0.5 wrong up to here


class Aggregate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Summary of at least one number. `m2` is the sum of squared deviations from the mean.

    A sum beyond the range of a double becomes the largest double, because JSON has no infinity; so does `m2`, and then
    there is no variance.
    """

    count: int
    min: Number
    max: Number
    sum: Number
    mean_high: float
    mean_low: float
    m2: float

    @classmethod
    def of(cls, values: Sequence[Number]) -> "Aggregate":
        lowest, highest = min(values), max(values)
        # Of integers alone the sum is one, and of nothing else.
        if type(values[0]) is int and type(total := sum(values)) is int:
            mean, low, m2 = _exact(values, total, is_double=lowest >= -_EXACT and highest <= _EXACT)
        else:
            total, mean, low, m2 = _rounded(values)
        return cls(
            count=len(values),
            min=lowest,
            max=highest,
            sum=_storable(total),
            mean_high=mean,
            mean_low=low,
            m2=m2,
        )

    def merged(self, other: "Aggregate") -> "Aggregate":
        count = self.count + other.count
        delta = (other.mean_high - self.mean_high) + (other.mean_low - self.mean_low)
        if isfinite(delta):
            shift = delta * (other.count / count)
            high, low = _sum_of_two(self.mean_high, shift)
            low, m2 = low + self.mean_low, self.m2 + other.m2 + delta * shift * self.count
        else:
            high = self.mean_high * (self.count / count) + other.mean_high * (other.count / count)
            low, m2 = 0.0, inf
        return Aggregate(
            count=count,
            min=min(self.min, other.min),
            max=max(self.max, other.max),
            sum=_storable(self.sum + other.sum),
            mean_high=high,
            mean_low=low,
            m2=min(m2, _DOUBLE),
        )

    @property
    def mean(self) -> Number:
        return plain(self.sum / self.count if isinstance(self.sum, int) else self.mean_high + self.mean_low)

    @property
    def variance(self) -> Number | None:
        """The variance of the population (reference 9.5); None when a double cannot hold what it is made of."""
        return None if self.m2 >= _DOUBLE else plain(self.m2 / self.count)


def merge_all(parts: Iterable[Aggregate | None]) -> Aggregate | None:
    """All parts merged into one; None without a part."""
    merged: Aggregate | None = None
    for part in parts:
        if part is not None:
            merged = part if merged is None else merged.merged(part)
    return merged


def plain(number: Number) -> Number:
    """A whole number as int, so that JSON has no `.0`."""
    return int(number) if isinstance(number, float) and abs(number) < _EXACT and number == int(number) else number


def _sum_of_two(a: float, b: float) -> tuple[float, float]:
    """Knuth's TwoSum: the rounded sum and its exact rounding error."""
    high = a + b
    bigger = high - a
    return high, (a - (high - bigger)) + (b - bigger)


_Moments = tuple[float, float, float]  # mean, the rounding error of the mean, m2


def _exact(values: Sequence[Number], total: int, *, is_double: bool) -> _Moments:
    """Moments of whole numbers, exact before the last rounding, because a double loses differences from 2**53 on.

    `is_double`: each of the values is exact as a double.
    """
    count = len(values)
    mean = total / count
    numerator, denominator = mean.as_integer_ratio()
    low = (total * denominator - count * numerator) / (count * denominator)
    # m2 is a whole number divided by the count. When that number is small, the distance from the mean, which takes a
    # third of the time, gives it exactly after rounding.
    if is_double and (squares := count * dist(values, (mean,) * count) ** 2) < _ROUNDABLE:
        return mean, low, round(squares - (count * low) ** 2) / count
    return mean, low, (count * sum(map(mul, values, values)) - total * total) / count


def _rounded(values: Sequence[Number]) -> tuple[float, float, float, float]:
    """The sum and the moments."""
    count = len(values)
    try:
        total = fsum(values)
        mean = total / count
    except OverflowError:  # of a partial sum or of the sum
        scaled = fsum(value * _SCALE for value in values)
        total, mean = scaled / _SCALE, scaled / count / _SCALE
    # `count * mean` in two parts, each exact (Veltkamp's split), so `rest` is rounded once.
    part = mean * _SPLIT
    part -= part - mean
    try:
        rest = fsum((*values, -count * part, -count * (mean - part)))
        low = rest / count if isfinite(rest) else 0.0
        m2 = _squares(values, mean) - count * low * low
        return total, mean, low, min(max(m2, 0.0), _DOUBLE)
    except (OverflowError, ValueError):  # sums beyond a double, or infinities of both signs
        return total, mean, 0.0, _DOUBLE


def _squares(values: Sequence[Number], mean: float) -> float:
    """The sum of the squared deviations. Raises OverflowError."""
    if len(values) < _MANY:  # the square of a root may differ in its last bit, which is seen where few values are exact
        return sum([(value - mean) ** 2 for value in values])
    return dist(values, (mean,) * len(values)) ** 2


def _storable(number: Number) -> Number:
    """A number that the store can keep: integers have 64 bits there, so a larger sum becomes a double."""
    if isinstance(number, int):
        return float(number) if abs(number) > _LARGEST else number
    return max(-_DOUBLE, min(number, _DOUBLE))
