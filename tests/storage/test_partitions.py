"""The messages are in partitions on PostgreSQL: before a row needs one, in older stores, and what retention drops."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import trio
from msgspec import structs

from broker.clock import Clock
from broker.cluster.leases import Lease, LeaseName
from broker.messages.intervals import DAY_MS
from broker.messages.retention import Retention
from broker.messages.rollup_days import RollupDays
from storage import migrations
from storage.database import Database
from storage.engines import postgresql_schema as schema
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.postgresql_connection import PostgresqlConnection
from storage.engines.postgresql_partitions import SIZE
from storage.engines.sqlite import SqliteEngine
from storage.journal import Journal
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position
from storage.records import MessageRow
from storage.retention import RetentionStore
from storage.sizes import Sizes, measure
from storage.sql import StoreBusyError, StoreError
from storage.store_copy import copy_store
from storage.transaction import Transaction
from tests.factories import NOW_MS
from tests.postgresql import server
from tests.stores import make_store

pytestmark = pytest.mark.slow


_COLUMNS: Final = MessageRow.__struct_fields__


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.messages.retention._PAUSE_SECONDS", 0)
    monkeypatch.setattr("broker.messages.retention._STEP_ENTRIES", SIZE)


@pytest.fixture
def engine() -> Iterator[PostgresqlEngine]:
    name = server().new_database()
    yield PostgresqlEngine(server().target(name))
    server().drop(name)


@pytest.fixture
def writer(engine: PostgresqlEngine) -> Iterator[PostgresqlConnection]:
    with closing(engine.open(read_only=False)) as connection:
        yield connection


def rows(number: int, *, behind: int = 0, cts: int = 1, device: int = 1) -> list[MessageRow]:
    places = range(behind + 1, behind + number + 1)
    return [MessageRow(Position(n), DeviceKey(device), Milliseconds(n), Milliseconds(cts), 1, "{}") for n in places]


def insert(connection: PostgresqlConnection, number: int) -> int:
    """Add rows to the log; returns the position of the last one."""
    return number + connection.insert_log((("message", _COLUMNS, rows(number)),), head=number)


def bounds(connection: PostgresqlConnection) -> list[tuple[int, int]]:
    found = connection.execute("SELECT first, behind FROM message_partitions()").tuples()
    return [(first // SIZE, behind // SIZE) for first, behind in found]


def go_to(connection: PostgresqlConnection, position: int) -> None:
    connection.execute("SELECT setval('log', :position)", {"position": position})


def positions(connection: PostgresqlConnection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT position FROM message ORDER BY position").tuples()]


def test_partitions_are_made_before_a_row_needs_one(writer: PostgresqlConnection) -> None:
    assert bounds(writer) == [(0, 1), (1, 2)]
    go_to(writer, SIZE - 5)
    assert insert(writer, 10) == SIZE + 5
    go_to(writer, 2 * SIZE - 5)
    writer.begin(write=True)
    assert insert(writer, 10) == 2 * SIZE + 5
    writer.commit()
    assert insert(writer, 10) == 2 * SIZE + 15
    assert bounds(writer) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert len(positions(writer)) == 30
    found = writer.execute("SELECT DISTINCT tableoid::regclass::text AS name FROM message ORDER BY 1").tuples()
    assert [row[0] for row in found] == ["message_0", "message_1", "message_2"]


def test_ranges_that_are_left_out_get_no_partition(writer: PostgresqlConnection) -> None:
    go_to(writer, 95 * SIZE)
    insert(writer, 1)
    assert bounds(writer) == [(0, 1), (1, 2), (95, 96), (96, 97)]


def test_a_lock_delays_the_next_partition_and_no_row(
    engine: PostgresqlEngine, writer: PostgresqlConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(writer, 1)
    with engine.target.connect() as other, other.transaction():
        other.execute("LOCK TABLE message IN SHARE UPDATE EXCLUSIVE MODE")
        go_to(writer, SIZE + 5)
        writer.partitions.forget()
        assert insert(writer, 1) == SIZE + 6
        assert bounds(writer) == [(0, 1), (1, 2)]
        assert insert(writer, 1) == SIZE + 7  # it does not try each time, and wait for a second
    monkeypatch.setattr("storage.engines.postgresql_partitions._TRIED_AGAIN", 0)
    writer.partitions.forget()
    insert(writer, 1)
    assert bounds(writer) == [(0, 1), (1, 2), (2, 3)]


async def test_two_who_make_the_same_partition_at_once_both_go_on(engine: PostgresqlEngine) -> None:
    """A daemon, and a command beside it. The second one waits until the first one's table is there."""
    making = "SELECT message_partitions_from(%s)"
    with engine.target.connect() as first, engine.target.connect() as second, engine.target.connect() as looking:

        def wait_until_it_waits() -> None:
            sql = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
            while looking.execute(sql, [second.info.backend_pid]).fetchone() is None:
                assert not made

        made: list[object] = []
        async with trio.open_nursery() as nursery:
            with first.transaction():
                first.execute(making, [5 * SIZE])
                nursery.start_soon(
                    trio.to_thread.run_sync, lambda: made.append(second.execute(making, [5 * SIZE]).fetchone())
                )
                await trio.to_thread.run_sync(wait_until_it_waits)
        assert made == [(7 * SIZE,)]


def test_a_table_of_somebody_else_in_the_place_of_a_partition_is_an_error(writer: PostgresqlConnection) -> None:
    writer.execute("CREATE TABLE message_7 (a TEXT)")
    with pytest.raises(StoreError, match="message_7"):
        writer.execute("SELECT message_partitions_from(:head)", {"head": 7 * SIZE})


@pytest.mark.parametrize("with_a_work", [False, True])
async def test_a_partition_that_a_failover_has_lost_is_made_again(engine: PostgresqlEngine, with_a_work: bool) -> None:
    async with opened(engine) as (database, journal):
        append(journal, 1)
        await journal.wait_committed()
        await database.write(lambda tx: tx.connection.execute("DROP TABLE message_0, message_1").one())
        append(journal, 2)
        if with_a_work:
            await database.write(lambda tx: tx.messages.set_counter("a", 1))
        await journal.wait_committed()
        append(journal, 3)
        await journal.wait_committed()
        left = await database.read(lambda tx: [row.ts for row in tx.messages.after(Position(0))])
        assert left == [2, 3]


# Older stores


@pytest.mark.parametrize("last", [0, SIZE - 1, SIZE, 3 * SIZE + 2])
def test_a_store_with_one_table_is_converted_with_its_rows_in_place(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name = server().new_database(template="template0")
    engine = PostgresqlEngine(server().target(name))
    with monkeypatch.context() as before:
        steps = [step for step in migrations.names() if step < "0090"]
        before.setattr(migrations, "names", lambda: steps)
        before.setattr(schema, "_keep_ahead", lambda _connection: None)
        engine.migrate()
    with engine.target.connect() as old:
        if last:
            old.execute(
                "INSERT INTO message (position, device, ts, cts, mv, data)"
                " SELECT position, 1, 1, 1, 1, '{}' FROM (VALUES (1), (2), (%s)) AS rows (position) GROUP BY position",
                [last],
            )
        old.execute("SELECT setval('log', %s)", [last])
        was_at = old.execute("SELECT pg_relation_filepath('message')").fetchone()
    engine.migrate()
    engine.migrate()
    with closing(engine.open(read_only=False)) as writer:
        assert positions(writer) == sorted({1, 2, last} if last else {})
        row = writer.execute("SELECT pg_relation_filepath('message_0') AS path").one()
        assert row is not None
        assert (row["path"],) == was_at
        ahead = last // SIZE
        assert bounds(writer) == [(0, ahead + 1), (ahead + 1, ahead + 2)]
        assert insert(writer, 3) == last + 3
        with pytest.raises(Exception, match="duplicate key"):
            writer.insert_many("message", _COLUMNS, rows(1, behind=last))
    server().drop(name)


@pytest.mark.sqlite("in each run it copies a store of SQLite")
def test_a_store_is_copied_into_partitions(engine: PostgresqlEngine, tmp_path: Path) -> None:
    """Also one whose first positions are gone, with gaps."""
    make_store(tmp_path / "store.sqlite")
    places = [5 * SIZE - 1, 5 * SIZE, 5 * SIZE + 1, 9 * SIZE, 9 * SIZE + 1]
    source = SqliteEngine(tmp_path / "store.sqlite")
    with closing(source.open(read_only=False)) as connection:
        for place in places:
            connection.insert_many("message", _COLUMNS, rows(1, behind=place - 1))
        copy_store(connection, engine, "the copy")
    engine.migrate()
    with closing(engine.open(read_only=False)) as writer:
        assert positions(writer) == places
        assert insert(writer, 1) == places[-1] + 1
        assert bounds(writer)[2:] == [(4, 5), (5, 6), (9, 10), (10, 11)]


# Room


def test_room_of_deleted_rows_is_told_and_used_again(engine: PostgresqlEngine, writer: PostgresqlConnection) -> None:
    """Rows that go one by one leave their room to new rows; the database does not get smaller."""

    def fill(number: int) -> None:
        long = [
            structs.replace(one, data=json.dumps({"text": "x" * 100})) for one in rows(number, cts=NOW_MS - 10 * DAY_MS)
        ]
        writer.insert_log((("message", _COLUMNS, long),), head=number)

    def pages() -> int:
        row = writer.execute("SELECT pg_total_relation_size('message_0') AS bytes").one()
        assert row is not None
        return int(row["bytes"])

    def measured() -> Sizes:
        writer.execute("SELECT pg_stat_force_next_flush()")
        with engine.target.connect() as other:
            other.execute("VACUUM ANALYZE")
        with engine.snapshot() as snapshot:
            return measure(snapshot.rows, now_ms=NOW_MS)

    fill(20_000)
    full, size = measured(), pages()
    assert full.free_bytes < size / 10
    deleted = RetentionStore(writer).delete("message", behind=0, upto=10_000, types=None)
    assert deleted == 10_000
    half = measured()
    assert half.free_bytes == pytest.approx(size / 2, rel=0.3)
    assert half.of("messages") == pytest.approx(full.of("messages") / 2, rel=0.3)
    size_bytes, free_bytes = RetentionStore(writer).size_bytes()
    assert size_bytes == pytest.approx(half.store_bytes, rel=0.05)  # the server has maps and counts of its own
    assert free_bytes == pytest.approx(half.free_bytes, rel=0.1)
    fill(10_000)
    assert pages() < size * 1.1  # with pages of the index, which are free one vacuum later
    assert measured().free_bytes < size / 10


# Retention


@asynccontextmanager
async def opened(engine: PostgresqlEngine) -> AsyncIterator[tuple[Database, Journal]]:
    database = Database(engine)
    await database.open()
    head = await database.read(lambda tx: tx.messages.head())
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        yield database, Journal(database, head=head)
        nursery.cancel_scope.cancel()


def append(journal: Journal, number: int, *, cts: int = NOW_MS) -> None:
    journal.append_message(DeviceKey(1), Milliseconds(number), Milliseconds(cts), 1, "{}")


@dataclass
class Log:
    """Messages of 40 days ago in the first partition, at positions from 1 on, and today's in the second one."""

    engine: PostgresqlEngine
    database: Database
    journal: Journal

    async def fill(self, *, consumer: int = SIZE + 1) -> None:
        for number in range(1, 5):
            append(self.journal, number, cts=NOW_MS - 40 * DAY_MS)
        await self.journal.wait_committed()

        def index(tx: Transaction) -> None:
            missing = tx.messages.missing(Position(4))
            assert missing is not None
            tx.messages.add_missing(missing)
            tx.messages.set_consumer_position("folds", Position(consumer))
            tx.connection.execute("SELECT setval('log', :place)", {"place": SIZE})

        await self.database.write(index)
        append(self.journal, 5)
        await self.journal.wait_committed()

    async def sweep(self, days: int = 30) -> int:
        """Returns the number of deleted messages."""
        clock = Clock(now_ms=lambda: Milliseconds(NOW_MS))
        retention = Retention(self.database, Lease(LeaseName.UPKEEP), clock, days=days, rollups=RollupDays())
        await retention.sweep()
        return retention.statistics().deleted_messages

    async def partitions(self) -> Sequence[str]:
        sql = "SELECT name FROM message_partitions()"
        return [row["name"] for row in await self.database.read(lambda tx: list(tx.connection.execute(sql)))]

    async def left(self) -> list[int]:
        return [row.ts for row in await self.database.read(lambda tx: tx.messages.after(Position(0)))]

    async def entries(self) -> int:
        sql = "SELECT count(*) AS number FROM message_entry"
        row = await self.database.read(lambda tx: tx.connection.execute(sql).one())
        assert row is not None
        return int(row["number"])

    async def keep(self, days: int | None) -> None:
        """Another device type is kept for so many days."""

        def put(tx: Transaction) -> None:
            tx.connection.execute(
                "INSERT INTO organization (key, id, name, monthly_messages) VALUES (7, 'o', 'O', -1)"
                " ON CONFLICT (key) DO NOTHING"
            )
            tx.connection.execute(
                "INSERT INTO device_type (key, id, unique_name, name, organization, published, protected, rsp, tags,"
                " created_on) VALUES (7, 'dt', 'a.b', 'B', 7, 1, 0, 0, '[]', 1) ON CONFLICT (key) DO NOTHING"
            )
            tx.retention.set_days(DeviceTypeKey(7), days)

        await self.database.write(put)


@pytest.fixture
async def log(engine: PostgresqlEngine) -> AsyncIterator[Log]:
    async with opened(engine) as (database, journal):
        yield Log(engine, database, journal)


async def test_a_partition_that_is_too_old_is_dropped_as_a_whole(log: Log) -> None:
    await log.fill()
    assert await log.entries() == 1
    assert await log.sweep() == 4
    assert await log.partitions() == ["message_1"]
    assert (await log.left(), await log.entries()) == ([5], 0)
    assert await log.sweep(days=30) == 0
    append(log.journal, 6)
    await log.journal.wait_committed()
    assert await log.left() == [5, 6]
    assert await log.partitions() == ["message_1", "message_2"]


@pytest.mark.parametrize("days", [0, 41, 50])
async def test_a_partition_of_which_a_device_type_keeps_something_is_not_dropped(log: Log, days: int) -> None:
    """Messages of no type that has its own days go one by one."""
    await log.fill()
    await log.keep(days)
    assert await log.sweep() == 4
    assert "message_0" in await log.partitions()
    await log.keep(20)
    await log.sweep()
    assert "message_0" not in await log.partitions()
    assert await log.left() == [5]


async def test_nothing_is_dropped_where_all_is_kept(log: Log) -> None:
    await log.fill()
    assert await log.sweep(days=0) == 0
    assert await log.left() == [1, 2, 3, 4, 5]
    assert "message_0" in await log.partitions()


async def test_a_partition_that_a_consumer_has_not_read_is_not_dropped(log: Log) -> None:
    await log.fill(consumer=2)
    assert await log.sweep() == 2
    assert await log.left() == [3, 4, 5]


async def test_a_message_of_now_among_old_ones_keeps_its_partition(log: Log) -> None:
    append(log.journal, 0)
    await log.fill()
    assert await log.sweep() == 0
    assert await log.left() == [0, 1, 2, 3, 4, 5]


async def test_somebody_who_reads_for_long_delays_nobody_and_rows_go_one_by_one(log: Log) -> None:
    await log.fill()
    with closing(log.engine.open(read_only=True)) as backup:
        backup.begin(write=False)
        backup.execute("SELECT count(*) FROM message").one()
        with pytest.raises(StoreBusyError):
            await log.database.write(lambda tx: tx.retention.drop_partition(range(SIZE)))
        assert await log.sweep() == 4
        assert await log.left() == [5]
        assert "message_0" in await log.partitions()
        append(log.journal, 6)
        await log.journal.wait_committed()
        backup.rollback()
    assert await log.sweep() == 0
    assert "message_0" not in await log.partitions()
    assert await log.left() == [5, 6]
