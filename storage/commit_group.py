"""The contents of one commit, and one write in it."""

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

import trio

from storage.facts import FactRecord
from storage.keys import Position, Ticket
from storage.leases import HeldLease
from storage.records import ActionRow, FailedMessageRow, MessageRow
from storage.sql import EncodedRows, StoreError
from storage.told import Told
from storage.transaction import Transaction


@dataclass(slots=True)
class StoreWork:
    """One `write` in its group, and its result or error."""

    run: Callable[[Transaction], Any]
    #: Of an own work: whose transaction it is of; and whether rows that were appended with it are, too.
    held: HeldLease | None = None
    binds_rows: bool = False
    #: When it fails, nothing of its group is stored: the rows beside it must not be there without it.
    is_of_rows: bool = False
    #: With several nodes: why it is not run.
    refused: str = ""
    #: The context variables of the task that asked for it (PEP 567): the work runs in the writer's thread.
    context: Context = field(default_factory=copy_context)
    result: Any = None
    error: BaseException | None = None
    #: It was committed although its group was not: it makes room on a full disk.
    is_saved: bool = False


@dataclass(slots=True)
class CommitGroup:
    """The contents of one commit: rows of the log, other writes, and the callbacks for the outcome."""

    messages: list[MessageRow] = field(default_factory=list)
    actions: list[ActionRow] = field(default_factory=list)
    failed: list[FailedMessageRow] = field(default_factory=list)
    #: Of the last row that was appended up to now, to this group or an earlier one.
    head: Ticket = field(default=Ticket(0))
    #: Difference between the positions of the rows and their tickets, which the commit gives. 0 where tickets are
    #: positions already, as on SQLite. Before the commit nobody may use it.
    base: int = 0
    bytes_held: int = 0
    #: Whether the engine's log is to be emptied after the commit, and whether it was.
    forgets_log: bool = False
    has_forgotten: bool = False
    works: list[StoreWork] = field(default_factory=list)
    #: The changes that its works told, as far as they are durable; with several nodes those of others that came first,
    #: too, and the number of the last fact.
    told: list[Told | FactRecord] = field(default_factory=list)
    told_upto: int = 0
    #: The same of a commit that is in doubt.
    late: list[Told | FactRecord] = field(default_factory=list)
    #: With several nodes: the fence behind a commit that is in doubt; why it is not stored.
    fence: int = 0
    refused: str = ""
    #: The holders of tokens that have sent rows, by the identity of the object.
    holders: dict[int, object] = field(default_factory=dict)
    callbacks: list[Callable[[StoreError | None], None]] = field(default_factory=list)
    ended: trio.Event = field(default_factory=trio.Event)
    error: StoreError | None = None
    #: When the writer took it, by time.perf_counter.
    began: float = 0.0
    #: The messages as the engine takes them.
    encoded: EncodedRows | None = None

    @property
    def row_count(self) -> int:
        return len(self.messages) + len(self.actions) + len(self.failed)

    def position(self, ticket: Ticket) -> Position:
        """The position of a row of this group, which is committed."""
        position: Position = ticket + self.base  # type: ignore[assignment] # messages pay for a call of `Position`
        return position

    def positions(self, tickets: Sequence[Ticket]) -> Sequence[Position]:
        """As `position`, of several rows."""
        if not self.base:
            return tickets  # type: ignore[return-value] # they are positions already
        return [Position(ticket + self.base) for ticket in tickets]

    def settle(self) -> None:
        """Give the rows, which have their tickets in the place of positions, their positions: the commit succeeded."""
        base = self.base
        for rows in (self.messages, self.actions, self.failed):
            for row in rows:
                row.position = Position(row.position + base)
