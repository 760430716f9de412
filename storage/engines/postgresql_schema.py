"""The schema in PostgreSQL: a baseline, which stands for all steps up to one, then the steps after it.

The baseline and each step are one transaction, with the name of the step in it: one that was interrupted has not been.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from importlib.resources import files
from typing import Final

import psycopg
import structlog
from psycopg import errors

from config.shown_command import shown_command
from storage import migrations
from storage.engines.postgresql_rights import check_rights, contents
from storage.engines.postgresql_sql import step_translated
from storage.engines.postgresql_target import Connection, Target, explained, session_text
from storage.migrations import VERSION
from storage.sql import StoreAwayError, StoreBusyError, StoreError

#: Told what is being done, at least every few seconds.
Progress = Callable[[str], None]

#: The last step that the baseline has.
BASELINE: Final = "0074_deleted_applications"
_LEAST_VERSION: Final = 150_000
_COLLATIONS: Final = frozenset({"C", "POSIX", "C.UTF-8", "C.utf8"})
#: Held while the schema changes: two daemons that start at once do not both change it.
_MIGRATION_LOCK: Final = 0x7472756E6B00
#: Serial works hold it: what reads, decides and writes is alone in the store.
WORKS_LOCK: Final = 0x7472756E6B01
#: Rows of the log hold it from their positions to their commit.
LOG_LOCK: Final = 0x7472756E6B02
#: The session that has the lock of migrations: process, role, name of its connection.
_TURN_OF: Final = f"""
SELECT a.pid, a.usename, a.application_name FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = current_database()
  AND l.classid = {_MIGRATION_LOCK >> 32} AND l.objid = {_MIGRATION_LOCK & 0xFFFFFFFF}
"""  # noqa: S608 - constants
#: The same of sessions with a lock on a table of the store.
_LOCKING: Final = """
SELECT DISTINCT a.pid, a.usename, a.application_name FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
JOIN pg_class AS c ON c.oid = l.relation AND c.relnamespace = 'public'::regnamespace
WHERE l.granted AND a.datname = current_database() AND a.pid <> pg_backend_pid() ORDER BY a.pid LIMIT 3
"""
_LOOK_SECONDS: Final = 0.1
_TELL_SECONDS: Final = 5.0
#: The positions that are left out when another server has taken over: clients may have seen more than it has.
_JUMP: Final = 1_000_000
_NOTED: Final = "SELECT number FROM batch WHERE node = %s"
#: The name in `batch` of the server's history, whose number is that of the row.
_TIMELINE: Final = "timeline"
IS_COPY: Final = "the server is the copy of another one and takes no writes: promote it, or name the other one"
_log = structlog.get_logger(__name__)


def check_database(connection: Connection, target: Target) -> None:
    """Raises StoreError: the server or the database is not one that can hold a store, or (StoreAwayError) not now. The
    text says why."""
    with explained(target):
        version = connection.info.server_version
        if version < _LEAST_VERSION:
            raise StoreError(f"{target}: the server is PostgreSQL {version // 10_000}: 15 or newer is needed")
        encoding, collation, is_copy, has_schema, uses, creates = _one(
            connection,
            "SELECT pg_encoding_to_char(encoding),"
            " CASE datlocprovider WHEN 'c' THEN datcollate WHEN 'b' THEN 'C' ELSE 'ICU' END, pg_is_in_recovery(),"
            " to_regnamespace('public') IS NOT NULL, has_schema_privilege(to_regnamespace('public')::oid, 'USAGE'),"
            " has_schema_privilege(to_regnamespace('public')::oid, 'CREATE')"
            " FROM pg_database WHERE datname = current_database()",
        )
        if encoding != "UTF8":
            raise StoreError(f"{target}: its encoding is {encoding}, not UTF8: {_made_anew(target)}")
        if collation not in _COLLATIONS:
            raise StoreError(f"{target}: its texts are in the order of {collation}, not C: {_made_anew(target)}")
        if is_copy:
            raise StoreAwayError(f"{target}: {IS_COPY}")
        if not has_schema:
            raise StoreError(f"{target}: there is no schema public in this database: CREATE SCHEMA public")
        check_rights(connection, target)
        if not (uses and creates):  # partitions are made as long as a daemon runs
            role, database = target.names()
            raise StoreError(
                f"{target}: the role may make no tables: let it own the database: ALTER DATABASE {database} OWNER TO"
                f" {role} (or GRANT USAGE, CREATE ON SCHEMA public TO {role})"
            )
        if _is_pooled(connection, target):
            raise StoreError(
                f"{target}: a pooler gives each transaction another session (PgBouncer's pool_mode = transaction): name"
                " the server itself, or use pool_mode = session"
            )


def _made_anew(target: Target) -> str:
    return f"make another database: {target.how_to_create(f'{target.names()[1]}_2')}"


def _is_pooled(connection: Connection, target: Target) -> bool:
    """Whether two connections share a session of the server. A pooler is known by the id of the session, which it
    makes up."""
    (session,) = _one(connection, "SELECT pg_backend_pid()")
    if session == connection.info.backend_pid:
        return False
    with closing(target.connect()) as other:
        other.execute("BEGIN")
        return _one(other, "SELECT pg_backend_pid()") == _one(connection, "SELECT pg_backend_pid()") or (
            _one(other, "SELECT pg_backend_pid()") == (session,)
        )


def _one(connection: Connection, sql: str) -> Sequence[object]:
    row = connection.execute(sql.encode()).fetchone()
    return row or ()


def applied(connection: Connection) -> list[str]:
    """The steps that the store has, in their order; none of a database without a store."""
    if _one(connection, "SELECT to_regclass('schema_step')") == (None,):
        return []
    return [str(name) for (name,) in connection.execute("SELECT name FROM schema_step ORDER BY name")]


def version_of(connection: Connection) -> str:
    """The version of Trunkline that applied the last step."""
    found = _one(connection, "SELECT version FROM store_version")
    return str(found[0]) if found else "(a newer version)"


def check_steps(steps: Sequence[str], connection: Connection, target: Target) -> None:
    """Raises StoreError: a newer version has made the store, or something else is in the database."""
    if migrations.unknown_names(steps):
        made_by = version_of(connection)
        raise StoreError(
            f"{target}: Trunkline {made_by} has made this store, and {VERSION} cannot read it: install {made_by} or a"
            " newer one"
        )
    check_alone(steps, connection, target)


def check_alone(steps: Sequence[str], connection: Connection, target: Target) -> None:
    """Raises StoreError: something else is in the schema of the store, which is not there yet."""
    if not steps and (found := contents(connection)):
        kind, name = found
        raise StoreError(
            f"{target}: something else is in this database (the {kind} {name}), and no store: {_made_anew(target)}"
        )


def migrate_schema(connection: Connection, target: Target, *, upgrades: bool, progress: Progress | None) -> None:
    """Apply the steps that the store lacks. Raises StoreError."""
    with explained(target):
        _take_turn(connection, target, progress)
        try:
            _migrate(connection, target, upgrades=upgrades, progress=progress)
        finally:
            if not connection.broken:
                connection.execute("SELECT pg_advisory_unlock(%s)", [_MIGRATION_LOCK])


def _take_turn(connection: Connection, target: Target, progress: Progress | None) -> None:
    """Wait until no other daemon changes the schema. Raises StoreBusyError: somebody else has the lock for it."""
    told_at = 0.0
    while _one(connection, f"SELECT pg_try_advisory_lock({_MIGRATION_LOCK})") != (True,):
        holder = _one(connection, _TURN_OF)
        if holder and not str(holder[2]).startswith("trunkline"):
            raise StoreBusyError(f"{target}: {session_text(*holder)} holds the advisory lock {_MIGRATION_LOCK}: end it")
        if progress is not None and time.monotonic() - told_at > _TELL_SECONDS:
            progress("another process does so")
            told_at = time.monotonic()
        time.sleep(_LOOK_SECONDS)


def _when_unlocked(connection: Connection, work: Callable[[], None], tell: Callable[[str], None]) -> None:
    """Do a work in a transaction, again and again while other sessions hold locks that it waits for."""
    while True:
        try:
            with connection.transaction():
                work()
        except errors.LockNotAvailable:
            holders = [session_text(*one) for one in connection.execute(_LOCKING).fetchall()]
            tell(f"waits for a lock of {', '.join(holders) or 'another session'}")
        else:
            return


def _migrate(connection: Connection, target: Target, *, upgrades: bool, progress: Progress | None) -> None:
    steps = applied(connection)
    check_steps(steps, connection, target)
    if not steps:
        with connection.transaction():
            _execute(connection, (files("storage") / "schema" / "postgresql_baseline.sql").read_text(encoding="utf-8"))
            connection.execute("INSERT INTO secret (name, value) VALUES ('mid', %s)", [secrets.token_bytes(32)])
            for name in migrations.names():
                if name <= BASELINE:
                    _note(connection, name)
    known = set(steps or applied(connection))
    pending = [name for name in migrations.names() if name not in known]
    if steps and pending:
        if not upgrades:
            raise StoreError(
                f"{target}: Trunkline {version_of(connection)} has made this store, and it lacks {len(pending)} schema"
                f" steps: start the daemon, or run once: {shown_command('migrate')}"
            )
        _log.info("migrating", store=str(target), steps=pending)
    for number, name in enumerate(pending, 1):
        tell = partial(_tell_of_step, progress if steps else None, f"step {number} of {len(pending)}, {name}")
        tell("")
        _when_unlocked(connection, partial(_apply, connection, name), tell)
    _look_at_head(connection)
    if pending or not steps:
        connection.execute(
            "INSERT INTO store_version (id, version) VALUES (1, %s)"
            " ON CONFLICT (id) DO UPDATE SET version = excluded.version",
            [VERSION],
        )


def keep_head(position: str) -> str:
    """A statement: the counter of the highest position is at least this one, an expression."""
    return (
        f"INSERT INTO counter (name, value) VALUES ('head', {position})"  # noqa: S608 - of this module and its callers
        " ON CONFLICT (name) DO UPDATE SET value = greatest(counter.value, excluded.value)"
    )


def timeline_of(connection: Connection) -> int:
    """The number of the server's history: a server that takes over begins another one. 0: the server does not say."""
    try:
        (name,) = _one(connection, "SELECT pg_walfile_name(pg_current_wal_lsn())")
    except (errors.InsufficientPrivilege, errors.UndefinedFunction, errors.FeatureNotSupported):
        return 0
    return int(str(name)[:8], 16)


def jump(connection: Connection, timeline: int, *, at_least: int = 0) -> None:
    """Leave out the positions that the server may have lost at a failover, so that none is given twice. Of several
    nodes, and of the connections of one, the first one does that."""
    with connection.transaction():
        connection.execute("SET TRANSACTION READ WRITE")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOG_LOCK])
        by = 0 if connection.execute(_NOTED, [_TIMELINE]).fetchone() == (timeline,) else _JUMP
        connection.execute("SELECT setval('log', greatest((SELECT last_value FROM log) + %s, %s))", [by, at_least])
        _note_timeline(connection, timeline)


def _note_timeline(connection: Connection, timeline: int) -> None:
    connection.execute("DELETE FROM batch WHERE node = %s", [_TIMELINE])
    connection.execute("INSERT INTO batch (node, number) VALUES (%s, %s)", [_TIMELINE, timeline])


def _look_at_timeline(connection: Connection) -> None:
    """A server that took over while no daemon ran may lack what clients have seen."""
    if not (timeline := timeline_of(connection)):
        return
    row = connection.execute(_NOTED, [_TIMELINE]).fetchone()
    if row is None:
        _note_timeline(connection, timeline)
    elif row != (timeline,):
        _log.warning("database_failed_over", timeline=timeline, former=row[0])
        jump(connection, timeline)


def _keep_ahead(connection: Connection) -> None:
    """Have partitions for the next messages."""
    connection.execute("SELECT message_partitions_from(last_value) FROM log")


def _look_at_head(connection: Connection) -> None:
    """Have no position given twice, also in a store that was copied here. Forget the commits of former daemons."""
    if _one(connection, "SELECT 1 FROM store_copy LIMIT 1"):  # a copy into it is not finished
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOG_LOCK])
        connection.execute(
            "SELECT setval('log', greatest((SELECT last_value FROM log), (SELECT max(value) FROM counter"
            " WHERE name IN ('head', 'indexed')), (SELECT max(head) FROM batch), (SELECT max(position) FROM message),"
            " (SELECT max(position) FROM action), (SELECT max(position) FROM failed_message)))"
        )
        if _one(connection, "SELECT last_value FROM log") != (0,):
            connection.execute(keep_head("(SELECT last_value FROM log)").encode())
        connection.execute("DELETE FROM batch WHERE at < now() - interval '1 day' AND node <> %s", [_TIMELINE])
    _look_at_timeline(connection)
    _keep_ahead(connection)


def _apply(connection: Connection, name: str) -> None:
    words, is_twin = migrations.statements(name, "postgresql")
    for statement in words:
        _execute(connection, statement if is_twin else step_translated(statement))
    _note(connection, name)


def _tell_of_step(progress: Progress | None, step: str, problem: str) -> None:
    if problem:
        _log.warning("migration_waits", step=step, reason=problem)
    if progress is not None:
        progress(f"{step}{problem and f': {problem}'}")


def _execute(connection: Connection, text: str) -> None:
    """Statements without parameters."""
    psycopg.ClientCursor(connection).execute(text.encode())


def _note(connection: Connection, name: str) -> None:
    connection.execute("INSERT INTO schema_step (name) VALUES (%s)", [name])
