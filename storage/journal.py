"""The journal appends rows to the message log: a row gets its ticket at once, and its position with the commit.

All but the two `wait_` methods is synchronous, because it runs once per message.
"""

from collections.abc import Callable, Iterable, Sequence

import trio

from storage.commit_group import CommitGroup
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, Position, Ticket
from storage.records import ActionRow, FailedMessageRow, MessageRow
from storage.sql import StoreError

#: With more waiting for the writer, front ends stop reading from their sockets. A message waits for the commit under
#: way and for its own, so this bounds how long a polite device waits beside others that flood.
JOURNAL_MAX_ROWS = 2_000
JOURNAL_MAX_BYTES = 32 * 1024 * 1024


class Journal:
    """Numbers rows and puts them into the group that commits next.

    A row's ticket follows that of the row before. The first one follows the head of the store, so where no other
    process writes and the engine keeps to the tickets (SQLite), they are the positions.
    """

    def __init__(self, database: Database, *, head: Position) -> None:
        self._database = database
        self._head = Ticket(head)

    @property
    def head(self) -> Position:
        """The highest position: of the row that was appended last, as far as it can be known before its commit."""
        return Position(self._head + self._database.base)

    def append_message(self, device: DeviceKey, ts: Milliseconds, cts: Milliseconds, mv: int, data: str) -> Ticket:
        ticket: Ticket = self._head + 1  # type: ignore[assignment] # each message pays for a call of `Ticket`
        self._head = ticket
        group = self._database.open_group
        group.messages.append(MessageRow(ticket, device, ts, cts, mv, data))  # type: ignore[arg-type] # until the commit
        group.head = ticket
        group.bytes_held += len(data)
        self._database.request_commit()
        return ticket

    def append_messages(
        self, device: DeviceKey, stamps: Iterable[Milliseconds], cts: Milliseconds, mv: int, texts: Sequence[str]
    ) -> Sequence[Ticket]:
        """Append messages with these texts and times; return their tickets. See `append_message`."""
        tickets = range(self._head + 1, self._head + 1 + len(texts))
        self._head = Ticket(tickets[-1])
        group = self._database.open_group
        group.messages += [
            MessageRow(ticket, device, ts, cts, mv, data)  # type: ignore[arg-type] # as above
            for ticket, ts, data in zip(tickets, stamps, texts, strict=False)
        ]
        group.head = self._head
        group.bytes_held += sum(map(len, texts))
        self._database.request_commit()
        return tickets  # type: ignore[return-value] # as above

    def append_action(
        self, *, device: DeviceKey, source: DeviceKey, ts: Milliseconds, cts: Milliseconds, mv: int, data: str
    ) -> Ticket:
        ticket: Ticket = self._head + 1  # type: ignore[assignment] # each message pays for a call of `Ticket`
        self._head = ticket
        group = self._database.open_group
        group.actions.append(ActionRow(ticket, device, source, ts, cts, mv, data))  # type: ignore[arg-type] # as above
        group.head = ticket
        group.bytes_held += len(data)
        self._database.request_commit()
        return ticket

    def append_failed(
        self, device: DeviceKey, cts: Milliseconds, reason: str, payload: str, ts: Milliseconds | None = None
    ) -> Ticket:
        ticket: Ticket = self._head + 1  # type: ignore[assignment] # each message pays for a call of `Ticket`
        self._head = ticket
        group = self._database.open_group
        group.failed.append(FailedMessageRow(ticket, device, cts, reason, payload, ts))  # type: ignore[arg-type] # as above
        group.head = ticket
        group.bytes_held += len(payload)
        self._database.request_commit()
        return ticket

    def on_commit(self, handler: Callable[[CommitGroup], None]) -> None:
        """Call `handler` on the loop after each successful commit, before anyone who waits for the commit is told."""
        self._database.on_commit(handler)

    def after_commit(self, callback: Callable[[StoreError | None], None]) -> None:
        """Call back on the loop when everything appended so far is durable, or has failed.

        Call `after_commit` before the next `await`: rows appended between two of them are in the same group.
        """
        group = self._database.open_group
        if group.error is not None:  # the store is closed
            callback(group.error)
            return
        group.callbacks.append(callback)
        self._database.request_commit()

    async def wait_committed(self) -> None:
        """Return when everything appended so far is durable. Raises StoreError when the commit failed."""
        group = self._database.open_group
        self._database.request_commit()
        await group.ended.wait()
        if group.error is not None:
            raise type(group.error)(str(group.error)) from group.error

    @property
    def group(self) -> CommitGroup:
        """The group in which everything since the last `await` is: it makes positions of tickets after the commit."""
        return self._database.open_group

    @property
    def has_room(self) -> bool:
        group = self._database.open_group
        rows = len(group.messages) + len(group.actions) + len(group.failed)  # a call less than `row_count`
        return rows < JOURNAL_MAX_ROWS and group.bytes_held < JOURNAL_MAX_BYTES

    async def wait_room(self) -> None:
        """Return when rows may be appended again. A front end that waits here stops reading: back-pressure on TCP."""
        while not self.has_room:
            await self._database.open_group.ended.wait()
        await trio.lowlevel.checkpoint()
