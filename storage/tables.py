"""The tables of a store as tables, whatever is in them: for a copy into another engine's store.

Each engine implements `Tables` in a module of its own (storage/engines/sqlite_tables.py, postgresql_tables.py).
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from storage.sql import StoreConnection, StoreError

#: Tables that tell of one store and its engine, and are in no copy: steps of the schema, commits in doubt, who serves,
#: what the nodes tell each other.
OWN: Final = frozenset(
    {
        *("_sqlite_migrations", "schema_step", "store_version", "batch", "store_copy"),
        *("lease", "fact", "device_connection"),
    }
)


class TableShape(msgspec.Struct, frozen=True):
    """A table: its columns, those of its key, the same as ORDER BY takes them, and the tables that it refers to."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    order: tuple[str, ...]
    parents: frozenset[str]


class Tables(Protocol):
    """The tables of one connection, whose transaction the caller holds. Values are those of SQLite: int, float, str,
    bytes and None, and every bit of them counts. Every method raises StoreError."""

    def shapes(self) -> dict[str, TableShape]:
        """All tables but `OWN`, by name."""

    def rows(self, sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a query, with parameters as in the stores."""

    def begin_mended(self) -> str:
        """Begin a transaction that sees rows which refer to lost rows as if those had just been deleted, and is rolled
        back. Returns a sentence for operators with their numbers; empty: there are none."""

    def begin_loading(self) -> None:
        """Before the first transaction: no constraint between tables is checked, where the engine can do without."""

    def load(self, shape: TableShape, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows."""

    def empty(self, shapes: Sequence[TableShape]) -> None:
        """Delete all rows of these tables, which come before the ones that they refer to."""

    def end_loading(self) -> None:
        """Numbers that the engine gives go on behind the highest keys."""

    def users(self) -> int:
        """How many other processes have a connection to the store, as far as the engine knows."""


def in_order(shapes: dict[str, TableShape]) -> list[TableShape]:
    """The tables, each behind the ones that it refers to."""
    found: dict[str, TableShape] = {}

    def add(shape: TableShape) -> None:
        for parent in sorted(shape.parents - {shape.name}):
            if parent in shapes and parent not in found:
                add(shapes[parent])
        found[shape.name] = shape

    for name in sorted(shapes):
        if name not in found:
            add(shapes[name])
    return list(found.values())


def check_finished(connection: StoreConnection, store: str) -> None:
    """Raises StoreError: a copy into the store is not finished, so it lacks rows."""
    if connection.execute("SELECT name FROM store_copy LIMIT 1").one() is not None:
        raise StoreError(
            f"{store}: `trunkline migrate-store` into this store was interrupted: run it again, to its end"
        )
