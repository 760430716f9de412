"""The budget of HTTP bodies (reference 21.6)."""

import pytest
import trio
from trio.testing import MockClock

from broker.limits.bodies import BodyBudget, TooManyBodies
from config.limits import BODY_WAIT_SECONDS


async def test_strangers_have_a_small_part_and_take_nothing_from_others(autojump_clock: MockClock) -> None:
    budget = BodyBudget(in_all=100, of_strangers=20)
    for number in range(4):
        await budget.reserve(5, f"address {number}", is_authenticated=False)
    with pytest.raises(TooManyBodies):
        await budget.reserve(1, "address 9", is_authenticated=False)
    for number in range(4):
        await budget.reserve(20, f"caller {number}", is_authenticated=True)
    with pytest.raises(TooManyBodies) as caught:
        await budget.reserve(1, "caller 9", is_authenticated=True)
    assert (caught.value.status, caught.value.retry_seconds) == (503, BODY_WAIT_SECONDS)
    statistics = budget.statistics()
    assert (statistics.bytes, statistics.unauthenticated_bytes, statistics.refused) == (100, 20, 2)


async def test_one_source_has_a_quarter(autojump_clock: MockClock) -> None:
    budget = BodyBudget(in_all=100, of_strangers=20)
    first = await budget.reserve(20, "caller 1", is_authenticated=True)
    with pytest.raises(TooManyBodies):
        await budget.reserve(6, "caller 1", is_authenticated=True)
    await budget.reserve(5, "caller 1", is_authenticated=True)
    await budget.reserve(25, "caller 2", is_authenticated=True)
    budget.release(first)
    await budget.reserve(20, "caller 1", is_authenticated=True)


async def test_one_body_may_be_larger_than_the_share(autojump_clock: MockClock) -> None:
    budget = BodyBudget(in_all=100, of_strangers=20)
    await budget.reserve(20, "address 1", is_authenticated=False)


async def test_a_body_waits_for_room(autojump_clock: MockClock) -> None:
    budget = BodyBudget(in_all=100, of_strangers=20)
    held = await budget.reserve(20, "address 1", is_authenticated=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: budget.reserve(10, "address 2", is_authenticated=False))
        await trio.sleep(BODY_WAIT_SECONDS - 1)
        budget.release(held)
    assert trio.current_time() == BODY_WAIT_SECONDS - 1
    assert budget.statistics().unauthenticated_bytes == 10


async def test_without_room_a_body_is_refused_in_time(autojump_clock: MockClock) -> None:
    budget = BodyBudget(in_all=100, of_strangers=20)
    await budget.reserve(20, "address 1", is_authenticated=False)
    with pytest.raises(TooManyBodies):
        await budget.reserve(10, "address 2", is_authenticated=False)
    assert trio.current_time() == BODY_WAIT_SECONDS
