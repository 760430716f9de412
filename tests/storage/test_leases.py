"""Leases in the store, and works that only the holder of one may write."""

from collections.abc import AsyncIterator, Callable

import pytest
import trio

from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.lease_table import LeaseTable
from storage.leases import HeldLease
from storage.sql import StaleLeaseError
from storage.transaction import Transaction

NAME = "folds"
LONG = 3600.0


class Holding:
    """Stands for a worker whose node believes that it has this lease."""

    def __init__(self, held: HeldLease | None) -> None:
        self.held = held


@pytest.fixture
async def database(engine: SqliteEngine, nursery: trio.Nursery) -> AsyncIterator[Database]:
    database = Database(engine)
    await database.open()
    await nursery.start(database.commit_forever)
    yield database
    nursery.cancel_scope.cancel()


@pytest.fixture
async def table(database: Database, engine: SqliteEngine) -> AsyncIterator[LeaseTable]:
    table = LeaseTable(engine)
    yield table
    await table.close()


async def taken(table: LeaseTable, node: str, seconds: float = LONG) -> HeldLease:
    held = await table.take(NAME, node, f"process of {node}", seconds)
    assert held is not None
    return held


async def test_one_node_has_a_lease_until_it_is_over(table: LeaseTable) -> None:
    first = await taken(table, "a")
    assert await table.take(NAME, "b", "b", LONG) is None
    found = await table.find(NAME)
    assert found is not None
    assert (found.node, found.instance, found.epoch) == ("a", "process of a", first.epoch)
    assert LONG - 60 < found.seconds_left <= LONG
    assert await table.renew(first, 0)
    second = await taken(table, "b")
    assert (second.node, second.epoch) == ("b", first.epoch + 1)
    assert not await table.renew(first, LONG)
    assert await table.renew(second, LONG)


@pytest.mark.both_engines
async def test_the_next_node_takes_at_once_what_is_given_back(table: LeaseTable) -> None:
    first = await taken(table, "a")
    await table.give_back(first)
    second = await taken(table, "b")
    await table.give_back(first)  # is not the holder any more
    assert await table.take(NAME, "c", "c", LONG) is None
    assert await table.renew(second, LONG)


async def test_a_node_of_the_same_name_takes_the_place_of_the_other_one(table: LeaseTable) -> None:
    first = await taken(table, "a")
    second = await taken(table, "a")
    assert second.epoch == first.epoch + 1
    assert not await table.renew(first, LONG)


async def test_nothing_is_found_before_the_first_holder(table: LeaseTable) -> None:
    assert await table.find(NAME) is None


def note(value: int) -> Callable[[Transaction], int]:
    def work(tx: Transaction) -> int:
        tx.messages.set_counter("noted", value)
        return value

    return work


async def noted(database: Database) -> int:
    return await database.read(lambda tx: tx.messages.counter("noted"))


@pytest.mark.both_engines
async def test_the_holder_writes_its_works(database: Database, table: LeaseTable) -> None:
    held = await taken(table, "a")
    assert await database.write_own(Holding(held), note(1)) == 1
    assert await noted(database) == 1


@pytest.mark.both_engines
async def test_a_former_holder_writes_nothing_and_the_rest_of_the_group_is_kept(
    database: Database, table: LeaseTable
) -> None:
    former = await taken(table, "a", seconds=0)
    now = await taken(table, "b")
    refused = list[StaleLeaseError]()

    async def write_stale() -> None:
        with pytest.raises(StaleLeaseError) as caught:
            await database.write_own(Holding(former), note(2))
        refused.append(caught.value)

    async with trio.open_nursery() as writers:
        writers.start_soon(database.write, lambda tx: tx.messages.set_counter("serial", 5))
        writers.start_soon(write_stale)
        writers.start_soon(database.write_own, Holding(now), lambda tx: tx.messages.set_counter("own", 6))
    assert "node a does not have the lease folds any more" in str(refused[0])
    counters = await database.read(lambda tx: [tx.messages.counter(name) for name in ("noted", "serial", "own")])
    assert counters == [0, 5, 6]


async def test_without_rows_of_leases_every_own_work_is_written(database: Database) -> None:
    """On SQLite: the one daemon has them all."""
    assert await database.write_own(Holding(None), note(3)) == 3
    assert await noted(database) == 3
