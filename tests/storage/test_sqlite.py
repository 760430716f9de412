"""The SQLite engine: opening files, errors as StoreError, and conditions on JSON."""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.migrations import VERSION
from storage.sql import StoreError
from tests.rows import each_row

pytestmark = [pytest.mark.sqlite("the engine itself"), pytest.mark.slow]


@pytest.fixture
def connection(engine: SqliteEngine) -> Iterator[SqliteConnection]:
    engine.migrate()
    opened = engine.open(read_only=False)
    yield opened
    opened.close()


def test_migrations_may_be_applied_again(engine: SqliteEngine) -> None:
    engine.migrate()
    first = engine.open(read_only=True)
    key = dict(first.execute("SELECT * FROM secret").one() or {})
    engine.migrate()
    assert dict(first.execute("SELECT * FROM secret").one() or {}) == key
    assert len(key["value"]) == 32
    first.close()


def test_two_stores_have_different_keys_for_their_message_ids(tmp_path: Path) -> None:
    keys = set()
    for name in ("a", "b"):
        engine = SqliteEngine(tmp_path / name)
        engine.migrate()
        connection = engine.open(read_only=True)
        row = connection.execute("SELECT value FROM secret WHERE name = 'mid'").one()
        assert row is not None
        keys.add(row["value"])
        connection.close()
    assert len(keys) == 2


def test_the_store_commits_to_disk_unless_told_otherwise(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "store")
    engine.migrate()
    connection = engine.open(read_only=False)
    assert dict(connection.execute("PRAGMA synchronous").one() or {}) == {"synchronous": 2}
    assert dict(connection.execute("PRAGMA journal_mode").one() or {}) == {"journal_mode": "wal"}
    connection.close()


@pytest.mark.parametrize("is_there", [False, True])
def test_others_cannot_read_the_files_of_a_store(tmp_path: Path, is_there: bool) -> None:
    """A umask that lets them does not matter, and files of an older version are changed."""
    path = tmp_path / "store"
    umask = os.umask(0)
    try:
        if is_there:
            with closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA journal_mode=WAL")
        SqliteEngine(path).migrate()
        with closing(SqliteEngine(path).open(read_only=False)) as connection:
            connection.begin(write=True)
            connection.execute("INSERT INTO counter VALUES ('a', 1)")
            connection.commit()
            modes = {one.name: one.stat().st_mode & 0o777 for one in tmp_path.iterdir()}
    finally:
        os.umask(umask)
    assert modes == {"store": 0o600, "store-wal": 0o600, "store-shm": 0o600}


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store"
    SqliteEngine(path).migrate()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
            " VALUES ('trunkline', '9999_of_tomorrow', '2099-01-01')"
        )
        db.execute("UPDATE store_version SET version = '99.1.0'")
    with pytest.raises(
        StoreError, match=rf"Trunkline 99\.1\.0 has made this store, and {re.escape(VERSION)} cannot read it"
    ):
        SqliteEngine(path).migrate()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT version FROM store_version").fetchall() == [("99.1.0",)]


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"this is no database, but it is long enough to be looked at " * 20)
    with pytest.raises(StoreError, match=str(path)):
        SqliteEngine(path).migrate()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="none"):
        SqliteEngine(tmp_path / "none" / "store").migrate()


def test_a_store_that_cannot_be_opened_leaves_no_connection_open(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(real_connect(*arguments, **options))
        return opened[-1]

    real_connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    engine.path.write_bytes(b"this is no database, but it is long enough to be looked at " * 20)
    with pytest.raises(StoreError):
        SqliteEngine(engine.path).migrate()
    with pytest.raises(StoreError):
        engine.open(read_only=True)
    assert len(opened) == 2
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_an_error_in_the_middle_of_the_rows_is_a_store_error(connection: SqliteConnection) -> None:
    sql = "SELECT json_extract(value, '$') AS x FROM (SELECT '1' AS value UNION ALL SELECT '{bad')"
    with pytest.raises(StoreError, match="malformed JSON"):
        list(connection.execute(sql))


def test_one_statement_measures_all_trees_of_a_small_store(
    connection: SqliteConnection, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("INSERT INTO counter VALUES ('a', 1)")
    statements.clear()
    found = connection.table_sizes()
    assert len(statements) == 3, statements
    assert found["counter"].whole
    monkeypatch.setattr("storage.engines.sqlite._MEASURED_PAGES", connection.size_bytes()[0] // 4096 - 1)
    assert connection.table_sizes() == found, "tree by tree, as in a larger store"


def test_rolling_back_without_a_transaction_does_nothing(connection: SqliteConnection) -> None:
    connection.rollback()
    connection.begin(write=True)
    connection.rollback()
    connection.rollback()


@each_row(
    ("path", "found"),
    [
        ("a", True),
        ("g", True),
        ("g.b", True),
        ("g.h.c", True),
        ("g.c", False),
        ("b", False),
        ("A", False),
        ("a.x", False),
        ("list", True),
        ("false", True),
        # SQLite would read these as paths; here they are field names.
        ("list[0]", False),
        ("list[", False),
        ("", False),
        (".", False),
        ("a.", False),
        ("..a", False),
        ('a"', False),
        ('"a"', False),
        ('x" y', False),
        ("'", False),
        ("%", False),
        ("ä", False),
    ],
)
def test_a_dotted_path_is_looked_up_in_json(connection: SqliteConnection, path: str, found: bool) -> None:
    data = '{"a":1,"g":{"b":"x","h":{"c":0}},"list":[1],"false":false}'
    sql = f"SELECT 1 FROM (SELECT :data AS data) WHERE {connection.json_has('data', 'path')}"  # noqa: S608
    assert (connection.execute(sql, {"data": data, "path": path}).one() is not None) is found
