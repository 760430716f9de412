"""The message log and the positions of its consumers. The caller holds the transaction.

A row is appended without an index entry, because the rows of one commit belong to many devices, and each row would
change another page of every index. After some thousand such rows, in a pause, or when the folds ask for it, all of them
get their entries at once (storage/message_searches.py).

Messages alone are one statement, which is a transaction of its own: each statement more has the writer's thread wait
for the interpreter lock several times. So the counter of the highest position is behind them. The rows themselves say
how far, and the counter is saved before anything may delete rows.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Literal

from storage.damage import read_around
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import ActionRow, FailedMessageRow, MessageRow
from storage.sql import StoreConnection, StoreDamagedError, sure

_MESSAGE = ("position", "device", "ts", "cts", "mv", "data")
_ACTION = ("position", "device", "source", "ts", "cts", "mv", "data")
_FAILED = ("position", "device", "cts", "reason", "payload")

#: Rows that get their index entries together: so many, when the last ones got theirs a second ago, and else as many as
#: come until then. All senders wait meanwhile, and the more rows, the fewer times a page of an index is written.
_UNINDEXED = 2_000
_INDEX_SECONDS = 1.0
#: At most, because searches scan the rows that have none: 2,000 in 0.1 to 0.4 ms.
_UNINDEXED_MOST = 16_000
_AT_FIRST = {"indexed": 0}

Parameters = Mapping[str, Any]
_NONE: Parameters = {}
Table = Literal["message", "action"]
_TABLES: Sequence[Table] = ("message", "action")
_LOG: Sequence[Table | Literal["failed_message"]] = (*_TABLES, "failed_message")
COLUMNS: Mapping[Table, str] = {"message": ", ".join(_MESSAGE), "action": ", ".join(_ACTION)}


class MessageStore:
    def __init__(self, db: StoreConnection, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        self._db = db
        self._clock = clock
        self._indexed_at = -_INDEX_SECONDS
        self._index_after = 0  # later, when the last try met a damaged page
        self._head: Position | None = None  # as far as this object has appended
        self._indexed: int | None = None  # the counter, while it is known
        self._is_head_saved = False

    # The log

    def append(
        self,
        messages: Sequence[MessageRow],
        actions: Sequence[ActionRow],
        failed: Sequence[FailedMessageRow],
        *,
        head: int,
    ) -> None:
        """Add rows that already have their positions; `head` is the highest position ever assigned."""
        self._head, self._is_head_saved = Position(head), False
        if messages:
            self._db.insert_many("message", _MESSAGE, messages, same=_AT_FIRST)
        if actions:
            self._db.insert_many("action", _ACTION, actions, same=_AT_FIRST)
        if failed:
            self._db.insert_many("failed_message", _FAILED, failed)
        self.save_head()
        if self._is_index_due(head):
            self.index()

    def append_alone(self, messages: Sequence[MessageRow], *, head: Position) -> bool:
        """Add messages without a transaction around it. Returns False, and adds nothing, when there is more to do."""
        if self._is_index_due(head):
            return False
        self._db.insert_many("message", _MESSAGE, messages, same=_AT_FIRST)
        self._head, self._is_head_saved = head, False
        return True

    def save_head(self) -> None:
        """Save the highest position, before others in the transaction may delete its row."""
        if not self._is_head_saved:
            self._head = self.head() if self._head is None else self._head
            self.set_counter("head", self._head)
            self._is_head_saved = True

    def forget(self) -> None:
        """The transaction is undone."""
        self._indexed, self._is_head_saved = None, False

    @property
    def is_behind(self) -> bool:
        """Whether so many rows have no index entry that a pause is worth using for them."""
        if self._head is None or self._indexed is None or self._head < self._index_after:
            return False
        return self._head - self._indexed >= _UNINDEXED

    def _is_index_due(self, head: int) -> bool:
        if self._indexed is None:
            self._indexed = self.counter("indexed")
        unindexed = head - self._indexed
        return unindexed >= _UNINDEXED_MOST or (
            unindexed >= _UNINDEXED and self._clock() - self._indexed_at >= _INDEX_SECONDS
        )

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
        found = [Position(self.counter("head"))]
        for table in _LOG:
            with suppress(StoreDamagedError):
                found.append(self.last_position(table))
        return max(found)

    def index(self) -> None:
        """Make the index entries of all rows that have none."""
        head, indexed = self.head(), self.counter("indexed")
        if head == indexed or head < self._index_after:
            return
        try:
            for table in _TABLES:
                self._db.execute(
                    f"UPDATE {table} SET indexed = 1 WHERE position > :indexed AND position <= :head",  # noqa: S608 - constants
                    {"indexed": indexed, "head": head},
                )
        except StoreDamagedError:
            # The engine takes nothing more in this transaction. The next one does not try again for so many rows;
            # searches scan the rows without an entry.
            self._index_after = head + _UNINDEXED
            raise
        self.set_counter("indexed", head)
        self._indexed, self._indexed_at = head, self._clock()

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
            " UNION ALL SELECT cts FROM action WHERE position = (SELECT max(position) FROM action))"
        ).one()
        return Milliseconds(row["cts"] or 0) if row else Milliseconds(0)

    def mid_key(self) -> bytes:
        row = self._db.execute("SELECT value FROM secret WHERE name = 'mid'").one()
        return bytes(row["value"]) if row else b""

    def after(self, position: Position, *, limit: int | None = None) -> list[MessageRow]:
        """The rows after `position`, in order, without those that cannot be read."""
        return [MessageRow(*row) for row in islice(self.read_on("message", position, limit), limit)]

    def actions_after(self, position: Position, *, limit: int) -> list[ActionRow]:
        """The Actions after `position`, in order, without those that cannot be read."""
        return [ActionRow(*row) for row in islice(self.read_on("action", position, limit), limit)]

    def latest_actions_of(self, device: DeviceKey, position: Position, *, limit: int) -> list[tuple[Position, str]]:
        """Position and `data` of the device's newest Actions after `position`, in order."""
        behind = max(position, Position(self.counter("indexed")))
        found: list[tuple[Position, str]] = []
        for where, first in (("indexed = 1 AND device = :device", position), ("device = :device", behind)):
            rows = self._db.execute(
                f"SELECT position, data FROM action WHERE {where} AND position > :first"  # noqa: S608 - constants
                " ORDER BY position DESC LIMIT :limit",
                {"device": device, "first": first, "limit": limit},
            )
            found += [(Position(row["position"]), row["data"]) for row in rows]
        return sorted(set(found))[-limit:]

    def read_on(
        self, table: Table, position: int, limit: int | None = None, more: str = "", parameters: Parameters = _NONE
    ) -> Iterator[Sequence[Any]]:
        """The rows after a position that meet the conditions `more`, without those that cannot be read."""

        def read(first: int, most: int | None) -> Iterator[Sequence[Any]]:
            most = limit if most is None else most
            return self._db.execute(
                f"SELECT {COLUMNS[table]} FROM {table} WHERE position >= :first{more}"  # noqa: S608 - constants
                f" ORDER BY position{limited(most)}",
                {**parameters, "first": first, "limit": most},
            ).tuples()

        return read_around(read, position + 1, self.head)

    def after_of(self, devices: Collection[DeviceKey], position: Position) -> list[MessageRow]:
        """The devices' rows after `position`, those of each device in order."""
        if (last := self.last_position()) <= position:
            return []  # without a look into the index of each device
        try:
            return self._after_of(devices, position, last)
        except StoreDamagedError:
            wanted = set(devices)
            return [row for row in self.after(position) if row.device in wanted]

    def _after_of(self, devices: Collection[DeviceKey], position: Position, last: Position) -> list[MessageRow]:
        found: list[MessageRow] = []
        if (indexed := Position(self.counter("indexed"))) > position:
            for device in devices:
                rows = self._db.execute(
                    f"SELECT {COLUMNS['message']} FROM message"  # noqa: S608 - constants
                    " WHERE indexed = 1 AND device = :device AND position > :position ORDER BY position",
                    {"position": position, "device": device},
                )
                found += [MessageRow(*row) for row in rows.tuples()]
        if last > indexed:
            wanted = set(devices)
            found += [row for row in self.after(max(position, indexed)) if row.device in wanted]
        return found

    def last_position(self, table: Table | Literal["failed_message"] = "message") -> Position:
        """The position of the last row; 0 when there is none."""
        row = self._db.execute(f"SELECT max(position) AS position FROM {table}").one()  # noqa: S608 - constants
        return Position(row["position"] or 0) if row else Position(0)

    # By position

    def message(self, position: Position) -> MessageRow | None:
        row = self._db.execute("SELECT * FROM message WHERE position = :position", {"position": position}).one()
        return _message(row) if row else None

    def action(self, position: Position) -> ActionRow | None:
        row = self._db.execute("SELECT * FROM action WHERE position = :position", {"position": position}).one()
        return _action(row) if row else None

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


def _message(row: Mapping[str, Any]) -> MessageRow:
    return MessageRow(row["position"], row["device"], row["ts"], row["cts"], row["mv"], row["data"])


def _action(row: Mapping[str, Any]) -> ActionRow:
    return ActionRow(*(row[name] for name in _ACTION))


def limited(limit: int | None) -> str:
    return "" if limit is None else " LIMIT :limit"
