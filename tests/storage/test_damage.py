"""A page that cannot be read: the rest of the log is read, indexed, deleted and added to."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from storage import migrations
from storage.database import Database
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.journal import Journal
from storage.keys import DeviceKey, Milliseconds, Position
from storage.message_searches import FieldMatch, MessageSearches, Range
from storage.messages import MessageStore
from storage.records import ActionRow, MessageRow
from storage.retention import RetentionStore
from storage.sql import StoreDamagedError
from tests.damaged_pages import damage, leaves
from tests.stores import index

pytestmark = [pytest.mark.sqlite("damaged pages of the file"), pytest.mark.slow]

ROWS = 600
FIRST, SECOND = DeviceKey(1), DeviceKey(2)
EVERYTHING = Range(Milliseconds(0), Milliseconds(ROWS * 2))


@contextmanager
def opened(path: Path) -> Iterator[SqliteConnection]:
    engine = SqliteEngine(path)
    engine.migrate()
    with closing(engine.open(read_only=False)) as connection:
        yield connection


def message(position: int) -> MessageRow:
    ts = Milliseconds(position)
    data = f'{{"n":{position},"text":"{"x" * 100}"}}'
    return MessageRow(Position(position), DeviceKey(1 + position % 2), ts, ts, 1, data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_log(tmp_path / "store.sqlite", indexed=True)


def new_log(path: Path, *, indexed: bool) -> Path:
    """A store with messages of two devices."""
    with opened(path) as db:
        store = MessageStore(db)
        db.begin(write=True)
        store.append([message(position) for position in range(1, ROWS + 1)], [], [], head=ROWS)
        if indexed:
            index(store)
        db.commit()
    return path


@pytest.fixture
def lost(path: Path) -> set[int]:
    return damaged_in_the_middle(path)


def damaged_in_the_middle(path: Path) -> set[int]:
    """The positions on a page in the middle of the table, which is damaged."""
    pages = leaves(path, "message")
    before = _positions_in_front_of(path, pages, 5)
    after = _positions_in_front_of(path, pages, 6)
    damage(path, pages[5])
    return set(range(before + 1, after + 1))


def _positions_in_front_of(path: Path, pages: list[int], index: int) -> int:
    """The highest position on the pages before this one: that of the first cell of the page, less one."""
    size = 4096
    data = path.read_bytes()[(pages[index] - 1) * size : pages[index] * size]
    at = int.from_bytes(data[8:10], "big")
    _, at = _varint(data, at)
    return _varint(data, at)[0] - 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    while True:
        value = value << 7 | data[at] & 0x7F
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def test_the_damaged_page_has_some_rows_and_reading_it_alone_is_an_error_of_its_own(path: Path, lost: set[int]) -> None:
    assert 5 < len(lost) < 50
    with opened(path) as db, pytest.raises(StoreDamagedError):
        MessageStore(db).message(Position(min(lost)))


def test_a_consumer_of_the_log_steps_over_the_damage(path: Path, lost: set[int]) -> None:
    with opened(path) as db:
        store = MessageStore(db)
        rows = [row.position for row in store.after(Position(0))]
        assert rows == sorted(set(range(1, ROWS + 1)) - lost)
        first = min(lost)
        assert [row.position for row in store.after(Position(first - 3), limit=4)] == [
            first - 2,
            first - 1,
            max(lost) + 1,
            max(lost) + 2,
        ]
        assert store.actions_after(Position(0), limit=10) == []
        assert [row.position for row in MessageSearches(db, store).after_of([FIRST], Position(0))] == [
            n for n in rows if n % 2 == 0
        ]


def test_searches_find_every_row_that_can_be_read(path: Path, lost: set[int]) -> None:
    there = sorted(set(range(1, ROWS + 1)) - lost)
    newest_first = there[::-1]
    with opened(path) as db:
        searches = MessageSearches(db, MessageStore(db))

        def found(search: Range, *devices: DeviceKey) -> list[int]:
            return [row.position for row in searches.page(devices, search)]

        assert found(EVERYTHING, FIRST) == [n for n in there if n % 2 == 0]
        assert found(EVERYTHING, FIRST, SECOND) == there
        assert found(Range(None, None, limit=ROWS, descending=True), FIRST, SECOND) == newest_first
        wanted = min(lost) - 1
        exact = Range(None, None, match=FieldMatch(values=(("n", str(wanted)),)))
        assert found(exact, FIRST, SECOND) == [wanted]
        assert [row.position for row in searches.latest([FIRST, SECOND], limit=ROWS, most=10_000)] == newest_first
        assert [row.position for row in searches.latest([FIRST], limit=ROWS, most=10_000)] == [
            n for n in newest_first if n % 2 == 0
        ]
        assert searches.last_ts("message", [FIRST, SECOND]) == {FIRST: ROWS, SECOND: ROWS - 1}
        assert searches.about([FIRST], start_ms=Milliseconds(0), end_ms=Milliseconds(ROWS)) == ROWS // 2


def test_rows_without_index_entries_are_searched_around_the_damage(tmp_path: Path) -> None:
    path = new_log(tmp_path / "other.sqlite", indexed=False)
    there = sorted(set(range(1, ROWS + 1)) - damaged_in_the_middle(path))
    with opened(path) as db:
        searches = MessageSearches(db, MessageStore(db))
        backwards = Range(Milliseconds(1), Milliseconds(ROWS), descending=True)
        assert [row.position for row in searches.page([FIRST, SECOND], backwards)] == there[::-1]
        assert searches.last_ts("message", [FIRST]) == {FIRST: ROWS}
        found = searches.about([FIRST], start_ms=Milliseconds(0), end_ms=Milliseconds(ROWS))
        assert found == len([n for n in there if n % 2 == 0])


async def test_a_damaged_row_keeps_no_other_row_out_of_the_index(tmp_path: Path) -> None:
    """A start makes the entries; the engine writes nothing in a transaction that has met damage."""
    path = new_log(tmp_path / "other.sqlite", indexed=False)
    lost = damaged_in_the_middle(path)
    database = Database(SqliteEngine(path))
    await database.open()
    assert await database.read(lambda tx: tx.messages.counter("indexed")) == ROWS
    found = await database.read(lambda tx: tx.message_searches.page([FIRST, SECOND], EVERYTHING))
    assert [row.position for row in found] == sorted(set(range(1, ROWS + 1)) - lost)
    await database.close()


def test_rows_after_a_position_are_found_beside_a_damaged_index(path: Path) -> None:
    damage(path, leaves(path, "message_entry_by_arrival")[-1])
    with opened(path) as db:
        found = MessageSearches(db, MessageStore(db)).after_of([FIRST], Position(ROWS - 4))
        assert [row.position for row in found] == [ROWS - 2, ROWS]


def test_a_store_whose_old_index_is_damaged_gets_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(path)) as old:
        migrations.apply(old, stop_before="0040_entries_of_many_rows")
        old.executemany(
            "INSERT INTO message (position, device, ts, cts, mv, data) VALUES (?, 1, ?, 1, 1, '{}')",
            ((n, n) for n in range(1, ROWS + 1)),
        )
        old.execute("INSERT INTO counter VALUES ('head', :head), ('indexed', :head)", {"head": ROWS})
        old.commit()
    damage(path, leaves(path, "message_by_time")[0])
    with opened(path) as db:
        store = MessageStore(db)
        db.begin(write=True)
        while index(store):
            pass
        db.commit()
        found = MessageSearches(db, store).page([FIRST], EVERYTHING)
        assert [row.position for row in found] == list(range(1, ROWS + 1))


async def test_the_positions_of_lost_rows_are_not_used_again(tmp_path: Path) -> None:
    """The index still names them: a search would find the rows of others."""
    path = new_log(tmp_path / "other.sqlite", indexed=False)
    with opened(path) as db:
        db.begin(write=True)
        MessageStore(db).set_counter("head", 0)  # it is behind the rows that were committed last
        db.commit()
    database = Database(SqliteEngine(path))
    await database.open()
    await database.close()
    with closing(sqlite3.connect(path)) as lost, lost:
        lost.execute("DELETE FROM message")
    with opened(path) as db:
        assert MessageStore(db).head() == ROWS


async def test_everything_is_stored_while_a_page_of_an_index_is_damaged(path: Path) -> None:
    damage(path, leaves(path, "message_entry_by_time")[-1])
    database = Database(SqliteEngine(path))
    await database.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        journal = Journal(database, head=Position(ROWS))
        for _ in range(10):
            for _ in range(500):
                journal.append_message(FIRST, Milliseconds(1), Milliseconds(1), 1, "{}")
            await journal.wait_committed()
        await database.write(lambda tx: tx.messages.set_counter("other", 7))
        found = await database.read(lambda tx: (tx.messages.last_position(), tx.messages.counter("other")))
        indexed = await database.read(lambda tx: tx.messages.counter("indexed"))
        nursery.cancel_scope.cancel()
    assert found == (ROWS + 5_000, 7)
    assert indexed == ROWS


async def test_a_write_that_meets_damage_fails_alone(path: Path, lost: set[int]) -> None:
    database = Database(SqliteEngine(path))
    await database.open()

    async def delete() -> None:
        with pytest.raises(StoreDamagedError):
            await database.write(lambda tx: tx.retention.delete("message", behind=0, upto=ROWS, types=None))

    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        journal = Journal(database, head=Position(ROWS))
        async with trio.open_nursery() as senders:  # one group: no turn of the loop lies between them
            senders.start_soon(delete)
            journal.append_message(FIRST, Milliseconds(1), Milliseconds(1), 1, "{}")
            senders.start_soon(journal.wait_committed)
            senders.start_soon(database.write, lambda tx: tx.messages.set_counter("other", 7))
        assert await database.read(lambda tx: (tx.messages.last_position(), tx.messages.counter("other"))) == (
            ROWS + 1,
            7,
        )
        assert database.statistics().failures == 0
        nursery.cancel_scope.cancel()


def test_retention_finds_the_end_of_the_damage(path: Path, lost: set[int]) -> None:
    with opened(path) as db:
        store = RetentionStore(db)
        assert store.beyond_damage("message", Position(min(lost)), Position(ROWS)) == max(lost) + 1
        with pytest.raises(StoreDamagedError):
            store.delete("message", behind=0, upto=ROWS, types=None)
        assert store.delete("message", behind=max(lost) + 50, upto=ROWS, types=None) == ROWS - max(lost) - 50


def test_a_table_whose_end_is_damaged_is_set_aside_and_the_log_goes_on(path: Path) -> None:
    damage(path, leaves(path, "message")[-1])
    with capture_logs() as logs, opened(path) as db:
        store = MessageStore(db)
        assert store.head() == ROWS
        assert store.last_cts() == 0
        db.begin(write=True)
        action = ActionRow(Position(ROWS + 2), FIRST, SECOND, Milliseconds(1), Milliseconds(1), 1, "{}")
        store.append([message(ROWS + 1)], [action], [], head=ROWS + 2)
        index(store)
        db.commit()
        assert [row.position for row in MessageSearches(db, store).page([SECOND], EVERYTHING)] == [ROWS + 1]
    told = [log for log in logs if log["event"] == "tables_set_aside"]
    assert [log["tables"] for log in told] == [("damaged_1_message",)]
    assert "trunkline store salvage" in told[0]["help"]
    engine = SqliteEngine(path)
    engine.migrate()
    assert engine.damage.statistics().set_aside == ("damaged_1_message",)


def test_the_operator_is_told_once_an_hour_with_the_table_and_what_to_do(path: Path, lost: set[int]) -> None:
    engine = SqliteEngine(path)
    engine.migrate()
    with closing(engine.open(read_only=True)) as db, capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(StoreDamagedError):
                MessageStore(db).message(Position(min(lost)))
    assert [(log["event"], log["table"], log["help"]) for log in logs] == [
        ("store_damaged", "message", "stop the daemon and run: trunkline store salvage")
    ]
    assert (engine.damage.statistics().failures, engine.damage.statistics().tables) == (3, ("message",))
    assert engine.damage.is_met()
