"""The tables of a store in SQLite, for a copy (storage/tables.py)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage.tables import OWN, TableShape

if TYPE_CHECKING:
    from storage.engines.sqlite import SqliteConnection


class SqliteTables:
    def __init__(self, connection: "SqliteConnection") -> None:
        self._connection = connection

    def rows(self, sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        return self._connection.all_rows(sql, parameters)

    def shapes(self) -> dict[str, TableShape]:
        names = self.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'", {})
        return {name: self._shape(name) for (name,) in names if name not in OWN}

    def _shape(self, table: str) -> TableShape:
        columns = self.rows("SELECT name, pk FROM pragma_table_info(:table) ORDER BY cid", {"table": table})
        key = tuple(name for name, place in sorted(columns, key=lambda one: one[1]) if place)
        folded = {
            name
            for name, collation in self.rows(
                "SELECT c.name, c.coll FROM pragma_index_list(:table) AS i, pragma_index_xinfo(i.name) AS c"
                " WHERE i.origin = 'pk' AND c.key",
                {"table": table},
            )
            if collation != "BINARY"
        }
        order = tuple(f"{name} COLLATE BINARY" if name in folded else name for name in key)
        parents = self.rows('SELECT DISTINCT "table" FROM pragma_foreign_key_list(:table)', {"table": table})
        return TableShape(table, tuple(name for name, _ in columns), key, order, frozenset(name for (name,) in parents))

    def begin_mended(self) -> str:
        for pragma in ("query_only=OFF", "foreign_keys=OFF"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.begin(write=True)
        return str(self._connection.mend_references())

    def begin_loading(self) -> None:
        self._connection.execute("PRAGMA foreign_keys=OFF")

    def load(self, shape: TableShape, rows: Sequence[tuple[Any, ...]]) -> None:
        self._connection.insert_rows(shape.name, shape.columns, rows)

    def empty(self, shapes: Sequence[TableShape]) -> None:
        for shape in shapes:
            self._connection.execute(f"DELETE FROM {shape.name}")  # noqa: S608 - of the schema

    def end_loading(self) -> None:
        """A number is always one more than the highest key."""

    def users(self) -> int:
        return 0  # the lock of the state directory tells
