"""What a store may ask of its database, whichever engine it is."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol


class Rows(Protocol):
    """The result of one statement. Rows read by column name."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...
    def one(self) -> Mapping[str, Any] | None: ...


class Connection(Protocol):
    """Portable SQL with named parameters; the caller holds the transaction."""

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Rows: ...

    def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Insert array-like rows in one statement, in order, as fast as the engine can."""

    def json_has(self, column: str, parameter: str) -> str:
        """A condition: the JSON text in `column` has a member at the dotted path in `parameter`."""


class StoreError(Exception):
    """The store could not do what it was asked: disk full, file unreadable, database locked."""
