"""The rate limit of requests without a counted token, by address (reference 21.1)."""

import pytest

from broker.clock import Clock
from broker.limits.addresses import AddressLimit
from broker.limits.refusals import TooManyRequests
from tests.factories import NOW_MS
from tests.fakes import FakeClock


@pytest.fixture
def limit(fake_clock: FakeClock) -> AddressLimit:
    return AddressLimit(600, Clock(fake_clock, fake_clock.steady_ms))


def fill(limit: AddressLimit, address: str) -> None:
    for _ in range(600):
        limit.count(address)
    with pytest.raises(TooManyRequests):
        limit.count(address)


def test_six_hundred_a_minute_from_one_address(limit: AddressLimit, fake_clock: FakeClock) -> None:
    fill(limit, "192.0.2.1")
    fake_clock.advance(59_001)
    with pytest.raises(TooManyRequests) as caught:
        limit.count("192.0.2.1")
    assert caught.value.retry_seconds == 1
    limit.count("192.0.2.2")
    fake_clock.advance(999)
    fill(limit, "192.0.2.1")
    assert limit.statistics().refused == 3


def test_addresses_of_one_network_count_together(limit: AddressLimit) -> None:
    fill(limit, "2001:db8::1")
    with pytest.raises(TooManyRequests):
        limit.count("2001:db8::2")
    limit.count("2001:db8:0:1::1")


def test_setting_the_clock_changes_nothing(limit: AddressLimit, fake_clock: FakeClock) -> None:
    fill(limit, "192.0.2.1")
    fake_clock.now = NOW_MS + 3_600_000
    with pytest.raises(TooManyRequests):
        limit.count("192.0.2.1")


def test_memory_is_bounded_and_the_longest_silent_are_forgotten_first(limit: AddressLimit) -> None:
    for number in range(10_000):
        limit.count(f"10.0.{number >> 8}.{number & 255}")
    fill(limit, "192.0.2.1")
    for number in range(9_999):
        limit.count(f"10.1.{number >> 8}.{number & 255}")
    assert limit.statistics().remembered == 10_000
    with pytest.raises(TooManyRequests):
        limit.count("192.0.2.1")


def test_without_a_limit_nothing_is_counted() -> None:
    limit = AddressLimit(None, Clock())
    for _ in range(1_000):
        limit.count("192.0.2.1")
    assert limit.statistics().remembered == 0
