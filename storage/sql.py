"""The interface between stores and a database engine."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NewType, Protocol

import msgspec

#: Rows as an engine takes them, for one of its tables.
EncodedRows = NewType("EncodedRows", object)

_OF_LIKE: Final = re.compile("[%_!]")

DISK_FULL: Final = "the disk is full"
_AWAY: Final = "the database does not answer"
#: As a LIMIT: all rows. SQLite has no LIMIT NULL, PostgreSQL no LIMIT -1.
ALL_ROWS: Final = 2**62


class QueryResult(Protocol):
    """The result of one statement. Rows are read by column name."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...
    def one(self) -> Mapping[str, Any] | None: ...
    def tuples(self) -> Iterator[Sequence[Any]]:
        """The rows as values in the order of the columns: faster, for the many rows of the log."""


class StoreConnection(Protocol):
    """Portable SQL with named parameters; the caller holds the transaction."""

    #: Whether the positions of rows are given in the commit. Otherwise their tickets are the positions.
    @property
    def gives_positions(self) -> bool: ...

    #: Whether rows of several tables of the log are stored by one statement, which needs no transaction around it.
    @property
    def stores_rows_at_once(self) -> bool: ...

    #: The end of a SELECT whose rows keep their keys until the end of the transaction.
    @property
    def key_share(self) -> str: ...

    def now_ms(self) -> str:
        """An expression for the time of the store, which all its users share, in ms since the epoch, UTC."""

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> QueryResult: ...

    def stream(self, sql: str, parameters: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        """The rows of a SELECT that may have many, when mostly the first ones do.

        Its ORDER BY leaves no two rows equal. Other statements may run between.
        """

    def forget_log(self) -> bool:
        """Write what the engine's log has into the store, and empty the log. Outside of a transaction.

        False: somebody reads it now.
        """

    def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Any] | EncodedRows) -> None:
        """Insert array-like rows in one statement, in order, as fast as the engine can. A list becomes JSON text."""

    def encoded(self, rows: Sequence[Any]) -> EncodedRows | None:
        """Rows as the engine takes them, for `insert_many`; any thread may call this. None: it would ask the store."""

    def insert_log(self, parts: Sequence[tuple[str, Sequence[str], Sequence[Any] | EncodedRows]], *, head: int) -> int:
        """Insert rows of the log: tables, each with its columns and rows, whose first one is the row's ticket.

        `head` is the highest ticket. Returns the difference between the positions and the tickets.
        """

    def given_head(self) -> int:
        """The highest position that the engine is known to have given; 0 if only the rows tell."""

    def put_many(self, table: str, columns: Sequence[str], key: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, or replace those with the same key, in few statements. Floats keep every bit."""

    def given(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, Mapping[str, Any]]:
        """A query for rows with these columns of a table, which are integers, texts and None, and its parameters."""

    def numbers_in(self, parameter: str) -> str:
        """A query for the numbers of the JSON array whose text is in `parameter`, as `value`."""

    def texts_in(self, parameter: str) -> str:
        """A query for the texts of a list, as `value`, in their order. `parameter` is made of the list by `texts`."""

    def texts(self, texts: Iterable[str]) -> str:
        """A list of texts, for `texts_in`."""

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
        """The rows of a table at `positions`, the JSON text of an array, that meet conditions, as the JSON text of an
        array of arrays in no order. A condition begins with AND. `first`, ORDER BY with LIMIT, is for a part of them.
        All are read in one step of the engine."""

    def all_texts(self, column: str) -> str:
        """An aggregate: the texts of a column in no order, with a comma between each two."""

    def json_has(self, column: str, parameter: str) -> str:
        """A condition: the JSON text in `column` has a member at the dotted path in `parameter`."""

    def json_matches(self, column: str, path: str, text: str, number: str) -> str:
        """A condition on the member at the dotted path in the parameter `path`.

        A text matches when it contains the parameter `text`. A number matches when it equals `number`, the text of a
        number or null. A boolean and any other value match when their JSON is `text`.
        """

    def json_any_named(self, column: str, member: str, parameter: str) -> str:
        """A condition: in the array `member` of the JSON text an object has the `name` in `parameter`."""

    def full_partitions(self) -> Sequence[range]:
        """The positions of each partition of the messages that gets no more rows, the oldest first. None where the
        engine keeps them in one piece."""

    def drop_partition(self, part: range) -> None:
        """Drop one with all its rows. Raises StoreBusyError: others read messages in transactions that take long."""

    def size_bytes(self) -> tuple[int, int]:
        """The size of the store and how much of it is free for reuse, in bytes."""

    def table_sizes(self) -> Mapping[str, "TableSize"]:
        """The size of each table, without what is free for reuse."""

    def gives_back(self) -> bool:
        """Whether free room can go back to the disk without a copy of the store."""

    def give_back(self, pages: int) -> bool:
        """Return at most this many free pages to the disk; answer whether one could go. Others are moved for it."""


class TableSize(msgspec.Struct, frozen=True):
    """Bytes of a table with its indexes: of the whole, or None where that takes long to measure, and of a row."""

    whole: int | None
    a_row: float = 0.0


class Store:
    """The SQL of some tables. The caller holds the transaction."""

    def __init__(self, db: StoreConnection) -> None:
        self._db = db

    def _number_of(self, rows: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Count rows. `rows` is the part of a SELECT that begins with FROM."""
        row = self._db.execute(f"SELECT count(*) AS n {rows}", parameters).one()
        return int(row["n"]) if row else 0

    def _insert(self, table: str, values: Mapping[str, Any], then: str = "") -> QueryResult:
        """Insert a row, given by column. `then` follows the values: a clause with ON CONFLICT or RETURNING."""
        names = f"({', '.join(values)}) VALUES ({', '.join(f':{name}' for name in values)})"
        return self._db.execute(f"INSERT INTO {table} {names} {then}", values)


class StoreError(Exception):
    """The store could not do what it was asked: file unreadable, database locked."""

    #: Nothing of the transaction is done, whichever work of it has met this.
    is_of_transaction = False
    #: Why, in words for everybody; empty: only the operator is told.
    told: ClassVar[str] = ""


class StaleLeaseError(StoreError):
    """Another node has the lease that the write needs. Nothing of the write is in the store."""


class StoreTakenError(StoreError):
    """Another daemon serves the store now. This one writes nothing any more."""

    is_of_transaction = True


class StoreBusyError(StoreError):
    """Others hold what the write needs. It may work later."""

    told = "the database waits for somebody else"


class StoreDamagedError(StoreError):
    """A part of the store cannot be read: the disk returns an error, or bytes that are no page of the store."""


class StoreLostError(StoreError):
    """The connection to the store broke. Its transaction is undone, and may be run again on a new connection."""

    is_of_transaction = True
    told = _AWAY


class StoreUnreachableError(StoreError):
    """The server of the store cannot be reached, or refuses connections. Nothing can be stored until it can be."""

    told = _AWAY


class StoreAwayError(StoreUnreachableError):
    """The server of the store does not answer, or is about to start or stop: it may work later by itself."""


class StoreDoubtfulError(StoreUnreachableError):
    """The connection broke in a commit, and there is no new one: whether it is in the store is found out later."""

    told = "the database does not answer; what was sent may be stored"


class StoreForkedError(StoreError):
    """The server has lost commits that it had told, as after a failover to an asynchronous standby: what this process
    keeps in memory is of another history. Nothing is read or written any more; a new process reads the store again."""


class StoreFullError(StoreError):
    """The disk has no room for the write. Only more room helps, no restart."""

    told = DISK_FULL


def replacing(columns: Iterable[str]) -> str:
    """The assignments of DO UPDATE SET: the inserted row takes the place of the other one in these columns."""
    return ", ".join(f"{column} = excluded.{column}" for column in columns)


def literal(text: str) -> str:
    """The text within a pattern of LIKE with `ESCAPE '!'`: no sign has a meaning. NUL, at which SQLite would end the
    pattern, is a sign that no text has (Unicode 23.7)."""
    return _OF_LIKE.sub(r"!\g<0>", text).replace("\0", "\uffff")


def record_values(record: msgspec.Struct, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The fields of a record, all or these, as `Store._insert` takes them. Their names are those of the columns."""
    return {name: getattr(record, name) for name in (record.__struct_fields__ if names is None else names)}


def sure(row: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The row that RETURNING gave. A missing row is a bug of the statement."""
    assert row is not None, "RETURNING gives the row it wrote"  # noqa: S101 - an invariant of the statement
    return row
