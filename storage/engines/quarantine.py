"""Sets aside tables of the message log to which nothing can be added, so that a daemon with a damaged store can start.

A damaged page in the middle of a table fails its readers. The last page of the log is different: every message is
added to it. A table whose end cannot be read gets another name, and an empty table takes its place;
`trunkline store salvage` puts the rows of both together again.
"""

import sqlite3
from typing import Final

import structlog

from storage.damage import repair_hint

#: The names of tables that were set aside: this, a number, and the name that the table had.
SET_ASIDE: Final = "damaged_"
LOG_TABLES: Final = ("message", "action", "failed_message")
#: Their index, which can be made again from them.
ENTRY_TABLES: Final = ("message_entry", "action_entry")
_log = structlog.get_logger(__name__)


def set_aside_damaged(connection: sqlite3.Connection) -> tuple[str, ...]:
    """The names of all tables that are set aside, after looking at the end of each table of the log.

    The connection is in autocommit mode. Raises sqlite3.Error.
    """
    names = _table_names(connection)
    for table in LOG_TABLES:
        if table in names and not _has_readable_end(connection, table):
            _set_aside(connection, table, _free_name(table, names))
    found = tuple(sorted(name for name in _table_names(connection) if name.startswith(SET_ASIDE)))
    if found:
        _log.error("tables_set_aside", tables=found, help=repair_hint())
    return found


def _table_names(connection: sqlite3.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _has_readable_end(connection: sqlite3.Connection, table: str) -> bool:
    try:
        connection.execute(f"SELECT * FROM {table} ORDER BY position DESC LIMIT 1").fetchone()  # noqa: S608 - constants
    except sqlite3.DatabaseError:
        return False
    return True


def _free_name(table: str, taken: set[str]) -> str:
    number = 1
    while f"{SET_ASIDE}{number}_{table}" in taken:
        number += 1
    return f"{SET_ASIDE}{number}_{table}"


def forget_old_indexes(connection: sqlite3.Connection) -> None:
    """Take the indexes that schema step 0040 drops out of the schema: DROP INDEX reads their pages, which may be
    damaged. Raises sqlite3.Error."""
    connection.execute("PRAGMA writable_schema=ON")
    try:
        connection.execute(
            "DELETE FROM sqlite_schema WHERE type = 'index'"
            " AND name IN ('message_by_time', 'message_by_arrival', 'action_by_time')"
        )
    finally:
        connection.execute("PRAGMA writable_schema=RESET")  # reads the schema again


def _set_aside(connection: sqlite3.Connection, table: str, name: str) -> None:
    schema = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type = 'index'", (table,)
    ).fetchall()
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("PRAGMA writable_schema=ON")
        # DROP INDEX would read the pages of the index, which may be damaged, too.
        connection.execute("DELETE FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?", (table,))
        connection.execute("PRAGMA writable_schema=RESET")  # reads the schema again
        connection.execute(f"ALTER TABLE {table} RENAME TO {name}")
        for (sql,) in schema:
            connection.execute(sql)
        connection.execute("COMMIT")
    except BaseException:  # whatever it is: no transaction must stay open; raised again
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    _log.error("table_set_aside", table=table, name=name)
