"""A store is copied into another one, of any engine: table by table, in the order of the keys.

What is copied is committed up to 50,000 rows at a time, together with how far the copy is; so a copy that was killed
goes on there. At the end both stores are compared: the number of rows and the sum of the positions of each table, and a
hash of all its rows. Until then the other store is marked as unfinished, and no daemon opens it (storage/tables.py).
"""

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from storage.engines.port import EngineConnection
from storage.sql import StoreError
from storage.tables import Tables, TableShape, in_order

#: Rows of a transaction at most.
PAGE_ROWS: Final = 50_000
#: Rows that are hashed together. The ends of pages are ends of blocks, so that a hash can be gone on with.
_BLOCK_ROWS: Final = 50
_PAGE_BYTES: Final = 32 * 1024 * 1024
_SOURCE: Final = ""
#: Tables that a new store has rows in.
_FILLED: Final = frozenset({"secret"})
#: Tables that change when anything is stored, and are small.
_MARKS: Final = ("counter", "consumer", "retention", "tally")
_LOG: Final = ("message", "action", "failed_message")
_encode = msgspec.msgpack.Encoder().encode


class CopyConnection(EngineConnection, Protocol):
    def tables(self) -> Tables: ...


class CopyEngine(Protocol):
    def migrate(self) -> None: ...
    def open(self, *, read_only: bool) -> CopyConnection: ...


class CopyProgress(msgspec.Struct, frozen=True):
    """`is_comparing`: all rows are copied, and are compared."""

    table: str
    rows: int
    total: int
    seconds_left: float | None
    is_comparing: bool = False


class CopyReport(msgspec.Struct, frozen=True):
    tables: int
    rows: int  # of all tables
    content_bytes: int  # that were read, without what an engine adds
    seconds: float  # of this run
    was_resumed: bool
    mended: str = ""  # rows that refer to lost rows, in a sentence


#: Told several times a second; may wait, or raise.
Tell = Callable[[CopyProgress], None]


class _State(msgspec.Struct, frozen=True):
    """How far a table is: the last key that was copied, the rows, and the hash of all of them."""

    last_key: tuple[Any, ...] | None = None
    copied: int = 0
    digest: bytes = b""
    is_done: bool = False


class _SourceChangedError(StoreError):
    """The source is not as it was when the copy was begun."""


def copy_store(
    source: CopyConnection, target: CopyEngine, name: str, tell: Tell = lambda _progress: None
) -> CopyReport:
    """Copy all rows of a store that nobody changes, or of one snapshot of it, into another one; compare both.

    SQLite may have rows that refer to rows that are not there, which PostgreSQL refuses. They are copied as if those
    had just been deleted, into either engine; the source keeps them.

    Args:
        source: has the schema of this version, and no transaction.
        target: an empty store, or one into which a copy of the same store was interrupted.
        name: of the target, for errors.
        tell: told how far it is.

    Raises:
        StoreError: the target has rows of another store, cannot hold a row, or differs from the source at the end.
        StoreFullError: the target's disk is full. The copy can be gone on with.
    """
    try:
        mended = source.tables().begin_mended()
        return replace(copy_rows(source, target, name, tell), mended=mended)
    finally:
        with suppress(StoreError):
            source.rollback()


def copy_rows(
    source: CopyConnection,
    target: CopyEngine,
    name: str,
    tell: Tell = lambda _progress: None,
    *,
    without: Collection[str] = (),
) -> CopyReport:
    """As `copy_store`, of a source that is in a read transaction; without the rows of these tables."""
    target.migrate()
    with closing(target.open(read_only=False)) as into:
        copy = _Copy(source, into, name, tell, without)
        into.tables().begin_loading()
        try:
            return copy.run()
        except _SourceChangedError:
            copy.restart()
            return copy.run()


def require_free(target: CopyEngine, name: str) -> None:
    """Raises StoreError: a copy into this store would be refused, because it has rows and is no unfinished copy."""
    target.migrate()
    with closing(target.open(read_only=True)) as connection:
        if connection.execute("SELECT name FROM store_copy LIMIT 1").one() is None:
            _require_empty(connection.tables(), name)


def _require_empty(tables: Tables, name: str) -> None:
    for table in tables.shapes():
        if table not in _FILLED and tables.rows(f"SELECT 1 FROM {table} LIMIT 1", {}):  # noqa: S608 - of the schema
            raise StoreError(f"{name}: has a store already (rows in the table {table}): name an empty one")


class _Copy:
    def __init__(
        self, source: CopyConnection, into: CopyConnection, name: str, tell: Tell, without: Collection[str]
    ) -> None:
        self._from, self._into = source.tables(), into.tables()
        self._connection = into
        self._name = name
        self._tell = tell
        self._began = time.monotonic()
        self._rows = self._bytes = self._before = 0
        shapes, others = self._from.shapes(), self._into.shapes()
        if lacking := sorted(shapes.keys() ^ others.keys()):
            raise StoreError(f"{name}: another schema: only one of the stores has the table {lacking[0]}")
        for shape in shapes.values():
            if set(shape.columns) != set(others[shape.name].columns):
                raise StoreError(f"{name}: another schema: the columns of the table {shape.name} differ")
        self._shapes = [shape for shape in in_order(shapes) if shape.name not in without]
        self._others = {shape.name: replace(others[shape.name], columns=shape.columns) for shape in self._shapes}
        self._totals = {shape.name: _count(self._from, shape) for shape in self._shapes}
        self._total = sum(self._totals.values())

    def run(self) -> CopyReport:
        states = self._begun()
        was_resumed = any(state.last_key is not None or state.is_done for state in states.values())
        self._before = self._rows = sum(state.copied for state in states.values())
        self._began = time.monotonic()
        for shape in self._shapes:
            if not states[shape.name].is_done:
                self._copy(shape, states[shape.name])
        found = self._states()
        for shape in self._shapes:
            self._compare(shape, found[shape.name], was_here=states[shape.name] == _State())
        with _transaction(self._connection):
            self._into.end_loading()
            self._connection.execute("DELETE FROM store_copy")
        return CopyReport(
            len(self._shapes), self._total, self._bytes, time.monotonic() - self._began, was_resumed=was_resumed
        )

    # Beginning

    def _begun(self) -> Mapping[str, _State]:
        """How far each table is. Raises StoreError: the target is no empty store and no copy of this one."""
        identity, mark = self._identity()
        row = self._connection.execute("SELECT last_key, digest FROM store_copy WHERE name = ''").one()
        if row is None:
            _require_empty(self._into, self._name)
            with _transaction(self._connection):
                self._into.empty([self._others[name] for name in sorted(_FILLED)])
                self._put(_SOURCE, _State((identity,), digest=mark))
        elif msgspec.msgpack.decode(bytes(row["last_key"])) != [identity]:
            raise StoreError(f"{self._name}: the copy of another store into this one was interrupted: name another")
        elif bytes(row["digest"]) != mark:
            raise _SourceChangedError(f"{self._name}: the source has changed since the copy was begun")
        return self._states()

    def _identity(self) -> tuple[bytes, bytes]:
        """Marks of this store: one that no other store has, and one of its contents now."""
        (mid,) = self._from.rows("SELECT value FROM secret WHERE name = 'mid'", {})
        digest = hashlib.blake2b(digest_size=32)
        for name in _MARKS:
            shape = next(one for one in self._shapes if one.name == name)
            digest.update(_encode(sorted(self._from.rows(_select(shape), {}))))
        for name in _LOG:
            digest.update(_encode(self._from.rows(f"SELECT max(position) FROM {name}", {})))  # noqa: S608 - constants
        return hashlib.sha256(bytes(mid[0])).digest(), digest.digest()

    def restart(self) -> None:
        self._connection.rollback()
        with _transaction(self._connection):
            self._into.empty([self._others[shape.name] for shape in reversed(self._shapes)])
            self._connection.execute("DELETE FROM store_copy")
            identity, mark = self._identity()
            self._put(_SOURCE, _State((identity,), digest=mark))

    def _states(self) -> dict[str, _State]:
        found = {shape.name: _State() for shape in self._shapes}
        for row in self._connection.execute("SELECT * FROM store_copy WHERE name <> ''"):
            key = None if row["last_key"] is None else tuple(msgspec.msgpack.decode(bytes(row["last_key"])))
            found[row["name"]] = _State(key, row["copied"], bytes(row["digest"]), is_done=bool(row["is_done"]))
        return found

    def _put(self, name: str, state: _State) -> None:
        self._connection.put_many(
            "store_copy",
            ("name", "last_key", "copied", "digest", "is_done"),
            ("name",),
            [
                (
                    name,
                    None if state.last_key is None else _encode(state.last_key),
                    state.copied,
                    state.digest,
                    int(state.is_done),
                )
            ],
        )

    # Copying

    def _copy(self, shape: TableShape, state: _State) -> None:
        with _read_ahead(self._from, shape, state) as pages:
            for page in pages:
                with _transaction(self._connection):
                    if page.rows:
                        self._into.load(shape, page.rows)
                    self._put(shape.name, page.state)
                self._rows += len(page.rows)
                self._bytes += page.size
                self._report(shape.name)

    def _report(self, table: str, *, is_comparing: bool = False) -> None:
        done, seconds = self._rows - self._before, time.monotonic() - self._began
        left = (self._total - self._rows) * seconds / done if done and seconds > 1 else None
        self._tell(CopyProgress(table, self._rows, self._total, left, is_comparing))

    # Comparing

    def _compare(self, shape: TableShape, copied: _State, *, was_here: bool) -> None:
        """`was_here`: the table was copied in this run, so the hash is that of the source as it is now."""
        other = self._others[shape.name]
        self._report(shape.name, is_comparing=True)
        if not was_here and _digest(self._from, shape, self._beat(shape)) != copied.digest:
            raise _SourceChangedError(f"{self._name}: the source has changed since the copy was begun")
        is_same = (
            _count(self._into, other) == copied.copied == self._totals[shape.name]
            and _positions(self._into, other) == _positions(self._from, shape)
            and _digest(self._into, other, self._beat(shape)) == copied.digest
        )
        if not is_same:
            raise StoreError(
                f"{self._name}: the table {shape.name} differs from that of the source: name another target"
            )

    def _beat(self, shape: TableShape) -> Callable[[], None]:
        return lambda: self._report(shape.name, is_comparing=True)


class _Page(msgspec.Struct, frozen=True):
    rows: Sequence[tuple[Any, ...]]
    state: _State  # with these rows
    size: int  # bytes


@contextmanager
def _read_ahead(tables: Tables, shape: TableShape, state: _State) -> Iterator[Iterator[_Page]]:
    """The rows behind a state in pages, of which each is read while the caller has the one before."""
    pages = _pages(tables, shape, state)
    first = next(pages, None)
    if first is None or first.state.is_done:  # as of most tables: a thread takes longer than its rows
        yield iter(() if first is None else (first,))
        return
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, pages, None)

        def read() -> Iterator[_Page]:
            nonlocal coming
            yield first
            while (page := coming.result()) is not None:
                coming = thread.submit(next, pages, None)
                yield page

        yield read()


def _pages(tables: Tables, shape: TableShape, state: _State) -> Iterator[_Page]:
    """As `_read_ahead`; the last page may be empty."""
    if not shape.key:
        yield _whole(tables, shape)
        return
    limit = _BLOCK_ROWS
    places = [shape.columns.index(name) for name in shape.key]
    while not state.is_done:
        named = {} if state.last_key is None else {f"k{number}": value for number, value in enumerate(state.last_key)}
        rows = tables.rows(_select(shape, named), {**named, "limit": limit})
        digest, size = _hashed(rows, state.digest)
        last_key = tuple(rows[-1][place] for place in places) if rows else state.last_key
        state = _State(last_key, state.copied + len(rows), digest, is_done=len(rows) < limit)
        yield _Page(rows, state, size)
        fits = limit * _PAGE_BYTES // max(1, size)
        limit = max(_BLOCK_ROWS, min(PAGE_ROWS, 4 * limit, fits) // _BLOCK_ROWS * _BLOCK_ROWS)


def _whole(tables: Tables, shape: TableShape) -> _Page:
    """A table without a key, which is a small one."""
    rows = sorted(tables.rows(_select(shape), {}), key=_encode)
    digest, size = _hashed(rows, b"")
    return _Page(rows, _State(None, len(rows), digest, is_done=True), size)


def _hashed(rows: Sequence[tuple[Any, ...]], digest: bytes) -> tuple[bytes, int]:
    """The hash of these rows behind rows that have `digest`, and their bytes."""
    size = 0
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = _encode(rows[start : start + _BLOCK_ROWS])
        size += len(block)
        digest = hashlib.blake2b(digest + block, digest_size=32).digest()
    return digest, size


def _digest(tables: Tables, shape: TableShape, beat: Callable[[], None]) -> bytes:
    digest = b""
    for page in _pages(tables, shape, _State()):
        digest = page.state.digest
        beat()
    return digest


def _select(shape: TableShape, behind: Mapping[str, Any] | None = None) -> str:
    sql = f"SELECT {', '.join(shape.columns)} FROM {shape.name}"  # noqa: S608 - of the schema
    if behind is None:
        return sql
    if behind:
        named = ", ".join(f":{name}" for name in behind)
        sql += f" WHERE ({', '.join(shape.order)}) > ({named})"
    return f"{sql} ORDER BY {', '.join(shape.order)} LIMIT :limit"


def _count(tables: Tables, shape: TableShape) -> int:
    return int(tables.rows(f"SELECT count(*) FROM {shape.name}", {})[0][0])  # noqa: S608 - of the schema


def _positions(tables: Tables, shape: TableShape) -> int:
    if "position" not in shape.columns:
        return 0
    return int(tables.rows(f"SELECT coalesce(sum(position), 0) FROM {shape.name}", {})[0][0])  # noqa: S608 - as above


@contextmanager
def _transaction(connection: EngineConnection) -> Iterator[None]:
    connection.begin(write=True)
    try:
        yield
        connection.commit()
    except BaseException:  # whatever it is: the transaction must not stay open; raised again
        with suppress(StoreError):
            connection.rollback()
        raise
