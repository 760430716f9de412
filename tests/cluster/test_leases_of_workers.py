"""Which of several nodes does what one of them does for all, and that a former holder stores nothing more."""

from collections.abc import AsyncIterator

import pytest
import trio

from broker.cluster.fenced import FencedError
from broker.cluster.leases import LeaseName, Leases
from broker.cluster.membership import NodeMembership
from storage.database import Database, Transaction
from storage.engines.postgresql import PostgresqlEngine
from storage.keys import DeviceKey
from storage.lease_table import LeaseTable
from storage.leases import LeaseStore
from storage.sql import StaleLeaseError, StoreError
from tests.postgresql import server

DEVICE = DeviceKey(1)


class Waiting:
    """A candidate that need not wait."""

    def stands_by(self, holder: object) -> None:
        raise AssertionError(f"{holder} serves alone")

    def is_away(self, error: StoreError) -> None:
        raise error

    def answers(self) -> None:
        """The store can be used."""


class Member:
    def __init__(self, name: str, database: str, *, version: str = "1", seconds: float = 3600) -> None:
        self.name = name
        self.engine = PostgresqlEngine(server().target(database))
        self.table = LeaseTable(self.engine, end_sessions=self.engine.end_sessions)
        self.member = NodeMembership(self.table, name, self.engine.instance, seconds, version)
        self.leases = Leases(self.member, are_held=False)
        self.database = Database(self.engine)

    async def begin(self, nursery: trio.Nursery) -> None:
        self.engine.fence_with(*await self.member.join(Waiting()))
        await self.database.open()
        await nursery.start(self.database.commit_forever)

    async def look(self, *names: LeaseName) -> set[str]:
        """Look at the leases once, which this node may take; return its own ones."""
        nodes = await self.table.run(lambda leases: leases.nodes())
        await self.member._take_workers([one.node for one in nodes], self.leases, names or tuple(LeaseName))
        return {name.value for name in LeaseName if self.leases.of(name).is_held}


@pytest.fixture
async def database() -> AsyncIterator[str]:
    name = server().new_database()
    yield name
    server().drop(name)


@pytest.fixture
async def both(database: str, nursery: trio.Nursery) -> AsyncIterator[tuple[Member, Member]]:
    a, b = Member("a", database), Member("b", database)
    for one in (a, b):
        await one.begin(nursery)
    yield a, b
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        for one in (a, b):
            await one.table.close()


async def test_nodes_that_begin_together_share_the_leases_by_name(both: tuple[Member, Member]) -> None:
    a, b = both
    of_a, of_b = await a.look(), await b.look()
    assert of_a == {"folds", "subscriptions", "models", "tasks"}
    assert of_b == {"rules", "mails", "connectors", "upkeep"}


async def test_a_node_takes_what_another_one_may_not(both: tuple[Member, Member]) -> None:
    a, b = both
    for _ in range(5):
        of_a, of_b = await a.look(LeaseName.RULES), await b.look(LeaseName.FOLDS, LeaseName.MAILS)
    assert (of_a, of_b) == ({"rules"}, {"folds", "mails"})


def _noted(tx: Transaction) -> None:
    tx.messages.set_counter("noted", 1)


async def _replaced(both: tuple[Member, Member]) -> Member:
    """The first node, whose folds the second one has taken over without its knowledge."""
    a, b = both
    assert await a.look(LeaseName.FOLDS) == {"folds"}
    await b.table.run(lambda leases: leases.free("a"))
    for _ in range(5):
        await b.look(LeaseName.FOLDS)
    assert b.leases.of(LeaseName.FOLDS).is_held
    return a


async def test_a_former_holder_stores_nothing(both: tuple[Member, Member]) -> None:
    former = await _replaced(both)
    with pytest.raises(StaleLeaseError):
        await former.database.write_own(former.leases.of(LeaseName.FOLDS), _noted)
    assert await former.database.read(lambda tx: tx.messages.counter("noted")) == 0


async def test_a_lease_without_a_check_of_its_epoch_is_found(
    both: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant that the test above finds."""
    former = await _replaced(both)
    monkeypatch.setattr(LeaseStore, "require", lambda *_: None)
    await former.database.write_own(former.leases.of(LeaseName.FOLDS), _noted)
    assert await former.database.read(lambda tx: tx.messages.counter("noted")) == 1


async def test_a_node_of_another_version_is_refused(both: tuple[Member, Member], database: str) -> None:
    other = Member("c", database, version="2")
    with pytest.raises(StoreError, match="node a runs Trunkline 1, and this one is 2"):
        await other.member.join(Waiting())
    await other.table.close()


async def test_a_node_that_is_buried_stores_nothing_and_its_work_is_free(both: tuple[Member, Member]) -> None:
    a, b = both
    await a.look()
    await a.database.write(lambda tx: tx.device_connections.begin("a", 1, DEVICE, is_exclusive=True))
    nodes = await b.table.run(lambda leases: leases.nodes())
    await b.member._bury(next(one for one in nodes if one.node == "a"), b.database)
    with pytest.raises(StoreError, match="another node has the lease"):
        await a.database.write(_noted)
    assert not await b.database.read(lambda tx: tx.device_connections.connected([DEVICE]))
    assert await b.look() == {name.value for name in LeaseName}
    held = a.member.held
    assert held is not None
    with pytest.raises(FencedError, match="have not heard of this one"):
        raise await a.member._fenced(held)
