"""Which of several nodes does what one of them does for all, and that a former holder stores nothing more."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from broker.cluster import shared_clock
from broker.cluster.fenced import FencedError
from broker.cluster.leases import Lease, LeaseName, Leases
from broker.cluster.membership import NodeMembership
from broker.life import Life
from storage.database import Database
from storage.device_connections import Sort
from storage.engines.postgresql import PostgresqlEngine
from storage.journal import Journal
from storage.keys import DeviceKey, Milliseconds, Position
from storage.lease_table import LeaseTable
from storage.leases import LeaseRecord, LeaseStore
from storage.sql import StaleLeaseError, StoreError
from storage.transaction import Transaction
from tests.postgresql import server

pytestmark = pytest.mark.slow


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
    def __init__(
        self,
        name: str,
        database: str,
        *,
        version: str = "1",
        seconds: float = 3600,
        works: Sequence[LeaseName] = tuple(LeaseName),
    ) -> None:
        self.name, self.time = name, 0.0
        self.engine = PostgresqlEngine(server().target(database))
        self.table = LeaseTable(self.engine, end_sessions=self.engine.end_sessions)
        instance = self.engine.instance
        self.member = NodeMembership(self.table, name, instance, seconds, version, works=works, now=self.now)
        self.leases = Leases(self.member, are_held=False)
        self.database = Database(self.engine)

    def now(self) -> float:
        return self.time

    async def begin(self, nursery: trio.Nursery) -> None:
        self.engine.fence_with(*await self.member.join(Waiting()))
        await self.database.open()
        await nursery.start(self.database.commit_forever)

    async def look(self) -> set[str]:
        """Look at the leases once, which this node may take; return its own ones."""
        nodes = await self.table.run(lambda leases: leases.nodes())
        await self.member._take_workers(nodes, self.leases)
        return self.held()

    async def give(self, seconds: float = 0) -> set[str]:
        """So much later, give one away that others lack."""
        self.time += seconds
        nodes = await self.table.run(lambda leases: leases.nodes())
        before = self.held()
        async with trio.open_nursery() as nursery:
            await self.member._give_away(nodes, self.leases, nursery)
        return before - self.held()

    def held(self) -> set[str]:
        return {name.value for name in LeaseName if self.leases.of(name).is_held}


@pytest.fixture
async def database() -> AsyncIterator[str]:
    name = server().new_database()
    yield name
    server().drop(name)


@asynccontextmanager
async def _begun(nursery: trio.Nursery, *members: Member) -> AsyncIterator[None]:
    for one in members:
        await one.begin(nursery)
    try:
        yield
    finally:
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            for one in members:
                await one.table.close()


@pytest.fixture
async def both(database: str, nursery: trio.Nursery) -> AsyncIterator[tuple[Member, Member]]:
    a, b = Member("a", database), Member("b", database)
    async with _begun(nursery, a, b):
        yield a, b


async def test_nodes_that_begin_together_share_the_leases_by_name(both: tuple[Member, Member]) -> None:
    a, b = both
    of_a, of_b = await a.look(), await b.look()
    assert not of_a & of_b
    assert of_a | of_b == {name.value for name in LeaseName}
    assert abs(len(of_a) - len(of_b)) <= 1


async def test_a_node_takes_what_another_one_may_not(database: str, nursery: trio.Nursery) -> None:
    a, b = (
        Member("a", database, works=[LeaseName.RULES]),
        Member("b", database, works=[LeaseName.FOLDS, LeaseName.MAILS]),
    )
    async with _begun(nursery, a, b):
        assert (await a.look(), await b.look()) == ({"rules"}, {"folds", "mails"})


async def _all_held(member: Member) -> None:
    """The other node does not look for as long as a lease lasts."""
    await member.look()
    member.time += member.member._seconds
    await member.look()
    assert len(member.held()) == len(LeaseName)


async def test_a_node_that_joins_gets_its_share_and_then_none_moves(both: tuple[Member, Member]) -> None:
    a, b = both
    await _all_held(a)
    assert not await a.give()  # the nodes may be about to change
    moved: list[str] = []
    for _ in range(12):
        if given := await a.give(a.member._seconds):
            moved += given
            assert given <= await b.look()
            assert not given & await a.look()
        assert not await b.give(b.member._seconds)
    half = len(LeaseName) // 2
    assert (len(moved), len(a.held()), len(b.held())) == (half, len(LeaseName) - half, half)


async def test_a_lease_that_nobody_takes_comes_back_and_stays_for_a_while(both: tuple[Member, Member]) -> None:
    a, b = both
    a.member._seconds = 4
    await _all_held(a)
    await a.give()
    given = await a.give(a.member._seconds)
    assert given
    assert not given & await a.look()
    a.time += 2
    assert given <= await a.look()
    a.member._stays_until = 0.0
    another = await a.give(1)
    assert another
    assert another != given
    assert not b.held()


async def test_a_worker_stores_what_it_knows_before_another_node_begins(both: tuple[Member, Member]) -> None:
    a, b = both
    began = list[str]()
    life = Life(), Life()
    for member, of_it in zip(both, life, strict=True):
        lease = member.leases.of(LeaseName.FOLDS)

        async def run(member: Member = member, *, task_status: trio.TaskStatus[None]) -> None:
            number = await member.database.read(lambda tx: tx.messages.counter("noted"))
            began.append(f"{member.name} {number}")
            task_status.started()
            await trio.sleep_forever()

        async def save(member: Member = member, lease: Lease = lease) -> None:
            await member.database.write_own(lease, lambda tx: _noted(tx, int(began[-1].split()[1]) + 1))

        of_it.worker("counts", run, lease=lease, save=save, forget=partial(began.append, f"{member.name} ends"))
    async with life[0].running(), life[1].running():
        await a.look()
        await _wait_for("a 0", began)
        for giver, taker, expected in ((a, b, "b 1"), (b, a, "a 2")):
            await giver.member._hand_on(giver.leases.of(LeaseName.FOLDS))
            await taker.look()
            taker.time += taker.member._seconds  # the part of the other node is left to it for so long
            await taker.look()
            await _wait_for(expected, began)
    assert began[:5] == ["a 0", "a ends", "b 1", "b ends", "a 2"]


async def _wait_for(expected: str, began: list[str]) -> None:
    with trio.fail_after(10):
        while expected not in began:  # noqa: ASYNC110 - a worker of a Life begins by itself
            await trio.sleep(0.01)


def _noted(tx: Transaction, number: int = 1) -> None:
    tx.messages.set_counter("noted", number)


async def _replaced(both: tuple[Member, Member]) -> Member:
    """The first node, whose folds the second one has taken over without its knowledge."""
    a, b = both
    await a.look()
    assert a.leases.of(LeaseName.FOLDS).is_held
    await b.table.run(lambda leases: leases.free("a"))
    await b.look()
    b.time += b.member._seconds
    await b.look()
    assert b.leases.of(LeaseName.FOLDS).is_held
    return a


async def test_a_former_holder_stores_nothing(both: tuple[Member, Member]) -> None:
    former = await _replaced(both)
    with pytest.raises(StaleLeaseError):
        await former.database.write_own(former.leases.of(LeaseName.FOLDS), _noted)
    assert await former.database.read(lambda tx: tx.messages.counter("noted")) == 0


async def test_rows_that_only_the_holder_may_write_are_not_stored_by_a_former_one(both: tuple[Member, Member]) -> None:
    """As the Actions of rules, which are in the commit of the rules' states."""
    former = await _replaced(both)
    journal = Journal(former.database, head=Position(0))
    journal.append_message(DEVICE, Milliseconds(1), Milliseconds(1), 1, "{}")
    with pytest.raises(StaleLeaseError):
        await former.database.write_own(former.leases.of(LeaseName.FOLDS), _noted, with_rows=True)
    assert not await former.database.read(lambda tx: tx.messages.after(Position(0)))


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


async def test_nobody_is_buried_for_the_time_in_which_the_database_was_away(
    both: tuple[Member, Member], nursery: trio.Nursery
) -> None:
    """A node that sees it again first gives the others half a lease to renew theirs."""
    _, b = both
    found = await b.table.run(lambda leases: leases.nodes())
    over = [replace(one, seconds_left=-1.0) for one in found if one.node == "a"]
    member: Any = b.member
    now, is_away, looks, buried = 0.0, True, 0, list[str]()
    member._now = member._overdue._now = lambda: now
    member._seconds = 0.08  # it looks often

    async def run(_work: object) -> Sequence[LeaseRecord]:
        nonlocal looks
        looks += 1
        if is_away:
            raise StoreError("the database is away")
        return over

    async def bury(record: LeaseRecord, _database: Database) -> bool:
        buried.append(record.node)
        return False

    async def no_work(*_: object) -> None:
        """Leases of workers are not the matter."""

    b.table.run, member._bury, member._take_workers, member._give_away = run, bury, no_work, no_work  # type: ignore[assignment]
    nursery.start_soon(member.look_after_forever, b.database, b.leases, no_work)

    async def some_looks() -> None:
        until = looks + 3
        with trio.fail_after(30):
            while looks < until:  # noqa: ASYNC110 - it looks by itself
                await trio.sleep(0.001)

    await some_looks()
    is_away = False
    await some_looks()
    assert not buried
    now += 0.05
    await some_looks()
    assert "a" in buried


async def test_a_node_goes_by_the_clock_of_the_database(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_clock, "system_now_ms", lambda: 0)  # that of the machine is wrong
    member = Member("a", database)
    await member.member.join(Waiting())
    assert abs(member.member.clock.now_ms() - time.time() * 1000) < 5_000
    await member.table.close()


async def test_nodes_that_begin_at_the_same_time_know_each_others_version(database: str) -> None:
    """Each is seen with its version as soon as it is seen."""
    seen: list[str | None] = []
    member = Member("a", database)
    run = member.table.run

    async def looked(work: Callable[[LeaseStore], Any]) -> Any:
        seen.extend(one.version for one in await run(lambda leases: leases.nodes()))
        return await run(work)

    member.table.run = looked  # type: ignore[method-assign]
    await member.member.join(Waiting())
    assert seen
    assert set(seen) == {"1"}
    await member.table.close()


async def test_of_two_versions_that_begin_at_the_same_time_one_at_most_serves(database: str) -> None:
    """Neither has seen the other one before it joined."""
    members = [Member("a", database), Member("b", database, version="2")]
    refused: list[StoreError] = []
    checked = NodeMembership._join

    async def join(self: NodeMembership) -> Any:
        found = await checked(self)
        arrived.append(self)
        while len(arrived) < len(members):
            await trio.lowlevel.checkpoint()
        return found

    arrived: list[NodeMembership] = []

    async def begin(member: Member) -> None:
        member.member._join = partial(join, member.member)  # type: ignore[method-assign]
        try:
            await member.member.join(Waiting())
        except StoreError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(begin, member)
    assert refused
    assert "nodes of several versions do not serve together" in str(refused[0])
    for member in members:
        await member.table.close()


async def test_a_node_that_is_buried_stores_nothing_and_its_work_is_free(both: tuple[Member, Member]) -> None:
    a, b = both
    await a.look()
    await a.database.write(lambda tx: tx.device_connections.begin("a", 1, DEVICE, Sort.EXCLUSIVE))
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
