"""What works tell: heard in the order of the commits, before anybody who waits, and only what is durable."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from storage.database import Database
from storage.journal import Journal
from storage.keys import DeviceKey, Milliseconds, Position
from storage.sql import StoreDamagedError, StoreError
from storage.transaction import Transaction
from tests.fakes import BreakableConnection, BreakableEngine, HeldRunner, on_loop
from tests.properties import examples
from tests.stores import MigratedEngine
from tests.told import NOTED, TestKind, hear

pytestmark = pytest.mark.slow


def _position(tx: Transaction, name: str) -> tuple[str, int]:
    return name, tx.messages.consumer_position(name)


POSITION = TestKind(is_state=True, read=_position)
EACH_POSITION = TestKind(read=_position)


class ForgivingEngine(BreakableEngine):
    """An error that a work has set fails the commit of this work only."""

    def open(self, *, read_only: bool) -> BreakableConnection:
        return _ForgivingConnection(self, self.engine.open(read_only=read_only))


class _ForgivingConnection(BreakableConnection):
    def begin(self, *, write: bool) -> None:
        if write:
            self._engine.error = None
        super().begin(write=write)


@dataclass
class Store:
    database: Database
    engine: ForgivingEngine
    runner: HeldRunner
    heard: list[Any] = field(default_factory=list)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Store]:
    engine, runner = ForgivingEngine(MigratedEngine(folder / "store.sqlite")), HeldRunner()
    database = Database(engine, worker=on_loop(runner))
    await database.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        yield Store(database, engine, runner, hear(database))
        nursery.cancel_scope.cancel()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(tmp_path) as one:
        yield one


def telling(kind: TestKind, key: object, value: int = 0, fails: Callable[[], None] | None = None) -> Any:
    def work(tx: Transaction) -> int:
        if value:
            tx.messages.set_consumer_position(str(key), Position(value))
        tx.tell(kind, key)
        if fails is not None:
            fails()
        return value

    return work


def lookup() -> None:
    raise LookupError


async def together(store: Store, *works: Any) -> list[Exception | None]:
    """Run works in one group; return their errors."""
    errors: list[Exception | None] = [None] * len(works)

    async def write(at: int, work: Any) -> None:
        try:
            await store.database.write(work)
        except (StoreError, LookupError) as error:
            errors[at] = error

    store.runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.database.write, lambda _tx: None)
        await store.runner.holds_commit.wait()
        for at, work in enumerate(works):
            nursery.start_soon(write, at, work)
            await wait_all_tasks_blocked()
        store.runner.commits.set()
    return errors


async def test_a_change_is_heard_before_its_caller_goes_on(store: Store) -> None:
    await store.database.write(telling(NOTED, "a"))
    assert store.heard == ["a"]


async def test_a_change_is_heard_behind_the_rows_of_its_commit_and_before_their_senders_are_told(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        order: list[str] = []
        journal = Journal(store.database, head=Position(0))
        journal.on_commit(lambda group: order.append(f"{len(group.messages)} rows"))
        store.database.on_told(lambda told: order.extend(str(key) for _kind, key, _content in told))
        journal.append_message(DeviceKey(1), Milliseconds(1), Milliseconds(1), 1, "{}")
        journal.after_commit(lambda _error: order.append("acknowledged"))
        await store.database.write(telling(NOTED, "told"))
        assert order == ["1 rows", "told", "acknowledged"]


async def test_a_change_is_heard_when_its_task_was_cancelled(store: Store) -> None:
    store.runner.hold_commits()
    with trio.move_on_after(0):
        await store.database.write(telling(NOTED, "a"))
    store.runner.commits.set()
    await store.database.write(lambda _tx: None)
    assert store.heard == ["a"]


async def test_a_work_that_is_undone_tells_nothing(store: Store) -> None:
    errors = await together(store, telling(NOTED, "a"), telling(NOTED, "b", fails=lookup), telling(NOTED, "c"))
    assert [type(one) for one in errors] == [type(None), LookupError, type(None)]
    assert store.heard == ["a", "c"]


async def test_a_state_is_read_once_at_the_end_of_the_group_and_heard_where_it_was_told_first(store: Store) -> None:
    await together(
        store, telling(POSITION, "x", 1), telling(NOTED, "between"), telling(POSITION, "x", 2), telling(POSITION, "y")
    )
    assert store.heard == [("x", 2), "between", ("y", 0)]


async def test_each_event_is_heard(store: Store) -> None:
    await together(store, telling(NOTED, "a"), telling(NOTED, "a"))
    assert store.heard == ["a", "a"]


async def test_what_cannot_be_read_undoes_the_work_that_told_it_alone(store: Store) -> None:
    def unreadable(_tx: Transaction, _key: object) -> None:
        raise ZeroDivisionError

    kind = TestKind(read=unreadable)
    errors = await together(store, telling(NOTED, "a"), telling(kind, "b", 7), telling(NOTED, "c"))
    assert errors[0] is errors[2] is None
    assert "ZeroDivisionError" in str(errors[1])
    assert store.heard == ["a", "c"]
    assert await store.database.read(lambda tx: tx.messages.consumer_position("b")) == 0


async def test_a_hearer_that_fails_keeps_nobody_from_going_on(store: Store) -> None:
    store.database.on_told(lambda _told: lookup())
    with capture_logs() as logs:
        assert await store.database.write(telling(NOTED, "a", 3)) == 3
    assert [log["event"] for log in logs] == ["commit_callback_failed"]


async def test_a_read_has_nothing_to_tell(store: Store) -> None:
    with pytest.raises(RuntimeError, match="nothing to tell"):
        await store.database.read(lambda tx: tx.tell(NOTED, "a"))
    await store.database.write(lambda _tx: None)
    with pytest.raises(RuntimeError, match="nothing to tell"):
        await store.database.read(lambda tx: tx.tell(NOTED, "a"))
    assert store.heard == []


# Against a model

Outcome = Literal["kept", "raises", "damaged", "disk full"]


@dataclass(frozen=True)
class Work:
    """`tells`: the number of a kind and a name; each also adds one to the position of this name."""

    tells: tuple[tuple[int, str], ...]
    outcome: Outcome
    is_cancelled: bool


_KINDS = (POSITION, EACH_POSITION)
_works = st.builds(
    Work,
    tells=st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from("xyz")), max_size=4).map(tuple),
    outcome=st.sampled_from(("kept", "kept", "kept", "raises", "damaged")),
    is_cancelled=st.booleans(),
)
_groups = st.lists(st.tuples(st.lists(_works, min_size=1, max_size=5), st.integers(0, 9).map(lambda n: n == 0)))


@dataclass
class Model:
    """`before`: for each work of the last group that is kept, how much was heard at its commit."""

    positions: dict[str, int] = field(default_factory=dict)
    heard: list[tuple[str, int]] = field(default_factory=list)

    def commit(self, works: list[Work], *, disk_is_full: bool) -> None:
        if any(one.outcome == "damaged" for one in works):  # each alone
            for one in works:
                if one.outcome == "kept" and not disk_is_full:
                    self._commit([one])
        elif not disk_is_full:
            self._commit([one for one in works if one.outcome == "kept"])

    def _commit(self, works: list[Work]) -> None:
        tells = [tell for one in works for tell in one.tells]
        for _kind, name in tells:
            self.positions[name] = self.positions.get(name, 0) + 1
        seen: set[str] = set()
        for kind, name in tells:
            if kind == 0 and name in seen:
                continue
            if kind == 0:
                seen.add(name)
            self.heard.append((name, self.positions[name]))


async def _run_group(store: Store, model: Model, works: list[Work], *, disk_is_full: bool) -> None:
    def run(work: Work, tx: Transaction) -> None:
        for kind, name in work.tells:
            tx.messages.set_consumer_position(name, Position(tx.messages.consumer_position(name) + 1))
            tx.tell(_KINDS[kind], name)
        if work.outcome == "raises":
            raise LookupError
        if disk_is_full:
            store.engine.error = StoreError("disk I/O error")
        if work.outcome == "damaged":
            store.engine.error = StoreDamagedError("a page")

    seen_by: list[int] = []
    scopes: list[trio.CancelScope] = []

    async def write(work: Work) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            with suppress(StoreError, LookupError):
                await store.database.write(partial(run, work))
            seen_by.append(len(store.heard))

    store.runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.database.write, lambda _tx: None)
        await store.runner.holds_commit.wait()
        for work in works:
            nursery.start_soon(write, work)
            await wait_all_tasks_blocked()
        for work, scope in zip(works, tuple(scopes), strict=True):
            if work.is_cancelled:
                scope.cancel()
        await wait_all_tasks_blocked()
        seen_by.clear()
        model.commit(works, disk_is_full=disk_is_full)
        store.runner.commits.set()
    await store.database.write(lambda _tx: None)  # also when all were cancelled
    assert store.heard == model.heard
    assert set(seen_by) <= {len(model.heard)}  # before anybody went on


@settings(max_examples=examples(60))
@given(groups=_groups)
def test_the_same_is_heard_as_in_a_model(groups: list[tuple[list[Work], bool]]) -> None:
    async def play() -> None:
        with TemporaryDirectory() as folder:
            async with opened(Path(folder)) as store:
                model = Model()
                for works, disk_is_full in groups:
                    await _run_group(store, model, works, disk_is_full=disk_is_full)
                for name, position in model.positions.items():
                    assert await store.database.read(partial(_position, name=name)) == (name, position)

    trio.run(play)
