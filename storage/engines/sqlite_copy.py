"""A copy of a store without its log, or of its schema alone: for trying out what a change or a new version would do."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from storage.engines.quarantine import SET_ASIDE
from storage.engines.sqlite_check import opened_to_read
from storage.sql import StoreError

#: Tables that grow with the traffic; in the copy they are empty.
LOGS: Final = frozenset(
    {"message", "action", "failed_message", "rollup", "snapshot", "audit_entry", "notification", "task_history"}
    | {"recent_call", "mail", "export", "export_device", "rule_request", "file", "file_chunk"}
)
#: The steps that the store has, its version, and the key of its message ids.
_OF_SCHEMA: Final = frozenset({"_sqlite_migrations", "store_version", "secret"})


def copy_without_log(store: Path, target: Path) -> None:
    """Make a new store at `target`. Nothing beside `store` is written. Raises StoreError."""
    _make(store, target, lambda table: table not in LOGS)


def copy_schema(store: Path, target: Path) -> None:
    """Copy the schema of a store without any user's data, for a trial start of the daemon."""
    _make(store, target, _OF_SCHEMA.__contains__)


def _make(store: Path, target: Path, with_rows: Callable[[str], bool]) -> None:
    try:
        with opened_to_read(store) as source, closing(sqlite3.connect(target, isolation_level=None)) as copy:
            copy.execute("PRAGMA journal_mode=OFF")
            copy.execute("BEGIN")
            _copy(source, copy, with_rows)
            copy.execute("COMMIT")
    except sqlite3.Error as error:
        raise StoreError(f"{target}: {error}") from error


def _copy(source: sqlite3.Connection, copy: sqlite3.Connection, with_rows: Callable[[str], bool]) -> None:
    parts = source.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    for kind, name, sql in parts:
        if kind == "table" and not name.startswith(("sqlite_", SET_ASIDE)):
            copy.execute(sql)
            if with_rows(name):
                rows = source.execute(f'SELECT * FROM "{name}"')  # noqa: S608 - a name of the store's own
                marks = ", ".join("?" * len(rows.description))
                copy.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)  # noqa: S608 - as above
    for kind, name, sql in parts:
        if kind == "index" and not name.startswith(SET_ASIDE):
            copy.execute(sql)
