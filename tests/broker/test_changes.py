"""A read that a change has overtaken is repeated, and reads of many tasks are made together."""

from collections.abc import Collection

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker import changes as changes_module
from broker.changes import Changes, ReadsTogether


class Store:
    """Has a value for each number, and holds reads for as long as a test wants."""

    def __init__(self) -> None:
        self.reads: list[list[int]] = []
        self.goes_on = trio.Event()
        self.broken: set[int] = set()
        self.changes = Changes()
        self.together = ReadsTogether(self.read, self.changes)
        self.found: dict[int, str | None] = {}
        self.failed: list[int] = []
        self.changes_after: int | None = None  # something changes after this number of look-ups

    async def read(self, keys: Collection[int]) -> dict[int, str]:
        self.reads.append(sorted(keys))
        values = {key: f"{key} after {self.changes.count} changes" for key in keys if key >= 0}
        await self.goes_on.wait()
        if self.broken.intersection(keys):
            raise OSError("damaged")
        return values

    async def look_up(self, key: int) -> None:
        try:
            self.found[key] = await self.together.get(key)
            if len(self.found) == self.changes_after:
                self.changes.note()
        except OSError:
            self.failed.append(key)


@pytest.fixture
def store() -> Store:
    return Store()


async def test_a_read_during_which_nothing_changed_is_made_once() -> None:
    reads: list[str] = []

    async def read() -> str:
        reads.append("read")
        return "found"

    changes = Changes()
    changes.note()  # before the read: the read sees that change
    assert await changes.settled(read) == "found"
    assert reads == ["read"]


async def test_a_read_is_repeated_until_nothing_changed_meanwhile() -> None:
    changes, reads = Changes(), 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        if reads < 3:
            changes.note()
        return reads

    assert await changes.settled(read) == 3


async def test_who_comes_while_a_read_runs_is_read_with_the_others_in_the_next_one(store: Store) -> None:
    async with trio.open_nursery() as nursery:
        for key in (1, 2, -1, 3, 2):
            nursery.start_soon(store.look_up, key)
            await wait_all_tasks_blocked()
        assert store.reads == [[1]]
        store.goes_on.set()
    assert store.reads == [[1], [-1, 2, 3]]
    assert store.found == {1: "1 after 0 changes", 2: "2 after 0 changes", 3: "3 after 0 changes", -1: None}


async def test_one_read_has_so_many_keys_at_most(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "_TOGETHER", 3)
    async with trio.open_nursery() as nursery:
        for key in range(9):
            nursery.start_soon(store.look_up, key)
            await wait_all_tasks_blocked()
        store.goes_on.set()
    assert sorted(map(len, store.reads)) == [1, 2, 3, 3]
    assert sorted(store.found) == list(range(9))


async def test_what_changed_while_it_was_read_is_read_again(store: Store) -> None:
    async with trio.open_nursery() as nursery:
        for key in (1, 2):
            nursery.start_soon(store.look_up, key)
            await wait_all_tasks_blocked()
        store.changes.note()
        store.goes_on.set()
    assert store.found == {1: "1 after 1 changes", 2: "2 after 1 changes"}


async def test_what_changed_before_a_waiting_task_goes_on_is_read_again(store: Store) -> None:
    store.changes_after = 2  # 1 was read alone; of 2 and 3, one task reads, and the other one goes on later
    async with trio.open_nursery() as nursery:
        for key in (1, 2, 3):
            nursery.start_soon(store.look_up, key)
            await wait_all_tasks_blocked()
        store.goes_on.set()
    assert sorted(str(found)[1:] for found in store.found.values()) == [
        " after 0 changes",
        " after 0 changes",
        " after 1 changes",
    ]


async def test_when_the_task_that_reads_is_cancelled_another_one_reads(store: Store) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as first:
            async with trio.open_nursery() as cancelled:
                cancelled.start_soon(store.look_up, 1)
                await wait_all_tasks_blocked()
                for key in (2, 3):
                    nursery.start_soon(store.look_up, key)
                await wait_all_tasks_blocked()
                first.cancel()
        store.goes_on.set()
    assert store.found == {2: "2 after 0 changes", 3: "3 after 0 changes"}
    assert store.reads == [[1], [2, 3]]


async def test_when_those_who_read_together_are_cancelled_one_by_one_the_last_one_reads(store: Store) -> None:
    scopes: dict[int, trio.CancelScope] = {}

    async def look_up(key: int) -> None:
        with trio.CancelScope() as scopes[key]:
            await store.look_up(key)

    async with trio.open_nursery() as nursery:
        for key in (1, 2, 3):
            nursery.start_soon(look_up, key)
            await wait_all_tasks_blocked()
        for key in (1, 2):
            scopes[key].cancel()
            await wait_all_tasks_blocked()
        store.goes_on.set()
    assert store.found == {3: "3 after 0 changes"}


async def test_what_cannot_be_read_fails_for_its_own_task_only(store: Store) -> None:
    store.broken = {2}
    async with trio.open_nursery() as nursery:
        for key in (1, 2, 3):
            nursery.start_soon(store.look_up, key)
            await wait_all_tasks_blocked()
        store.goes_on.set()
    assert store.found == {1: "1 after 0 changes", 3: "3 after 0 changes"}
    assert store.failed == [2]
