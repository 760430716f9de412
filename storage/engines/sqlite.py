"""The embedded engine: SQLite in WAL mode. All SQL that only SQLite understands is in this file.

Rows of the log are inserted through one JSON parameter and `json_each`. `executemany` releases and takes the
interpreter lock once per row; measured beside a busy event loop that is 2.5 to 5 times slower, and it slows the loop.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import msgspec
import structlog

from config.shown_command import shown_command
from storage import migrations
from storage.damage import Damage
from storage.engines.quarantine import forget_old_indexes, set_aside_damaged
from storage.engines.sqlite_check import opened_to_read
from storage.engines.sqlite_read_ahead import reading_ahead
from storage.engines.sqlite_references import Mended, mend_references
from storage.engines.sqlite_tables import SqliteTables
from storage.engines.sqlite_upgrade import Progress, apply_steps, keep_copy
from storage.migrations import VERSION, note_version, unknown_steps, version_of
from storage.sql import EncodedRows, StoreDamagedError, StoreError, StoreFullError, TableSize

_log = structlog.get_logger(__name__)

_CACHE_KIB = 65536
_BUSY_MS = 5000
_COPY_PAGES = 128  # at once: half a MiB
_BOUND_VALUES = 960  # in one statement; every SQLite since 2004 takes 999
_READER = (f"cache_size=-{_CACHE_KIB // 8}", "query_only=ON")
# SQLite keeps the pages a statement changes until it has succeeded: from 64 KiB on in a file, without `temp_store`.
# Deleted content is overwritten: a person may have asked for its erasure. The default differs between builds.
_WRITER = (f"cache_size=-{_CACHE_KIB}", "temp_store=MEMORY", "secure_delete=ON")
#: Pages of a table or index that are read to measure it.
_MEASURED_PAGES = 1_000
#: Bytes, pages and cells of a tree.
_Pages = Sequence[int]
_PAGES_OF_TREE = (
    "SELECT coalesce(sum(pgsize), 0) AS bytes, count(*) AS pages, coalesce(sum(ncell), 0) AS cells"
    " FROM (SELECT pgsize, ncell FROM dbstat WHERE name = :name LIMIT :most)"
)
#: Reads all pages. Of an empty store it takes half a millisecond, where a statement for each of 316 trees takes 18.
_PAGES_OF_TREES = "SELECT name, pgsize AS bytes, pageno AS pages, ncell AS cells FROM dbstat WHERE aggregate = TRUE"
#: The text that `_escaped` took.
_UNESCAPED = "replace(replace({}, char(26, 48), char(0)), char(26, 49), char(26))"
_NO_STORE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNREADABLE = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ}


class SqliteResult:
    def __init__(self, cursor: sqlite3.Cursor, sql: str, damage: Damage) -> None:
        self._cursor = cursor
        self._sql = sql
        self._damage = damage

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        yield from self._fetched()

    def tuples(self) -> Iterator[Sequence[Any]]:
        return self._fetched()

    def _fetched(self) -> Iterator[Any]:
        try:
            yield from self._cursor
        except sqlite3.Error as error:
            raise _store_error(error, self._sql, self._damage) from error

    def one(self) -> Mapping[str, Any] | None:
        try:
            row: Mapping[str, Any] | None = self._cursor.fetchone()
        except sqlite3.Error as error:
            raise _store_error(error, self._sql, self._damage) from error
        return row


class SqliteConnection:
    """One connection in autocommit mode; `begin` starts a transaction."""

    gives_positions = False
    stores_rows_at_once = False
    key_share = ""  # one process writes

    def __init__(self, connection: sqlite3.Connection, damage: Damage) -> None:
        self._connection = connection
        self._damage = damage
        self._inserts: dict[str, str] = {}
        self._encode = msgspec.json.Encoder().encode

    @property
    def driver(self) -> sqlite3.Connection:
        return self._connection

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> SqliteResult:
        return self._run(sql, parameters or {})

    def stream(self, sql: str, parameters: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        return self.execute(sql, parameters).tuples()

    def _run(self, sql: str, parameters: Mapping[str, Any] | Sequence[Any]) -> SqliteResult:
        try:
            return SqliteResult(self._connection.execute(sql, parameters), sql, self._damage)
        except sqlite3.Error as error:
            raise _store_error(error, sql, self._damage) from error

    def encoded(self, rows: Sequence[Any]) -> EncodedRows:
        return EncodedRows(self._encode(rows).decode())

    def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Any] | EncodedRows) -> None:
        if (sql := self._inserts.get(table)) is None:
            values = [f"json_extract(value, '$[{index}]')" for index in range(len(columns))]
            # Table and column names come from the stores, never from a request.
            names = ", ".join(columns)
            # Materialised: otherwise SQLite serialises a row again for each column, 2.3 instead of 1.6 µs a row.
            once = "WITH one AS MATERIALIZED (SELECT value FROM json_each(:rows))"
            sql = f"INSERT INTO {table} ({names}) {once} SELECT {', '.join(values)} FROM one"  # noqa: S608
            self._inserts[table] = sql
        if isinstance(rows, str):
            self.execute(sql, {"rows": rows})
            return
        records = cast("Sequence[Any]", rows)
        text = str(self.encoded(records))
        if "\\u0000" in text:  # at NUL the parser ends a text, as in the payload of a failed message
            if hasattr(records[0], "__struct_fields__"):
                records = list(map(attrgetter(*columns), records))
            self.insert_rows(table, columns, records)
        else:
            self.execute(sql, {"rows": text})

    def tables(self) -> SqliteTables:
        """For a copy of the whole store."""
        return SqliteTables(self)

    def all_rows(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a SELECT as plain tuples: for a copy, which reads all of a store."""
        cursor = self._connection.cursor()
        cursor.row_factory = None
        try:
            found: list[tuple[Any, ...]] = cursor.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise _store_error(error, sql, self._damage) from error
        return found

    def insert_rows(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows with every value as it is, which JSON text would not keep."""
        names, one = ", ".join(columns), f"({', '.join('?' * len(columns))})"
        at_once = _BOUND_VALUES // len(columns)
        for index in range(0, len(rows), at_once):
            part = rows[index : index + at_once]
            sql = f"INSERT INTO {table} ({names}) VALUES {', '.join([one] * len(part))}"  # noqa: S608 - of the schema
            self._run(sql, tuple(chain.from_iterable(part)))

    def insert_log(
        self,
        parts: Sequence[tuple[str, Sequence[str], Sequence[Any] | EncodedRows]],
        *,
        head: int,  # noqa: ARG002 - positions are tickets
    ) -> int:
        for table, columns, rows in parts:
            self.insert_many(table, columns, rows)
        return 0

    def given_head(self) -> int:
        return 0

    def put_many(self, table: str, columns: Sequence[str], key: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        # Bound values: SQLite's parser of numbers in JSON text would lose the last bits of a double.
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
        at_once = _BOUND_VALUES // len(columns)
        for index in range(0, len(rows), at_once):
            part = rows[index : index + at_once]
            values = ", ".join([f"({', '.join('?' * len(columns))})"] * len(part))
            sql = (
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values}"  # noqa: S608 - constants of the stores
                f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
            )
            self._run(sql, [value for row in part for value in row])

    def given(
        self,
        table: str,  # noqa: ARG002 - a column takes what it gets
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
    ) -> tuple[str, Mapping[str, Any]]:
        text = self._encode(rows).decode()
        form = "json_extract(value, '$[{place}]')"
        if "\\u0000" in text:
            form = f"CASE json_type(value, '$[{{place}}]') WHEN 'text' THEN {_UNESCAPED.format(form)} ELSE {form} END"
            escaped = [[_escaped(one) if isinstance(one, str) else one for one in row] for row in rows]
            text = self._encode(escaped).decode()
        values = ", ".join(f"{form.format(place=place)} AS {name}" for place, name in enumerate(columns))
        return f"SELECT {values} FROM json_each(:given)", {"given": text}  # noqa: S608 - constants

    def now_ms(self) -> str:
        return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

    def numbers_in(self, parameter: str) -> str:
        return f"SELECT value FROM json_each(:{parameter})"  # noqa: S608 - constants of the stores

    # SQLite's parser ends a JSON text at NUL, so NUL is written in two characters.

    def texts_in(self, parameter: str) -> str:
        return f"SELECT {_UNESCAPED.format('value')} AS value FROM json_each(:{parameter})"  # noqa: S608 - constants of the stores

    def texts(self, texts: Iterable[str]) -> str:
        return self._encode(list(map(_escaped, texts))).decode()

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
        # Each step of a statement gives the interpreter lock back, so a row a step is slow beside a busy event loop.
        names = ", ".join(columns)
        rows = f"json_each(:positions) AS wanted CROSS JOIN {table} ON {table}.position = wanted.value"
        rows += f" WHERE TRUE{conditions}"
        if first:
            rows = f"(SELECT {names} FROM {rows} {first}) AS found"  # noqa: S608 - constants of the stores
        row = self.execute(
            f"SELECT json_group_array(json_array({names})) AS found FROM {rows}",  # noqa: S608 - constants of the stores
            {**parameters, "positions": positions},
        ).one()
        return "[]" if row is None else str(row["found"])

    def all_texts(self, column: str) -> str:
        return f"group_concat({column}, ',')"

    def json_has(self, column: str, parameter: str) -> str:
        return _guarded(parameter, f"json_type({column}, {_path(parameter)}) IS NOT NULL")

    def json_matches(self, column: str, path: str, text: str, number: str) -> str:
        kind, value = f"json_type({column}, {_path(path)})", f"json_extract({column}, {_path(path)})"
        # SQLite's parser reads both numbers, and may be wrong in the last bit.
        return _guarded(
            path,
            f"(CASE {kind} WHEN 'text' THEN instr({value}, :{text}) > 0 WHEN 'true' THEN :{text} = 'true'"
            f" WHEN 'false' THEN :{text} = 'false' WHEN 'integer' THEN {value} = CAST(:{number} AS NUMERIC)"
            f" WHEN 'real' THEN {value} = CAST(:{number} AS NUMERIC) ELSE {value} = :{text} END)",
        )

    def json_any_named(self, column: str, member: str, parameter: str) -> str:
        return (
            f"EXISTS (SELECT 1 FROM json_each({column}, '$.{member}') AS entry"  # noqa: S608 - constants of the stores
            f" WHERE json_extract(entry.value, '$.name') = :{parameter})"
        )

    def full_partitions(self) -> Sequence[range]:
        return ()

    def drop_partition(self, part: range) -> None:
        """There are none."""

    def size_bytes(self) -> tuple[int, int]:
        sizes = [self._pragma(name) for name in ("page_size", "page_count", "freelist_count")]
        return sizes[0] * sizes[1], sizes[0] * sizes[2]

    def table_sizes(self) -> Mapping[str, TableSize]:
        trees: dict[str, list[_Pages]] = {}
        at_once: dict[str, _Pages] = {}
        if self._pragma("page_count") <= _MEASURED_PAGES:
            with suppress(StoreError):  # as below, where the trees without damage are found
                at_once = {name: pages for name, *pages in self.execute(_PAGES_OF_TREES).tuples()}
        for name, table in self.execute("SELECT name, tbl_name FROM sqlite_master WHERE rootpage > 0").tuples():
            pages = at_once.get(name)
            if pages is None:
                with suppress(StoreError):  # a library without dbstat, or damage, which the check of the store tells
                    pages = next(self.execute(_PAGES_OF_TREE, {"name": name, "most": _MEASURED_PAGES}).tuples())
            if pages is not None:
                trees.setdefault(table, []).append(pages)
        return {name: _table_size(of_table) for name, of_table in trees.items()}

    def gives_back(self) -> bool:
        return self._pragma("auto_vacuum") != 0

    def give_back(self, pages: int) -> bool:
        before = self._pragma("page_count")
        for _ in range(pages):
            self.execute("PRAGMA incremental_vacuum(1)")  # of more pages, Python's module would give one back, too
        return self._pragma("page_count") < before

    def _pragma(self, name: str) -> int:
        row = self.execute(f"PRAGMA {name}").one()
        return int(row[name]) if row else 0

    def begin(self, *, write: bool) -> None:
        self.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    def begin_read(self) -> None:
        self.execute("BEGIN")

    def mend_references(self) -> Mended:
        """In the transaction, without `foreign_keys`. Raises StoreError."""
        try:
            return mend_references(self._connection)
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    def savepoint(self, command: str) -> None:
        self.execute(command)

    def forget_log(self) -> bool:
        self.execute("PRAGMA busy_timeout=0")  # readers are not waited for: all senders would
        try:
            row = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").one()
            return row is not None and not row["busy"]
        finally:
            self.execute(f"PRAGMA busy_timeout={_BUSY_MS}")

    def commit(self) -> None:
        self.execute("COMMIT")

    def settle(self) -> Mapping[str, Any] | None:
        return None  # no commit is ever in doubt

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


def _table_size(trees: Sequence[_Pages]) -> TableSize:
    """Of the trees of a table and its indexes, by their first pages."""
    whole, a_row, is_whole = 0, 0.0, True
    for size, pages, cells in trees:
        whole += size
        is_whole = is_whole and pages < _MEASURED_PAGES
        if cells:
            a_row += size / cells
    return TableSize(whole if is_whole else None, a_row)


class SqliteSnapshot:
    """A consistent view of the store at one moment. Writers go on; their pages stay in the write-ahead log."""

    def __init__(self, connection: sqlite3.Connection, damage: Damage) -> None:
        self._connection = connection
        self._damage = damage
        self.rows = SqliteConnection(connection, damage)
        self.size_bytes, self.free_bytes = self.rows.size_bytes()

    def steps(self) -> tuple[str, ...]:
        """The names of the schema steps that the store has."""
        return tuple(migrations.applied(self._connection))

    def is_current(self) -> bool:
        return not migrations.pending(self._connection) and not unknown_steps(self._connection)

    def has(self, table: str, column: str) -> bool:
        """Whether an older version, which has made the store, had the column."""
        sql = "SELECT 1 FROM pragma_table_info(:table) WHERE name = :column"
        return self.rows.execute(sql, {"table": table, "column": column}).one() is not None

    def copy(self, target: Path, copied: Callable[[int], None]) -> None:
        """Write a new store with the same pages; `copied` is told the bytes of each step, and may wait.

        Raises:
            StoreError: a page cannot be read or written. StoreFullError: the disk is full.
        """
        left = -1

        def progress(_status: int, remaining: int, total: int) -> None:
            nonlocal left
            done = (total if left < 0 else left) - remaining
            left = remaining
            copied(done * (self.size_bytes // max(total, 1)))

        try:
            # Until it is whole the copy is worth nothing, so it needs no journal and waits for no disk.
            with closing(sqlite3.connect(target, isolation_level=None)) as copy:
                for pragma in ("synchronous=OFF", "journal_mode=OFF"):
                    copy.execute(f"PRAGMA {pragma}")
                self._connection.backup(copy, pages=_COPY_PAGES, progress=progress)
        except sqlite3.Error as error:
            raise _store_error(error, "", self._damage) from error


def _untold(_text: str) -> None:
    """The progress of an upgrade that nobody follows."""


def _escaped(text: str) -> str:
    """The text without NUL, at which the parser ends a text."""
    return text.replace("\x1a", "\x1a1").replace("\0", "\x1a0")


def _path(parameter: str) -> str:
    # Every name is quoted, so that `a[0]` is a field name and not a path. Field names contain no quotes.
    return f"""'$."' || replace(:{parameter}, '.', '"."') || '"'"""


def _guarded(parameter: str, condition: str) -> str:
    return f"""CASE WHEN instr(:{parameter}, '"') = 0 THEN {condition} END"""


def _store_error(error: sqlite3.Error, sql: str, damage: Damage) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0)  # errors that Python itself raises have none
    text = f"{type(error).__name__}: {error}"
    if code in _UNREADABLE or code & 0xFF in _NO_STORE:
        damage.met(sql, text)
        return StoreDamagedError(text)
    return StoreFullError(text) if code == sqlite3.SQLITE_FULL else StoreError(text)


class SqliteEngine:
    """Opens connections to one database file.

    Args:
        path: of the file.
        synchronous: how commits wait for the disk, as SQLite's pragma.
        upgrades: whether a store of an older version is brought to this one, or refused.
        progress: told of the schema steps of such a store. With it, a copy is kept before they begin.
    """

    def __init__(
        self, path: Path, *, synchronous: str = "full", upgrades: bool = True, progress: Progress | None = None
    ) -> None:
        self.path = path
        self.damage = Damage()
        self._synchronous = synchronous
        self._upgrades = upgrades
        self._progress = progress

    def __str__(self) -> str:
        return str(self.path)

    def migrate(self) -> None:
        """Apply the schema steps that this file has not seen yet.

        Raises:
            StoreError: the file cannot be used, a newer version of Trunkline has made it, or an older one and this
                engine does not upgrade.
            StoreFullError: the disk has no room for the copy.
        """
        try:
            self._close_to_others()
            # The first counts for a new file alone; another one never becomes smaller (`give_back`).
            new = ("auto_vacuum=INCREMENTAL", f"cache_size=-{_CACHE_KIB}", "journal_mode=WAL")
            with closing(self._connect(*new)) as connection:
                made_by = version_of(connection)
                if unknown_steps(connection):
                    raise StoreError(
                        f"{self.path}: Trunkline {made_by} has made this store, and {VERSION} cannot read it:"
                        f" install {made_by} or a newer one"
                    )
                applied = migrations.applied(connection)
                steps = migrations.pending(connection) if applied else []
                if steps:
                    self._prepare_upgrade(connection, max(applied), steps, made_by)
                self.damage.set_aside = set_aside_damaged(connection)
                try:
                    apply_steps(connection, steps, self._progress or _untold)
                    migrations.apply(connection)
                except sqlite3.DatabaseError as error:
                    if error.sqlite_errorcode not in _NO_STORE:
                        raise
                    forget_old_indexes(connection)
                    migrations.apply(connection)
                note_version(connection)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _prepare_upgrade(self, connection: sqlite3.Connection, last: str, steps: Sequence[str], made_by: str) -> None:
        if not self._upgrades:
            raise StoreError(
                f"{self.path}: Trunkline {made_by} has made this store, and it lacks {len(steps)} schema steps:"
                f" start the daemon, or run once: {shown_command('migrate')}"
            )
        _log.info("migrating", store=str(self.path), steps=list(steps))
        if self._progress is not None:
            copy = keep_copy(self.path, connection, last, self._progress)
            _log.info("store_copied_before_upgrade", copy=str(copy), undo=shown_command("store undo-upgrade"))

    def _close_to_others(self) -> None:
        """The files of the store are 0600, whatever the umask is: the directory may be opened to others one day.

        SQLite gives the write-ahead log and its index the mode of the store.
        """
        try:
            self.path.touch(mode=0o600)
            for path in (self.path, *(self.path.with_name(f"{self.path.name}{end}") for end in ("-wal", "-shm"))):
                if path.exists() and path.stat().st_mode & 0o077:
                    path.chmod(0o600)
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}") from error

    def open(self, *, read_only: bool) -> SqliteConnection:
        """Open a connection; the caller closes it. Raises StoreError."""
        try:
            connection = self._connect(*(_READER if read_only else _WRITER))
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error
        connection.row_factory = sqlite3.Row
        return SqliteConnection(connection, self.damage)

    def is_current(self) -> bool:
        """Whether the store has exactly the schema steps of this version. Raises StoreError."""
        with self.snapshot() as snapshot:
            return snapshot.is_current()

    @contextmanager
    def snapshot(self) -> Iterator[SqliteSnapshot]:
        """The store as it is now, beside a daemon that writes. Nothing is changed, also not the schema.

        Raises:
            StoreError: the file cannot be used.
        """
        with opened_to_read(self.path) as driver:
            driver.row_factory = sqlite3.Row
            driver.execute("BEGIN")
            driver.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first read decides the moment
            yield SqliteSnapshot(driver, self.damage)

    def check(self) -> None:
        """Look at the structure of every page of a store that nobody uses. Raises StoreError: the file is damaged."""
        connection = self.open(read_only=True)
        try:
            with reading_ahead(self.path):
                found = [row[0] for row in connection.execute("PRAGMA quick_check(1)").tuples()]
        finally:
            connection.close()
        if found != ["ok"]:
            raise StoreError(f"damaged: {' '.join(map(str, found))}")

    def mend_references(self) -> Mended:
        """Of a store that nobody uses. Raises StoreError."""
        try:
            with closing(self._connect("foreign_keys=OFF")) as db:
                db.execute("BEGIN IMMEDIATE")
                mended = mend_references(db)
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error
        return mended

    def _connect(self, *pragmas: str) -> sqlite3.Connection:
        # One thread at a time uses a connection, but not always the same one.
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000, cached_statements=256
        )
        try:
            for pragma in (f"synchronous={self._synchronous}", "foreign_keys=ON", *pragmas):
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:  # whatever it is: the connection must not stay open; raised again
            connection.close()
            raise
        return connection
