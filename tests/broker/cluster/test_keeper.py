"""The lease of the whole daemon, as two daemons keep it on one store."""

from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.fenced import FencedError, ReplacedError
from broker.cluster.keeper import Keeper
from broker.cluster.leases import Lease, LeaseName, Leases, NodeStatus
from broker.life import Life
from storage.engines.port import StoreEngine
from storage.engines.sqlite import SqliteEngine
from storage.lease_table import LeaseTable
from storage.leases import LeaseRecord
from storage.sql import StoreAwayError, StoreError, StoreForkedError
from tests.fakes import BreakableConnection, BreakableEngine, on_loop

pytestmark = pytest.mark.slow


SECONDS = 8.0
NewKeeper = Callable[..., Keeper]


@pytest.fixture
async def new_keeper(engine: SqliteEngine) -> AsyncIterator[NewKeeper]:
    """Makes the keeper of a daemon: `node`, and the engine if it is another one."""
    engine.open(read_only=False).close()  # makes the store
    tables = list[LeaseTable]()

    def new(node: str, of: StoreEngine = engine, *, seconds: float = SECONDS) -> Keeper:
        tables.append(LeaseTable(of, worker=on_loop()))
        return Keeper(tables[-1], node, f"process of {node}", seconds, now=trio.current_time)

    yield new
    for table in tables:
        await table.close()


class Told:
    """What a daemon is told that waits."""

    def __init__(self) -> None:
        self.holders: list[str] = []
        self.errors: list[str] = []

    def stands_by(self, holder: LeaseRecord) -> None:
        self.holders.append(holder.node)

    def is_away(self, error: StoreError) -> None:
        self.errors.append(str(error))

    def answers(self) -> None:
        self.errors.append("answers")


async def test_the_second_daemon_serves_when_the_first_has_given_back(
    autojump_clock: MockClock, new_keeper: NewKeeper
) -> None:
    first, second, told = new_keeper("a"), new_keeper("b"), Told()
    await first.take(Told())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.take, told)
        with trio.move_on_after(SECONDS / 2):
            await first.keep_forever()
        assert (told.holders, second.held) == (["a"], None)
        await first.give_back()
        asked = trio.current_time()
    assert second.held is not None
    assert trio.current_time() - asked <= 0.5


async def test_a_daemon_that_finds_another_one_serving_ends_with_a_sentence(
    autojump_clock: MockClock, new_keeper: NewKeeper
) -> None:
    first, second = new_keeper("a", seconds=0), new_keeper("b")
    await first.take(Told())
    await second.take(Told())  # the lease of the first is over
    with pytest.raises(FencedError, match=r"node b serves the store now: .* Started again, it stands by") as caught:
        await first.keep_forever()
    assert not isinstance(caught.value, ReplacedError)
    assert not first.is_ahead()


@pytest.mark.both_engines
async def test_a_lease_that_is_given_back_while_it_is_renewed_is_no_failure(
    autojump_clock: MockClock, new_keeper: NewKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, asked, answer = new_keeper("a"), trio.Event(), trio.Event()
    assert await keeper.try_to_take() is not None
    renew = keeper._table.renew

    async def slow(*of: Any) -> bool:
        asked.set()
        await answer.wait()
        return await renew(*of)

    monkeypatch.setattr(keeper._table, "renew", slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.keep_forever)
        await asked.wait()
        await keeper.give_back()
        answer.set()
    assert keeper.held is None


async def test_of_two_daemons_with_one_name_the_later_serves(autojump_clock: MockClock, new_keeper: NewKeeper) -> None:
    first, second = new_keeper("a"), new_keeper("a")
    await first.take(Told())
    await second.take(Told())
    with pytest.raises(ReplacedError, match=r"name of this node, a, .* \(cluster\.node\)"):
        await first.keep_forever()


@pytest.mark.both_engines
@pytest.mark.parametrize("node", ["a", "b"])
async def test_a_daemon_whose_lease_the_database_has_lost_says_so_and_may_be_started_again(
    autojump_clock: MockClock, new_keeper: NewKeeper, engine: SqliteEngine, node: str
) -> None:
    """As after a failover to an asynchronous standby, which has the row of before: status 6 would be for ever."""
    former, keeper = new_keeper(node), new_keeper("a")
    await former.take(Told())
    await former.give_back()
    await keeper.take(Told())
    with closing(engine.open(read_only=False)) as connection:
        connection.execute("UPDATE lease SET epoch = 1, node = :node", {"node": node})
    with pytest.raises(
        FencedError, match=r"the database has lost the lease of this daemon, .* Started again"
    ) as caught:
        await keeper.keep_forever()
    assert not isinstance(caught.value, ReplacedError)


async def test_a_daemon_whose_commits_the_database_has_lost_ends_when_it_renews_its_lease(
    autojump_clock: MockClock, new_keeper: NewKeeper, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = new_keeper("a", broken := BreakableEngine(engine))
    await keeper.take(Told())
    fail_while_broken(broken, monkeypatch)
    broken.error = StoreForkedError("the server has lost 3 commits")
    with pytest.raises(FencedError, match="the server has lost 3 commits"):
        await keeper.keep_forever()
    assert not keeper.is_ahead()


class StoreClock:
    """The clock of the store, as far as it is ahead of the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_ms = 0
        now_ms = BreakableConnection.now_ms

        def jumping(connection: BreakableConnection) -> str:
            return f"({now_ms(connection)} + {self.ahead_ms})"

        monkeypatch.setattr(BreakableConnection, "now_ms", jumping)


HOUR_MS = 3_600_000


@pytest.mark.both_engines
async def test_a_clock_of_the_store_that_jumps_forwards_takes_the_lease_from_nobody(
    autojump_clock: MockClock, new_keeper: NewKeeper, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoreClock(monkeypatch)
    first, second = (new_keeper(name, BreakableEngine(engine)) for name in "ab")
    await first.take(Told())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.keep_forever)
        nursery.start_soon(second.take, Told())
        for _ in range(3):
            await trio.sleep(SECONDS + 1)  # between two renewals
            clock.ahead_ms += HOUR_MS
        await trio.sleep(SECONDS)
        assert (first.is_ahead(), second.held) == (True, None)
        nursery.cancel_scope.cancel()


@pytest.mark.both_engines
async def test_a_clock_of_the_store_that_jumps_back_keeps_the_lease_of_a_node_that_is_gone_no_longer(
    autojump_clock: MockClock, new_keeper: NewKeeper, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoreClock(monkeypatch)
    first, second, later = (new_keeper(name, BreakableEngine(engine)) for name in "abc")
    await first.take(Told())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.take, Told())
        await trio.sleep(1)
        clock.ahead_ms -= HOUR_MS
        await trio.sleep(SECONDS - 2)
        assert second.held is None
        await trio.sleep(2)
        assert second.held is not None
    clock.ahead_ms -= HOUR_MS  # and for one that has not seen the lease before
    with trio.fail_after(61):
        await later.take(Told())


def fail_while_broken(broken: BreakableEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = BreakableConnection.execute

    def failing(self: BreakableConnection, *arguments: object) -> object:
        if broken.error is not None:
            raise broken.error
        return execute(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(BreakableConnection, "execute", failing)


async def test_a_daemon_that_stands_by_outlives_a_database_that_is_away(
    autojump_clock: MockClock, new_keeper: NewKeeper, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, told = BreakableEngine(engine), Told()
    first, second = new_keeper("a"), new_keeper("b", broken)
    fail_while_broken(broken, monkeypatch)
    broken.error = StoreError("the database is away")
    with pytest.raises(StoreError, match="away"):  # nothing is known of the store yet
        await second.take(Told())
    broken.error = None
    await first.take(Told())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.take, told)
        await trio.sleep(1)
        broken.error = StoreError("the database is away")
        await trio.sleep(60)
        assert told.holders == ["a"]
        assert told.errors[-60:] == ["the database is away"] * 60
        await first.give_back()
        broken.error = None
    assert second.held is not None


async def test_a_database_that_is_away_at_the_start_is_waited_for(
    autojump_clock: MockClock, new_keeper: NewKeeper, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, told = BreakableEngine(engine), Told()
    keeper = new_keeper("a", broken)
    fail_while_broken(broken, monkeypatch)
    broken.error = StoreAwayError("the database is away")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.take, told)
        await trio.sleep(3600)
        assert keeper.held is None
        broken.error = None
    assert set(told.errors) == {"the database is away"}
    assert keeper.held is not None


async def test_nothing_is_sent_out_when_the_lease_could_not_be_renewed_for_long(
    autojump_clock: MockClock, new_keeper: NewKeeper, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = new_keeper("a", broken := BreakableEngine(engine))
    await keeper.take(Told())
    lease = Leases(keeper).of(LeaseName.MAILS)
    assert lease.may_act()
    fail_while_broken(broken, monkeypatch)
    broken.error, sent = StoreError("the database is away"), list[float]()

    async def send() -> None:
        await lease.wait_may_act()
        sent.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.keep_forever)
        await trio.sleep(SECONDS - 2)
        assert not lease.may_act()
        nursery.start_soon(send)
        await trio.sleep(3 * SECONDS)
        assert sent == []
        broken.error = None
        back = trio.current_time()
        await trio.sleep(SECONDS / 4)
        assert [at - back <= SECONDS / 4 for at in sent] == [True]
        nursery.cancel_scope.cancel()


async def test_the_status_of_a_node_has_its_lease_and_who_stands_by(
    autojump_clock: MockClock, engine: SqliteEngine
) -> None:
    standbys: tuple[str, ...] = ()
    engine.open(read_only=False).close()
    table = LeaseTable(engine, look_around=lambda _connection: (standbys, 7.5), worker=on_loop())
    keeper = Keeper(table, "a", "process of a", SECONDS, now=trio.current_time)
    leases = Leases(keeper)
    assert leases.status() == NodeStatus("a", 0, 0.0, 0.0, ())
    await keeper.take(Told())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.keep_forever)
        standbys = ("b", "c")
        await trio.sleep(SECONDS * 10.125)
        assert leases.status() == NodeStatus("a", 1, SECONDS * 7 / 8, 0.0, ("b", "c"), 7.5)
        nursery.cancel_scope.cancel()
    await keeper.give_back()
    assert keeper.status().lease_epoch == 0
    await table.close()
    assert Leases().status() is None


async def test_a_worker_runs_while_its_lease_is_held() -> None:
    lease, other, life, done = Lease(LeaseName.RULES, is_held=False), Lease(LeaseName.FOLDS), Life(), list[str]()

    def worker(name: str) -> None:
        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            done.append(f"{name} began")
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                done.append(f"{name} ended")

        async def save() -> None:
            await trio.lowlevel.checkpoint()
            done.append(f"{name} saved")

        life.worker(name, run, save=save, lease=lease if name == "rules" else other)

    worker("rules")
    worker("folds")
    async with life.running():
        assert done == ["folds began"]
        lease.gain(None)
        await wait_all_tasks_blocked()
        lease.lose()
        await wait_all_tasks_blocked()
        lease.gain(None)
        await wait_all_tasks_blocked()
        lease.lose()
        await wait_all_tasks_blocked()
        assert done[1:] == ["rules began", "rules ended"] * 2
        done.clear()
    assert done == ["folds ended", "folds saved"]  # another node has the state of the rules
