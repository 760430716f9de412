"""Rows of the log get their index entries later, many together: searches find them before and after."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import structlog
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from storage import log_index, message_searches, migrations
from storage.database import Database
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.keys import DeviceKey, Milliseconds, Position
from storage.log_index import EntryBuilder, LogIndex, Table
from storage.message_searches import FieldMatch, MessageSearches, Range, sort_key
from storage.messages import MessageStore
from storage.records import ActionRow, MessageRow
from storage.retention import RetentionStore
from tests.properties import examples
from tests.stores import index

pytestmark = [
    pytest.mark.sqlite("its rows have positions that no commit gave, and it counts steps of SQLite"),
    pytest.mark.slow,
]

DEVICES = (1, 2, 3)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteConnection]:
    engine = SqliteEngine(tmp_path_factory.mktemp("log-index") / "store.sqlite")
    engine.migrate()
    opened = engine.open(read_only=False)
    yield opened
    opened.close()


def data_of(position: int) -> str:
    """Every third message has a field of its own."""
    return "{}" if position % 3 else '{"third":true}'


class Log:
    """The log in one transaction that is rolled back, and plain lists of its rows."""

    def __init__(self, connection: SqliteConnection) -> None:
        self.connection = connection
        self.store = MessageStore(connection)
        self.searches = MessageSearches(connection, self.store)
        self.rows: dict[Table, list[tuple[int, int, int]]] = {"message": [], "action": []}
        self.head = 0
        self.entries, self.behind = EntryBuilder(), 0

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
                MessageRow(
                    Position(position), DeviceKey(device), Milliseconds(ts), Milliseconds(ts), 1, data_of(position)
                )
                for position, device, ts in fresh
            ]
            self.store.append(rows, [], [], head=self.head)
            for device in sorted({row.device for row in rows}):
                own = [row for row in rows if row.device == device]
                self.entries.add_many(device, [row.ts for row in own], [row.position for row in own])
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

    def add_entries(self) -> None:
        """Add the entries that were made since the last time, as the folds do."""
        self.store.add_entries(self.entries.made, Position(self.behind), Position(self.head))
        self.entries, self.behind = EntryBuilder(), self.head

    def merge(self, step: int) -> None:
        """Put the entries together that were made after a step, as the merger does."""
        for table in self.rows:
            entries = LogIndex(self.connection, table)
            for device, _ in entries.devices(DeviceKey(0), step=Position(step), limit=100):
                entries.merge(entries.small(device, step=Position(step)))

    def delete(self, upto: int) -> None:
        """Delete the rows up to a position, as retention does."""
        retention = RetentionStore(self.connection)
        for table, rows in self.rows.items():
            retention.delete(table, behind=0, upto=upto, types=None)
            self.rows[table] = [row for row in rows if row[0] > upto]

    def without_entries(self) -> int:
        return self.head - self.store.counter("indexed")

    def expected(self, table: Table, devices: Sequence[DeviceKey], search: Range) -> list[int]:
        """The positions that a search must find, by the definition of Range."""
        found = [(ts, position) for position, device, ts in self.rows[table] if device in devices]
        if search.start_ms is not None and search.end_ms is not None:
            found = [place for place in found if search.start_ms <= place[0] <= search.end_ms]
        if search.after is not None:
            found = [place for place in found if place > search.after]
        if search.until is not None:
            found = [place for place in found if place[1] <= search.until]
        if search.before is not None:
            found = [place for place in found if place < search.before]
        order: Callable[[tuple[int, int]], tuple[int, ...]] = lambda place: place[1:] if search.by_arrival else place  # noqa: E731
        return [position for _, position in sorted(found, key=order, reverse=search.descending)][: search.limit]


# Several rows of one moment, on both sides of the ends of ten seconds.
_TIMES = (0, 1, 5_000, 9_999, 59_999, 60_000, 60_001, 150_000, 86_400_000, 86_460_000)
_times = st.sampled_from(_TIMES)
_steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(("message", "action")),
            st.lists(st.tuples(st.sampled_from(DEVICES), _times), min_size=1, max_size=7),
        ),
        st.sampled_from(("index", "entries", "0", "7")),  # a number: entries of after this step are put together
        st.integers(0, 20),  # deletes rows
    ),
    max_size=10,
)


@st.composite
def searches(draw: st.DrawFn) -> Range:
    until = draw(st.none() | st.integers(0, 20).map(Position))
    if draw(st.booleans()):
        limit, descending = draw(st.integers(1, 5)), draw(st.booleans())
        return Range(None, None, limit=limit, until=until, by_arrival=True, descending=descending)
    place = st.none() | st.tuples(_times.map(Milliseconds), st.integers(0, 20).map(Position))
    return Range(
        Milliseconds(draw(_times)),
        Milliseconds(draw(_times)),
        limit=draw(st.none() | st.integers(1, 5)),
        after=draw(place),
        before=draw(place),
        until=until,
        descending=draw(st.booleans()),
    )


@given(
    steps=_steps,
    devices=st.sets(st.sampled_from(DEVICES), min_size=1),
    search=searches(),
    rows_of_an_entry=st.sampled_from((1, 2, 100)),
)
def test_a_search_finds_rows_with_and_without_an_entry_in_one_order(
    connection: SqliteConnection, steps: Sequence[tuple[Table, list[tuple[int, int]]] | str | int],
    devices: set[DeviceKey], search: Range, rows_of_an_entry: int,
) -> None:  # fmt: skip
    with Log(connection) as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_index, "ROWS", rows_of_an_entry)
        patch.setattr(message_searches, "_FIRST_ROWS", 1)
        for step in steps:
            if step == "index":
                index(log.store)
            elif step == "entries":
                log.add_entries()
            elif isinstance(step, str):
                log.merge(int(step))
            elif isinstance(step, int):
                log.delete(min(step, log.head))
            elif isinstance(step, tuple):
                log.append(*step)
        chosen = sorted(devices)
        assert [row.position for row in log.searches.page(chosen, search)] == log.expected("message", chosen, search)
        assert [row.position for row in log.searches.action_page(chosen, search)] == log.expected(
            "action", chosen, search
        )
        window = search if search.start_ms is not None else Range(Milliseconds(1), Milliseconds(60_000))
        window = replace(window, limit=None)
        expected = log.expected("message", chosen, window)
        for most in (3, 1_000):
            of_time = log.searches.between(chosen, window, most=most)
            assert of_time is not None or most == 3
            assert of_time is None or [row.position for row in of_time] == expected
        limit = search.limit or 3
        newest = Range(None, None, limit=limit, by_arrival=True, descending=True)
        assert [row.position for row in log.searches.latest(chosen, limit=limit, most=10_000)] == log.expected(
            "message", chosen, newest
        )
        for table, rows in log.rows.items():
            last = {device: ts for _, device, ts in sorted(rows)}
            assert log.searches.last_ts(table, chosen) == {key: ts for key, ts in last.items() if key in devices}
        for device in chosen:
            stamps = [ts for _, of, ts in log.rows["message"] if of == device]
            assert log.searches.about([device], start_ms=Milliseconds(1), end_ms=Milliseconds(60_000)) >= sum(
                1 <= ts <= 60_000 for ts in stamps
            )
            actions = [(position, "{}") for position, of, _ in log.rows["action"] if of == device and position > 2]
            assert log.searches.latest_actions_of(device, Position(2), limit=3) == actions[-3:]
        for behind in range(log.head + 1):
            found = log.searches.after_of(chosen, Position(behind))
            wanted = [
                position for position, device, _ in log.rows["message"] if device in devices and position > behind
            ]
            assert sorted(row.position for row in found) == wanted
            for device in chosen:
                own = [row.position for row in found if row.device == device]
                assert own == sorted(own)


@given(
    steps=_steps,
    devices=st.sets(st.sampled_from(DEVICES), min_size=1),
    search=searches(),
    most=st.integers(1, 6),
    limit=st.integers(1, 3),
    match=st.sampled_from((FieldMatch("third"), FieldMatch(values=(("third", "true"),)), FieldMatch("none"))),
    rows_of_an_entry=st.sampled_from((1, 2, 100)),
)
def test_searches_that_look_at_few_rows_each_find_together_what_one_finds(
    connection: SqliteConnection, steps: Sequence[tuple[Table, list[tuple[int, int]]] | str | int],
    devices: set[DeviceKey], search: Range, most: int, limit: int, match: FieldMatch, rows_of_an_entry: int,
) -> None:  # fmt: skip
    with Log(connection) as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_index, "ROWS", rows_of_an_entry)
        patch.setattr(message_searches, "_FIRST_ROWS", 1)
        for step in steps:
            if step == "index":
                index(log.store)
            elif step == "entries":
                log.add_entries()
            elif isinstance(step, str):
                log.merge(int(step))
            elif isinstance(step, int):
                log.delete(min(step, log.head))
            elif isinstance(step, tuple):
                log.append(*step)
        chosen = sorted(devices)
        whole = log.expected("message", chosen, replace(search, limit=None))
        search = replace(search, match=match, limit=limit)
        if search.by_arrival:
            part = log.searches.some(chosen, search, most=most)
            found = [row.position for row in part.rows]
            behind = whole[: whole.index(part.upto) + 1] if isinstance(part.upto, int) else []
            matching = [one for one in (behind or whole) if one % 3 == 0 and match.field != "none"]
            assert found == matching[:limit]
            return
        found, turns = [], 0
        while True:
            part = log.searches.some(chosen, search, most=most)
            found += [row.position for row in part.rows]
            place = sort_key(part.rows[-1]) if len(part.rows) == limit else part.upto
            if not isinstance(place, tuple):
                break
            search = replace(search, before=place) if search.descending else replace(search, after=place)
            turns += 1
            assert turns <= len(whole)  # each one gets on by a row at least
        assert found == [one for one in whole if one % 3 == 0 and match.field != "none"]


@pytest.mark.parametrize("devices", [1, 3])
def test_a_search_that_finds_nothing_looks_at_few_rows(connection: SqliteConnection, devices: int) -> None:
    with Log(connection) as log:
        for first in range(0, 30_000, 3_000):
            log.append("message", [(1 + ts % devices, 20 * ts) for ts in range(first, first + 3_000)])
            log.add_entries()
        chosen, most = [DeviceKey(1 + one) for one in range(devices)], 5_000
        for descending in (False, True):
            search = Range(None, None, match=FieldMatch("none"), limit=100, descending=descending)
            part = log.searches.some(chosen, search, most=most)
            assert part.rows == []
            assert isinstance(part.upto, tuple)
            passed = 29_999 - part.upto[0] // 20 if descending else part.upto[0] // 20
            assert most // 2 <= passed <= most + 1_024 * devices


def test_an_entry_is_of_one_device_and_ten_seconds_and_of_few_rows(connection: SqliteConnection) -> None:
    with Log(connection) as log:
        log.append("message", [(1, ts) for ts in range(59_880, 60_110)] + [(2, 5)])
        log.append("message", [(1, 60_110), (1, 59_000)])
        log.append("message", [(1, 59_001)])
        log.add_entries()
        rows = connection.execute("SELECT * FROM message_entry ORDER BY key")
        assert [(row["device"], row["number"], row["first_ts"], row["last_ts"]) for row in rows] == [
            (1, 100, 59_880, 59_979),
            (1, 20, 59_980, 59_999),
            (1, 100, 60_000, 60_099),
            (1, 11, 60_100, 60_110),
            (2, 1, 5, 5),
            (1, 2, 59_000, 59_001),
        ]


def test_entries_that_do_not_follow_the_last_ones_are_made_of_the_log(connection: SqliteConnection) -> None:
    """The entries before them were lost with a failed write."""
    everything = Range(None, None)
    with Log(connection) as log:
        log.append("message", [(1, 1), (2, 2)])
        log.entries, log.behind = EntryBuilder(), log.head
        log.append("message", [(1, 3)])
        log.append("action", [(1, 3)])
        log.add_entries()
        assert log.without_entries() == 0
        assert [row.position for row in log.searches.page([DeviceKey(1), DeviceKey(2)], everything)] == [1, 2, 3]
        assert [row.position for row in log.searches.action_page([DeviceKey(1)], everything)] == [4]


def test_rows_have_one_entry_when_entries_come_late(connection: SqliteConnection) -> None:
    """The store has made them since."""
    with Log(connection) as log:
        log.append("message", [(1, 1)])
        late = log.entries.made
        log.append("message", [(1, 2)])
        index(log.store)
        log.store.add_entries(late, Position(0), Position(1))
        assert log.without_entries() == 0
        log.append("message", [(1, 3)])
        log.add_entries()
        assert [row.position for row in log.searches.page([DeviceKey(1)], Range(None, None))] == [1, 2, 3]


_moments = st.sampled_from((10, 11, 12, 13, 14, 9_990, 10_010, 60_010, 60_011, 86_400_009, 86_400_010))


@given(
    commits=st.lists(st.lists(_moments, min_size=1, max_size=4), min_size=1, max_size=9),
    rows_of_an_entry=st.integers(1, 5),
    merged=st.sampled_from((0, 2, 3, 99)),
    by_arrival=st.booleans(),
    descending=st.booleans(),
)
@settings(max_examples=examples(1_000))
def test_rows_of_a_group_come_before_those_of_the_next_one(
    connection: SqliteConnection, commits: list[list[int]], rows_of_an_entry: int, merged: int, by_arrival: bool,
    descending: bool,
) -> None:  # fmt: skip
    """The times of entries may overlap or be all the same."""
    with Log(connection) as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_index, "ROWS", rows_of_an_entry)
        patch.setattr(log_index, "_GROUP_MOST", 1)
        step = 0
        for number, times in enumerate(commits, start=1):
            log.append("message", [(1, ts) for ts in times])
            log.add_entries()
            if merged and number % merged == 0:
                log.merge(step)
                step = log.head
        if merged:
            log.merge(step)
        places = {position: (0 if by_arrival else ts, position) for position, _, ts in log.rows["message"]}
        found = [sorted(places[position] for position in group) for group in _groups(log, by_arrival, descending)]
        assert sorted(place for group in found for place in group) == sorted(places.values())
        for earlier, later in pairwise(reversed(found) if descending else found):
            assert earlier[-1] < later[0]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("by_arrival", [False, True])
@pytest.mark.parametrize("times", [(10, 20, 30), (10, 10, 10), (10, 60_010, 120_010)])
def test_rows_in_the_order_of_their_times_are_many_groups(
    connection: SqliteConnection, times: tuple[int, ...], by_arrival: bool, descending: bool
) -> None:
    """A page of the device reads few of them."""
    with Log(connection) as log:
        for ts in times:
            log.append("message", [(1, ts)])
            log.add_entries()
        groups = _groups(log, by_arrival, descending)
        assert [len(group) for group in groups] == [1, 2]


def _groups(log: Log, by_arrival: bool, descending: bool) -> list[list[int]]:
    index, one = LogIndex(log.connection, "message"), DeviceKey(1)
    if by_arrival:
        groups = index.by_arrival(one, descending=descending, rows=1)
    else:
        groups = index.by_time(one, None, None, descending=descending, rows=1)
    return [json.loads(group) for group in groups]


def test_a_search_may_begin_and_end_within_an_entry(connection: SqliteConnection) -> None:
    with Log(connection) as log:
        log.append("message", [(1, ts) for ts in (10, 20, 30, 40)])
        log.add_entries()
        found = log.searches.page([DeviceKey(1)], Range(Milliseconds(20), Milliseconds(30)))
        assert [row.ts for row in found] == [20, 30]


def test_entries_go_with_their_rows(connection: SqliteConnection) -> None:
    def entries(device: int) -> int:
        row = connection.execute("SELECT count(*) AS n FROM message_entry WHERE device = :d", {"d": device}).one()
        return int(row["n"]) if row else -1

    with Log(connection) as log:
        for _ in range(3):
            log.append("message", [(1, 1), (2, 1)])
            log.add_entries()
        assert (entries(1), entries(2)) == (3, 3)
        log.delete(3)
        assert (entries(1), entries(2)) == (2, 2)
        assert [row.position for row in log.searches.page([DeviceKey(1), DeviceKey(2)], Range(None, None))] == [4, 5, 6]
        log.delete(log.head)
        assert (entries(1), entries(2)) == (0, 0)


@pytest.mark.parametrize(
    "search",
    [Range(Milliseconds(0), Milliseconds(9), limit=5), Range(None, None, limit=5, by_arrival=True, descending=True)],
)
def test_a_search_reads_the_index_and_the_rows_it_names(connection: SqliteConnection, search: Range) -> None:
    with Log(connection) as log:
        log.append("message", [(1, 5)])
        index(log.store)
        statements: list[str] = []
        connection._connection.set_trace_callback(statements.append)
        log.searches.page([DeviceKey(1), DeviceKey(2)], search)
        connection._connection.set_trace_callback(None)
        plans = [
            " ".join(row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}"))
            for statement in statements
            if ("FROM message" in statement or "JOIN message" in statement) and "max(position)" not in statement
        ]
        assert len(plans) == 3
        assert sum("USING INDEX message_entry_by_" in plan for plan in plans) == 2
        assert sum("SEARCH message USING INTEGER PRIMARY KEY" in plan for plan in plans) == 1
        assert not any("SCAN message" in plan or "TEMP B-TREE" in plan for plan in plans)


@pytest.mark.parametrize("descending", [False, True])
def test_a_page_of_a_busy_device_reads_few_rows(connection: SqliteConnection, descending: bool) -> None:
    """Some of them may be late, and all may have one `ts`."""
    with Log(connection) as log:
        for first in range(0, 50_000, 1_000):
            log.append("message", [(1, ts if ts % 500 else ts - 400) for ts in range(first, first + 1_000)])
            log.add_entries()
        log.append("message", [(2, 7)] * 5_000)
        log.add_entries()
        for device in (1, 2):
            steps = 0

            def step() -> int:
                nonlocal steps
                steps += 1
                return 0

            connection._connection.set_progress_handler(step, 100)
            search = Range(Milliseconds(0), Milliseconds(60_000), limit=10, descending=descending)
            assert len(log.searches.page([DeviceKey(device)], search)) == 10
            connection._connection.set_progress_handler(None, 0)
            assert steps < 400  # hundreds of instructions of the engine: some for each row


def test_a_page_of_a_device_without_a_clock_asks_the_index_once(connection: SqliteConnection) -> None:
    with Log(connection) as log:
        for _ in range(300):
            log.append("message", [(1, 7)])
            log.add_entries()
        statements: list[str] = []
        connection._connection.set_trace_callback(statements.append)
        nothing = Range(Milliseconds(0), Milliseconds(9), match=FieldMatch(field="none"), limit=1, descending=True)
        assert log.searches.page([DeviceKey(1)], nothing) == []
        connection._connection.set_trace_callback(None)
        assert sum("AS first_ts FROM (SELECT" in statement for statement in statements) == 1


def test_rows_after_those_that_have_an_entry_are_found_without_the_index(connection: SqliteConnection) -> None:
    """Snapshots of many devices ask for them, with each read."""
    with Log(connection) as log:
        log.append("message", [(1, 1), (2, 2)])
        log.add_entries()
        log.append("message", [(1, 3), (2, 4)])
        statements: list[str] = []
        connection._connection.set_trace_callback(statements.append)
        found = log.searches.after_of([DeviceKey(1), DeviceKey(2)], Position(2))
        connection._connection.set_trace_callback(None)
        assert [row.position for row in found] == [3, 4]
        assert not any("message_entry" in statement for statement in statements)


def test_rows_by_arrival_are_read_within_their_time(connection: SqliteConnection) -> None:
    with Log(connection) as log:
        for ts in range(0, 3_000_000, 10_000):
            log.append("message", [(1, ts)])
        log.add_entries()
        groups = LogIndex(connection, "message").by_arrival(
            DeviceKey(1), start_ms=Milliseconds(20_000), end_ms=Milliseconds(40_000)
        )
        assert [json.loads(group) for group in groups] == [[3, 4, 5]]
        found = log.searches.page([DeviceKey(1)], Range(Milliseconds(20_000), Milliseconds(40_000), by_arrival=True))
        assert [row.position for row in found] == [3, 4, 5]


def test_rows_without_a_limit_are_read_in_parts(connection: SqliteConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value of the engine has a largest size."""
    monkeypatch.setattr(message_searches, "_ROWS_AT_ONCE", 4)
    with Log(connection) as log:
        log.append("message", [(1, ts % 2) for ts in range(30)])
        log.add_entries()
        found = log.searches.page([DeviceKey(1)], Range(Milliseconds(0), Milliseconds(9)))
        assert [row.position for row in found] == [*range(1, 31, 2), *range(2, 31, 2)]


def test_a_device_is_removed_in_steps_of_many_rows(connection: SqliteConnection) -> None:
    with Log(connection) as log:
        for ts in range(0, 3_000_000, 10_000):
            log.append("message", [(1, ts)])
        log.add_entries()
        assert len(LogIndex(connection, "message").forget(DeviceKey(1), rows=200)) == 200
        assert len(LogIndex(connection, "message").forget(DeviceKey(1), rows=200)) == 100
        log.append("message", [(2, ts) for ts in range(300)])
        log.add_entries()
        assert len(LogIndex(connection, "message").forget(DeviceKey(2), rows=150)) == 2


@pytest.mark.parametrize("table", ["message", "action"])
async def test_rows_that_an_older_version_has_written_by_mistake_have_index_entries(
    tmp_path: Path, table: Table
) -> None:
    """Its index is another one, and it moves the same counter."""
    engine = SqliteEngine(tmp_path / "store.sqlite")
    engine.migrate()
    connection = engine.open(read_only=False)
    with Log(connection) as log:
        log.append("message", [(1, 1), (2, 2)])
        log.append("action", [(1, 3)])
        index(log.store)
        log.append(table, [(1, 4)])
        log.store.set_counter("indexed", log.head)
        connection.commit()
        connection.begin(write=True)
    for is_healed in (False, True):
        with structlog.testing.capture_logs() as logs:
            async with trio.open_nursery() as nursery:
                database = Database(engine)
                await database.open()
                await nursery.start(database.commit_forever)
                nursery.cancel_scope.cancel()
        assert [line["event"] for line in logs].count("rows_without_index") == (not is_healed)
        with Log(connection) as log:
            log.head = log.store.head()
            assert log.without_entries() == 0
            every = Range(Milliseconds(0), Milliseconds(9), limit=9)
            found = [row.position for row in log.searches.page([DeviceKey(1)], every)]
            acted = [row.position for row in log.searches.action_page([DeviceKey(1)], every)]
            assert (sorted(found), sorted(acted)) == (([1, 4], [3]) if table == "message" else ([1], [3, 4]))
    connection.close()


def test_rows_of_an_older_store_have_index_entries(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    db = sqlite3.connect(path)
    migrations.apply(db, stop_before="0017_indexes_behind_the_log")
    with db:
        db.execute("INSERT INTO message VALUES (7, 1, 5, 5, 1, '{}')")
        db.execute("INSERT INTO action VALUES (8, 1, 1, 6, 6, 1, '{}')")
        db.execute("INSERT INTO counter VALUES ('head', 8)")
    db.close()
    engine = SqliteEngine(path)
    with structlog.testing.capture_logs() as logs:
        engine.migrate()
    assert [line["event"] for line in logs] == ["migrating"]
    assert "0017_indexes_behind_the_log" in logs[0]["steps"]
    connection = engine.open(read_only=False)
    log = Log(connection)
    with log:
        log.head = 8
        assert log.without_entries() == 8
        index(log.store)
        assert log.without_entries() == 0
        log.append("message", [(1, 4)])
        assert [
            row.position for row in log.searches.page([DeviceKey(1)], Range(Milliseconds(0), Milliseconds(9), limit=9))
        ] == [9, 7]
        assert [
            row.position
            for row in log.searches.action_page([DeviceKey(1)], Range(Milliseconds(0), Milliseconds(9), limit=9))
        ] == [8]
    connection.close()
