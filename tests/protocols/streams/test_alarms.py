"""Alarms: one task that wakes many connections."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from broker.life import Life
from protocols.streams.alarms import RINGS_OF_TURN, AlarmEntry, Alarms


class Bell:
    """Notes when it rings."""

    def __init__(self) -> None:
        self.rung: list[float] = []
        self.moved: list[float] = []
        self.may_move = True
        self.alarm_entry: AlarmEntry | None = None

    def ring(self) -> None:
        self.rung.append(trio.current_time())

    def move(self) -> bool:
        if not self.may_move:
            return False
        self.moved.append(trio.current_time())
        return True


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.fixture
def alarms(life: Life, nursery: trio.Nursery) -> Alarms:
    return Alarms(nursery, life)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_each_alarm_rings_once_at_its_time(autojump_clock: MockClock, alarms: Alarms) -> None:
    begin, bells = trio.current_time(), [Bell() for _ in range(4)]
    for bell, after in zip(bells, (30, 10, 20, 10), strict=True):
        alarms.set(bell, begin + after)
    await trio.sleep(100)
    assert [bell.rung for bell in bells] == [[begin + 30], [begin + 10], [begin + 20], [begin + 10]]


@pytest.mark.parametrize(("first", "second"), [(30, 10), (10, 30)], ids=["earlier", "later"])
async def test_an_alarm_that_is_set_again_rings_at_the_new_time_only(
    autojump_clock: MockClock, alarms: Alarms, first: int, second: int
) -> None:
    begin, bell = trio.current_time(), Bell()
    alarms.set(bell, begin + first)
    await trio.sleep(5)
    alarms.set(bell, begin + second)
    await trio.sleep(100)
    assert bell.rung == [begin + second]


async def test_an_alarm_may_be_set_from_its_own_ring(autojump_clock: MockClock, alarms: Alarms) -> None:
    class Again(Bell):
        def ring(self) -> None:
            super().ring()
            alarms.set(self, self.rung[-1] + 30)

    begin, bell = trio.current_time(), Again()
    alarms.set(bell, begin + 30)
    await trio.sleep(100)
    assert bell.rung == [begin + 30, begin + 60, begin + 90]


async def test_an_alarm_that_is_unset_does_not_ring_and_is_freed_at_once(
    autojump_clock: MockClock, alarms: Alarms, without_collector: None
) -> None:
    bell = Bell()
    alarms.set(bell, trio.current_time() + 30)
    alarms.unset(bell)
    alarms.unset(bell)  # a second time changes nothing
    await trio.sleep(100)
    assert bell.rung == []
    kept = weakref.ref(bell)
    alarms.set(bell, trio.current_time() + 30)
    alarms.unset(bell)
    del bell
    gc.collect(0)  # the generation of the bell
    assert kept() is None


async def test_alarms_that_are_set_again_and_again_hold_bounded_memory(
    autojump_clock: MockClock, alarms: Alarms
) -> None:
    begin, bells = trio.current_time(), [Bell() for _ in range(10)]
    for number in range(20_000):
        alarms.set(bells[number % 10], begin + 30 + number % 7)
    assert len(alarms._entries) < 2_000
    await trio.sleep(100)
    assert [len(bell.rung) for bell in bells] == [1] * 10


async def test_others_have_their_turn_while_many_alarms_ring(
    autojump_clock: MockClock, alarms: Alarms, nursery: trio.Nursery
) -> None:
    begin, bells, seen = trio.current_time(), [Bell() for _ in range(3 * RINGS_OF_TURN)], list[int]()

    async def count_turns() -> None:
        await trio.sleep_until(begin + 30)
        while (rung := sum(len(bell.rung) for bell in bells)) < len(bells):
            seen.append(rung)
            await trio.lowlevel.checkpoint()

    nursery.start_soon(count_turns)
    for bell in bells:
        alarms.set(bell, begin + 30)
    await trio.sleep(31)
    assert {RINGS_OF_TURN, 2 * RINGS_OF_TURN} & set(seen)  # at the latest in the second turn


async def test_a_stop_rings_all_and_every_alarm_that_is_set_later(
    autojump_clock: MockClock, alarms: Alarms, life: Life
) -> None:
    begin, bells = trio.current_time(), [Bell() for _ in range(2 * RINGS_OF_TURN)]
    for bell in bells[:-1]:
        alarms.set(bell, begin + 30)
    life.stop()
    alarms.set(bells[-1], begin + 30)
    await trio.testing.wait_all_tasks_blocked()
    assert [bell.rung for bell in bells] == [[begin]] * len(bells)


async def test_connections_are_moved_one_after_the_other(autojump_clock: MockClock, alarms: Alarms, life: Life) -> None:
    begin, bells = trio.current_time(), [Bell() for _ in range(200)]
    for bell in bells:
        alarms.set(bell, begin + 1000)
    await trio.sleep(1)
    life.move(10.0)
    await trio.sleep(5)
    assert 90 <= sum(bool(bell.moved) for bell in bells) <= 110
    await trio.sleep(5.1)
    assert [len(bell.moved) for bell in bells] == [1] * 200
    assert max(Counter(bell.moved[0] for bell in bells).values()) <= 3
    assert life.not_moved[0]() == 0
    life.stop()
    await trio.sleep(1)
    assert not any(bell.rung for bell in bells)


async def test_a_connection_whose_time_comes_while_others_are_moved_rings(
    autojump_clock: MockClock, alarms: Alarms, life: Life
) -> None:
    begin, soon, late = trio.current_time(), Bell(), [Bell() for _ in range(50)]
    for bell in late:
        alarms.set(bell, begin + 1000)
    await trio.lowlevel.checkpoint()
    life.move(100.0)
    await trio.sleep(50)
    alarms.set(soon, trio.current_time() + 0.05)
    await trio.sleep(0.2)
    assert soon.rung or soon.moved
    life.stop()
    await trio.sleep(1)
    assert all(len(bell.rung) + len(bell.moved) == 1 for bell in late)


async def test_those_that_cannot_be_moved_yet_keep_nobody_up(
    autojump_clock: MockClock, alarms: Alarms, life: Life
) -> None:
    begin, busy, others = trio.current_time(), [Bell() for _ in range(60)], [Bell() for _ in range(60)]
    for bell in busy:
        bell.may_move = False
        alarms.set(bell, begin + 1000)
    for bell in others:
        alarms.set(bell, begin + 2000)
    await trio.sleep(1)
    life.move(4.0)
    await trio.sleep(3.9)
    assert all(bell.moved for bell in others)
    assert life.not_moved[0]() == 60
    for bell in busy:
        bell.may_move = True
    await trio.sleep(1)
    assert life.not_moved[0]() == 0
    life.stop()
