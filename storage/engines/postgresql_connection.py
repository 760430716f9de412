"""One connection to PostgreSQL, for the thread of the store that holds it.

Each statement is a round trip, so batches are one statement, whose values are arrays. A statement is prepared when it
has come some times. Commands that only open or end a part of a transaction go with the next statement. A read of one
statement has no transaction: it would be three trips instead of one.

A connection may break at any moment. Reads and groups of writes are run again on a new one (storage/database.py). Only
a commit may be in doubt: each one leaves its number in `batch`, and a new connection looks for it there.
"""

import json
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import structlog
from psycopg import errors
from psycopg.pq import ExecStatus, TransactionStatus

from storage.engines.postgresql_history import ServerHistory
from storage.engines.postgresql_insertion import CHANNEL, insertion, log_insertion
from storage.engines.postgresql_partitions import Partitions
from storage.engines.postgresql_schema import LOG_LOCK, WORKS_LOCK, keep_head
from storage.engines.postgresql_sql import quote_reserved_words, translated
from storage.engines.postgresql_tables import STORE_SIZE, TABLE_SIZES, PostgresqlTables
from storage.engines.postgresql_target import CONNECT_SECONDS, LOST, Target, is_away, server_message
from storage.engines.postgresql_types import ARRAYS, adapt, escaped
from storage.facts import StoreBehindError
from storage.sql import (
    EncodedRows,
    StoreAwayError,
    StoreBusyError,
    StoreDoubtfulError,
    StoreError,
    StoreForkedError,
    StoreFullError,
    StoreLostError,
    StoreTakenError,
    StoreUnreachableError,
    TableSize,
)

if TYPE_CHECKING:
    from storage.engines.postgresql import PostgresqlEngine

_FIRST_PAGE: Final = 32
_LARGEST_PAGE: Final = 4_096
_PREPARED_MOST: Final = 600
_PREPARED_FROM: Final = 3  # the third time
_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
#: Numbers of commits that are kept: of each, one is ever looked for.
_BATCHES_KEPT: Final = 1_000
#: The former session of a connection has this long to end.
_FORMER_SECONDS: Final = 1.5
_FULL: Final = "53100"
#: Of a disk quota, whose errors have no code of their own: the functions of the server that make its files longer.
_GROWING: Final = frozenset({"mdextend", "mdzeroextend", "FileFallocate"})
_UNNAMED: Final = ("XX000", "58030")
_BUSY: Final = "55P03"
#: A row without a partition (the schema has no CHECK).
_NO_PARTITION: Final = "23514"
_TAKEN: Final = "TL001"  # of require_lease (storage/schema/0080_leases.postgresql.sql)
_READ_ONLY: Final = "25006"
_IS_READ_ONLY: Final = "the server is read-only"
#: A node that stands still within a transaction holds up the others for this long at most.
_STANDS_STILL_MS: Final = 2_000
_UNREPLICATED: Final = "a commit waits for a synchronous standby of the server, which does not answer it"
#: The name of a connection as the server has it: PgBouncer may append an address (application_name_add_host).
NAME: Final = "split_part(application_name, ' - ', 1)"
#: Stands between the name of a connection and that of its node, which stands by.
STANDBY: Final = " - standby "
_log = structlog.get_logger(__name__)


class PostgresqlResult:
    """All rows of a statement: they are here when it has ended."""

    __slots__ = ("_names", "_rows")

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._names = names
        self._rows = rows

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        names = self._names
        return (dict(zip(names, row, strict=True)) for row in self._rows)

    def tuples(self) -> Iterator[Sequence[Any]]:
        return iter(self._rows)

    def one(self) -> Mapping[str, Any] | None:
        return dict(zip(self._names, self._rows[0], strict=True)) if self._rows else None


_NOTHING: Final = PostgresqlResult((), ())


class _Arrays(NamedTuple):
    """Rows as arrays, one for each column."""

    arrays: Sequence[bytes]
    number: int


class TableColumns:
    """The types of the columns of each table, which all connections of a store know."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._of: dict[str, dict[str, str]] = {}

    def known(self, table: str) -> dict[str, str] | None:
        return self._of.get(table)

    def learn(self, table: str, types: dict[str, str]) -> None:
        with self._lock:
            self._of[table] = types


class PostgresqlConnection:
    """One connection in autocommit mode, which is made again when it breaks; `begin` starts a transaction."""

    gives_positions = True
    stores_rows_at_once = True
    key_share = " FOR KEY SHARE"

    def __init__(self, engine: "PostgresqlEngine", *, read_only: bool) -> None:
        self._engine = engine
        self._read_only = read_only
        self._later: list[str] = []  # goes with the next statement
        self._is_begun = self._is_writing = self._is_ended = self._tells_others = False
        self._first: str | None = None  # the statement of a read without a transaction; "" while it has none
        self._node = engine.new_name()
        self._number = 0  # of the last commit
        self._streams = 0
        self._log_statements: dict[tuple[object, ...], str] = {}
        self._head: int | None = None  # the highest position that this connection has given
        #: Of several nodes: the fence up to which this one has heard all facts. None: it is the only one that writes.
        self.fence: int | None = None
        self.partitions = Partitions(self)
        #: Since when this waits for an answer of the server, by time.monotonic.
        self.waits_since: float | None = None
        #: Whether that is a commit that waits for a synchronous standby.
        self.is_unreplicated = False
        #: Whoever holds a lock that this waits for, as far as somebody has looked.
        self.blocked_by = ""
        self._connection = self._connected()
        engine.add(self.name, self)

    @property
    def driver(self) -> "psycopg.Connection[tuple[Any, ...]]":
        return self._connection

    @property
    def name(self) -> str:
        """As the server knows it."""
        return f"trunkline {self._node}"

    # Statements

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> PostgresqlResult:
        return self._run(translated(sql), parameters or {})

    def all_rows(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a SELECT, in binary form, which costs less where there are many: for a copy."""
        return [tuple(row) for row in self._run(translated(sql), parameters, binary=True).tuples()]

    def _run(
        self,
        sql: str,
        parameters: Mapping[str, Any] | Sequence[Any],
        *,
        binary: bool | None = None,
        prepare: bool | None = None,
    ) -> PostgresqlResult:
        if not self._is_begun:
            self._be_connected()
        self._send_before(sql)
        self.waits_since, self.is_unreplicated = time.monotonic(), False
        try:
            cursor = self._cursor
            cursor.execute(sql, parameters, binary=binary, prepare=prepare)
            if cursor.description is None:
                return _NOTHING
            return PostgresqlResult([column.name for column in cursor.description], cursor.fetchall())
        except psycopg.Error as error:
            raise self._store_error(error) from None
        finally:
            self.waits_since = None

    def stream(self, sql: str, parameters: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        if not self._is_begun:  # without a transaction no cursor, and no snapshot of several statements
            yield from self.execute(sql, parameters).tuples()
            return
        size, offset = _FIRST_PAGE, 0
        if not self._is_writing:  # all statements see one snapshot; a cursor is one more trip, which few need
            page = {**parameters, "stream_limit": size}
            rows = list(self.execute(f"{sql} LIMIT :stream_limit", page).tuples())
            yield from rows
            if len(rows) < size:
                return
            offset = size
        self._streams += 1
        cursor = f"stream_{self._streams}"  # which the end of the transaction closes
        declared = translated(f"DECLARE {cursor} NO SCROLL CURSOR FOR {sql} OFFSET :stream_offset")
        self._run(declared, {**parameters, "stream_offset": offset}, prepare=False)
        while True:
            rows = list(self._run(f"FETCH {size} FROM {cursor}", (), prepare=False).tuples())
            yield from rows
            if len(rows) < size:
                return
            size = min(2 * size, _LARGEST_PAGE)

    def _send_before(self, sql: str) -> None:
        """Send what waits for this statement, unless it is the only one of a read, as far as is known.

        Raises StoreLostError: another one was before it. The read is run again, in a transaction.
        """
        if self._first is None:
            self._send_later()
        elif self._first:
            self._engine.note_followed(self._first)
            raise StoreLostError("a read has more than one statement")
        elif sql.startswith("SELECT") and sql not in self._engine.followed:
            self._first = sql
        else:
            self._first = None
            self._send_later()

    def _send_later(self) -> None:
        """Send what waits for the next statement, as one text."""
        if self._later:
            later, self._later = self._later, []
            try:
                self.command("; ".join(later))  # which finds nothing more to send
            except StoreError as error:
                error.is_of_transaction |= later[0].startswith("BEGIN")  # there is none, and no savepoint
                raise

    def command(self, text: str) -> None:
        """Statements without parameters, whose results nobody wants."""
        self._send_before(text)
        self.waits_since, self.is_unreplicated = time.monotonic(), False
        try:
            result = self._connection.pgconn.exec_(text.encode())
        except psycopg.Error as error:
            raise self._store_error(error) from None
        finally:
            self.waits_since = None
        if result.status not in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}:
            raise self._store_error(errors.error_from_result(result))

    def tables(self) -> PostgresqlTables:
        """For a copy of the whole store."""
        return PostgresqlTables(self)

    def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Any] | EncodedRows) -> None:
        if rows:
            arrays = self._arrays_of(table, columns, rows).arrays
            self._run(insertion(table, columns, self._types_of(table)), arrays)

    def load_rows(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows with COPY: of tens of thousands of rows in half the time of `insert_many`."""
        types = self._types_of(table)
        self._send_before("")
        self.waits_since, self.is_unreplicated = time.monotonic(), False
        names = ", ".join(map(quote_reserved_words, columns))
        try:
            with self._cursor.copy(f"COPY {quote_reserved_words(table)} ({names}) FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types([types[name] for name in columns])
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:
            raise self._store_error(error) from None
        finally:
            self.waits_since = None

    def insert_log(self, parts: Sequence[tuple[str, Sequence[str], Sequence[Any] | EncodedRows]], *, head: int) -> int:
        # The server has all of it before it takes the lock of the log, which lasts until the commit: so a daemon that
        # stands still holds up no other one.
        arrays = [self._arrays_of(table, columns, rows) for table, columns, rows in parts]
        number = sum(of_table.number for of_table in arrays)
        values = [value for of_table in arrays for value in (head, *of_table.arrays)]
        sql = self._log_statement([(table, columns) for table, columns, _ in parts])
        if self._is_writing:
            self.partitions.keep_ahead(self._head or 0)
            row = self._run(sql, [number, *values]).one()
            given = int(row["head"]) if row else 0
            self._tells_others = True
        else:
            given = self._alone(sql, number, values)
        self._head = given
        return given - head

    def _log_statement(self, tables: Sequence[tuple[str, Sequence[str]]]) -> str:
        """The insertion into tables of the log, within a transaction or as one of its own."""
        is_fenced = self.fence is not None and not self._is_writing
        key = (self._is_writing, is_fenced, *(table for table, _ in tables))
        if (sql := self._log_statements.get(key)) is None:
            sql = self._log_statements[key] = log_insertion(
                [(table, columns, self._types_of(table)) for table, columns in tables],
                self._engine.instance,
                leases=() if self._is_writing else self._engine.fence,
                is_alone=not self._is_writing,
                is_fenced=is_fenced,
            )
        return sql

    def given_head(self) -> int:
        row = self._run("SELECT max(head) AS head FROM batch", ()).one()
        return int(row["head"] or 0) if row else 0

    def encoded(self, rows: Sequence[Any]) -> EncodedRows | None:
        if self._engine.columns.known("message") is None:  # the writer's thread asks for them, and not the loop
            return None
        return EncodedRows(self._arrays_of("message", rows[0].__struct_fields__, rows))

    def _arrays_of(self, table: str, columns: Sequence[str], rows: Any) -> _Arrays:
        if isinstance(rows, _Arrays):
            return rows
        types = self._types_of(table)
        records = map(attrgetter(*columns), rows) if hasattr(rows[0], "__struct_fields__") else rows
        values = zip(*records, strict=True)
        arrays = [ARRAYS[types[name]][1](of_column) for name, of_column in zip(columns, values, strict=True)]
        return _Arrays(arrays, len(rows))

    def put_many(self, table: str, columns: Sequence[str], key: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        # The last one counts of rows with the same key, of which PostgreSQL takes one in a statement.
        places = [columns.index(name) for name in key]
        last = {tuple(row[place] for place in places): row for row in map(tuple, rows)}
        changes = ", ".join(
            f"{quote_reserved_words(name)} = excluded.{quote_reserved_words(name)}"
            for name in columns
            if name not in key
        )
        conflict = f" ON CONFLICT ({', '.join(map(quote_reserved_words, key))}) DO UPDATE SET {changes}"
        self._run(
            insertion(table, columns, self._types_of(table)) + conflict,
            self._arrays_of(table, columns, list(last.values())).arrays,
        )

    def _types_of(self, table: str) -> dict[str, str]:
        """The types of the columns."""
        if (types := self._engine.columns.known(table)) is None:
            rows = self._run(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
                " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                [quote_reserved_words(table)],
            )
            types = dict(rows.tuples())  # type: ignore[arg-type] # two columns
            self._engine.columns.learn(table, types)
        return types

    def given(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, Mapping[str, Any]]:
        arrays = self._arrays_of(table, columns, rows).arrays
        named = {f"given_{place}": array for place, array in enumerate(arrays)}
        values = ", ".join(f":{name}" for name in named)
        return f"SELECT * FROM unnest({values}) AS given ({', '.join(columns)})", named  # noqa: S608 - constants

    def now_ms(self) -> str:
        return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"

    def numbers_in(self, parameter: str) -> str:
        return f"SELECT value::bigint FROM json_array_elements_text((:{parameter})::json)"  # noqa: S608 - constants

    def texts_in(self, parameter: str) -> str:
        return f"SELECT value FROM json_array_elements_text((:{parameter})::json)"  # noqa: S608 - constants

    def texts(self, texts: Iterable[str]) -> str:
        return json.dumps([escaped(text) for text in texts], ensure_ascii=False)  # the parser knows no other NUL

    def rows_at(
        self,
        table: str,
        columns: Sequence[str],
        positions: str,
        conditions: str,
        parameters: Mapping[str, Any],
        *,
        first: str = "",
    ) -> str:
        names = ", ".join(columns)
        rows = (
            f"(SELECT value::bigint AS wanted FROM json_array_elements_text((:positions)::json)) AS w"  # noqa: S608
            f" JOIN {table} ON {table}.position = w.wanted WHERE TRUE{conditions}"
        )
        if first:
            rows = f"(SELECT {names} FROM {rows} {first}) AS found"  # noqa: S608 - constants of the stores
        row = self.execute(
            f"SELECT coalesce(json_agg(json_build_array({names})), '[]')::text AS found FROM {rows}",  # noqa: S608
            {**parameters, "positions": positions},
        ).one()
        return "[]" if row is None else str(row["found"])

    def all_texts(self, column: str) -> str:
        return f"string_agg({column}, ',')"

    def json_has(self, column: str, parameter: str) -> str:
        return f"(member_at({column}, :{parameter}) IS NOT NULL)"

    def json_matches(self, column: str, path: str, text: str, number: str) -> str:
        return f"value_matches(member_at({column}, :{path}), :{text}, :{number})"

    def json_any_named(self, column: str, member: str, parameter: str) -> str:
        return f"has_named({column}, '{member}', :{parameter})"

    def full_partitions(self) -> Sequence[range]:
        return self.partitions.full()

    def drop_partition(self, part: range) -> None:
        self.partitions.drop(part)

    def size_bytes(self) -> tuple[int, int]:
        row = self.execute(STORE_SIZE).one()
        return (int(row["bytes"]), int(row["free"])) if row else (0, 0)

    def table_sizes(self) -> Mapping[str, TableSize]:
        return {row["name"]: TableSize(int(row["bytes"])) for row in self.execute(TABLE_SIZES)}

    def gives_back(self) -> bool:
        return False  # but for dropped partitions, and pages at the end of a table

    def give_back(self, pages: int) -> bool:  # noqa: ARG002 - autovacuum does it
        return False

    # Transactions

    def begin_read(self) -> None:
        self.begin(write=False)
        self._first = ""

    def begin(self, *, write: bool) -> None:
        self._be_connected()
        self._is_begun, self._is_writing, self._tells_others = True, write, False
        self._first = None
        if write:
            self._later = ["BEGIN", f"SELECT pg_advisory_xact_lock({WORKS_LOCK})", *self._engine.fence]
        else:
            self._later = ["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"]

    def begin_hearing(self) -> None:
        """As `begin`, for reading what the others have told: nobody is about to commit rows, or what ends something."""
        self.begin(write=True)
        self._later = ["BEGIN", f"SELECT pg_advisory_xact_lock({LOG_LOCK})"]

    def tell_others(self, *, is_fencing: bool) -> None:
        """The transaction has facts. `is_fencing`: no node stores rows behind it before it has heard them."""
        self._tells_others = True
        if is_fencing:
            self._later += [f"SELECT pg_advisory_xact_lock({LOG_LOCK})", "SELECT nextval('fence')"]

    def savepoint(self, command: str) -> None:
        self._later.append(command)

    def commit(self) -> None:
        number = self._number + 1
        head = "NULL" if self._head is None else str(self._head)
        values = f"('{self._node}', {number}, {head})"
        self._later.append(f"INSERT INTO batch (node, number, head) VALUES {values}")  # noqa: S608 - own
        if number % _BATCHES_KEPT == 0:
            self._later += self._forgetting()
        if self._tells_others and self.fence is not None:
            self._later.append(f"NOTIFY {CHANNEL}, '{self._engine.instance}'")
        self._later.append("COMMIT")
        try:
            self._send_later()
        except StoreLostError:
            self._is_begun = self._is_writing = False
            if self._settled(number) is None:
                raise
        self._is_begun = self._is_writing = False
        self._number = number
        self._engine.history.note(self._node, number, self._head)

    def _forgetting(self) -> list[str]:
        """Delete old numbers of commits. Their highest position goes into its counter."""
        old = self._number - _BATCHES_KEPT
        forgetting = [f"DELETE FROM batch WHERE node = '{self._node}' AND number <= {old}"]  # noqa: S608 - own numbers
        if self._head is not None:
            forgetting.insert(0, keep_head(str(self._head)))
        return forgetting

    def _alone(self, sql: str, of_rows: int, values: Sequence[Any]) -> int:
        """Run a statement that is a transaction of its own, and takes the number of the commit with it. Returns the
        highest position that it has given."""
        number, row, until = self._number + 1, None, self._until()
        numbers = [of_rows, self._node, number] if self.fence is None else [self.fence, of_rows, self._node, number]
        while row is None:
            try:
                self.partitions.keep_ahead(self._head or 0)
                row = self._run(sql, [*numbers, *values]).one()
                if row is None:
                    raise StoreBehindError
            except StoreLostError as error:
                row = self._settled(number)
                if row is None and time.monotonic() >= until:  # it breaks again and again
                    raise StoreAwayError(f"{self._engine.target}: {error}") from error
        given = int(row["head"])
        self._number, self._head = number, given
        self._engine.history.note(self._node, number, given)
        if number % _BATCHES_KEPT == 0:
            self.command("; ".join(self._forgetting()))
        return given

    def _settled(self, number: int) -> Mapping[str, Any] | None:
        """The row of a commit whose connection broke before its end was told; None: it is undone.

        The old session has ended by then. Raises StoreDoubtfulError: nobody knows yet.
        """
        # A commit that waited for a synchronous standby is there before the standby has it, once its session is gone.
        # One that writes waits for the standby, too, and so for that commit.
        sql = "UPDATE batch SET head = head WHERE node = %s AND number = %s RETURNING head"
        until = self._until()
        while True:
            if self.is_unreplicated:  # it would wait on: front ends have waited for long enough
                self._number, self.is_unreplicated = number, False
                self._engine.contact.count("commits_in_doubt")
                raise StoreDoubtfulError(f"{self._engine.target}: {_UNREPLICATED}")
            try:
                return self._run(sql, [self._node, number]).one()
            except (StoreLostError, StoreUnreachableError) as error:
                if isinstance(error, StoreLostError) and (self.is_unreplicated or time.monotonic() < until):
                    continue
                self._number = number  # it may be taken
                self._engine.contact.count("commits_in_doubt")
                raise StoreDoubtfulError(str(error)) from error

    def _until(self) -> float:
        """Until when a work is tried again that begins now, by time.monotonic."""
        return time.monotonic() + self._engine.contact.patience_seconds

    def settle(self) -> Mapping[str, Any] | None:
        if (row := self._settled(self._number)) is not None:
            self._engine.history.note(self._node, self._number, row["head"])
        return row

    def forget(self) -> None:
        """Know nothing of the commits before: the store is another one."""
        self._head = None
        self.partitions.forget()
        self._engine.history = ServerHistory()

    def rollback(self) -> None:
        self._later.clear()
        self._is_begun = self._is_writing = False
        self._first = None
        if self._connection.info.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}:
            self.command("ROLLBACK")

    def forget_log(self) -> bool:
        """PostgreSQL's log is the server's: nothing is to do here."""
        return True

    def close(self) -> None:
        self._is_ended = True
        self._disconnect()

    # The connection

    def _disconnect(self) -> None:
        self._connection.close()
        self._socket.close()

    def cut(self) -> None:
        """Have whoever waits for an answer find that the connection is broken. Called in any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _be_connected(self) -> None:
        """Raises StoreUnreachableError: not within the patience; StoreForkedError."""
        if self._engine.history.forked is not None:
            raise StoreForkedError(self._engine.history.forked)
        is_open = not self._connection.closed and not self._connection.broken
        if is_open and not self._engine.contact.stands_still:
            return
        if self._is_ended:
            raise StoreError("the connection is closed")
        self._disconnect()
        self._later.clear()
        pause, contact = _PAUSE_SECONDS, self._engine.contact
        contact.count("waits")
        while True:
            with contact.turn():
                began = time.monotonic()
                try:
                    self._connection = self._connected(contact.connect_seconds)
                except StoreUnreachableError as error:
                    contact.failed(error, time.monotonic() - began)
                    if (left := contact.seconds_left()) <= 0:
                        raise
                else:
                    contact.found()
                    return
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _connected(self, seconds: float = CONNECT_SECONDS) -> "psycopg.Connection[tuple[Any, ...]]":
        target = self._engine.target
        node = self._engine.stands_by_as
        name = f"{self.name}{STANDBY}{node}" if node else self.name
        lock_seconds = self._engine.lock_seconds
        connection = target.connect(read_only=self._read_only, name=name, seconds=seconds, lock_seconds=lock_seconds)
        try:
            with target.answered_within(seconds + _FORMER_SECONDS, connection):
                adapt(connection)
                self._engine.history.check(connection, target)
                if not self._read_only:
                    _check_writable(connection, target)
                    _end_former(connection, self.name)
                    if self._engine.is_shared:
                        connection.execute(f"SET idle_in_transaction_session_timeout = {_STANDS_STILL_MS}".encode())
            self._socket = target.other_socket(connection)
        except psycopg.Error as error:
            connection.close()
            kind = StoreAwayError if is_away(error) else StoreUnreachableError
            raise kind(f"{target}: {target.without_secret(server_message(error))}") from None
        except StoreError:
            connection.close()
            raise
        connection.add_notice_handler(_log_notice)
        connection.prepare_threshold = _PREPARED_FROM
        connection.prepared_max = _PREPARED_MOST
        self._cursor = connection.cursor()
        return connection

    def _store_error(self, error: psycopg.Error) -> StoreError:
        text = self._engine.target.without_secret(f"{type(error).__name__}: {server_message(error)}")
        state = error.sqlstate or ""
        if state == _READ_ONLY:
            text = f"{_IS_READ_ONLY}: {text}"
        # The library has no code for a connection that broke: it knows only that there is no answer.
        is_silent = not state and (isinstance(error, psycopg.OperationalError) or type(error) is psycopg.DatabaseError)
        if is_silent or self._connection.broken or self._connection.closed or state.startswith(LOST):
            self._disconnect()
            self._later.clear()
            self._engine.contact.lost()
            self._engine.contact.count("connections_lost")
            return StoreLostError(text)
        if state == _NO_PARTITION:  # the server that has taken over lacks the latest one
            self.partitions.forget()
            return StoreLostError(text)
        if state == _TAKEN:
            return StoreTakenError(text)
        if state == _BUSY:
            by, self.blocked_by = self.blocked_by or "another session (pg_locks)", ""
            return StoreBusyError(f"waits for a lock of {by}: {text}")
        is_full = state == _FULL or (state in _UNNAMED and error.diag.source_function in _GROWING)
        return StoreFullError(text) if is_full else StoreError(text)


def _log_notice(notice: errors.Diagnostic) -> None:
    """Of warnings, what the server says without values of rows."""
    _log.warning("database_warns", reason=notice.message_primary, code=notice.sqlstate)


def _check_writable(connection: "psycopg.Connection[tuple[Any, ...]]", target: Target) -> None:
    """Raises StoreAwayError: whoever administers the server has made it read-only, though it is no copy."""
    if connection.execute("SELECT current_setting('transaction_read_only')").fetchone() == ("on",):
        raise StoreAwayError(f"{target}: {_IS_READ_ONLY}")


def _end_former(connection: "psycopg.Connection[tuple[Any, ...]]", name: str) -> None:
    """End the session that this connection had before, and wait for its end: it may still commit."""
    rows = connection.execute(
        "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity"  # noqa: S608 - a constant
        f" WHERE {NAME} = %s AND usename = current_user AND pid <> pg_backend_pid()",
        [round(_FORMER_SECONDS * 1000), name],
    ).fetchall()
    if not all(has_ended for (has_ended,) in rows):
        raise StoreAwayError("the former session of a connection has not ended yet")
