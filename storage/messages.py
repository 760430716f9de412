"""The message log and the positions of its consumers. The caller holds the transaction.

A row is appended without an index entry, because the rows of one commit belong to many devices, and each row would
change another page of every index. Some thousand rows get their entries together (storage/log_index.py). The indexer
makes the entries (broker/messages/log_indexer.py); this store makes the missing ones.

Messages alone are one statement, which is a transaction of its own: each statement more has the writer's thread wait
for the interpreter lock several times. So the counter of the highest position is behind them. The rows themselves say
how far, and the counter is saved before anything may delete rows.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Literal

import msgspec

from storage.damage import read_past_damage
from storage.keys import DeviceKey, Milliseconds, Position
from storage.log_index import Entry, EntryBuilder, LogIndex, Table
from storage.records import ActionRow, FailedMessageRow, MessageRow
from storage.sql import EncodedRows, StoreConnection, StoreDamagedError, sure

_MESSAGE = MessageRow.__struct_fields__
_ACTION = ActionRow.__struct_fields__
_FAILED = FailedMessageRow.__struct_fields__

#: Most rows without an entry. Beyond them the store makes the entries itself: the projector did not.
_UNINDEXED_MOST = 32_000
#: Positions of one step for which the store makes the entries itself, at most.
_READ_POSITIONS = 20_000

Parameters = Mapping[str, Any]
_NONE: Parameters = {}
_TABLES: Sequence[Table] = ("message", "action")
_LOG: Sequence[Table | Literal["failed_message"]] = (*_TABLES, "failed_message")
COLUMNS: Mapping[Table, str] = {"message": ", ".join(_MESSAGE), "action": ", ".join(_ACTION)}


class Missing(msgspec.Struct, frozen=True):
    """The index entries of all rows after `behind`, up to `upto`."""

    behind: Position
    upto: Position
    entries: Mapping[Table, Sequence[Entry]]


class MessageStore:
    def __init__(self, db: StoreConnection) -> None:
        self._db = db
        self._indexes = {table: LogIndex(db, table) for table in _TABLES}
        self._index_after = 0  # later, when the last try met a damaged page
        self._head: Position | None = None  # as far as this object has appended
        self._indexed: int | None = None  # the counter, while it is known
        self._is_head_saved = False

    # The log

    def append(
        self,
        messages: Sequence[MessageRow] | EncodedRows,
        actions: Sequence[ActionRow],
        failed: Sequence[FailedMessageRow],
        *,
        head: int,
    ) -> int:
        """Add rows; `head` is the ticket of the last one. Returns `CommitGroup.base`."""
        base = self._inserted(messages, actions, failed, head)
        self.save_head()
        return base

    def append_outside_transaction(
        self,
        messages: Sequence[MessageRow] | EncodedRows,
        actions: Sequence[ActionRow] = (),
        failed: Sequence[FailedMessageRow] = (),
        *,
        head: int,
    ) -> int:
        """As `append`, without a transaction around it: of one table, or where the engine `stores_rows_at_once`."""
        return self._inserted(messages, actions, failed, head)

    def _inserted(
        self,
        messages: Sequence[MessageRow] | EncodedRows,
        actions: Sequence[ActionRow],
        failed: Sequence[FailedMessageRow],
        head: int,
    ) -> int:
        parts: tuple[tuple[str, Sequence[str], Sequence[Any] | EncodedRows], ...] = (
            ("message", _MESSAGE, messages),
            ("action", _ACTION, actions),
            ("failed_message", _FAILED, failed),
        )
        base = self._db.insert_log([part for part in parts if part[2]], head=head)
        self._head, self._is_head_saved = Position(head + base), False
        return base

    def save_head(self) -> None:
        """Save the highest position, before others in the transaction may delete its row. Where the engine gives the
        positions, it keeps the highest one."""
        if not self._is_head_saved and not self._db.gives_positions:
            self._head = self.head() if self._head is None else self._head
            self.set_counter("head", self._head)
            self._is_head_saved = True

    def forget(self) -> None:
        """The transaction is undone."""
        self._indexed, self._is_head_saved = None, False

    def failed(self, device: DeviceKey, *, offset: int, limit: int) -> tuple[list[FailedMessageRow], int]:
        """A page of the failed messages of a device, newest first; and their number."""
        rows = self._db.execute(
            "SELECT position, device, cts, reason, payload FROM failed_message WHERE device = :device"
            " ORDER BY position DESC LIMIT :limit OFFSET :offset",
            {"device": device, "limit": limit, "offset": offset},
        )
        found = [FailedMessageRow(*row) for row in rows.tuples()]
        counted = self._db.execute(
            "SELECT count(*) AS number FROM failed_message WHERE device = :device", {"device": device}
        ).one()
        return found, sure(counted)["number"]

    def head(self) -> Position:
        """The highest position ever stored: a position is never used twice, even after everything was deleted."""
        found = [Position(self._db.given_head()), Position(self.counter("head")), Position(self.counter("indexed"))]
        for table in _LOG:
            with suppress(StoreDamagedError):
                found.append(self.last_position(table))
        return max(found)

    # The index

    def missing(self, head: Position, *, at_least: int = 1) -> Missing | None:
        """The entries of the first rows that have none; None when fewer than `at_least` positions up to `head` are
        without one. Call it without a transaction: the engine takes no write in one that has met damage."""
        if self._indexed is None:
            self._indexed = self.counter("indexed")
        if head - self._indexed < at_least or head < self._index_after:
            return None
        behind = Position(self._indexed)
        upto = Position(min(head, behind + _READ_POSITIONS))
        return Missing(behind, upto, {table: self._entries_of(table, behind, upto) for table in _TABLES})

    def missing_too_many(self, head: Position) -> Missing | None:
        """As `missing` of the stored rows, if more than `_UNINDEXED_MOST` have no entry; else None.
        `head` is that of a commit to come."""
        if self._indexed is None:
            self._indexed = self.counter("indexed")
        if head - self._indexed < _UNINDEXED_MOST:
            return None
        self._indexed = self.counter("indexed")  # another node may have made entries
        if head - self._indexed < _UNINDEXED_MOST:
            return None
        return self.missing(self.head(), at_least=_UNINDEXED_MOST)

    def forget_incomplete_index(self) -> bool:
        """Delete all entries if rows have none although the counter says so: an older version, which has another
        index, has written into the store. For the start; returns whether they were deleted."""
        indexed = self.counter("indexed")
        if not any(self._has_rows_behind_entries(table, indexed) for table in _TABLES):
            return False
        for index in self._indexes.values():
            index.forget_all()
        self.set_counter("indexed", 0)
        self._indexed = None
        self.save_head()
        return True

    def _has_rows_behind_entries(self, table: Table, indexed: int) -> bool:
        last = self._indexes[table].last_step()
        rows = f"SELECT 1 FROM {table} WHERE position > :last AND position <= :indexed LIMIT 1"  # noqa: S608 - constants
        return self._db.execute(rows, {"last": last, "indexed": indexed}).one() is not None

    def add_missing(self, missing: Missing) -> None:
        """Add entries, unless others were added since they were made, perhaps by another node."""
        self._indexed = self.counter("indexed")
        if self._indexed == missing.behind:
            self._add_entries(missing.upto, missing.entries)

    def add_entries(self, messages: Sequence[Entry], behind: Position, upto: Position) -> None:
        """Add the index entries of all messages after `behind`, up to `upto`, and of the Actions between them.

        When the last entry in the store is not of the row at `behind`, because a write of entries failed or the store
        made some itself, these entries are not used, and the store makes the missing ones.
        """
        indexed = Position(self.counter("indexed"))
        if indexed >= upto or upto < self._index_after:
            return
        if indexed != behind:
            upto = Position(min(upto, indexed + _READ_POSITIONS))
            messages = self._entries_of("message", indexed, upto)
        self._add_entries(upto, {"message": messages, "action": self._entries_of("action", indexed, upto)})

    def index(self, table: Table) -> LogIndex:
        return self._indexes[table]

    def _add_entries(self, upto: Position, entries: Mapping[Table, Sequence[Entry]]) -> None:
        try:
            for table, of_table in entries.items():
                if of_table:
                    self._indexes[table].add(of_table, upto)
        except StoreDamagedError:
            # The engine takes nothing more in this transaction. The next try is much later: all senders wait for it.
            # Searches scan the rows without an entry.
            self._index_after = max(upto, self._head or Position(0)) + _UNINDEXED_MOST
            raise
        self.set_counter("indexed", upto)
        self.save_head()  # rows may be lost that the index names: their positions must not be used again
        self._indexed = upto

    def _entries_of(self, table: Table, behind: Position, upto: Position) -> Sequence[Entry]:
        columns = "position, device, ts"
        rows = self.read_on(table, behind, None, " AND position <= :upto", {"upto": upto}, columns=columns)
        entries = EntryBuilder()
        for position, device, ts in rows:
            entries.add(device, ts, position)
        return entries.made

    def counter(self, name: str) -> int:
        """A number of the log, by its name; 0 if there is none."""
        row = self._db.execute("SELECT value FROM counter WHERE name = :name", {"name": name}).one()
        return int(row["value"]) if row else 0

    def set_counter(self, name: str, value: int) -> None:
        self._db.execute(
            "INSERT INTO counter (name, value) VALUES (:name, :value)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            {"name": name, "value": value},
        )

    def last_cts(self) -> Milliseconds:
        row = self._db.execute(
            "SELECT max(cts) AS cts FROM (SELECT cts FROM message WHERE position = (SELECT max(position) FROM message)"
            " UNION ALL SELECT cts FROM action WHERE position = (SELECT max(position) FROM action)) AS newest"
        ).one()
        return Milliseconds(row["cts"] or 0) if row else Milliseconds(0)

    def mid_key(self) -> bytes:
        row = self._db.execute("SELECT value FROM secret WHERE name = 'mid'").one()
        return bytes(row["value"]) if row else b""

    def after(self, position: Position, *, limit: int | None = None) -> list[MessageRow]:
        """The rows after `position`, in order. Unreadable rows are skipped."""
        return [MessageRow(*row) for row in islice(self.read_on("message", position, limit), limit)]

    def actions_after(self, position: Position, *, limit: int) -> list[ActionRow]:
        """The Actions after `position`, in order. Unreadable rows are skipped."""
        return [ActionRow(*row) for row in islice(self.read_on("action", position, limit), limit)]

    def read_on(
        self,
        table: Table,
        position: int,
        limit: int | None = None,
        more: str = "",
        parameters: Parameters = _NONE,
        *,
        columns: str = "",
    ) -> Iterator[Sequence[Any]]:
        """The rows after a position that meet the conditions `more`. Unreadable rows are skipped.

        `columns` are all of them when none is given; the first one is `position`.
        """

        def read(first: int, most: int | None) -> Iterator[Sequence[Any]]:
            most = limit if most is None else most
            return self._db.execute(
                f"SELECT {columns or COLUMNS[table]} FROM {table} WHERE position >= :first{more}"  # noqa: S608 - constants
                f" ORDER BY position{limited(most)}",
                {**parameters, "first": first, "limit": most},
            ).tuples()

        return read_past_damage(read, position + 1, self.head)

    def unindexed(self, table: Table) -> tuple[Position, Position]:
        """The position up to which rows have an index entry, and that of the last row of a table."""
        row = self._db.execute(
            f"SELECT max(position) AS last, (SELECT value FROM counter WHERE name = 'indexed') AS indexed FROM {table}"  # noqa: S608 - constants
        ).one()
        return (Position(row["indexed"] or 0), Position(row["last"] or 0)) if row else (Position(0), Position(0))

    def last_position(self, table: Table | Literal["failed_message"] = "message") -> Position:
        """The position of the last row; 0 when there is none."""
        row = self._db.execute(f"SELECT max(position) AS position FROM {table}").one()  # noqa: S608 - constants
        return Position(row["position"] or 0) if row else Position(0)

    def before_time(self, since_ms: int) -> Position:
        """The position right before the first row with `cts` of this time or later, or behind all rows.

        It is found by halving: `cts` grows with the position, except where the clock was set back.
        """
        behind, upto = Position(0), self.head()
        while behind < upto:
            middle = Position((behind + upto) // 2)
            first = self._first_behind(middle)
            if first is None or first[0] > upto or first[1] >= since_ms:
                upto = middle
            else:
                behind = Position(first[0])
        return behind

    def _first_behind(self, position: Position) -> tuple[int, int] | None:
        """Position and `cts` of the first row of the log after a position."""
        found = [next(self.read_on(table, position, 1, columns="position, cts"), None) for table in _TABLES]
        return min(((one[0], one[1]) for one in found if one is not None), default=None)

    # By position

    def message(self, position: Position) -> MessageRow | None:
        row = self._db.execute("SELECT * FROM message WHERE position = :position", {"position": position}).one()
        return MessageRow(*(row[name] for name in _MESSAGE)) if row else None

    def action(self, position: Position) -> ActionRow | None:
        row = self._db.execute("SELECT * FROM action WHERE position = :position", {"position": position}).one()
        return ActionRow(*(row[name] for name in _ACTION)) if row else None

    def messages_at(self, positions: Collection[Position]) -> dict[Position, MessageRow]:
        """The messages at these positions; a position without one is left out."""
        return {row[0]: MessageRow(*row) for row in self._at("message", positions)}

    def actions_at(self, positions: Collection[Position]) -> dict[Position, ActionRow]:
        """As `messages_at`."""
        return {row[0]: ActionRow(*row) for row in self._at("action", positions)}

    def _at(self, table: Table, positions: Collection[Position]) -> Iterator[Sequence[Any]]:
        return self._db.execute(
            f"SELECT {COLUMNS[table]} FROM {table} WHERE position IN ({self._db.numbers_in('positions')})",  # noqa: S608 - constants
            {"positions": json.dumps(list(positions))},
        ).tuples()

    # Positions of consumers

    def consumer_position(self, name: str) -> Position:
        row = self._db.execute("SELECT position FROM consumer WHERE name = :name", {"name": name}).one()
        return Position(row["position"]) if row else Position(0)

    def consumers(self) -> list[tuple[str, Position]]:
        """Name and position of everybody who reads the log, the one who is furthest behind first."""
        rows = self._db.execute("SELECT name, position FROM consumer ORDER BY position, name")
        return [(row["name"], Position(row["position"])) for row in rows]

    def set_consumer_position(self, name: str, position: Position) -> None:
        self._db.execute(
            "INSERT INTO consumer (name, position) VALUES (:name, :position)"
            " ON CONFLICT (name) DO UPDATE SET position = excluded.position",
            {"name": name, "position": position},
        )


def limited(limit: int | None) -> str:
    return "" if limit is None else " LIMIT :limit"
