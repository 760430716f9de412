"""A daemon whose lease another one has taken over commits nothing to PostgreSQL."""

from collections.abc import AsyncIterator
from contextlib import closing, suppress

import pytest
import trio

from storage.database import Database
from storage.engines.postgresql import PostgresqlEngine
from storage.journal import Journal
from storage.keys import DeviceKey, Milliseconds, Position
from storage.lease_table import LeaseTable
from storage.leases import HeldLease
from storage.sql import StoreError, StoreTakenError
from tests.postgresql import server

pytestmark = pytest.mark.slow


NAME, LONG = "daemon", 3600.0


class Node:
    """One daemon's engine, leases and writer."""

    def __init__(self, database: str) -> None:
        self.engine = PostgresqlEngine(server().target(database))
        self.table = LeaseTable(self.engine, end_sessions=self.engine.end_sessions)
        self.database = Database(self.engine)

    async def take(self, node: str, seconds: float = LONG) -> HeldLease:
        held = await self.table.take(NAME, node, self.engine.instance, seconds)
        assert held is not None
        self.engine.fence_with(held)
        return held


@pytest.fixture
async def nodes(nursery: trio.Nursery) -> AsyncIterator[tuple[Node, Node]]:
    name = server().new_database()
    first, second = Node(name), Node(name)
    yield first, second
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        for node in (first, second):
            await node.table.close()
            with suppress(StoreError):
                await node.database.close()
    server().drop(name)


def append(journal: Journal) -> None:
    journal.append_message(DeviceKey(1), Milliseconds(1), Milliseconds(1), 1, "{}")


async def test_rows_and_works_of_a_former_holder_are_refused(nodes: tuple[Node, Node], nursery: trio.Nursery) -> None:
    first, second = nodes
    await first.take("a", seconds=0)
    await first.database.open()
    await nursery.start(first.database.commit_forever)
    journal = Journal(first.database, head=Position(0))
    append(journal)
    await journal.wait_committed()
    await first.database.write(lambda tx: tx.messages.set_counter("noted", 1))

    await second.take("b")  # ends the sessions of the first one, as of one that stands still
    append(journal)
    with pytest.raises(StoreError, match="another node has the lease"):
        await journal.wait_committed()
    assert isinstance(first.database.last_error, StoreTakenError)
    with pytest.raises(StoreTakenError):
        await first.database.write(lambda tx: tx.messages.set_counter("noted", 2))
    append(journal)
    with pytest.raises(StoreTakenError):  # rows and a work in one transaction
        await first.database.write(lambda tx: tx.messages.set_counter("noted", 3))
    with closing(second.engine.open(read_only=True)) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM message) AS rows, value FROM counter WHERE name = 'noted'"
        )
        assert list(found.tuples()) == [(1, 1)]


async def test_a_transaction_that_stands_open_does_not_hold_up_the_next_daemon(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    await first.take("a", seconds=0)
    with closing(first.engine.open(read_only=False)) as paused:
        paused.begin(write=True)  # takes the lock of the works, and that of the lease
        paused.execute("INSERT INTO counter (name, value) VALUES ('half', 1)")
        with trio.fail_after(20):
            held = await second.take("b")
        assert held.epoch == 2
        with pytest.raises(StoreError):
            paused.commit()
    with closing(second.engine.open(read_only=False)) as connection:
        connection.begin(write=True)
        assert connection.execute("SELECT count(*) AS n FROM counter WHERE name = 'half'").one() == {"n": 0}
        connection.rollback()


async def test_the_holder_keeps_the_lease_while_it_writes(nodes: tuple[Node, Node]) -> None:
    """Renewing does not wait for its own transactions, and nobody takes the lease."""
    first, second = nodes
    held = await first.take("a")
    with closing(first.engine.open(read_only=False)) as connection:
        connection.begin(write=True)
        connection.execute("INSERT INTO counter (name, value) VALUES ('half', 1)")
        with trio.fail_after(20):
            assert await first.table.renew(held, LONG)
            assert await second.table.take(NAME, "b", second.engine.instance, LONG) is None
        connection.commit()
