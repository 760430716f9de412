"""The clock of several nodes is the database's, whatever the clock of the machine says."""

import pytest

from broker.clock import system_now_ms
from broker.cluster.shared_clock import SharedClock
from storage.keys import Milliseconds

NOW_MS = 1_700_000_000_000


class Steady:
    def __init__(self) -> None:
        self.ms = 5_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def steady() -> Steady:
    return Steady()


def measure(clock: SharedClock, steady: Steady, now_ms: int, *, takes_ms: int) -> None:
    asked = steady.ms
    steady.ms += takes_ms
    clock.measured(asked, Milliseconds(now_ms))


def test_it_is_the_time_of_the_database_and_goes_on_with_the_steady_clock(steady: Steady) -> None:
    clock = SharedClock(steady)
    measure(clock, steady, NOW_MS, takes_ms=10)
    assert clock.now_ms() == NOW_MS + 5
    steady.ms += 1_000
    assert clock.clock().now_ms() == NOW_MS + 1_005
    assert clock.clock().steady_ms() == steady.ms


def test_before_a_measurement_it_is_that_of_the_machine(steady: Steady) -> None:
    assert abs(SharedClock(steady).now_ms() - system_now_ms()) < 60_000


def test_a_slow_answer_says_nothing_unless_there_is_no_quick_one(steady: Steady) -> None:
    clock = SharedClock(steady)
    measure(clock, steady, NOW_MS, takes_ms=0)
    measure(clock, steady, NOW_MS + 700, takes_ms=1_000)
    assert clock.now_ms() == NOW_MS + 1_000
    steady.ms += 60_000
    measure(clock, steady, NOW_MS + 61_700, takes_ms=1_000)
    assert clock.now_ms() == NOW_MS + 62_200


def test_a_slow_first_answer_is_replaced_by_the_next_that_is_quicker(steady: Steady) -> None:
    """A node that begins while the database answers slowly would be seconds wrong for as long as no answer is quick."""
    clock = SharedClock(steady)
    measure(clock, steady, NOW_MS, takes_ms=5_000)
    assert not clock.is_exact
    assert clock.now_ms() == NOW_MS + 2_500
    measure(clock, steady, NOW_MS + 400, takes_ms=400)
    assert clock.now_ms() == NOW_MS + 600
    measure(clock, steady, NOW_MS + 420, takes_ms=20)
    assert clock.is_exact
    assert clock.now_ms() == NOW_MS + 430


def test_it_jumps_with_the_database(steady: Steady) -> None:
    clock = SharedClock(steady)
    measure(clock, steady, NOW_MS, takes_ms=0)
    measure(clock, steady, NOW_MS - 3_600_000, takes_ms=0)
    assert clock.now_ms() == NOW_MS - 3_600_000
