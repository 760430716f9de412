"""The embedded engine: SQLite in WAL mode. What only SQLite knows stays in this file.

Rows of the log are inserted through one JSON parameter and `json_each`. `executemany` gives the interpreter lock away
and takes it back once per row; measured against a busy event loop that is 2.5 to 5 times slower, and it slows the loop.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import sqlite_utils

from storage.migrations import migrations
from storage.sql import StoreError

_CACHE_KIB = 65536
_BUSY_MS = 5000


class SqliteRows:
    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        while (row := self.one()) is not None:
            yield row

    def one(self) -> Mapping[str, Any] | None:
        try:
            row: Mapping[str, Any] | None = self._cursor.fetchone()
        except sqlite3.Error as error:
            raise _store_error(error) from error
        return row


class SqliteConnection:
    """One connection in autocommit mode; transactions are begun by name."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._inserts: dict[str, str] = {}
        self._encode = msgspec.json.Encoder().encode

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> SqliteRows:
        try:
            return SqliteRows(self._connection.execute(sql, parameters or {}))
        except sqlite3.Error as error:
            raise _store_error(error) from error

    def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
        if (sql := self._inserts.get(table)) is None:
            values = ", ".join(f"json_extract(value, '$[{index}]')" for index in range(len(columns)))
            # The names come from the stores, never from a request.
            sql = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM json_each(:rows)"  # noqa: S608
            self._inserts[table] = sql
        self.execute(sql, {"rows": self._encode(rows).decode()})

    def json_has(self, column: str, parameter: str) -> str:
        # Every name is quoted, so that `a[0]` is the name of a field and not a path. No field has a quote in its name.
        path = f"""'$."' || replace(:{parameter}, '.', '"."') || '"'"""
        return f"""CASE WHEN instr(:{parameter}, '"') = 0 THEN json_type({column}, {path}) IS NOT NULL END"""

    def begin(self, *, write: bool) -> None:
        self.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    def commit(self) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


def _store_error(error: sqlite3.Error) -> StoreError:
    return StoreError(f"{type(error).__name__}: {error}")


class SqliteEngine:
    """Opens connections to one database file."""

    def __init__(self, path: Path, *, synchronous: str = "full") -> None:
        self.path = path
        self._synchronous = synchronous

    def migrate(self) -> None:
        """Apply the schema steps that this file has not seen yet."""
        try:
            connection = self._connect(read_only=False)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                migrations.apply(sqlite_utils.Database(connection))
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    def open(self, *, read_only: bool) -> SqliteConnection:
        try:
            connection = self._connect(read_only=read_only)
            connection.row_factory = sqlite3.Row
            return SqliteConnection(connection)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _connect(self, *, read_only: bool) -> sqlite3.Connection:
        # One thread at a time uses a connection, but not always the same one.
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000, cached_statements=256
        )
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB if not read_only else _CACHE_KIB // 8}")
        connection.execute("PRAGMA foreign_keys=ON")
        if read_only:
            connection.execute("PRAGMA query_only=ON")
        return connection
