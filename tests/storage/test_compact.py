"""`trunkline store compact`: an old store gets smaller, and nothing is lost wherever it is killed (reference 27.27)."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final

import pytest

from storage.engines import sqlite_compact
from storage.engines.salvage import salvage
from storage.engines.sqlite import SqliteEngine
from storage.engines.sqlite_compact import compact, room_needed, unfinished_copy
from storage.sql import StoreDamagedError, StoreError, StoreFullError
from tests.damaged_pages import damage, leaves
from tests.properties import chance
from tests.stores import make_store

pytestmark = [pytest.mark.sqlite("the file is copied"), pytest.mark.slow]

MIB: Final = 2**20
ROWS: Final = 3_000
_NTH: Final = 3


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store as an early version has made it, half of whose messages were deleted."""
    made, store = tmp_path / "made.sqlite", tmp_path / "store.sqlite"
    make_store(made)
    with closing(sqlite3.connect(made, isolation_level=None)) as db:
        db.execute("PRAGMA auto_vacuum=NONE")
        db.execute("VACUUM INTO ?", (str(store),))
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO message (position, device, ts, cts, mv, data)"
            " SELECT i, 1, i, i, 1, printf('%0500d', i) FROM n",
            (2 * ROWS,),
        )
        db.execute("DELETE FROM message WHERE position <= ?", (ROWS,))
    return store


def contents(store: Path) -> tuple[int, int, str]:
    with closing(sqlite3.connect(store)) as db:
        found: tuple[int, int, str] = db.execute(
            "SELECT count(*), sum(position), max(data) FROM message WHERE length(data) = 500"
        ).fetchone()
    return found


def gives_back(store: Path) -> bool:
    with SqliteEngine(store).snapshot() as snapshot:
        return snapshot.rows.gives_back()


def test_an_old_store_gets_smaller_and_can_give_room_back_afterwards(old: Path) -> None:
    before, size, told = contents(old), old.stat().st_size, list[str]()
    assert before[0] == ROWS
    assert not gives_back(old)
    done = compact(old, told.append)
    assert (done.before, done.after) == (size, old.stat().st_size)
    assert done.after < 0.7 * done.before
    assert contents(old) == before
    assert gives_back(old)
    assert old.stat().st_mode & 0o777 == 0o600
    assert told[0].endswith("are to be written")
    SqliteEngine(old, upgrades=False).migrate()  # as the daemon's start
    assert contents(old) == before
    with SqliteEngine(old).snapshot() as snapshot:
        assert snapshot.is_current()
    assert compact(old, told.append).after == done.after
    assert list(old.parent.glob("*.part")) == []


def test_it_is_told_how_far_it_is(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.engines.sqlite_upgrade._TELL_SECONDS", 0)
    monkeypatch.setattr(sqlite_compact, "_OPERATIONS", 1_000)
    told: list[str] = []
    compact(old, told.append)
    parts = [int(text.split()[0]) for text in told if text.endswith("% are written")]
    assert len(parts) > 3
    assert parts == sorted(parts)


@contextmanager
def killed_at(line: int) -> Iterator[None]:
    """The process ends, as by SIGKILL, before the line of the module that is reached as the `line`-th one."""
    left = line

    def trace(frame: FrameType, event: str, _value: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != sqlite_compact.__file__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os._exit(9)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def test_killed_at_any_point_all_rows_are_there(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the points, others in each run; and each of them while the new file is whole and not in its place."""
    monkeypatch.setattr(sqlite_compact, "_OPERATIONS", 10_000)
    before, kills, has_ended = contents(old), chance().randrange(_NTH), False
    while not has_ended:
        if (child := os.fork()) == 0:
            with killed_at(kills):
                compact(old, lambda _text: None)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        has_ended = os.waitstatus_to_exitcode(status) == 0
        part = unfinished_copy(old)
        step = 1 if part.exists() and part.stat().st_size else _NTH
        kills += 0 if has_ended else step
        with closing(sqlite3.connect(old)) as db:
            assert db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        assert contents(old) == before, kills
    assert kills > 40
    assert gives_back(old)
    assert not unfinished_copy(old).exists()


def test_without_room_it_says_how_much_it_needs_and_leaves_all_as_it_was(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old.read_bytes()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=3 * MIB))
    with pytest.raises(StoreFullError, match=rf"{room_needed(old) >> 20} MiB are needed .*, and the disk has 3 MiB"):
        compact(old, lambda _text: None)
    assert old.read_bytes() == before


def test_a_damaged_store_and_one_that_is_used_are_left_alone(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_compact, "_BUSY_SECONDS", 0)
    with closing(sqlite3.connect(old)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="uses it"):
            compact(old, lambda _text: None)
    damage(old, leaves(old, "message")[-1])
    before = old.read_bytes()
    with pytest.raises(StoreDamagedError, match="trunkline store salvage"):
        compact(old, lambda _text: None)
    assert (old.read_bytes(), unfinished_copy(old).exists()) == (before, False)


def test_a_salvaged_store_gives_room_back(old: Path) -> None:
    new = old.with_name("new.sqlite")
    assert all(one.is_whole for one in salvage(old, new))
    assert gives_back(new)
