"""The tables of a store in PostgreSQL: for a copy (storage/tables.py), and their room on the disk."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from storage.engines.postgresql_rights import ours
from storage.engines.postgresql_sql import quote_reserved_words
from storage.tables import OWN, TableShape

if TYPE_CHECKING:
    from storage.engines.postgresql_connection import PostgresqlConnection

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

#: How much of the tables that retention deletes from waits for new rows: their pages without the rows that are there,
#: which take their columns, 28 bytes, and some to align them. Until a table has been looked at (ANALYZE), nothing is
#: free. A server that crashed has forgotten its counts, and knows those of the last look.
_FREE: Final = """
SELECT oid, greatest(0, pages - 1.05 * number * width) AS free
FROM (
  SELECT c.oid, pg_relation_size(c.oid) AS pages,
    CASE WHEN coalesce(last_vacuum, last_autovacuum, last_analyze, last_autoanalyze) IS NULL THEN greatest(reltuples, 0)
      ELSE n_live_tup END AS number,
    (SELECT 28 + sum(avg_width) FROM pg_stats WHERE schemaname = 'public' AND tablename = c.relname) AS width
  FROM pg_class AS c JOIN pg_stat_user_tables AS s ON s.relid = c.oid
  WHERE c.relnamespace = 'public'::regnamespace AND (c.oid IN (SELECT inhrelid FROM pg_inherits
    WHERE inhparent = to_regclass('message'))
    OR c.relname IN ('action', 'failed_message', 'message_entry', 'action_entry', 'rollup'))
) AS tables
"""
STORE_SIZE: Final = (
    "SELECT pg_database_size(current_database()) AS bytes, coalesce(sum(free), 0)::bigint AS free"  # noqa: S608 - constants
    f" FROM ({_FREE}) AS of_tables"
)
#: Partitions count for their table. Without MATERIALIZED, what is free would be computed once for each table.
TABLE_SIZES: Final = f"""
WITH f AS MATERIALIZED ({_FREE})
SELECT coalesce(parent.relname, c.relname)::text AS name,
  sum(pg_total_relation_size(c.oid) - coalesce(f.free, 0))::bigint AS bytes
FROM pg_class AS c LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid LEFT JOIN pg_class AS parent
  ON parent.oid = i.inhparent LEFT JOIN f ON f.oid = c.oid
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' GROUP BY 1
"""  # noqa: S608 - constants


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
                {"table": quote_reserved_words(table), "column": column},
            )

    def users(self) -> int:
        return int(self.rows(_USERS, {})[0][0])
