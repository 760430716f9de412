"""A run over PostgreSQL notices each store of SQLite."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from storage.engines import STORE
from tests.opened_stores import OpenedStores

pytestmark = pytest.mark.sqlite("it opens files, which are noticed")


def test_files_are_noticed_whoever_opens_them(tmp_path: Path) -> None:
    """Also a program that is not forked and has left a store. Commands get `file` from tests/fork_server.py."""
    opened = OpenedStores()
    assert opened.taken() == []
    opened.watch()
    with closing(sqlite3.connect(":memory:")), closing(sqlite3.connect(tmp_path / "here")):
        pass
    assert opened.taken() == [str(tmp_path / "here")]
    store = tmp_path / "state" / STORE
    store.parent.mkdir()
    store.touch()
    opened.look_into(tmp_path)
    assert opened.taken() == [str(store)]
    draft = tmp_path / "restoring" / STORE
    draft.parent.mkdir()
    sqlite3.connect(draft).close()
    assert opened.taken() == []
