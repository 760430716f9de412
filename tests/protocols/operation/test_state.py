"""Conditions on a state directory before a daemon uses it (reference 27.6)."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from config.settings import Settings
from protocols.errors import StateError, StateInUseError
from protocols.operation.state import open_state
from storage.engines.sqlite import SqliteEngine
from tests.stores import make_store as make_empty_store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state")


def make_store(settings: Settings) -> Path:
    """A store whose last writes are still in its write-ahead log, as after a kill."""
    with open_state(settings) as state:
        engine, aside = SqliteEngine(state.database), settings.state_dir.parent / "aside"
        make_empty_store(state.database)
        with closing(engine.open(read_only=False)) as store:
            store.begin(write=True)
            store.execute("INSERT INTO counter VALUES ('a', 1)")
            store.commit()
            shutil.copytree(settings.state_dir, aside)
    shutil.rmtree(settings.state_dir)
    aside.rename(settings.state_dir)
    return settings.state_dir / "store.sqlite"


def test_a_removed_lock_file_lets_no_second_daemon_in(settings: Settings) -> None:
    with open_state(settings):
        (settings.state_dir / "lock").unlink()
        with pytest.raises(StateInUseError), open_state(settings):
            pass
    with open_state(settings):
        pass


@pytest.mark.sqlite("PostgreSQL keeps its write-ahead log to itself")
@pytest.mark.parametrize("is_there", [False, True])
def test_no_new_store_is_made_beside_the_log_of_another(settings: Settings, *, is_there: bool) -> None:
    store = make_store(settings)
    log = store.with_name("store.sqlite-wal")
    before = log.read_bytes()
    store.unlink()
    if is_there:
        store.touch()
    with pytest.raises(StateError, match="missing or empty, but store"), open_state(settings):
        pass
    assert log.read_bytes() == before
    log.rename(settings.state_dir / "old-wal")
    with open_state(settings):
        pass


@pytest.mark.sqlite("PostgreSQL keeps its write-ahead log to itself")
def test_a_log_that_cannot_be_read_is_named(settings: Settings) -> None:
    log = make_store(settings).with_name("store.sqlite-wal")
    log.unlink()
    (log / "any").mkdir(parents=True)
    with pytest.raises(StateError, match=f"{log}: Is a directory"), open_state(settings):
        pass


@pytest.mark.sqlite("PostgreSQL keeps its write-ahead log to itself")
def test_a_log_that_was_cut_is_reported_and_its_beginning_used(settings: Settings) -> None:
    store = make_store(settings)
    log = store.with_name("store.sqlite-wal")
    with capture_logs() as logs, open_state(settings):
        pass
    assert logs == []
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 100)
    with capture_logs() as logs, open_state(settings):
        pass
    assert [one["event"] for one in logs] == ["store_log_is_cut"]
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT count(*) FROM counter WHERE name = 'a'").fetchone() == (0,)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
