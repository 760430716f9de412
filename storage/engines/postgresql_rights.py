"""Others in the database of the store: rights that the role lacks, and objects that are not the store's.

Nothing of this can be set for a session (storage/engines/postgresql_target.py), so it is looked at and said.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from storage.engines.postgresql_sql import quote_reserved_words
from storage.engines.postgresql_target import Connection, Target
from storage.sql import StoreError

_MADE: Final = re.compile(r'\bCREATE (?:OR REPLACE )?(TABLE|SEQUENCE|FUNCTION)\s+"?(\w+)"?')
#: Connections of a daemon that serves: the writer, five readers, the lease, and one that looks at the others.
CONNECTIONS: Final = 8
#: The store's tables, its sequences and the partitions of the messages, of which somebody has to correct something.
_TABLES: Final = """
SELECT kind, name, pg_get_userbyid(owner), pg_has_role(owner, 'USAGE'), may, hides
FROM (
  SELECT CASE relkind WHEN 'S' THEN 'sequence' ELSE 'table' END AS kind, relname AS name, relowner AS owner,
    CASE relkind
      WHEN 'S' THEN has_sequence_privilege(oid, 'SELECT') AND has_sequence_privilege(oid, 'UPDATE')
      ELSE has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
        AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE') END AS may,
    row_security_active(oid) AS hides
  FROM pg_class WHERE relnamespace = to_regnamespace('public') AND relkind IN ('r', 'p', 'S')
    AND (relname = ANY(%(relations)s) OR oid IN (SELECT inhrelid FROM pg_inherits
      WHERE inhparent = to_regclass('message')))
  UNION ALL
  SELECT 'function', proname, proowner, has_function_privilege(oid, 'EXECUTE'), FALSE
  FROM pg_proc WHERE pronamespace = to_regnamespace('public') AND proname = ANY(%(functions)s)
) AS ours WHERE to_regclass('schema_step') IS NOT NULL AND (NOT pg_has_role(owner, 'USAGE') OR NOT may OR hides)
ORDER BY kind DESC, name LIMIT 1
"""
_ROLE: Final = """
SELECT rolconnlimit, datconnlimit, rolsuper, current_setting('session_replication_role')
FROM pg_roles, pg_database WHERE rolname = current_user AND datname = current_database()
"""
#: Objects in `public` that belong neither to an extension, nor to a column or a type.
_FOUND: Final = """
SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'view' WHEN 'S' THEN 'sequence' ELSE 'table' END AS kind, relname
FROM pg_class AS c
WHERE relnamespace = to_regnamespace('public') AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND NOT relispartition
  AND relname <> ALL(%s) AND NOT EXISTS (SELECT FROM pg_depend
    WHERE classid = 'pg_class'::regclass AND objid = c.oid AND objsubid = 0 AND deptype IN ('e', 'i', 'a'))
ORDER BY kind DESC, relname
"""
#: Other roles that may make objects in `public`, but for the owner of the database, which is to.
_MAKERS: Final = """
SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END AS name
FROM pg_namespace AS n CROSS JOIN LATERAL aclexplode(n.nspacl) AS a
WHERE n.oid = to_regnamespace('public') AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
  AND a.grantee <> (SELECT oid FROM pg_roles WHERE rolname = current_user) ORDER BY name
"""
#: Sessions in this database whose transactions this role cannot see.
_HIDDEN: Final = """
SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = current_database() AND usename <> current_user
  AND NOT pg_has_role(usesysid, 'USAGE') AND NOT pg_has_role('pg_read_all_stats', 'USAGE') ORDER BY usename
"""


@cache
def ours() -> dict[str, list[str]]:
    """The names of what the steps of the schema make."""
    texts = [one.read_text(encoding="utf-8") for one in (files("storage") / "schema").iterdir()]
    made = [found.groups() for text in texts for found in _MADE.finditer(text)]
    return {
        "relations": sorted({name for kind, name in made if kind != "FUNCTION"} | {"_sqlite_migrations"}),
        "functions": sorted({name for kind, name in made if kind == "FUNCTION"}),
    }


def check_rights(connection: Connection, target: Target) -> None:
    """Raises StoreError: the role may not do all that the store needs, or its rows would not be what they are."""
    role, database = target.names()
    limit_of_role, limit_of_database, is_superuser, replication = connection.execute(_ROLE).fetchone() or ()
    if replication != "origin":
        raise StoreError(
            f"{target}: session_replication_role is {replication}, so references are not kept: ALTER ROLE {role} RESET"
            " session_replication_role"
        )
    for kind, name, limit in (("ROLE", role, limit_of_role), ("DATABASE", database, limit_of_database)):
        if 0 <= limit < CONNECTIONS and not is_superuser:
            raise StoreError(
                f"{target}: the {kind.lower()} {name} may have {limit} connections, and a daemon needs {CONNECTIONS}:"
                f" ALTER {kind} {name} CONNECTION LIMIT -1"
            )
    if (row := connection.execute(_TABLES, ours()).fetchone()) is None:
        return
    kind, name, owner, owns, may, _ = row
    if not owns:
        raise StoreError(
            f"{target}: the {kind} {name} belongs to the role {owner}, and the role {role} has not its rights: ALTER"
            f" {kind.upper()} {quote_reserved_words(name)} OWNER TO {role}, and so for all of the schema public; a dump"
            f" is restored with --no-owner as {role}"
        )
    if not may:
        raise StoreError(
            f"{target}: the role {role} lacks rights on the {kind} {name}, its own: GRANT ALL ON {kind.upper()}"
            f" {quote_reserved_words(name)} TO {role}"
        )
    raise StoreError(
        f"{target}: row level security hides rows of the table {name}: ALTER TABLE {quote_reserved_words(name)}"
        " NO FORCE ROW LEVEL SECURITY"
    )


def contents(connection: Connection) -> tuple[str, str] | None:
    """Kind and name of something in the schema `public`; None: it is empty."""
    row = connection.execute(_FOUND, [[]]).fetchone()
    return None if row is None else (str(row[0]), str(row[1]))


def strangers(connection: Connection) -> list[str]:
    """Tables, views and sequences beside the store in its schema, by name."""
    return [str(name) for _, name in connection.execute(_FOUND, [ours()["relations"]])]


class Neighbours(msgspec.Struct, frozen=True):
    """The others that use the database."""

    #: Objects beside the store in its schema.
    strangers: Sequence[str]
    #: Roles that may make more of them; `PUBLIC` is everybody.
    makers: Sequence[str]
    #: Roles with sessions whose transactions are not seen.
    hidden: Sequence[str]
    is_superuser: bool


def neighbours(connection: Connection) -> Neighbours:
    row = connection.execute(_ROLE).fetchone() or (0, 0, False, "")
    return Neighbours(
        strangers(connection),
        [str(name) for (name,) in connection.execute(_MAKERS)],
        [str(name) for (name,) in connection.execute(_HIDDEN)],
        bool(row[2]),
    )
