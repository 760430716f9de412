"""Throttling guesses (reference 4.2)."""

import pytest

from broker.accounts.throttle import Throttle
from broker.errors import TooManyAttempts
from tests.factories import NOW_MS
from tests.fakes import FakeClock

YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize("jump_ms", [-YEAR_MS, YEAR_MS])
def test_a_clock_that_jumps_locks_nobody_out_and_lets_nobody_in(jump_ms: int) -> None:
    time = FakeClock(NOW_MS)
    throttle = Throttle(time.clock, misses=2, window_seconds=900)
    throttle.count("ada")
    time.now += jump_ms
    throttle.count("ada")
    time.now += jump_ms
    with pytest.raises(TooManyAttempts, match="900"):
        throttle.check("ada")
    time.advance(900_000)
    throttle.check("ada")
