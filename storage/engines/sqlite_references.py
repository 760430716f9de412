"""Rows of a SQLite store that refer to rows that are not there: SQLite enforces references only when it is asked to."""

import sqlite3
from collections import Counter
from dataclasses import dataclass

_REFERENCES = """
SELECT t.name, f."from", f."table", coalesce(f."to", (SELECT name FROM pragma_table_info(f."table") WHERE pk = 1)),
  f.on_delete
FROM sqlite_schema AS t JOIN pragma_foreign_key_list(t.name) AS f WHERE t.type = 'table'
  AND f."table" IN (SELECT name FROM sqlite_schema) ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Mended:
    """Numbers of rows by table."""

    deleted: Counter[str]
    emptied: Counter[str]  # a key was taken out

    def __str__(self) -> str:
        """A sentence for operators; empty when nothing was mended."""
        told = [f"{number} of {table} left out" for table, number in sorted(self.deleted.items())]
        told += [f"{number} of {table} kept without the reference" for table, number in sorted(self.emptied.items())]
        return f"rows that refer to lost rows: {', '.join(told)}" if told else ""


def mend_references(db: sqlite3.Connection) -> Mended:
    """Treat rows that refer to a lost row as if that one had just been deleted: its key is taken out of them where the
    schema says so, and all others are deleted, with what refers to them.

    `db` does not enforce references, and the caller holds the transaction.
    """
    mended = Mended(Counter(), Counter())
    references = db.execute(_REFERENCES).fetchall()
    has_changed = True
    while has_changed:
        has_changed = False
        for table, column, parent, key, then in references:
            is_kept = then == "SET NULL"
            child, of_child = _quoted(table), f"{_quoted(table)}.{_quoted(column)}"
            change = f"UPDATE {child} SET {_quoted(column)} = NULL" if is_kept else f"DELETE FROM {child}"  # noqa: S608
            lost = f"NOT EXISTS (SELECT 1 FROM {_quoted(parent)} AS parent WHERE parent.{_quoted(key)} = {of_child})"  # noqa: S608
            done = db.execute(f"{change} WHERE {of_child} IS NOT NULL AND {lost}")
            if done.rowcount:
                (mended.emptied if is_kept else mended.deleted)[table] += done.rowcount
                has_changed = True
    return mended


def _quoted(name: str) -> str:
    return f'"{name}"'
