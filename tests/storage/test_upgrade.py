"""A store of an older version: who upgrades it, the copy that is kept, the progress, and the way back."""

import errno
import os
import shutil
import sqlite3
from collections import namedtuple
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from storage import migrations
from storage.engines import sqlite_upgrade
from storage.engines.sqlite import SqliteEngine
from storage.engines.sqlite_upgrade import copies_of, undo_upgrade
from storage.sql import StoreError, StoreFullError

pytestmark = [pytest.mark.sqlite("files of older versions, and their copies"), pytest.mark.slow]

with closing(sqlite3.connect(":memory:")) as _empty:
    STEPS = migrations.pending(_empty)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Without the last two steps."""
    path = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        migrations.apply(connection, stop_before=STEPS[-2])
        connection.execute("UPDATE counter SET value = 7 WHERE name = 'head'")
        connection.execute("INSERT OR IGNORE INTO counter VALUES ('head', 7)")
        connection.commit()
    return path


def applied(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return migrations.applied(connection)


def upgraded(path: Path) -> list[str]:
    told: list[str] = []
    SqliteEngine(path, progress=told.append).migrate()
    return told


def test_a_command_that_does_not_upgrade_says_who_does(older: Path) -> None:
    with pytest.raises(StoreError, match="it lacks 2 schema steps: start the daemon, or run once: trunkline migrate"):
        SqliteEngine(older, upgrades=False).migrate()
    assert applied(older) == STEPS[:-2]
    upgraded(older)
    SqliteEngine(older, upgrades=False).migrate()


def test_a_new_store_is_no_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    told: list[str] = []
    SqliteEngine(path, upgrades=False, progress=told.append).migrate()
    assert (applied(path), told, copies_of(path)) == (STEPS, [], [])


def test_an_upgrade_keeps_a_copy_and_tells_each_step(older: Path) -> None:
    assert upgraded(older) == [f"step 1 of 2, {STEPS[-2]}", f"step 2 of 2, {STEPS[-1]}"]
    (copy,) = copies_of(older)
    assert copy.name == f"store.sqlite.before-{STEPS[-3][:4]}"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert (applied(copy), applied(older)) == (STEPS[:-2], STEPS)
    assert upgraded(older) == []
    assert copies_of(older) == [copy]


def test_a_long_step_is_told_again(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_upgrade, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(sqlite_upgrade, "_OPERATIONS", 1)
    told = upgraded(older)
    assert "copying the store before the upgrade: 100 %" in told
    assert any(text.endswith(" s") and STEPS[-1] in text for text in told)


def test_the_next_upgrade_replaces_the_copy_and_a_part_of_one(older: Path) -> None:
    name = f"store.sqlite.before-{STEPS[-3][:4]}"
    for left in ("store.sqlite.before-0001", f"{name}.part"):
        older.with_name(left).write_bytes(b"left")
    upgraded(older)
    assert {path.name for path in older.parent.glob("store.sqlite.before*")} == {name}


def test_an_upgrade_that_was_killed_between_its_steps_keeps_the_copy_of_before(older: Path) -> None:
    def killed(text: str) -> None:
        if text.startswith("step 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SqliteEngine(older, progress=killed).migrate()
    assert applied(older) == STEPS[:-1]
    upgraded(older)
    (copy,) = copies_of(older)
    assert (applied(copy), applied(older)) == (STEPS[:-2], STEPS)


def test_the_copy_of_an_upgrade_before_any_step_is_made_again(older: Path) -> None:
    """The version of before may have stored more since."""
    older.with_name(f"store.sqlite.before-{STEPS[-3][:4]}").write_bytes(older.read_bytes())
    with closing(sqlite3.connect(older)) as connection, connection:
        connection.execute("UPDATE counter SET value = 9 WHERE name = 'head'")
    upgraded(older)
    undo_upgrade(older)
    with closing(sqlite3.connect(older)) as connection:
        assert connection.execute("SELECT value FROM counter WHERE name = 'head'").fetchone() == (9,)


def failing(monkeypatch: pytest.MonkeyPatch, owner: object, call: str, name: str) -> None:
    """Let this call fail for the path whose name begins so."""
    real = getattr(owner, call)

    def fail(path: Path, *arguments: Any, **named: Any) -> Any:
        if Path(path).name.startswith(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(owner, call, fail)


@pytest.mark.parametrize(("call", "name"), [("unlink", "store.sqlite.before-0001"), ("rename", "store.sqlite.before-")])
def test_a_copy_that_cannot_be_kept_is_an_error_that_names_the_file(
    older: Path, monkeypatch: pytest.MonkeyPatch, call: str, name: str
) -> None:
    older.with_name("store.sqlite.before-0001").touch()
    with monkeypatch.context() as patched:
        failing(patched, Path, call, name)
        with pytest.raises(StoreError, match=rf"{name}\S*: Input/output error"):
            upgraded(older)
    assert applied(older) == STEPS[:-2]
    upgraded(older)
    assert len(copies_of(older)) == 1


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("owner_call", ["Path.rename", "Path.unlink", "os.fsync"])
def test_an_undo_that_fails_leaves_a_store_and_can_be_repeated(
    older: Path, monkeypatch: pytest.MonkeyPatch, owner_call: str, has_links: bool
) -> None:
    upgraded(older)
    (copy,) = copies_of(older)
    aside = older.with_name("store.sqlite.upgraded")
    with monkeypatch.context() as patched:
        if not has_links:
            failing(patched, os, "link", older.name)
        if owner_call == "os.fsync":
            patched.setattr(os, "fsync", lambda _file: failed(older.parent))
        else:
            name = copy.name if owner_call == "Path.rename" else aside.name
            failing(patched, Path, owner_call.partition(".")[2], name)
        with pytest.raises(StoreError, match="Input/output error"):
            undo_upgrade(older)
    if owner_call == "os.fsync":  # all is in its place
        assert (applied(older), applied(aside)) == (STEPS[:-2], STEPS)
        return
    assert (applied(older), aside.exists()) == (STEPS, False)
    undo_upgrade(older)
    assert (applied(older), applied(aside)) == (STEPS[:-2], STEPS)


def failed(path: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_without_room_for_the_copy_nothing_is_changed(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(2**30, 2**30, 2**20))
    with pytest.raises(StoreFullError, match="and the disk has 1 MiB: make room, or make a backup"):
        upgraded(older)
    assert (applied(older), copies_of(older)) == (STEPS[:-2], [])
    SqliteEngine(older).migrate()  # as `trunkline migrate --no-copy`
    assert applied(older) == STEPS


def test_an_upgrade_is_undone(older: Path) -> None:
    upgraded(older)
    copy, aside = undo_upgrade(older)
    assert (applied(older), applied(aside)) == (STEPS[:-2], STEPS)
    assert not copy.exists()
    with pytest.raises(StoreError, match="no upgrade has kept a copy"):
        undo_upgrade(older)


def test_messages_that_came_after_the_upgrade_are_not_lost_unasked(older: Path) -> None:
    upgraded(older)
    with closing(sqlite3.connect(older)) as connection, connection:
        connection.execute("UPDATE counter SET value = value + 3 WHERE name = 'head'")
    with pytest.raises(StoreError, match="3 messages and Actions came after the upgrade and would be lost"):
        undo_upgrade(older)
    assert applied(older) == STEPS
    undo_upgrade(older, force=True)
    assert applied(older) == STEPS[:-2]
