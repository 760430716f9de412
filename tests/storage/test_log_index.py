"""Rows of the log get their index entries later: searches find them before and after."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import sqlite_utils
import structlog
from hypothesis import given
from hypothesis import strategies as st

from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.keys import DeviceKey, Milliseconds, Position
from storage.message_searches import MessageSearches, Range
from storage.messages import MessageStore, Table
from storage.migrations import migrations
from storage.records import ActionRow, MessageRow

DEVICES = (1, 2, 3)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteConnection]:
    engine = SqliteEngine(tmp_path_factory.mktemp("log-index") / "store.sqlite")
    engine.migrate()
    opened = engine.open(read_only=False)
    yield opened
    opened.close()


class Log:
    """The log in one transaction that is rolled back, and plain lists of its rows."""

    def __init__(self, connection: SqliteConnection) -> None:
        self.connection = connection
        self.seconds = 1_000.0
        self.store = MessageStore(connection, lambda: self.seconds)
        self.searches = MessageSearches(connection, self.store)
        self.rows: dict[Table, list[tuple[int, int, int]]] = {"message": [], "action": []}
        self.head = 0

    def __enter__(self) -> "Log":
        self.connection.begin(write=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.rollback()

    def append(self, table: Table, places: Sequence[tuple[int, int]]) -> None:
        """Append the rows of one commit, given as device and ts."""
        places = [(device, ts) for device, ts in places]
        positions = range(self.head + 1, self.head + 1 + len(places))
        self.head += len(places)
        fresh = [(position, device, ts) for position, (device, ts) in zip(positions, places, strict=True)]
        self.rows[table] += fresh
        if table == "message":
            rows = [
                MessageRow(Position(position), DeviceKey(device), Milliseconds(ts), Milliseconds(ts), 1, "{}")
                for position, device, ts in fresh
            ]
            self.store.append(rows, [], [], head=self.head)
        else:
            actions = [
                ActionRow(
                    Position(position),
                    DeviceKey(device),
                    DeviceKey(device),
                    Milliseconds(ts),
                    Milliseconds(ts),
                    1,
                    "{}",
                )
                for position, device, ts in fresh
            ]
            self.store.append([], actions, [], head=self.head)

    def without_entries(self, table: Table) -> int:
        row = self.connection.execute(f"SELECT count(*) AS n FROM {table} WHERE indexed = 0").one()  # noqa: S608
        return int(row["n"]) if row else -1

    def expected(self, table: Table, devices: Sequence[DeviceKey], search: Range) -> list[int]:
        """The positions that a search must find, by the definition of Range."""
        found = [(ts, position) for position, device, ts in self.rows[table] if device in devices]
        if search.start_ms is not None and search.end_ms is not None:
            found = [place for place in found if search.start_ms <= place[0] <= search.end_ms]
        if search.after is not None:
            found = [place for place in found if place > search.after]
        if search.before is not None:
            found = [place for place in found if place < search.before]
        order: Callable[[tuple[int, int]], tuple[int, ...]] = lambda place: place[1:] if search.by_arrival else place  # noqa: E731
        return [position for _, position in sorted(found, key=order, reverse=search.descending)][: search.limit]


_times = st.integers(0, 6)
_steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(("message", "action")),
            st.lists(st.tuples(st.sampled_from(DEVICES), _times), min_size=1, max_size=4),
        ),
        st.just("index"),
    ),
    max_size=8,
)


@st.composite
def searches(draw: st.DrawFn) -> Range:
    if draw(st.booleans()):
        return Range(None, None, limit=draw(st.integers(1, 5)), by_arrival=True, descending=draw(st.booleans()))
    place = st.none() | st.tuples(_times.map(Milliseconds), st.integers(0, 20).map(Position))
    return Range(
        Milliseconds(draw(_times)),
        Milliseconds(draw(_times)),
        limit=draw(st.none() | st.integers(1, 5)),
        after=draw(place),
        before=draw(place),
        descending=draw(st.booleans()),
    )


@given(steps=_steps, devices=st.sets(st.sampled_from(DEVICES), min_size=1), search=searches())
def test_a_search_finds_rows_with_and_without_an_entry_in_one_order(
    connection: SqliteConnection, steps: Sequence[tuple[Table, list[tuple[int, int]]] | str], devices: set[DeviceKey],
    search: Range,
) -> None:  # fmt: skip
    with Log(connection) as log:
        for step in steps:
            if isinstance(step, str):
                log.store.index()
            else:
                log.append(*step)
        chosen = sorted(devices)
        assert [row.position for row in log.searches.page(chosen, search)] == log.expected("message", chosen, search)
        assert [row.position for row in log.searches.action_page(chosen, search)] == log.expected(
            "action", chosen, search
        )
        limit = search.limit or 3
        newest = Range(None, None, limit=limit, by_arrival=True, descending=True)
        assert [row.position for row in log.searches.latest(chosen, limit=limit)] == log.expected(
            "message", chosen, newest
        )
        for table, rows in log.rows.items():
            highest = {device: max(ts for _, of, ts in rows if of == device) for device in {of for _, of, _ in rows}}
            assert log.searches.last_ts(table, chosen) == {key: ts for key, ts in highest.items() if key in devices}
        for device in chosen:
            times = [ts for _, of, ts in log.rows["message"] if of == device]
            assert log.searches.count(device, start_ms=Milliseconds(2), end_ms=Milliseconds(4)) == sum(
                2 <= ts <= 4 for ts in times
            )
        for behind in range(log.head + 1):
            found = log.store.after_of(chosen, Position(behind))
            wanted = [
                position for position, device, _ in log.rows["message"] if device in devices and position > behind
            ]
            assert sorted(row.position for row in found) == wanted
            for device in chosen:
                own = [row.position for row in found if row.device == device]
                assert own == sorted(own)


def test_rows_get_index_entries_after_two_thousand_rows(connection: SqliteConnection) -> None:
    with Log(connection) as log:
        log.append("message", [(1, ts) for ts in range(1_000)])
        log.append("action", [(2, ts) for ts in range(999)])
        assert (log.without_entries("message"), log.without_entries("action")) == (1_000, 999)
        log.append("message", [(3, 1)])
        assert (log.without_entries("message"), log.without_entries("action")) == (0, 0)
        log.append("message", [(3, 2)])
        assert log.without_entries("message") == 1


def test_within_a_second_index_entries_wait_for_sixteen_thousand_rows(connection: SqliteConnection) -> None:
    """All senders wait for each step, and a page of an index is changed once in it."""
    with Log(connection) as log:
        log.append("message", [(1, ts) for ts in range(2_000)])
        assert log.without_entries("message") == 0
        log.seconds += 0.9
        log.append("message", [(1, ts) for ts in range(2_000)])
        assert (log.without_entries("message"), log.store.is_behind) == (2_000, True)
        log.seconds += 0.1
        log.append("message", [(1, 1)])
        assert (log.without_entries("message"), log.store.is_behind) == (0, False)
        log.append("message", [(1, ts) for ts in range(15_999)])
        assert log.without_entries("message") == 15_999
        log.append("message", [(1, 1)])
        assert log.without_entries("message") == 0


@pytest.mark.parametrize(
    "search",
    [Range(Milliseconds(0), Milliseconds(9), limit=5), Range(None, None, limit=5, by_arrival=True, descending=True)],
)
def test_a_search_reads_the_index_and_not_the_log(connection: SqliteConnection, search: Range) -> None:
    with Log(connection) as log:
        log.append("message", [(1, 5)])
        log.store.index()
        statements: list[str] = []
        connection._connection.set_trace_callback(statements.append)
        log.searches.page([DeviceKey(1)], search)
        log.searches.page([DeviceKey(1), DeviceKey(2)], search)
        connection._connection.set_trace_callback(None)
        selects = [statement for statement in statements if "indexed = 1" in statement]
        assert len(selects) == 2
        for statement in selects:
            plan = [row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert any("message_by_" in step for step in plan)
            assert not any(step.startswith("SCAN message") for step in plan)


def test_rows_of_an_older_store_have_index_entries(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    db = sqlite_utils.Database(path)
    migrations.apply(db, stop_before="0017_indexes_behind_the_log")
    with db.conn:
        db.execute("INSERT INTO message VALUES (7, 1, 5, 5, 1, '{}')")
        db.execute("INSERT INTO action VALUES (8, 1, 1, 6, 6, 1, '{}')")
        db.execute("INSERT INTO counter VALUES ('head', 8)")
    db.conn.close()
    engine = SqliteEngine(path)
    with structlog.testing.capture_logs() as logs:
        engine.migrate()
    assert [line["event"] for line in logs] == ["migrating"]
    assert "0017_indexes_behind_the_log" in logs[0]["steps"]
    connection = engine.open(read_only=False)
    log = Log(connection)
    with log:
        assert (log.without_entries("message"), log.without_entries("action")) == (0, 0)
        log.head = 8
        log.append("message", [(1, 4)])
        assert [
            row.position for row in log.searches.page([DeviceKey(1)], Range(Milliseconds(0), Milliseconds(9), limit=9))
        ] == [9, 7]
        assert [
            row.position
            for row in log.searches.action_page([DeviceKey(1)], Range(Milliseconds(0), Milliseconds(9), limit=9))
        ] == [8]
    connection.close()
