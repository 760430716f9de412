"""A store is copied into another one, of the same engine and of the other one."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from storage.database import Database
from storage.engines.postgresql import PostgresqlEngine
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.sql import StoreError, StoreFullError
from storage.store_copy import CopyEngine, CopyProgress, CopyReport, copy_store
from storage.tables import OWN, TableShape, in_order
from tests.postgresql import server
from tests.stores import make_store

pytestmark = [pytest.mark.sqlite("in each run it has both engines"), pytest.mark.slow]

_BLOB = bytes(range(256))
_TEXTS = ("plain", "NUL \0, SUB \x1a, \x1a0", "Zoë 灯 🔥", "", "\\u0000", "STRASSE", "a'b\"c;--%s :k0")
_NUMBERS = (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63))
#: All texts and floats in each column of theirs, and both kinds of numbers.
_ROWS = 14
_FLOATS = (0.1, -0.0, 1e300, 5e-324, float("inf"), 4611686018427387904.0, 1.0)


def _value(kind: str, column: str, number: int) -> Any:
    match kind:
        case "INTEGER":
            return number
        case "BLOB":
            return number.to_bytes(4) + _BLOB
        case "REAL":
            return _FLOATS[number % len(_FLOATS)]
        case "TEXT":
            return f"{column} {number} {_TEXTS[number % len(_TEXTS)]}"
        case _:  # keeps integers and floats apart
            return _NUMBERS[number % len(_NUMBERS)] if number % 2 else _FLOATS[number % len(_FLOATS)]


def fill(path: Path, rows: int) -> None:
    """Put rows into every table, which refer to each other; each of the values that are difficult is in some."""
    with closing(sqlite3.connect(path)) as db, db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if table in OWN or table.startswith("sqlite_"):
                continue
            columns = db.execute("SELECT name, type FROM pragma_table_info(?)", [table]).fetchall()
            places = ", ".join("?" * len(columns))
            values = [[_value(kind, name, number) for name, kind in columns] for number in range(1, rows + 1)]
            db.executemany(f'INSERT INTO "{table}" VALUES ({places})', values)  # noqa: S608 - of the schema


def contents(engine: CopyEngine) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables in an order, with the types of their values."""
    with closing(engine.open(read_only=True)) as connection:
        connection.begin(write=False)
        tables = connection.tables()
        found = {
            shape.name: sorted(
                (
                    tuple((type(one).__name__, one) for one in row)
                    for row in tables.rows(f"SELECT {', '.join(sorted(shape.columns))} FROM {shape.name}", {})  # noqa: S608
                ),
                key=repr,
            )
            for shape in tables.shapes().values()
        }
        connection.rollback()
    return found


#: Makes an engine on a new place, which is empty.
NewEngine = Callable[[], CopyEngine]


@pytest.fixture
def new_sqlite(tmp_path: Path) -> NewEngine:
    numbers = count()
    return lambda: SqliteEngine(tmp_path / f"new{next(numbers)}.sqlite", synchronous="off")


@pytest.fixture
def new_postgresql() -> Iterator[NewEngine]:
    names = []

    def new() -> CopyEngine:
        names.append(server().new_database())
        return PostgresqlEngine(server().target(names[-1]))

    yield new
    for name in names:
        server().drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def new_engine(request: pytest.FixtureRequest) -> NewEngine:
    found: NewEngine = request.getfixturevalue(f"new_{request.param}")
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with rows in every table; of the log there are some more."""
    path = tmp_path_factory.mktemp("filled") / "source.sqlite"
    make_store(path)
    fill(path, _ROWS)
    with closing(sqlite3.connect(path)) as db, db:
        rows = [(number, 1, number, number, 1, f"{number}") for number in range(1000, 1700)]
        db.executemany("INSERT INTO message (position, device, ts, cts, mv, data) VALUES (?, ?, ?, ?, ?, ?)", rows)
    return path


@pytest.fixture
def source(filled: Path, tmp_path: Path) -> SqliteEngine:
    return SqliteEngine(Path(shutil.copy(filled, tmp_path)), synchronous="off")


def copy(source: CopyEngine, target: CopyEngine, tell: Callable[[CopyProgress], None] = lambda _: None) -> CopyReport:
    with closing(source.open(read_only=True)) as connection:
        return copy_store(connection, target, "the target", tell)


def change(source: SqliteEngine, sql: str) -> None:
    with closing(sqlite3.connect(source.path)) as db, db:
        db.execute(sql)


def test_every_value_comes_back_from_either_engine(
    source: SqliteEngine, new_engine: NewEngine, new_sqlite: NewEngine
) -> None:
    there, back = new_engine(), new_sqlite()
    report = copy(source, there)
    expected = contents(source)
    assert report.rows == sum(map(len, expected.values()))
    assert contents(there) == expected
    copy(there, back)
    assert contents(back) == expected
    numbers_go_on_behind_the_highest_keys(there)


def test_between_databases_of_postgresql(source: SqliteEngine, new_postgresql: NewEngine) -> None:
    first, second = new_postgresql(), new_postgresql()
    copy(source, first)
    copy(first, second)
    assert contents(second) == contents(source)


def numbers_go_on_behind_the_highest_keys(target: CopyEngine) -> None:
    with closing(target.open(read_only=False)) as connection:
        connection.begin(write=True)
        row = connection.execute("INSERT INTO field (path) VALUES ('new') RETURNING key").one()
        connection.rollback()
    assert row is not None
    assert row["key"] == _ROWS + 1


class _Killed(BaseException):
    """The process ends here: nothing catches it."""


@pytest.mark.parametrize(
    ("new_engine", "after"),
    [("sqlite", 0), ("sqlite", 200), ("postgresql", 70)],
    indirect=["new_engine"],
)
def test_a_copy_that_was_killed_goes_on_there(source: SqliteEngine, new_engine: NewEngine, after: int) -> None:
    target, told = new_engine(), count()

    def kill(_progress: CopyProgress) -> None:
        if next(told) == after:
            raise _Killed

    with pytest.raises(_Killed):
        copy(source, target, kill)
    first: list[CopyProgress] = []
    report = copy(source, target, first.append)
    assert report.was_resumed
    assert first[0].rows > 0 or after == 0
    assert contents(target) == contents(source)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE counter SET value = value + 1 WHERE name LIKE 'name 1 %'",  # known before anything is copied
        "UPDATE account_claim SET claimed_on = claimed_on + 1",  # found when both are compared
    ],
)
def test_what_changed_after_a_copy_was_killed_is_copied_anew(
    source: SqliteEngine, new_sqlite: NewEngine, sql: str
) -> None:
    """Somebody has started the daemon on the source again."""
    target = new_sqlite()

    def kill(progress: CopyProgress) -> None:
        if progress.table == "message":
            raise _Killed

    with pytest.raises(_Killed):
        copy(source, target, kill)
    change(source, sql)
    copy(source, target)
    assert contents(target) == contents(source)


def test_an_unfinished_copy_is_no_store(source: SqliteEngine, new_engine: NewEngine) -> None:
    target = new_engine()

    def kill(_progress: CopyProgress) -> None:
        raise _Killed

    with pytest.raises(_Killed):
        copy(source, target, kill)
    database = Database(target)
    with pytest.raises(StoreError, match="was interrupted: run it again"):
        database._open()
    copy(source, target)
    database._open()
    database._close()


def test_a_target_with_rows_is_refused_and_stays_as_it_is(source: SqliteEngine, new_sqlite: NewEngine) -> None:
    target = new_sqlite()
    copy(source, target)
    before = contents(target)
    with pytest.raises(StoreError, match="the target: has a store already"):
        copy(source, target)
    assert contents(target) == before


def test_the_unfinished_copy_of_another_store_is_refused(
    source: SqliteEngine, new_sqlite: NewEngine, tmp_path: Path
) -> None:
    other = SqliteEngine(tmp_path / "other.sqlite", synchronous="off")
    make_store(other.path)
    change(other, "UPDATE secret SET value = x'01' WHERE name = 'mid'")
    target = new_sqlite()

    def kill(progress: CopyProgress) -> None:
        raise _Killed

    with pytest.raises(_Killed):
        copy(other, target, kill)
    with pytest.raises(StoreError, match="copy of another store"):
        copy(source, target)


def test_a_table_that_differs_at_the_end_is_found(source: SqliteEngine, new_sqlite: NewEngine) -> None:
    target = new_sqlite()
    assert isinstance(target, SqliteEngine)

    def damage(progress: CopyProgress) -> None:
        if progress.is_comparing:
            change(target, "UPDATE message SET data = data || ' ' WHERE position = 1003")

    with pytest.raises(StoreError, match="the table message differs"):
        copy(source, target, damage)
    with pytest.raises(StoreError, match="was interrupted"):
        Database(target)._open()


class _SmallDisk(SqliteEngine):
    pages = 300

    def open(self, *, read_only: bool) -> SqliteConnection:
        connection = super().open(read_only=read_only)
        connection.execute(f"PRAGMA max_page_count={self.pages}")
        return connection


def test_a_full_disk_ends_the_copy_which_goes_on_when_there_is_room(source: SqliteEngine, tmp_path: Path) -> None:
    target = _SmallDisk(tmp_path / "small.sqlite", synchronous="off")
    with pytest.raises(StoreFullError):
        copy(source, target)
    target.pages = 100_000
    assert copy(source, target).was_resumed
    assert contents(target) == contents(source)


def test_a_newer_store_is_no_target(source: SqliteEngine, new_sqlite: NewEngine) -> None:
    target = new_sqlite()
    target.migrate()
    assert isinstance(target, SqliteEngine)
    change(
        target, "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('trunkline', '9999_x', '')"
    )
    with pytest.raises(StoreError, match="install"):
        copy(source, target)


def test_tables_come_behind_those_that_they_refer_to(source: SqliteEngine) -> None:
    with closing(source.open(read_only=True)) as connection:
        found = in_order(connection.tables().shapes())
    places = {shape.name: place for place, shape in enumerate(found)}
    assert all(places[parent] < places[shape.name] for shape in found for parent in shape.parents)
    one = TableShape("a", ("key",), ("key",), ("key",), frozenset({"a"}))
    assert in_order({"a": one}) == [one]


def test_both_engines_have_the_same_tables(source: SqliteEngine, new_postgresql: NewEngine) -> None:
    other = new_postgresql()
    other.migrate()
    with closing(source.open(read_only=True)) as here, closing(other.open(read_only=True)) as there:
        twins = there.tables().shapes()
        for name, shape in here.tables().shapes().items():
            twin = twins[name]
            assert (set(shape.columns), shape.key) == (set(twin.columns), twin.key), name
