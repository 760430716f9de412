"""Interfaces of an engine and its connections, which SQLite and PostgreSQL implement."""

from collections.abc import Mapping
from typing import Any, Protocol

from storage.sql import StoreConnection


class EngineConnection(StoreConnection, Protocol):
    def begin(self, *, write: bool) -> None: ...
    def begin_read(self) -> None:
        """Begin a transaction that only reads, of a work that is run again from here on when it raises StoreLostError.
        An engine may have it raise that once, because it has more than one statement."""

    def savepoint(self, command: str) -> None:
        """SAVEPOINT, RELEASE or ROLLBACK TO, before the next statement."""

    def commit(self) -> None: ...
    def settle(self) -> Mapping[str, Any] | None:
        """After StoreDoubtfulError: the row of that commit, with its highest position as `head`; None: it is undone.
        Raises StoreDoubtfulError again."""

    def rollback(self) -> None: ...
    def close(self) -> None: ...


class SharedConnection(EngineConnection, Protocol):
    """A connection to a store into which other nodes write, too (storage/peers.py)."""

    #: Up to where this node has heard what ends something.
    fence: int | None

    def begin_hearing(self) -> None: ...
    def tell_others(self, *, is_fencing: bool) -> None: ...


class StoreEngine(Protocol):
    def migrate(self) -> None: ...
    def open(self, *, read_only: bool) -> EngineConnection: ...
