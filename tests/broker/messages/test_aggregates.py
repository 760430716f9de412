"""Groups of numbers, merged in any order, compared with numpy (the hard case: a large offset and a tiny spread)."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import inf, isclose
from sys import float_info

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.messages.aggregates import Aggregate, Number, merge_all, plain
from tests.rows import each_row

LARGEST = float_info.max


def variance(values: Sequence[Number]) -> float:
    """numpy's variance, in extended precision and shifted, so that the reference value is exact enough."""
    wide = np.array(values, dtype=np.longdouble)
    return float(np.var(wide - wide[0]))


def assert_agrees(found: Aggregate, values: Sequence[Number]) -> None:
    wide = np.array(values, dtype=np.longdouble)
    scale = float(np.max(np.abs(wide)))
    assert found.count == len(values)
    assert (found.min, found.max) == (min(values), max(values))
    assert isclose(found.sum, float(np.sum(wide)), rel_tol=1e-12, abs_tol=1e-12 * scale * len(values))
    assert isclose(found.mean, float(np.mean(wide)), rel_tol=1e-12, abs_tol=1e-12 * scale)
    # Differences below the last bit of the largest value are rounding errors of the values themselves.
    assert found.variance is not None
    assert isclose(found.variance, variance(values), rel_tol=1e-9, abs_tol=(scale * 2**-60) ** 2)


offsets = st.sampled_from([0, 1, 1e6, 1e9, -1e12, 2**40, 2**62, -(2**61)])
steps = st.sampled_from([1e-3, 0.125, 1, 1e4])
hostile = st.builds(
    lambda offset, step, many: [offset + step * one for one in many],
    offsets,
    steps,
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=40),
)


@given(hostile, st.lists(st.integers(0, 40), max_size=6), st.randoms())
def test_any_grouping_merged_in_any_order_gives_what_numpy_gives(
    values: list[Number], cuts: list[int], rng: object
) -> None:
    edges = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    groups = [values[a:b] for a, b in pairwise(edges)]
    rng.shuffle(groups)  # type: ignore[attr-defined]
    merged = merge_all(Aggregate.of(group) for group in groups)
    assert merged is not None
    assert_agrees(merged, values)


@each_row("offset", [1e9, 1e12, 2**53, 2**62])
def test_a_million_numbers_far_from_zero_in_minutes_of_sixty(offset: Number) -> None:
    noise = np.random.default_rng(1).integers(0, 1000, 100_020)
    values: list[Number] = [offset + int(one) * (1 if isinstance(offset, int) else 0.001) for one in noise]
    merged = merge_all(Aggregate.of(values[index : index + 60]) for index in range(0, len(values), 60))
    assert merged is not None
    assert merged.variance is not None
    assert isclose(merged.variance, variance(values), rel_tol=1e-9)


@given(
    st.sampled_from([0, 1, -(10**6), 1_760_000_000_000, 2**53 - 10_000, 2**53, 2**62]),
    st.sampled_from([1, 3, 1_000, 10**6]),
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=600),
)
def test_moments_of_whole_numbers_are_exact_before_the_last_rounding(
    offset: int, step: int, many: Sequence[int]
) -> None:
    values = [offset + step * one for one in many]
    exact = Fraction(len(values) * sum(one * one for one in values) - sum(values) ** 2, len(values))
    found = Aggregate.of(values)
    assert found.m2 == float(exact)
    mean = Fraction(sum(values), len(values))
    assert abs(Fraction(found.mean_high) + Fraction(found.mean_low) - mean) <= abs(mean) / 2**100


def test_values_that_a_double_has_exactly_have_a_variance_without_a_rounding_error() -> None:
    assert Aggregate.of([0, 1]).variance == Aggregate.of([0.5, 1.5]).variance == 0.25


def test_whole_numbers_stay_whole() -> None:
    found = Aggregate.of([1, 5, 9])
    assert (found.min, found.max, found.sum, found.mean) == (1, 9, 15, 5)
    assert [type(one) for one in (found.min, found.max, found.sum, found.mean)] == [int] * 4
    assert found.variance == pytest.approx(32 / 3)


def test_integers_and_floats_keep_their_form() -> None:
    found = Aggregate.of([2, 1.0])
    assert [type(one) for one in (found.min, found.max)] == [float, int]


@each_row(
    "values",
    [
        [1.7e308, 1.7e308],
        [1.7e308, -1.7e308, -1.7e308, -1.7e308],
        [1.7e308, -1.7e308],
        [1e200, 0.5],
        [-1.7e308] * 5,
        [2**63 - 1] * 3,
    ],
)
def test_a_sum_beyond_a_double_is_the_largest_double_and_a_variance_beyond_it_is_none(values: list[Number]) -> None:
    for found in (Aggregate.of(values), merge_all(Aggregate.of([value]) for value in values)):
        assert found is not None
        for number in (found.sum, found.mean):
            assert -inf < number < inf
        assert abs(found.mean) <= LARGEST
        assert found.variance is None or (found.variance == 0 and max(values) - min(values) < 1e150)
        assert (found.min, found.max) == (min(values), max(values))


def test_merging_no_groups_gives_none() -> None:
    assert merge_all(()) is None
    assert merge_all((None, None)) is None


def test_plain_drops_only_a_fraction_that_is_zero() -> None:
    assert [repr(plain(number)) for number in (2.0, 2.5, 1e300, 7)] == ["2", "2.5", "1e+300", "7"]
