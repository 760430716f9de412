"""Salvage copies every row that can be read, says what is lost, and leaves the damaged store as it is."""

import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from storage.engines.salvage import LAST, SalvagedTable, salvage
from storage.engines.sqlite import SqliteEngine
from storage.sql import StoreError
from tests.damaged_pages import damage, leaves
from tests.stores import make_store

pytestmark = [pytest.mark.sqlite("damaged pages of the file"), pytest.mark.slow]

ROWS = 2_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.sqlite"
    make_store(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany(
            "INSERT INTO message (position, device, ts, cts, mv, data) VALUES (?, 1, 1, 1, 1, ?)",
            [(n, f'{{"n":{n},"text":"{"x" * 80}"}}') for n in range(1, ROWS + 1)],
        )
        db.executemany(
            "INSERT INTO rollup (device, field, level, bucket, count, numbers) VALUES (?, 1, 'hour', ?, 1, 1)",
            [(device, bucket) for device in (1, 2, 3) for bucket in range(500)],
        )
        db.execute("INSERT INTO organization (key, id, name, monthly_messages) VALUES (1, 'o', 'O', 1)")
        db.executemany("INSERT OR REPLACE INTO counter (name, value) VALUES (?, ?)", [("head", ROWS), ("indexed", 9)])
        db.execute("INSERT INTO retention (name, position) VALUES ('message', 5)")
    return path


def rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def by_name(found: list[SalvagedTable]) -> dict[str, SalvagedTable]:
    return {one.name: one for one in found}


def test_a_whole_store_is_copied_whole(path: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.sqlite"
    before = path.read_bytes()
    found = salvage(path, new)
    assert all(one.is_whole for one in found)
    assert path.read_bytes() == before
    assert new.stat().st_mode & 0o777 == 0o600
    for table in ("message", "rollup", "secret", "organization", "_sqlite_migrations", "store_version"):
        columns = "position, data" if table == "message" else "*"
        every = f"SELECT {columns} FROM {table}"  # noqa: S608 - constants
        assert rows(new, every) == rows(path, every)
    schema = "SELECT name FROM sqlite_schema ORDER BY name"
    assert rows(new, schema) == rows(path, schema)
    assert rows(new, "PRAGMA integrity_check") == [("ok",)]
    SqliteEngine(new).migrate()


def test_the_rows_of_a_device_are_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.engines.salvage._ROWS_AT_ONCE", 100)
    most = []
    for number in (2_000, 10_000):
        path = tmp_path / f"{number}.sqlite"
        make_store(path)
        with closing(sqlite3.connect(path)) as db, db:
            db.executemany(
                "INSERT INTO rollup (device, field, level, bucket, count, numbers) VALUES (1, 1, 'minute', ?, 1, 1)",
                [(bucket,) for bucket in range(number)],
            )
        tracemalloc.start()
        try:
            found = by_name(salvage(path, tmp_path / f"{number}.salvaged"))
            most.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert found["rollup"].copied == number
    assert most[1] < 1.5 * most[0]


def test_rows_on_all_other_pages_are_copied_and_the_gaps_are_named(path: Path, tmp_path: Path) -> None:
    pages = leaves(path, "message")
    for page in (pages[0], pages[10], pages[11], pages[30]):
        damage(path, page)
    rollups = leaves(path, "rollup")
    damage(path, rollups[len(rollups) // 2])
    new = tmp_path / "new.sqlite"
    found = by_name(salvage(path, new))
    kept = {row[0] for row in rows(new, "SELECT position FROM message")}
    gaps = found["message"].gaps
    assert len(gaps) == 3
    assert set(range(1, ROWS + 1)) - kept == {n for first, last in gaps for n in range(max(1, first), last + 1)}
    assert len(kept) == found["message"].copied > ROWS * 0.9
    per_device = dict(rows(new, "SELECT device, count(*) FROM rollup GROUP BY device"))
    assert (per_device[1], per_device[3]) == (500, 500)
    assert 300 < per_device[2] < 500
    assert rows(new, "PRAGMA integrity_check") == [("ok",)]


def test_rows_of_a_table_that_was_set_aside_come_back_into_the_log(path: Path, tmp_path: Path) -> None:
    damage(path, leaves(path, "message")[-1])
    SqliteEngine(path).migrate()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO message (position, device, ts, cts, mv, data) VALUES (?, 1, 1, 1, 1, '{}')",
            (ROWS + 7,),
        )
        db.execute("UPDATE counter SET value = 3 WHERE name = 'head'")
    new = tmp_path / "new.sqlite"
    found = by_name(salvage(path, new))
    ((_, last),) = found["damaged_1_message"].gaps
    assert last == LAST
    kept = [row[0] for row in rows(new, "SELECT position FROM message ORDER BY position")]
    assert kept == [*range(1, found["damaged_1_message"].copied + 1), ROWS + 7]
    counters = dict(rows(new, "SELECT name, value FROM counter"))
    assert (counters["head"], counters["indexed"]) == (ROWS + 7, 0)
    assert rows(new, "SELECT * FROM retention") == []
    assert rows(new, "SELECT name FROM sqlite_schema WHERE name LIKE 'damaged%'") == []


def test_what_belongs_to_a_lost_row_is_left_out_and_counted(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO membership (organization, user, role) VALUES (1, 77, 'developer')")
    new = tmp_path / "new.sqlite"
    found = by_name(salvage(path, new))
    assert found["membership"].refused == 1
    assert rows(new, "PRAGMA foreign_key_check") == []


def test_a_write_ahead_log_is_read_and_stays(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO counter (name, value) VALUES ('late', 1)")
        db.commit()
        for name in ("store.sqlite", "store.sqlite-wal"):
            (tmp_path / f"copy-{name}").write_bytes((tmp_path / name).read_bytes())
    (tmp_path / "copy-store.sqlite-wal").rename(tmp_path / "copy.sqlite-wal")
    (tmp_path / "copy-store.sqlite").rename(tmp_path / "copy.sqlite")
    before = (tmp_path / "copy.sqlite-wal").read_bytes()
    salvage(tmp_path / "copy.sqlite", tmp_path / "new.sqlite")
    assert rows(tmp_path / "new.sqlite", "SELECT value FROM counter WHERE name = 'late'") == [(1,)]
    assert (tmp_path / "copy.sqlite-wal").read_bytes() == before


def _is_there(_damaged: Path, new: Path) -> None:
    new.write_text("something else")


def _without_schema(damaged: Path, _new: Path) -> None:
    damage(damaged, 1)


@pytest.mark.parametrize(("prepare", "text"), [(_is_there, "exists already"), (_without_schema, "not a database")])
def test_nothing_is_overwritten_and_no_half_of_a_store_stays(
    path: Path, tmp_path: Path, prepare: Callable[[Path, Path], None], text: str
) -> None:
    new = tmp_path / "new.sqlite"
    prepare(path, new)
    before = new.read_text() if new.exists() else None
    with pytest.raises(StoreError, match=text):
        salvage(path, new)
    assert (new.read_text() if new.exists() else None) == before


def test_of_a_file_that_is_no_database_no_connection_stays(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_connect, made = sqlite3.connect, list[sqlite3.Connection]()

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made.append(real_connect(*arguments, **options))
        return made[-1]

    _without_schema(path, tmp_path)
    monkeypatch.setattr(sqlite3, "connect", connect)
    with pytest.raises(StoreError, match="not a database"):
        salvage(path, tmp_path / "new.sqlite")
    assert made
    for connection in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
