"""PostgreSQL as the engine: psycopg in the threads of the store, one connection for each of them
(storage/engines/postgresql_connection.py)."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import count
from secrets import token_hex
from typing import Final
from weakref import WeakValueDictionary

from psycopg.sql import Literal

from storage.damage import Damage
from storage.engines.postgresql_connection import NAME, STANDBY, PostgresqlConnection, TableColumns
from storage.engines.postgresql_contact import Contact
from storage.engines.postgresql_history import ServerHistory
from storage.engines.postgresql_schema import (
    Progress,
    applied,
    check_alone,
    check_database,
    check_steps,
    migrate_schema,
)
from storage.engines.postgresql_target import Target, explained, session_text
from storage.leases import HeldLease
from storage.migrations import names
from storage.sql import StoreAwayError, StoreConnection

_FOLLOWED_MOST: Final = 4_096
_LEAST_LOCK_SECONDS: Final = 1.0
#: A step of the schema is tried again after it has waited so long for a lock.
_STEP_LOCK_SECONDS: Final = 5.0
_NAME_OF_A: Final = NAME.replace("application_name", "a.application_name")
#: Of sessions by their names: whether a commit waits for a standby, and who holds a lock that it waits for.
_WORKING: Final = f"""
SELECT {_NAME_OF_A}, coalesce(a.wait_event = 'SyncRep', FALSE), b.pid, b.usename, b.application_name
FROM pg_stat_activity AS a LEFT JOIN LATERAL (SELECT pid, usename, application_name FROM pg_stat_activity
  WHERE pid = ANY(pg_blocking_pids(a.pid)) LIMIT 1) AS b ON a.wait_event_type = 'Lock'
WHERE a.usename = current_user AND a.state = 'active' AND {_NAME_OF_A} = ANY(%s)
"""  # noqa: S608 - constants
#: The schema step that made the table of leases.
_FIRST_WITH_LEASES: Final = "0080_leases"


class PostgresqlSnapshot:
    """A consistent view of the store at one moment."""

    def __init__(self, rows: PostgresqlConnection, target: Target) -> None:
        self.rows = rows
        self._target = target

    @cached_property
    def size_bytes(self) -> int:
        """The server looks at each file of the database for it."""
        return self.rows.size_bytes()[0]

    def steps(self) -> tuple[str, ...]:
        """The names of the schema steps that the store has; none of a database without a store."""
        with explained(self._target):
            return tuple(applied(self.rows.driver))

    def is_current(self) -> bool:
        return self.steps() == tuple(names())

    def has(self, table: str, column: str) -> bool:
        """Whether an older version, which has made the store, had the column."""
        # A view of information_schema would take ten times as long.
        sql = (
            "SELECT 1 AS there FROM pg_attribute WHERE attrelid = to_regclass(quote_ident(:table)) AND attnum > 0"
            " AND attname = :column"
        )
        return self.rows.execute(sql, {"table": table, "column": column}).one() is not None


class PostgresqlEngine:
    """Opens connections to one database.

    Args:
        target: the database.
        patience_seconds: how long a connection that broke is tried again before its work fails.
        upgrades: whether a store of an older version is brought to this one, or refused.
        progress: told of the schema steps.
    """

    def __init__(
        self,
        target: Target,
        *,
        patience_seconds: float = 5.0,
        upgrades: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.target = target
        self.damage = Damage()  # stays empty: the server's own tools look for it
        self.columns = TableColumns()
        self.contact = Contact(patience_seconds)
        #: How long a statement waits for a lock of somebody else.
        self.lock_seconds = max(patience_seconds, _LEAST_LOCK_SECONDS)
        self.history = ServerHistory()
        self._upgrades = upgrades
        self._progress = progress
        self.instance = token_hex(6)
        #: The name of this node, while it stands by. The server shows it with new connections.
        self.stands_by_as = ""
        self._numbers = count()
        self._connections: WeakValueDictionary[str, PostgresqlConnection] = WeakValueDictionary()
        #: Statements that others have followed in the same read.
        self.followed: set[str] = set()
        #: Queries that begin each transaction that writes; one fails when another daemon has the store.
        self.fence: Sequence[str] = ()
        #: Whether other nodes write, too.
        self.is_shared = False

    def note_followed(self, sql: str) -> None:
        """A read begins with this statement and has others."""
        if len(self.followed) >= _FOLLOWED_MOST:  # conditions make many of one
            self.followed.clear()
        self.followed.add(sql)

    def add(self, name: str, connection: PostgresqlConnection) -> None:
        """A connection that `cut_silent` looks at."""
        self._connections[name] = connection

    def silent(self, seconds: float) -> Sequence[PostgresqlConnection]:
        """The connections that have waited for an answer for so long."""
        before = time.monotonic() - seconds
        return [one for one in self._connections.values() if one.waits_since is not None and one.waits_since < before]

    def are_busy(self, connections: Sequence[PostgresqlConnection]) -> set[str]:
        """The names of those for which the server works now. One whose commit waits for a synchronous standby is noted
        instead, and of one that waits for a lock, who has it. Raises StoreError."""
        with explained(self.target), self.target.connect() as connection:
            rows = connection.execute(_WORKING, [[one.name for one in connections]]).fetchall()
        waiting = {name for name, is_unreplicated, *_ in rows if is_unreplicated}
        blocked = {name: session_text(*by) for name, _, *by in rows if by[0] is not None}
        for one in connections:
            one.is_unreplicated = one.name in waiting
            one.blocked_by = blocked.get(one.name, "")
        return {name for name, *_ in rows} - waiting

    def stands_still(self, connections: Sequence[PostgresqlConnection]) -> None:
        """The server was asked for these, and has not answered that either."""
        since = min((one.waits_since or time.monotonic() for one in connections), default=time.monotonic())
        self.contact.lost(since)
        self.contact.failed(StoreAwayError(f"{self.target}: the server does not answer"), time.monotonic() - since)
        self.contact.stands_still = True

    def new_name(self) -> str:
        """A name for one more connection of this process."""
        return f"{self.instance}.{next(self._numbers)}"

    def fence_with(self, *leases: HeldLease) -> None:
        """Write nothing from now on, unless these leases are held (StoreTakenError). Call it before `open`."""
        self.fence = tuple(
            f"SELECT require_lease({Literal(one.name).as_string()}, {Literal(one.node).as_string()}, {one.epoch})"
            for one in leases
        )

    def prepare_leases(self) -> None:
        """Make a store where there is none, so that there are leases. An older store stays as it is, because another
        daemon may be serving it. Raises as `migrate`."""
        with self.target.connect() as connection, explained(self.target):
            check_database(connection, self.target)
            steps = applied(connection)
            check_steps(steps, connection, self.target)
        if _FIRST_WITH_LEASES not in steps:
            self.migrate()

    def is_current(self) -> bool:
        """Whether the store has the schema of this version. Raises StoreError."""
        with self.target.connect(read_only=True) as connection, explained(self.target):
            return tuple(applied(connection)) == tuple(names())

    def look_around(self, rows: StoreConnection) -> tuple[tuple[str, ...], float]:
        """The names of the nodes that stand by, as their connections tell them, from another process, and for how many
        seconds the oldest transaction of the database has been open. Raises StoreError."""
        found = rows.execute(
            "SELECT split_part(split_part(application_name, :standby, 2), ' - ', 1) AS node,"
            " (usename = current_user AND strpos(application_name, :standby) > 0"
            " AND NOT starts_with(application_name, :own)) AS stands_by,"
            " coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::double precision AS seconds"
            " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " UNION ALL SELECT '', FALSE, extract(epoch FROM clock_timestamp() - prepared)::double precision"
            " FROM pg_prepared_xacts WHERE database = current_database()",
            {"standby": STANDBY, "own": f"trunkline {self.instance}."},
        )
        standbys, oldest = set[str](), 0.0
        for row in found:
            oldest = max(oldest, float(row["seconds"]))
            if row["stands_by"]:
                standbys.add(str(row["node"]))
        return tuple(sorted(standbys)), oldest

    def end_sessions(self, instance: str) -> None:
        """End the connections of a daemon whose lease is over, and wait for that: an open transaction of a process that
        stands still would hold its locks. Raises StoreError."""
        with explained(self.target), self.target.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
                " AND usename = current_user AND starts_with(application_name, %s)",
                [f"trunkline {instance}."],
            )

    def migrate(self) -> None:
        """Bring the schema to this version, while no other daemon does.

        Raises:
            StoreError: the server or the database cannot be used, a newer version of Trunkline has made the store, or
                an older one and this engine does not upgrade.
        """
        with self.target.connect(lock_seconds=_STEP_LOCK_SECONDS) as connection:
            check_database(connection, self.target)
            migrate_schema(connection, self.target, upgrades=self._upgrades, progress=self._progress)

    def __str__(self) -> str:
        return str(self.target)

    @contextmanager
    def snapshot(self) -> Iterator["PostgresqlSnapshot"]:
        """The store as it is now, beside a daemon that writes. Nothing is changed, also not the schema.

        Raises:
            StoreError: the server or the database cannot be used.
        """
        with self.target.connect(read_only=True) as connection, explained(self.target):
            check_database(connection, self.target)
            check_alone(applied(connection), connection, self.target)
        with closing(self.open(read_only=True)) as rows:
            rows.begin(write=False)
            yield PostgresqlSnapshot(rows, self.target)

    def open(self, *, read_only: bool) -> PostgresqlConnection:
        """Open a connection; the caller closes it. Raises StoreError."""
        return PostgresqlConnection(self, read_only=read_only)
