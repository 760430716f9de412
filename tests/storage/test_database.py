"""One writer with group commit: what commits together, what fails alone, and what callers are told."""

import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import cast

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from storage import group_writer
from storage import journal as journal_module
from storage import messages as messages_module
from storage.commit_delay import CommitDelay
from storage.commit_group import CommitGroup
from storage.database import Database
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.journal import Journal
from storage.keys import DeviceKey, Milliseconds, Position
from storage.log_index import LogIndex
from storage.message_searches import Range
from storage.readers import _PATIENCE_SECONDS, _QUICK_READERS
from storage.records import MessageRow
from storage.sql import EncodedRows, StoreDamagedError, StoreError
from storage.transaction import Transaction
from tests.fakes import BreakableEngine, HeldRunner, on_loop

DEVICE = DeviceKey(1)


@asynccontextmanager
async def running(database: Database) -> AsyncIterator[Database]:
    await database.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        yield database
        nursery.cancel_scope.cancel()


@pytest.fixture
def runner() -> HeldRunner:
    return HeldRunner()


@pytest.fixture
def breakable(engine: SqliteEngine) -> BreakableEngine:
    return BreakableEngine(engine)


@pytest.fixture
async def database(breakable: BreakableEngine, runner: HeldRunner) -> AsyncIterator[Database]:
    async with running(Database(breakable, worker=on_loop(runner))) as opened:
        yield opened


@pytest.fixture
async def journal(database: Database) -> Journal:
    return Journal(database, head=Position(0))


class LimitedEngine:
    """Opens at most `most` connections, and remembers them."""

    def __init__(self, engine: SqliteEngine, most: int) -> None:
        self._engine = engine
        self._left = most
        self.opened: list[SqliteConnection] = []

    def migrate(self) -> None:
        self._engine.migrate()

    def open(self, *, read_only: bool) -> SqliteConnection:
        if not self._left:
            raise StoreError("too many open files")
        self._left -= 1
        connection = self._engine.open(read_only=read_only)
        self.opened.append(connection)
        return connection


def put(name: str, value: int) -> Callable[[Transaction], int]:
    def work(tx: Transaction) -> int:
        tx.messages.set_consumer_position(name, Position(value))
        return value

    return work


def get(name: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.messages.consumer_position(name)


def rows_in(table: str) -> Callable[[Transaction], int]:
    def work(tx: Transaction) -> int:
        row = tx.connection.execute(f"SELECT count(*) AS n FROM {table}").one()  # noqa: S608
        assert row is not None
        return int(row["n"])

    return work


def counter(name: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.messages.counter(name)


def fail_after_writing(tx: Transaction) -> None:
    tx.messages.set_consumer_position("bad", Position(1))
    raise LookupError("no")


def append(journal: Journal, device: DeviceKey = DEVICE, data: str = "{}") -> int:
    return journal.append_message(device, Milliseconds(1), Milliseconds(1), 1, data)


# Writes


async def test_a_write_returns_what_its_work_returned_once_it_is_stored(database: Database) -> None:
    assert await database.write(put("a", 7)) == 7
    assert await database.read(get("a")) == 7


async def test_writes_that_wait_at_the_same_time_commit_together(database: Database, runner: HeldRunner) -> None:
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.write, put("first", 1))
        await wait_all_tasks_blocked()
        for number in range(20):
            nursery.start_soon(database.write, put(f"n{number}", number))
        await wait_all_tasks_blocked()
        assert database.statistics().waiting_writes == 20
        runner.commits.set()
    assert database.statistics().commits == 2
    assert await database.read(get("n19")) == 19


async def test_rows_of_the_log_are_in_the_same_commit_as_writes(database: Database, journal: Journal) -> None:
    append(journal)
    await database.write(put("a", 1))
    assert database.statistics().commits == 1
    assert database.statistics().rows == 1


@pytest.mark.both_engines
async def test_a_failing_work_is_undone_alone_and_its_error_reaches_its_caller(
    database: Database, journal: Journal, runner: HeldRunner
) -> None:
    errors: list[Exception] = []

    async def write_badly() -> None:
        try:
            await database.write(fail_after_writing)
        except LookupError as error:
            errors.append(error)

    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.write, put("before", 1))
        nursery.start_soon(write_badly)
        nursery.start_soon(database.write, put("after", 1))
        append(journal)
        await wait_all_tasks_blocked()
        runner.commits.set()
    assert [str(error) for error in errors] == ["no"]
    assert [await database.read(get(name)) for name in ("before", "bad", "after")] == [1, 0, 1]
    assert await database.read(rows_in("message")) == 1
    assert database.statistics().failures == 0


@pytest.mark.both_engines
async def test_a_work_that_violates_the_schema_fails_alone(database: Database) -> None:
    def violate(tx: Transaction) -> None:
        tx.connection.execute("INSERT INTO consumer (name, position) VALUES ('x', NULL)")

    with pytest.raises(StoreError, match=r"(?i)not.?null"):
        await database.write(violate)
    assert await database.write(put("a", 1)) == 1


async def test_a_write_whose_caller_was_cancelled_is_still_committed(database: Database, runner: HeldRunner) -> None:
    runner.hold_commits()
    with trio.move_on_after(0):
        await database.write(put("a", 1))
    runner.commits.set()
    await database.write(put("b", 1))
    assert await database.read(get("a")) == 1


# A store that fails


@pytest.mark.both_engines
@pytest.mark.parametrize("error", [StoreError("disk I/O error"), RuntimeError("a bug of ours")])
async def test_a_commit_that_fails_fails_every_caller_and_stores_nothing(
    database: Database, journal: Journal, breakable: BreakableEngine, runner: HeldRunner, error: Exception
) -> None:
    told: list[StoreError | None] = []
    failed: list[str] = []

    async def expect_failure(wait: Callable[[], object]) -> None:
        with pytest.raises(StoreError, match=str(error)):
            await wait()  # type: ignore[misc]
        failed.append("")

    runner.hold_commits()
    breakable.error = error
    async with trio.open_nursery() as nursery:
        append(journal)
        journal.append_action(
            device=DeviceKey(1), source=DeviceKey(2), ts=Milliseconds(1), cts=Milliseconds(1), mv=1, data="{}"
        )
        journal.append_failed(DeviceKey(1), Milliseconds(1), "reason", "{}")
        journal.after_commit(told.append)
        nursery.start_soon(expect_failure, journal.wait_committed)
        nursery.start_soon(expect_failure, partial(database.write, put("a", 1)))
        nursery.start_soon(expect_failure, partial(database.write, put("b", 1)))
        await wait_all_tasks_blocked()
        runner.commits.set()
    assert len(failed) == 3
    assert [type(one) for one in told] == [StoreError]
    for table in ("message", "action", "failed_message", "consumer"):
        assert await database.read(rows_in(table)) == 0
    assert database.statistics().commits == 0

    breakable.error = None
    assert append(journal) == 4  # assigned positions are not used again
    await journal.wait_committed()
    assert await database.write(put("a", 2)) == 2
    assert await database.read(rows_in("message")) == 1


async def test_nothing_is_announced_when_the_commit_fails(
    database: Database, journal: Journal, breakable: BreakableEngine
) -> None:
    announced: list[CommitGroup] = []
    database.on_commit(announced.append)
    breakable.error = StoreError("no")
    append(journal)
    with pytest.raises(StoreError):
        await journal.wait_committed()
    assert announced == []


@pytest.mark.sqlite("its full disk is a number of pages")
async def test_a_full_disk_fails_what_did_not_fit_and_nothing_else(database: Database, journal: Journal) -> None:
    def limit_pages(tx: Transaction, *, more: int) -> None:
        used = tx.connection.execute("PRAGMA page_count").one()
        assert used is not None
        tx.connection.execute(f"PRAGMA max_page_count = {used['page_count'] + more}").one()

    await database.write(partial(limit_pages, more=2))
    append(journal, data="x" * 100_000)
    with pytest.raises(StoreError, match="full"):
        await journal.wait_committed()
    assert await database.read(rows_in("message")) == 0
    append(journal, data="{}")
    await journal.wait_committed()
    await database.write(partial(limit_pages, more=1000))
    append(journal, data="x" * 100_000)
    await journal.wait_committed()
    assert await database.read(rows_in("message")) == 2


@pytest.mark.sqlite("PRAGMA query_only")
async def test_a_store_that_became_read_only_refuses_rows(database: Database, journal: Journal) -> None:
    await database.write(lambda tx: tx.connection.execute("PRAGMA query_only = ON").one())
    append(journal)
    with pytest.raises(StoreError, match=r"read-?only"):
        await journal.wait_committed()
    with pytest.raises(StoreError, match=r"read-?only"):
        await database.write(put("a", 1))
    assert await database.read(rows_in("message")) == 0


async def test_a_row_that_cannot_be_stored_does_not_end_the_writer(database: Database, journal: Journal) -> None:
    append(journal, data="\ud800")  # a lone surrogate has no UTF-8
    with pytest.raises(StoreError):
        await journal.wait_committed()
    append(journal)
    await journal.wait_committed()


@pytest.mark.parametrize("error", [TypeError("no JSON"), MemoryError(), OverflowError("too large"), ValueError("no")])
@pytest.mark.sqlite("replaces SQLite's encoding of rows")
async def test_an_error_while_rows_are_encoded_fails_their_senders_and_not_the_writer(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_connection: SqliteConnection, _rows: object) -> EncodedRows:
        raise error

    database = Database(engine)
    async with running(database):
        journal = Journal(database, head=Position(0))
        with monkeypatch.context() as patch:
            patch.setattr(SqliteConnection, "encoded", fail)
            append(journal)
            with pytest.raises(StoreError, match=type(error).__name__):
                await journal.wait_committed()
        append(journal)
        await journal.wait_committed()
        assert await database.read(rows_in("message")) == 1


# Handlers and callbacks of a commit


async def test_handlers_hear_of_a_commit_before_its_callers(database: Database, journal: Journal) -> None:
    heard: list[str] = []
    database.on_commit(lambda group: heard.append(f"committed {len(group.messages)}"))
    append(journal)
    journal.after_commit(lambda error: heard.append(f"told {error}"))
    await journal.wait_committed()
    heard.append("waiter")
    assert heard == ["committed 1", "told None", "waiter"]


async def test_the_encoded_rows_are_given_up_with_the_commit(database: Database, journal: Journal) -> None:
    held: list[object] = []
    database.on_commit(lambda group: held.append(group.encoded))
    append(journal)
    await journal.wait_committed()
    assert held == [None]


async def test_a_group_is_on_disk_when_handlers_hear_of_it(
    database: Database, journal: Journal, engine: SqliteEngine
) -> None:
    seen: list[int] = []
    connection = engine.open(read_only=True)

    def look(_group: CommitGroup) -> None:
        row = connection.execute("SELECT count(*) AS n FROM message").one()
        assert row is not None
        seen.append(row["n"])

    database.on_commit(look)
    append(journal)
    await journal.wait_committed()
    connection.close()
    assert seen == [1]


async def test_callbacks_are_called_in_the_order_of_their_registration(database: Database, journal: Journal) -> None:
    heard: list[int] = []
    for number in range(5):
        append(journal)
        journal.after_commit(lambda _error, number=number: heard.append(number))  # type: ignore[misc]
    await journal.wait_committed()
    assert heard == [0, 1, 2, 3, 4]


async def test_a_callback_that_raises_harms_neither_the_others_nor_the_writer(
    database: Database, journal: Journal
) -> None:
    heard: list[StoreError | None] = []

    def fail(_argument: object) -> None:
        raise ZeroDivisionError

    database.on_commit(fail)
    append(journal)
    journal.after_commit(fail)
    journal.after_commit(heard.append)
    await journal.wait_committed()
    assert heard == [None]
    assert await database.write(put("a", 1)) == 1


async def test_after_commit_without_anything_appended_is_called_too(journal: Journal) -> None:
    heard: list[StoreError | None] = []
    journal.after_commit(heard.append)
    await journal.wait_committed()
    assert heard == [None]


# Reads


async def test_a_read_sees_one_state_of_the_store_and_does_not_hold_up_writes(engine: SqliteEngine) -> None:
    async with running(Database(engine)) as database:
        # An engine may learn from the first read of a kind that it has several statements.
        await database.read(lambda tx: [tx.messages.consumer_position("a") for _ in range(2)])
        reading, go_on = threading.Event(), threading.Event()
        seen: list[int] = []

        def read_slowly(tx: Transaction) -> None:
            seen.append(tx.messages.consumer_position("a"))
            reading.set()
            assert go_on.wait(10)
            seen.append(tx.messages.consumer_position("a"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(database.read, read_slowly)
            await trio.to_thread.run_sync(reading.wait)
            await database.write(put("a", 1))
            assert await database.read(get("a")) == 1
            go_on.set()
        assert seen == [0, 0]


async def test_many_reads_share_the_readers(database: Database) -> None:
    results: list[int] = []

    async def read() -> None:
        results.append(await database.read(get("a")))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(read)
    assert results == [0] * 50


async def test_a_read_goes_beside_long_ones_and_waits_for_short_ones(engine: SqliteEngine) -> None:
    may_end, most, running_now = threading.Event(), 0, 0

    def long(_tx: Transaction) -> None:
        assert may_end.wait(10)

    async with running(Database(engine)) as database, trio.open_nursery() as nursery:
        for _ in range(_QUICK_READERS):
            nursery.start_soon(database.read, long)
        assert await database.read(lambda _: 7) == 7
        may_end.set()

    def short(_tx: Transaction) -> None:
        nonlocal most, running_now
        with lock:
            running_now += 1
            most = max(most, running_now)
        with lock:
            running_now -= 1

    lock = threading.Lock()
    async with running(Database(engine)) as database, trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(database.read, short)
    assert most <= _QUICK_READERS


async def test_long_reads_of_one_user_leave_half_of_the_readers_and_that_of_look_ups_to_others(
    engine: SqliteEngine,
) -> None:
    asker: ContextVar[str | None] = ContextVar("asker", default=None)
    may_end, begun, begins = threading.Event(), Counter[str](), threading.Semaphore(0)

    def long(_tx: Transaction) -> None:
        begun[str(asker.get())] += 1
        begins.release()
        assert may_end.wait(10)

    async with running(Database(engine, asked_by=asker.get)) as database, trio.open_nursery() as nursery:
        for user in ("eve", "mallory"):
            asker.set(user)
            for _ in range(10):
                nursery.start_soon(database.read, long)
            asker.set("ada")
            with trio.fail_after(5):
                begin = trio.current_time()
                if user == "eve":  # two readers are free
                    assert await database.read(lambda _: 7) == 7
                    assert trio.current_time() - begin < _PATIENCE_SECONDS
                assert await database.look_up(lambda _: 7) == 7
        for _ in range(4):
            assert await trio.to_thread.run_sync(begins.acquire, True, 10)
        await wait_all_tasks_blocked()
        assert database.statistics().waiting_reads == 16
        assert begun == {"eve": 2, "mallory": 2}
        nursery.start_soon(database.read, lambda _: begun.update(ada=1))
        await wait_all_tasks_blocked()
        may_end.set()
    assert begun == {"eve": 10, "mallory": 10, "ada": 1}


async def test_a_closed_store_has_no_threads_of_readers(engine: SqliteEngine) -> None:
    def readers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "reader"}

    before = readers()
    async with running(Database(engine)) as database:
        await database.read(lambda _: None)
        begun = readers() - before
        assert begun
    with pytest.raises(StoreError):
        await database.read(lambda _: None)
    for thread in begun:
        thread.join(10)
    assert readers() <= before  # readers of other tests may end


async def test_a_read_cannot_write(database: Database) -> None:
    with pytest.raises(StoreError, match=r"read-?only"):
        await database.read(put("a", 1))


async def test_a_read_that_raises_returns_its_connection_to_the_pool(database: Database) -> None:
    for _ in range(10):
        with pytest.raises(IndexError):
            await database.read(lambda tx: [1, 2][tx.messages.head() + 5])
    assert await database.read(get("a")) == 0


# Opening and closing


async def test_a_store_that_is_not_open_raises(engine: SqliteEngine) -> None:
    with pytest.raises(StoreError, match="not open"):
        await Database(engine, worker=on_loop()).read(get("a"))


async def test_a_cancelled_writer_commits_what_was_accepted_and_then_refuses(engine: SqliteEngine) -> None:
    runner = HeldRunner()
    database = Database(engine, worker=on_loop(runner))
    journal = Journal(database, head=Position(0))
    told: list[StoreError | None] = []
    async with running(database):
        runner.hold_commits()
        append(journal)
        await wait_all_tasks_blocked()  # the first row is being committed
        append(journal)
        journal.after_commit(told.append)
        runner.commits.set()
    assert told == [None]

    with pytest.raises(StoreError, match="closed"):
        await database.write(put("a", 1))
    with pytest.raises(StoreError, match="not open"):
        await database.read(get("a"))
    append(journal)
    with pytest.raises(StoreError, match="closed"):
        await journal.wait_committed()
    journal.after_commit(told.append)
    assert [type(error) for error in told] == [type(None), StoreError]

    async with running(Database(engine, worker=on_loop())) as again:
        assert await again.read(rows_in("message")) == 2


async def test_what_is_accepted_during_the_last_commit_is_committed_too(engine: SqliteEngine) -> None:
    database = Database(engine, worker=on_loop())
    journal = Journal(database, head=Position(0))

    def append_another(group: CommitGroup) -> None:
        if group.head < 3:
            append(journal)

    async with running(database):
        database.on_commit(append_another)
        append(journal)
    assert journal.head == 3
    async with running(Database(engine, worker=on_loop())) as again:
        assert await again.read(lambda tx: tx.messages.head()) == 3
        assert await again.read(rows_in("message")) == 3


# The journal


class AlwaysWait(CommitDelay):
    """Waits for three rows for as long as it takes."""

    def until(self, rows: int, now: float) -> float | None:
        return None if self.is_enough(rows) else now + 1_000

    def is_enough(self, rows: int) -> bool:
        return rows >= 3


async def test_a_commit_that_waits_begins_when_enough_rows_came(
    database: Database, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_delay", AlwaysWait())
    append(journal)
    await wait_all_tasks_blocked()
    append(journal)
    await wait_all_tasks_blocked()
    assert database.statistics().waiting_rows == 2
    append(journal)
    await journal.wait_committed()
    assert (database.statistics().commits, database.statistics().rows) == (1, 3)


async def test_a_commit_that_waits_is_made_when_the_writer_stops(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(engine, worker=on_loop())
    monkeypatch.setattr(database, "_delay", AlwaysWait())
    journal = Journal(database, head=Position(0))
    async with running(database):
        append(journal)
        await wait_all_tasks_blocked()
    async with running(Database(engine, worker=on_loop())) as again:
        assert await again.read(rows_in("message")) == 1


@pytest.mark.sqlite("listens to the statements of SQLite")
async def test_messages_alone_are_one_statement(engine: SqliteEngine) -> None:
    statements: list[str] = []
    database = Database(engine, worker=on_loop())
    journal = Journal(database, head=Position(0))
    async with running(database):
        append(journal)
        await journal.wait_committed()
        await database.write(
            lambda tx: cast("SqliteConnection", tx.connection).driver.set_trace_callback(statements.append)
        )
        statements.clear()
        append(journal)
        append(journal)
        await journal.wait_committed()
        assert [statement.split()[0] for statement in statements] == ["INSERT"]
        await database.write(lambda tx: cast("SqliteConnection", tx.connection).driver.set_trace_callback(None))
        assert await database.read(lambda tx: tx.messages.head()) == 3


async def test_positions_of_rows_that_were_stored_alone_and_deleted_are_not_used_again(engine: SqliteEngine) -> None:
    """Rows alone do not save the highest position: whatever may delete them saves it first."""
    database = Database(engine, worker=on_loop())
    journal = Journal(database, head=Position(0))
    async with running(database):
        for _ in range(3):
            append(journal)
        await journal.wait_committed()
    database = Database(engine, worker=on_loop())
    async with running(database):  # another process, which has not appended itself
        await database.write(lambda tx: tx.connection.execute("DELETE FROM message"))
        assert await database.read(lambda tx: tx.messages.head()) == 3
    database = Database(engine, worker=on_loop())
    journal = Journal(database, head=Position(3))
    async with running(database):
        append(journal)
        await journal.wait_committed()
        with pytest.raises(LookupError):
            await database.write(fail_after_writing)
        append(journal)
        await database.write(lambda tx: tx.connection.execute("DELETE FROM message"))
        assert await database.read(lambda tx: tx.messages.head()) == 5


@pytest.mark.both_engines
async def test_the_highest_position_is_saved_again_after_a_commit_that_failed(
    database: Database, journal: Journal, breakable: BreakableEngine
) -> None:
    append(journal)
    await journal.wait_committed()
    breakable.error = StoreError("no")
    with pytest.raises(StoreError):
        await database.write(put("a", 1))
    breakable.error = None
    await database.write(lambda tx: tx.connection.execute("DELETE FROM message"))
    assert await database.read(lambda tx: tx.messages.head()) == 1


@pytest.mark.both_engines
async def test_all_kinds_of_rows_share_one_sequence_of_positions(database: Database, journal: Journal) -> None:
    positions = [
        append(journal),
        journal.append_action(
            device=DeviceKey(1), source=DeviceKey(2), ts=Milliseconds(1), cts=Milliseconds(1), mv=1, data="{}"
        ),
        journal.append_failed(DeviceKey(1), Milliseconds(1), "why", "{}"),
        append(journal),
    ]
    assert positions == [1, 2, 3, 4]
    await journal.wait_committed()
    assert await database.read(lambda tx: tx.messages.after(Position(0), limit=9)) == [
        MessageRow(Position(1), DeviceKey(1), Milliseconds(1), Milliseconds(1), 1, "{}"),
        MessageRow(Position(4), DeviceKey(1), Milliseconds(1), Milliseconds(1), 1, "{}"),
    ]
    assert await database.read(lambda tx: tx.messages.head()) == 4


@pytest.mark.both_engines
async def test_the_head_stays_when_rows_are_deleted_and_after_a_restart(engine: SqliteEngine) -> None:
    async with running(Database(engine, worker=on_loop())) as database:
        journal = Journal(database, head=Position(0))
        for _ in range(3):
            append(journal)
        await journal.wait_committed()
        await database.write(lambda tx: tx.connection.execute("DELETE FROM message"))
    async with running(Database(engine, worker=on_loop())) as database:
        assert await database.read(lambda tx: tx.messages.head()) == 3


async def test_texts_are_read_back_unchanged(database: Database, journal: Journal) -> None:
    texts = ['{"a":"äß€😀"}', '{"a":"\\u0000\\n\\""}', "'; DROP TABLE message; --", "[1,2.50,1e400]", ""]
    for text in texts:
        append(journal, data=text)
    await journal.wait_committed()
    assert [row.data for row in await database.read(lambda tx: tx.messages.after(Position(0), limit=9))] == texts


async def test_there_is_no_room_while_too_many_rows_wait(
    journal: Journal, runner: HeldRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_MAX_ROWS", 3)
    runner.hold_commits()
    append(journal)
    await wait_all_tasks_blocked()  # the writer has taken the first one
    append(journal)
    append(journal)
    assert journal.has_room
    append(journal)
    assert not journal.has_room

    waited = trio.Event()

    async def wait() -> None:
        await journal.wait_room()
        waited.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not waited.is_set()
        runner.commits.set()
    assert journal.has_room


async def test_a_flood_fills_no_commit_that_others_would_wait_for(journal: Journal, runner: HeldRunner) -> None:
    """Who sends one message waits for the commit under way and for its own."""
    runner.hold_commits()
    append(journal)
    await wait_all_tasks_blocked()
    accepted = 0
    while journal.has_room and accepted < 50_000:
        append(journal)
        accepted += 1
    assert accepted <= 2_000
    runner.commits.set()


async def test_there_is_no_room_while_too_many_bytes_wait(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_MAX_BYTES", 100)
    append(journal, data="x" * 99)
    assert journal.has_room
    append(journal, data="x")
    assert not journal.has_room
    await journal.wait_room()
    assert journal.has_room


async def test_writes_beside_the_log_take_room_too(
    journal: Journal, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_MAX_BYTES", 100)
    database.write_nowait(lambda _tx: None)
    database.write_nowait(lambda _tx: None, size=99)
    assert journal.has_room
    database.write_nowait(lambda _tx: None, size=1)
    assert not journal.has_room
    await journal.wait_room()
    assert journal.has_room


async def test_there_is_room_again_after_a_failed_commit(
    journal: Journal, breakable: BreakableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_MAX_ROWS", 1)
    breakable.error = StoreError("no")
    append(journal)
    assert not journal.has_room
    await journal.wait_room()
    assert journal.has_room


@pytest.mark.both_engines
async def test_a_store_of_which_a_reader_cannot_be_opened_leaves_no_connection_open(engine: SqliteEngine) -> None:
    limited = LimitedEngine(engine, 3)
    with pytest.raises(StoreError, match="too many open files"):
        await Database(limited, worker=on_loop()).open()
    assert len(limited.opened) == 3
    for connection in limited.opened:
        with pytest.raises(StoreError, match="closed"):
            connection.execute("SELECT 1")


# Index entries


async def test_a_start_makes_the_index_entries_that_are_missing(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "_READ_POSITIONS", 2)
    monkeypatch.setattr(group_writer, "_MANY_POSITIONS", 3)
    async with running(Database(engine)) as database:
        journal = Journal(database, head=Position(0))
        for _ in range(3):
            append(journal)
        await journal.wait_committed()
        assert await database.read(counter("indexed")) == 0
    monkeypatch.setattr(group_writer, "_TELL_SECONDS", 0.0)
    told: list[str] = []
    with capture_logs() as logs:
        async with running(Database(engine, tell=told.append)) as database:
            assert await database.read(counter("indexed")) == 3
    assert [(line["event"], line["positions"]) for line in logs] == [("making_the_index", 3)]
    assert told == ["making the index of the log: 67 %", "making the index of the log: 100 %"]


@pytest.mark.both_engines
async def test_a_store_whose_entries_cannot_be_made_is_opened(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(Database(engine)) as database:
        journal = Journal(database, head=Position(0))
        append(journal)
        await journal.wait_committed()

    def broken(self: LogIndex, entries: object, upto: int) -> None:
        raise StoreDamagedError("a page")

    monkeypatch.setattr(LogIndex, "add", broken)
    async with running(Database(engine)) as database:
        assert await database.read(counter("indexed")) == 0
        journal = Journal(database, head=Position(1))
        append(journal)
        await journal.wait_committed()
        found = await database.read(lambda tx: tx.message_searches.page([DEVICE], Range(None, None)))
        assert [row.position for row in found] == [1, 2]


@pytest.mark.both_engines
async def test_when_nobody_makes_index_entries_the_store_does(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "_UNINDEXED_MOST", 10)
    async with running(Database(engine)) as database:
        journal = Journal(database, head=Position(0))
        for _ in range(12):
            append(journal)
            await journal.wait_committed()
        assert await database.read(counter("indexed")) == 10
        for _ in range(40):  # in one commit
            append(journal)
        await journal.wait_committed()
        found = await database.read(lambda tx: tx.message_searches.page([DEVICE], Range(None, None)))
        assert len(found) == 52


@pytest.mark.parametrize("at_once", [5, 1_000])
async def test_entries_that_cannot_be_added_are_tried_again_much_later(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """All senders wait for each try, and none of them is refused."""
    monkeypatch.setattr(messages_module, "_UNINDEXED_MOST", 10)
    monkeypatch.setattr(messages_module, "_READ_POSITIONS", at_once)
    tries: list[int] = []

    def broken(self: LogIndex, entries: object, upto: int) -> None:
        tries.append(upto)
        raise StoreDamagedError("a page")

    monkeypatch.setattr(LogIndex, "add", broken)
    async with running(Database(engine)) as database:
        journal = Journal(database, head=Position(0))
        for _ in range(40):
            append(journal)
            await journal.wait_committed()
    assert len(tries) == 3
