"""Rows before and behind their commit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import msgspec
import pytest

from storage.engines.sqlite import SqliteConnection
from storage.keys import Position, Ticket
from storage.messages import MessageStore
from storage.sql import EncodedRows
from tests.postgresql import ENGINE

#: Positions that others take before each commit of a store whose positions jump.
JUMP: Final = 7


def at(ticket: Ticket) -> Position:
    """The position of a row, behind its commit, in a store that only the test writes: there they are the same."""
    return Position(ticket)


@contextmanager
def jumping_positions() -> Iterator[None]:
    """Have each commit give its rows positions, as with several nodes: others have taken `JUMP` before each."""
    numbers, append, append_outside_transaction = count(1), MessageStore.append, MessageStore.append_outside_transaction

    def moved(rows: Sequence[Any] | EncodedRows, base: int) -> list[Any]:
        plain = msgspec.json.decode(rows) if isinstance(rows, str) else msgspec.to_builtins(rows)
        return [(row[0] + base, *row[1:]) for row in plain]

    def appended(
        self: MessageStore,
        messages: Sequence[Any] | EncodedRows,
        actions: Sequence[Any],
        failed: Sequence[Any],
        *,
        head: int,
    ) -> int:
        base = JUMP * next(numbers)
        append(self, moved(messages, base), moved(actions, base), moved(failed, base), head=head + base)
        return base

    def appended_outside_transaction(
        self: MessageStore, messages: Sequence[Any] | EncodedRows, *_none: Sequence[Any], head: Ticket
    ) -> int:
        base = JUMP * next(numbers)
        append_outside_transaction(self, moved(messages, base), head=Ticket(head + base))
        return base

    if ENGINE == "postgresql":
        yield from _jumping_in_postgresql()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageStore, "append", appended)
        patch.setattr(MessageStore, "append_outside_transaction", appended_outside_transaction)
        patch.setattr(SqliteConnection, "gives_positions", True)
        yield


def _jumping_in_postgresql() -> Iterator[None]:
    from storage.engines.postgresql_connection import PostgresqlConnection

    insert_log = PostgresqlConnection.insert_log

    def inserted(self: PostgresqlConnection, parts: Any, *, head: int) -> int:
        self.execute("SELECT setval('log', (SELECT last_value FROM log) + :jump)", {"jump": JUMP})
        return insert_log(self, parts, head=head)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresqlConnection, "insert_log", inserted)
        yield
