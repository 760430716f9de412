"""The tables of a store in PostgreSQL, for a copy (storage/tables.py)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage.engines.postgresql_rights import ours
from storage.engines.postgresql_sql import quoted
from storage.tables import OWN, TableShape

if TYPE_CHECKING:
    from storage.engines.postgresql import PostgresqlConnection

_COLUMNS = """
SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition GROUP BY c.relname
"""
_KEYS = """
SELECT c.relname, array_agg(a.attname::text ORDER BY k.place)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid AND c.relnamespace = 'public'::regnamespace
CROSS JOIN LATERAL unnest(i.indkey::int[]) WITH ORDINALITY AS k(number, place)
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number
WHERE i.indisprimary GROUP BY c.relname
"""
_PARENTS = """
SELECT c.relname, p.relname FROM pg_constraint AS r JOIN pg_class AS c ON c.oid = r.conrelid
JOIN pg_class AS p ON p.oid = r.confrelid
WHERE r.contype = 'f' AND c.relnamespace = 'public'::regnamespace
"""
_COUNTING = """
SELECT c.relname, a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
WHERE a.attidentity <> '' AND c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
"""
_USERS = """
SELECT count(DISTINCT client_port || ' ' || pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'trunkline %' AND pid <> pg_backend_pid()
"""


class PostgresqlTables:
    def __init__(self, connection: "PostgresqlConnection") -> None:
        self._connection = connection

    def rows(self, sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        return self._connection.all_rows(sql, parameters)

    def shapes(self) -> dict[str, TableShape]:
        keys = {table: tuple(names) for table, names in self.rows(_KEYS, {})}
        parents: dict[str, set[str]] = {}
        for table, parent in self.rows(_PARENTS, {}):
            parents.setdefault(table, set()).add(parent)
        found, known = {}, ours()["relations"]
        for table, columns in self.rows(_COLUMNS, {}):
            if table in known and table not in OWN:  # others are an extension's, or another application's
                key = keys.get(table, ())
                found[table] = TableShape(table, tuple(columns), key, key, frozenset(parents.get(table, ())))
        return found

    def begin_mended(self) -> str:
        self._connection.begin(write=False)
        return ""  # the server keeps references

    def begin_loading(self) -> None:
        """The order of the tables is enough: each comes behind the ones that it refers to."""

    def load(self, shape: TableShape, rows: Sequence[tuple[Any, ...]]) -> None:
        if shape.name == "message":
            place = shape.columns.index("position")
            self._connection.partitions.cover([row[place] for row in rows])
        self._connection.load_rows(shape.name, shape.columns, rows)

    def empty(self, shapes: Sequence[TableShape]) -> None:
        if shapes:
            self._connection.execute(f"TRUNCATE {', '.join(shape.name for shape in shapes)}")

    def end_loading(self) -> None:
        for table, column in self.rows(_COUNTING, {}):
            self._connection.execute(
                f"SELECT setval(pg_get_serial_sequence(:table, :column), (SELECT coalesce(max({column}), 0) + 1"  # noqa: S608 - of the schema
                f" FROM {table}), FALSE)",
                {"table": quoted(table), "column": column},
            )

    def users(self) -> int:
        return int(self.rows(_USERS, {})[0][0])
