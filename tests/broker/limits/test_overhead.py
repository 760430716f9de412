"""Frames that carry no message: the allowance of each peer, and the line of all (reference 21.5)."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from broker.limits.overhead import FRAMES_AT_ONCE, FRAMES_PER_SECOND, Overhead, TokenBucket


class TestBucket:
    def test_gives_so_many_at_once(self) -> None:
        bucket = TokenBucket(at_once=3, per_second=0.1)
        assert [bucket.take(5.0) for _ in range(5)] == [True, True, True, False, False]

    def test_fills_with_time(self) -> None:
        bucket = TokenBucket(at_once=2, per_second=2)
        assert [bucket.take(0.0) for _ in range(3)] == [True, True, False]
        assert [bucket.take(0.5) for _ in range(2)] == [True, False]
        assert [bucket.take(100.0) for _ in range(3)] == [True, True, False]

    def test_a_debt_is_at_most_what_the_bucket_holds(self) -> None:
        bucket = TokenBucket(at_once=10, per_second=1)
        bucket.charge(0.0, 1_000_000)
        assert bucket.is_empty(10.0)
        assert not bucket.is_empty(11.0)


async def test_a_polite_peer_never_waits(autojump_clock: MockClock) -> None:
    line = Overhead()
    pace = line.pace()
    for _ in range(100):
        pace.spend()
        assert not pace.owed
        assert not pace.floods(1)
        await trio.sleep(1 / FRAMES_PER_SECOND)
    assert line.statistics().delayed == 0


async def test_a_peer_beyond_its_allowance_waits_for_what_it_has_sent(autojump_clock: MockClock) -> None:
    line = Overhead(per_second=10)
    pace = line.pace()
    pace.spend(FRAMES_AT_ONCE - 1)
    assert pace.owed == 0
    pace.spend(20)
    assert pace.owed == 20
    began = trio.current_time()
    await pace.wait()
    assert trio.current_time() - began == pytest.approx(2)
    assert pace.owed == 0


async def test_what_is_refused_for_another_reason_makes_no_flood_of_pings(autojump_clock: MockClock) -> None:
    pace = Overhead().pace()
    pace.spend(10 * FRAMES_AT_ONCE)
    assert not pace.floods(FRAMES_AT_ONCE - 1)
    assert pace.floods(10)


async def test_all_peers_wait_in_one_line(autojump_clock: MockClock) -> None:
    """A hundred of them take no more than one does."""
    line = Overhead(per_second=10)
    served: list[tuple[int, float]] = []

    async def flood(number: int) -> None:
        pace = line.pace()
        pace.spend(FRAMES_AT_ONCE)
        pace.owed = 10
        await pace.wait()
        served.append((number, trio.current_time() - began))

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        for number in range(5):
            nursery.start_soon(partial(flood, number))
        await trio.testing.wait_all_tasks_blocked()
        assert line.statistics().waiting == 5
    assert sorted(seconds for _, seconds in served) == pytest.approx([1, 2, 3, 4, 5])
    assert (line.statistics().waiting, line.statistics().delayed) == (0, 50)


async def test_a_peer_that_leaves_is_not_waited_for(autojump_clock: MockClock) -> None:
    line = Overhead(per_second=10)
    pace = line.pace()
    pace.spend(2 * FRAMES_AT_ONCE)
    with trio.move_on_after(0.1):
        await pace.wait()
    assert line.statistics().waiting == 0


async def test_peers_that_are_due_together_go_on_one_in_each_turn(mock_clock: MockClock) -> None:
    """The next frames of each may take longer than it has waited."""
    line, turn, went_on = Overhead(per_second=1e9), 0, list[int]()

    async def flood() -> None:
        await line.wait(1)
        went_on.append(turn)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(flood)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1)
        while len(went_on) < 20:
            turn += 1
            await trio.lowlevel.checkpoint()
    assert max(map(went_on.count, went_on)) <= 2  # the tasks of a turn run in any order


async def test_a_long_turn_is_followed_by_a_rest(mock_clock: MockClock) -> None:
    line, went_on = Overhead(per_second=1e9), list[str]()

    async def flood(name: str) -> None:
        await line.wait(1)
        went_on.append(name)
        mock_clock.jump(0.004)  # so long its work takes

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(flood, name)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.001)
        await trio.testing.wait_all_tasks_blocked()
        assert len(went_on) == 1
        mock_clock.jump(0.0039)
        await trio.testing.wait_all_tasks_blocked()
        assert len(went_on) == 1
        mock_clock.jump(0.0002)
        await trio.testing.wait_all_tasks_blocked()
        assert len(went_on) == 2
        mock_clock.jump(0.0041)
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(went_on) == ["a", "b", "c"]


@pytest.mark.parametrize("is_resting", [False, True], ids=["in the line", "in the rest"])
async def test_a_peer_that_leaves_holds_up_nobody_behind_it(mock_clock: MockClock, is_resting: bool) -> None:
    line, went_on = Overhead(per_second=1e9), list[str]()
    scope = trio.CancelScope()

    async def flood(name: str) -> None:
        await line.wait(1)
        went_on.append(name)
        mock_clock.jump(0.004)

    async def leave() -> None:
        with scope:
            await flood("nobody")

    async with trio.open_nursery() as nursery:
        first, last = partial(flood, "first"), partial(flood, "last")
        acts: list[Callable[[], Awaitable[None]]] = [first, leave, last] if is_resting else [first, last, leave]
        for act in acts:
            nursery.start_soon(act)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.0001)
            await trio.testing.wait_all_tasks_blocked()
        assert went_on == ["first"]
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.1)
        await trio.testing.wait_all_tasks_blocked()
    assert went_on == ["first", "last"]
    assert line.statistics().waiting == 0
