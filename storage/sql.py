"""What a store may ask of its database, whichever engine it is."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol


class Rows(Protocol):
    """The result of one statement. Rows read by column name."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...
    def one(self) -> Mapping[str, Any] | None: ...
    def tuples(self) -> Iterator[Sequence[Any]]:
        """The values alone, in the order of the columns: for the many rows of the log."""


class Connection(Protocol):
    """Portable SQL with named parameters; the caller holds the transaction."""

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Rows: ...

    def insert_many(
        self, table: str, columns: Sequence[str], rows: Sequence[Any], *, same: Mapping[str, int] = ...
    ) -> None:
        """Insert array-like rows in one statement, in order, as fast as the engine can.

        `same` has the columns that are the same in each row, and never change between two calls.
        """

    def put_many(self, table: str, columns: Sequence[str], key: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, or replace those with the same key, in few statements. Numbers arrive bit by bit."""

    def json_has(self, column: str, parameter: str) -> str:
        """A condition: the JSON text in `column` has a member at the dotted path in `parameter`."""

    def json_matches(self, column: str, path: str, text: str, number: str) -> str:
        """A condition on the member at the dotted path in the parameter `path`.

        A text has the parameter `text` in it. A number equals `number`, which is the text of one, or null. A boolean,
        and whatever else there may be, is in JSON what `text` says.
        """

    def json_any_named(self, column: str, member: str, parameter: str) -> str:
        """A condition: in the array `member` of the JSON text some object has the `name` in `parameter`."""

    def size_bytes(self) -> tuple[int, int]:
        """The size of the store, and how much of it is free to be written again."""


class StoreError(Exception):
    """The store could not do what it was asked: disk full, file unreadable, database locked."""


def sure(row: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The row that RETURNING gives for what was written."""
    assert row is not None, "RETURNING gives the row it wrote"  # noqa: S101 - an invariant of the statement
    return row
