"""SQLite for tests: stores that have the schema already and do not wait for the disk.

What a power cut loses is tested in tests/e2e/test_kill.py, and the steps of the schema in tests/storage.

A copied schema saves 66 ms of processor time for each of some thousand stores. Stores that are kept (`KeptStore`) save
2.8 of 19 s in the 455 tests of accounts and registration, and more than 10 s in all.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar, cast

import trio

from config.loading import load_settings
from config.settings import Settings, Storage
from storage import migrations
from storage.damage import Damage
from storage.database import Database
from storage.engines import STORE, engine_of
from storage.engines.port import EngineConnection, StoreEngine
from storage.engines.sqlite import SqliteConnection, SqliteEngine
from storage.messages import MessageStore
from storage.sql import StoreConnection, StoreError
from storage.store_copy import CopyConnection
from storage.told import Told
from storage.transaction import Transaction
from storage.worker_thread import Worker
from tests.fakes import BreakableConnection, BreakableEngine
from tests.postgresql import ENGINE, STATES, migrated_engine
from tests.told import through_messagepack

T = TypeVar("T")

#: Where a file of SQLite says how often it was changed, at which of these numbers its size is right, and its journal.
_CHANGES, _SIZE_IS_RIGHT_AT, _MODE = 24, 92, 18
_ROLLBACK = bytes([1, 1])
#: More changes than a test makes.
_FAR_APART = 1 << 16


def make_store(path: Path) -> None:
    """Write the file of a store right after the steps of the schema, which take ten times as long as this copy."""
    path.write_bytes(_empty_store())


# Stores of daemons and commands, which find them by their settings: a file in the state directory, or its database.


def storage_of(state: Path) -> Storage:
    """Where daemons and commands of this run have the store of a state directory."""
    return Storage(url=STATES.url(state)) if ENGINE == "postgresql" else Storage()


def configuration(text: str, state: Path) -> str:
    """A configuration file with the same, unless its text says where the store is."""
    url, table = storage_of(state).url, "[storage]\n"
    if url == Storage().url or f"{table}url" in text:
        return text
    before, found, after = text.partition(table)
    return f'{before.rstrip()}\n{table}url = "{url}"\n{after}' if found else f'{text.rstrip()}\n{table}url = "{url}"\n'


def place_of(config: Path) -> str:
    """As commands name it that find no store there."""
    settings = load_settings(config, {})
    return str(engine_of(settings) if settings.storage.is_postgresql else settings.state_dir)


def begin_store(settings: Settings) -> None:
    """Make the store of these settings an empty one, with the whole schema."""
    if settings.storage.is_postgresql:
        STATES.begin(settings.state_dir)
    else:
        make_store(settings.state_dir / STORE)


def copy_state(source: Path, target: Path) -> None:
    """Copy a state directory that nobody uses, with its store."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    if ENGINE == "postgresql":
        STATES.begin(target, source)


def move_state(state: Path, to: Path) -> None:
    """Rename a state directory that nobody uses, with its store: there is none at the former place."""
    state.rename(to)
    if ENGINE == "postgresql":
        STATES.move(state, to)


def remove_store(settings: Settings) -> None:
    """Nothing is left of the store of a state directory that nobody uses."""
    if settings.storage.is_postgresql:
        STATES.empty(settings.state_dir)
    else:
        for file in settings.state_dir.glob(f"{STORE}*"):
            file.unlink()


@contextmanager
def store_of(settings: Settings, *, read_only: bool = False, has_references: bool = True) -> Iterator[EngineConnection]:
    """A connection to the store, in a transaction that is committed at the end, unless it only reads."""
    with closing(engine_of(settings).open(read_only=read_only)) as connection:
        if not has_references:
            lift_references(connection)
        connection.begin(write=not read_only)
        yield connection
        if read_only:
            connection.rollback()  # on PostgreSQL a commit notes its number
        else:
            connection.commit()


def note_step(store: StoreConnection, name: str) -> None:
    """As if the version that has this step of the schema had made the store."""
    if ENGINE == "postgresql":
        store.execute("INSERT INTO schema_step (name, applied_at) VALUES (:name, now())", {"name": name})
    else:
        sql = "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('trunkline', :name, '')"
        store.execute(sql, {"name": name})


def drop_table(store: StoreConnection, name: str) -> None:
    """What uses the table fails from now on."""
    store.execute(f"DROP TABLE {name}{' CASCADE' if ENGINE == 'postgresql' else ''}")


def lift_references(connection: StoreConnection) -> None:
    """The connection takes rows that refer to nobody, from its next transaction on."""
    if ENGINE == "postgresql":
        connection.execute("SET session_replication_role = replica")
    else:
        connection.execute("PRAGMA foreign_keys = OFF")


def make_index(engine: StoreEngine) -> None:
    """Make the index entries of rows that were written into the log beside its store."""
    with closing(engine.open(read_only=False)) as connection:
        messages, is_more = MessageStore(connection), True
        while is_more:
            connection.begin(write=True)
            is_more = index(messages)
            connection.commit()


def index(messages: MessageStore) -> bool:
    """Make the index entries of rows that have none, some thousands; return whether there are more of them."""
    head = messages.head()
    if (missing := messages.missing(head)) is None:
        return False
    messages.add_missing(missing)
    return missing.upto < head


class KeptStore:
    """A file and a connection that serve one test after the other. Each test finds what `make_store` makes.

    A file whose number of changes has moved is for SQLite one that another process has written: the connection reads
    pages again. It keeps the schema and the prepared statements, which take a third of a test with services. This is so
    in rollback mode alone; with a log beside the file the pages would be looked for there.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "kept.sqlite"
        self._changes = count(_FAR_APART, _FAR_APART)
        self._write_anew()
        self._connection = _KeptConnection(SqliteEngine(self._file, synchronous="off").open(read_only=False).driver)
        self._connection.execute("PRAGMA journal_mode = MEMORY")
        self._path: Path | None = None
        self._is_for_threads = False

    def lend(self, path: Path, damage: Damage) -> SqliteConnection | None:
        """The connection, to the store of the test, which begins as a new one; None when `path` is another store."""
        if self._path is None and not path.exists():
            self._write_anew()
            path.hardlink_to(self._file)
            self._path = path
        if self._path != path or self._is_for_threads or self._connection.is_lent:
            return None
        self._connection.lend(damage)
        return self._connection

    def let_threads_in(self, path: Path) -> None:
        """Connections of several threads use the store from now on, as in the product: readers hold up no writer."""
        if self._path == path and not self._connection.is_lent:
            self._is_for_threads = True
            self._connection.execute("PRAGMA journal_mode = WAL")

    def is_free(self) -> bool:
        """When a test has ended: whether another one can have the store."""
        self._path = None
        return not (self._is_for_threads or self._connection.is_lent)

    def close(self) -> None:
        self._connection.driver.close()

    def _write_anew(self) -> None:
        changes = next(self._changes).to_bytes(4, "big")
        with self._file.open("r+b" if self._file.exists() else "xb", buffering=0) as file:
            file.write(_empty_store())
            file.truncate()
            for at, value in ((_MODE, _ROLLBACK), (_CHANGES, changes), (_SIZE_IS_RIGHT_AT, changes)):
                file.seek(at)
                file.write(value)


class _KeptConnection(SqliteConnection):
    """Stays open for the next store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection, Damage())
        self.is_lent = False

    def lend(self, damage: Damage) -> None:
        self._damage = damage
        self.is_lent = True

    def close(self) -> None:
        self.rollback()
        self.is_lent = False


class MigratedEngine(SqliteEngine):
    """SQLite on a file that is made, with the schema, when it is first used.

    In a run with ENGINE=postgresql it is PostgreSQL on a database of this path.
    """

    def __new__(cls, path: Path, _kept: KeptStore | None = None) -> "MigratedEngine":
        if ENGINE == "postgresql":
            return cast("MigratedEngine", migrated_engine(path))
        return super().__new__(cls)

    def __init__(self, path: Path, kept: KeptStore | None = None) -> None:
        super().__init__(path, synchronous="off")
        self._kept = kept

    def migrate(self) -> None:
        """Nothing is to do: the file is made with the whole schema. To look for steps takes three milliseconds."""
        if self._kept is not None:
            self._kept.let_threads_in(self.path)

    def open(self, *, read_only: bool) -> SqliteConnection:
        if not self.path.exists():
            make_store(self.path)
        return super().open(read_only=read_only)

    def open_on_loop(self) -> SqliteConnection:
        """The one connection of a store that is read and written on the event loop."""
        kept = None if self._kept is None else self._kept.lend(self.path, self.damage)
        return kept or self.open(read_only=False)


class InlineDatabase(Database):
    """Reads and writes through one connection, because on the event loop they follow each other.

    `is_held`: what runs them holds them up (`HeldRunner`).
    """

    def __init__(self, engine: StoreEngine, *, worker: Callable[[str], Worker], is_held: bool) -> None:
        super().__init__(engine, worker=worker)
        self._is_held = is_held

    def _open(self) -> None:
        self._writer.transaction = transaction = Transaction(_open_on_loop(self._engine))
        self._readers.add(transaction)

    def on_told(self, hear: Callable[[Sequence[Told]], None]) -> None:
        """What is heard went through MessagePack: another node hears the same."""
        super().on_told(lambda told: hear([through_messagepack(one) for one in told]))

    async def read(self, work: Callable[[Transaction], T], *, interrupt: Callable[[], object] | None = None) -> T:
        if not self._is_held and ENGINE != "postgresql":  # nobody waits for a place
            await trio.lowlevel.checkpoint()
            if self._closed or (transaction := self._writer.transaction) is None:
                raise StoreError("the store is not open")
            if isinstance(transaction.connection, SqliteConnection):  # nobody writes beside it: it needs no transaction
                return _changing_nothing(work, transaction)
            transaction.connection.begin_read()
            try:
                return _changing_nothing(work, transaction)
            finally:
                transaction.connection.rollback()
        return await super().read(partial(_changing_nothing, work), interrupt=interrupt)

    async def look_up(self, work: Callable[[Transaction], T]) -> T:
        return await self.read(work)


def columns_of(store: StoreConnection) -> dict[str, tuple[str, ...]]:
    """The columns of each table but those of the engine itself."""
    tables = cast("CopyConnection", store).tables()  # as both engines have it
    return {name: shape.columns for name, shape in tables.shapes().items()}


def table_names(tx: Transaction) -> list[str]:
    """All tables of the store, as a statement names them, but those of the engine itself."""
    sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if ENGINE == "postgresql":
        sql = (
            "SELECT relname AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
            " AND NOT relispartition AND relname NOT IN ('batch', 'schema_step')"
        )
    return [row["name"] for row in tx.connection.execute(sql)]


def is_migrated(engine: StoreEngine) -> bool:
    return hasattr(engine.engine if isinstance(engine, BreakableEngine) else engine, "open_on_loop")


def _open_on_loop(engine: StoreEngine) -> EngineConnection:
    assert is_migrated(engine)
    if isinstance(engine, BreakableEngine):
        return BreakableConnection(engine, cast("MigratedEngine", engine.engine).open_on_loop())
    return cast("MigratedEngine", engine).open_on_loop()


def _changing_nothing(work: Callable[[Transaction], T], transaction: Transaction) -> T:
    """The product's readers refuse to write (`query_only`); this connection has to be able to."""
    connection = transaction.connection
    if ENGINE == "postgresql":  # its transaction is READ ONLY
        return work(transaction)
    assert isinstance(connection, SqliteConnection | BreakableConnection)
    before = connection.driver.total_changes
    try:
        return work(transaction)
    finally:
        assert connection.driver.total_changes == before, f"{work} writes in a read"


@contextmanager
def schema_in_memory() -> Iterator[sqlite3.Connection]:
    """The whole schema in the words of SQLite, also in a run over PostgreSQL: there is no file."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrations.apply(db)
        yield db


@cache
def _empty_store() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        SqliteEngine(path, synchronous="off").migrate()
        return path.read_bytes()
