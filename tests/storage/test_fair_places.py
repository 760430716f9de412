"""Places that are given out fairly by key."""

from collections import Counter

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.fair_places import FairPlaces


class _World:
    """Tasks that take a place, say so, and give it back when they are told to."""

    def __init__(self, places: FairPlaces, nursery: trio.Nursery) -> None:
        self._places, self._nursery = places, nursery
        self.began: list[str] = []
        self._begins: dict[str, trio.Event] = {}
        self._ends: dict[str, trio.Event] = {}

    async def ask(self, *names: str) -> None:
        for name in names:
            self._ends[name] = trio.Event()
            self._nursery.start_soon(self._work, name)
            await wait_all_tasks_blocked()

    def tell(self, name: str) -> None:
        self._ends[name].set()

    async def end(self, name: str) -> None:
        self.tell(name)
        await wait_all_tasks_blocked()

    async def until_began(self, name: str) -> None:
        await self._begins.setdefault(name, trio.Event()).wait()

    async def _work(self, name: str) -> None:
        async with self._places.of(name[0]):
            self.began.append(name)
            self._begins.setdefault(name, trio.Event()).set()
            await self._ends[name].wait()


async def test_a_key_that_asks_for_one_goes_before_all_that_another_one_has_waiting() -> None:
    async with trio.open_nursery() as nursery:
        world = _World(FairPlaces(2), nursery)
        await world.ask("a1", "a2", "a3", "a4", "a5", "b1", "b2")
        assert world.began == ["a1", "a2"]
        await world.end("a1")
        assert world.began[2:] == ["b1"]
        await world.end("b1")
        assert world.began[3:] == ["b2"]
        await world.end("b2")
        assert world.began[4:] == ["a3"]
        nursery.cancel_scope.cancel()


async def test_of_keys_that_hold_equally_many_the_one_that_has_waited_longest_since_its_last_place_is_next() -> None:
    async with trio.open_nursery() as nursery:
        world = _World(FairPlaces(1), nursery)
        await world.ask("a1", "a2", "a3", "b1", "b2", "c1")
        for name in ("a1", "b1", "c1", "a2", "b2", "a3"):
            await world.end(name)
        assert world.began == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_one_key_never_holds_more_than_its_part() -> None:
    async with trio.open_nursery() as nursery:
        places = FairPlaces(4, of_one=2)
        world = _World(places, nursery)
        await world.ask("a1", "a2", "a3", "a4")
        assert (world.began, places.taken, places.waiting, places.waiting_of("a")) == (["a1", "a2"], 2, 2, 2)
        await world.ask("b1", "b2", "b3")
        assert world.began[2:] == ["b1", "b2"]
        await world.end("b1")
        assert world.began[4:] == ["b3"]
        nursery.cancel_scope.cancel()


async def test_places_beyond_the_first_ones_are_for_others_and_for_who_has_waited(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        world = _World(FairPlaces(4, of_one=2, at_first=2, patience=0.05), nursery)
        await world.ask("a1", "a2")
        await world.ask("b1")  # at once, because only one other key holds places
        assert world.began == ["a1", "a2", "b1"]
        begin = trio.current_time()
        nursery.start_soon(world.ask, "c1")
        await world.until_began("c1")
        assert trio.current_time() - begin == pytest.approx(0.05, abs=0.003)
        nursery.cancel_scope.cancel()


async def test_places_that_are_held_for_long_are_none_of_the_first_ones(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        world = _World(FairPlaces(4, of_one=2, at_first=2, patience=0.05), nursery)
        await world.ask("a1", "b1")
        await trio.sleep(0.06)
        begin = trio.current_time()
        await world.ask("c1", "d1")
        assert world.began == ["a1", "b1", "c1", "d1"]
        assert trio.current_time() == pytest.approx(begin, abs=0.003)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("turns", [None, 0, 1, 2, 3])
async def test_who_is_cancelled_while_it_waits_or_just_got_a_place_holds_none(turns: int | None) -> None:
    places = FairPlaces(1)
    async with trio.open_nursery() as nursery:
        holder = _World(places, nursery)
        await holder.ask("a1")
        async with trio.open_nursery() as others:
            await _World(places, others).ask("b1")
            if turns is not None:
                holder.tell("a1")
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
            others.cancel_scope.cancel()
        assert places.held_by("b") == places.waiting == 0
        holder.tell("a1")
    assert places.taken == 0


async def test_whoever_asks_gets_a_place_whatever_happens_between() -> None:
    """Many keys, in turns that differ, some of them cancelled: the bounds hold, and at the end all places are free."""
    places, running, done = FairPlaces(3, of_one=2), Counter[str](), Counter[str]()

    async def work(number: int) -> None:
        key = "abcde"[number % 5 if number % 3 else 0]
        with trio.move_on_after(0) if number % 7 == 0 else trio.CancelScope():
            async with places.of(key):
                running[key] += 1
                assert running[key] <= 2
                assert running.total() <= 3
                for _ in range(number % 4):
                    await trio.lowlevel.checkpoint()
                running[key] -= 1
                done[key] += 1

    async with trio.open_nursery() as nursery:
        for number in range(500):
            nursery.start_soon(work, number)
    assert (places.taken, places.waiting) == (0, 0)
    assert done.total() >= 428
