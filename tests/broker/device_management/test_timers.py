"""Many deadlines in one waiting task."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from broker.device_management.timers import Timers
from tests.broker.device_management.devices import mock_time
from tests.factories import NOW_MS


@pytest.fixture
async def timers(nursery: trio.Nursery, autojump_clock: MockClock) -> AsyncIterator[Timers]:
    made = Timers(mock_time().now_ms)
    nursery.start_soon(made.run_forever)
    yield made
    nursery.cancel_scope.cancel()


async def test_calls_come_in_the_order_of_their_moments(timers: Timers, autojump_clock: MockClock) -> None:
    start, called = mock_time().now_ms(), list[tuple[int, float]]()
    for seconds in (90, 5, 60, 0):
        timers.set(seconds, start + seconds * 1000, lambda at=seconds: called.append((at, trio.current_time())))  # type: ignore[misc]
    await trio.sleep(100)
    assert [at for at, _ in called] == [0, 5, 60, 90]
    assert all(at <= when < at + 0.1 for at, when in called)
    assert len(timers) == 0


async def test_a_name_has_one_moment_and_can_be_cancelled(timers: Timers, autojump_clock: MockClock) -> None:
    start, called = mock_time().now_ms(), list[str]()
    timers.set("moved", start + 1000, lambda: called.append("early"))
    timers.set("moved", start + 9000, lambda: called.append("late"))
    timers.set("cancelled", start + 1000, lambda: called.append("cancelled"))
    timers.cancel("cancelled")
    await trio.sleep(5)
    assert called == []
    await trio.sleep(5)
    assert called == ["late"]


async def test_a_call_that_fails_leaves_the_others(timers: Timers, autojump_clock: MockClock) -> None:
    called: list[str] = []
    timers.set("broken", NOW_MS, lambda: called.remove("nothing"))
    timers.set("sound", NOW_MS, lambda: called.append("sound"))
    await trio.sleep(1)
    assert called == ["sound"]


async def test_a_call_may_set_the_next_one(timers: Timers, autojump_clock: MockClock) -> None:
    called: list[float] = []

    def again() -> None:
        called.append(round(trio.current_time()))
        timers.set("again", mock_time().now_ms() + 30_000, again)

    again()
    await trio.sleep(95)
    assert called == [0, 30, 60, 90]


async def test_cancelled_moments_take_no_room(timers: Timers, autojump_clock: MockClock) -> None:
    """Whoever makes tasks for next year and cancels them at once must not fill the memory."""
    start, called = mock_time().now_ms(), list[str]()
    timers.set("kept", start + 5_000, lambda: called.append("kept"))
    for number in range(1_000):
        timers.set(number, start + 10_000, lambda: called.append("cancelled"))
        timers.cancel(number)
    assert len(timers._heap) < 200
    await trio.sleep(20)
    assert called == ["kept"]
