"""How many examples a property test tries: one of ten, each run others. `--hypothesis-profile=full` tries all.

And how much of a matrix is tried that takes many seconds: all of it in CI's run (`CI=true`), a part in other ones.
Where a test draws a part of its rows, the number that pytest prints first repeats the draw: `TESTS_SEED=4711 pytest …`.
"""

import os
import random
from collections.abc import Sequence
from typing import Final, TypeVar

import hypothesis
import pytest

Row = TypeVar("Row")
IS_CI: Final = os.environ.get("CI") == "true"
#: Of a test that looks at what others look at, too, in more ways.
in_ci: Final = pytest.mark.skipif(not IS_CI, reason="it is in CI's run alone (CI=true)")

_FULL = 100
_SEED: Final = "TESTS_SEED"
_NUMBER_OF_RUN: Final = "trunkline/seed"


def register_profiles() -> None:
    """A test that is slow because the machine is busy does not fail."""
    slow = [hypothesis.HealthCheck.too_slow]
    for name, count in (("full", _FULL), ("run", _FULL // 10)):
        hypothesis.settings.register_profile(
            name, hypothesis.settings.default, max_examples=count, deadline=None, suppress_health_check=slow
        )
    hypothesis.settings.load_profile("run")


def examples(full: int, *, run: int | None = None) -> int:
    """How many examples a test tries that needs more or fewer than the others: `full` of them with the full profile.

    A run with the usual profile tries `run` of them, or one of ten.
    """
    default = hypothesis.settings.default
    assert default is not None
    if run is not None and default.max_examples < _FULL:
        return run
    return max(1, full * default.max_examples // _FULL)


def every_nth_outside_ci(nth: int, rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of a table whose product with others takes seconds: all in CI's run, a part of them in other ones.

    Call it while pytest collects tests; the profile is known by then.
    """
    return rows if IS_CI or examples(_FULL) == _FULL else rows[::nth]


def begin_draws(config: pytest.Config) -> None:
    """Choose the number of this run. Tests that failed are tried again with that of their run."""
    assert config.cache is not None
    former = config.cache.get(_NUMBER_OF_RUN, "") if config.getoption("lf") else ""
    number = os.environ.setdefault(_SEED, former or str(random.SystemRandom().randrange(10_000)))
    config.cache.set(_NUMBER_OF_RUN, number)


def seed() -> str:
    return os.environ[_SEED]


def chance() -> random.Random:
    """Draws the same in each test of a run, and others in the next run."""
    return random.Random(seed())  # noqa: S311 - of a test


def drawn(rows: Sequence[Row], nth: int) -> list[Row]:
    """One in `nth` of the rows, others in each run; all with `--hypothesis-profile=full`. In their order."""
    if examples(_FULL) == _FULL:
        return list(rows)
    chosen = set(chance().sample(range(len(rows)), max(1, len(rows) // nth)))
    return [row for number, row in enumerate(rows) if number in chosen]
