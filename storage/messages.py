"""The message log and the positions of its consumers. The caller holds the transaction.

A row is appended without an index entry, because the rows of one commit belong to many devices, and each row would
change another page of every index. After some two thousand such rows, or when the folds ask for it, all of them
get their entries at once. A search by device reads the index, and then scans the rows that have no entry yet.

Messages alone are one statement, which is a transaction of its own: each statement more has the writer's thread wait
for the interpreter lock several times. So the counter of the highest position is behind them. The rows themselves say
how far, and the counter is saved before anything may delete rows.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Literal

from storage.damage import read_around
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import ActionRow, FailedMessageRow, MessageRow
from storage.sql import StoreConnection, StoreDamagedError, sure

_MESSAGE = ("position", "device", "ts", "cts", "mv", "data")
_ACTION = ("position", "device", "source", "ts", "cts", "mv", "data")
_FAILED = ("position", "device", "cts", "reason", "payload")

_NEWEST = 1_000  # positions at the end of the log
_UNINDEXED = 2_000  # rows without an index entry, at most: scanning so many takes 0.1 to 0.4 ms
_AT_FIRST = {"indexed": 0}
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")

_Parameters = Mapping[str, Any]
_NONE: _Parameters = {}
Table = Literal["message", "action"]
_TABLES: Sequence[Table] = ("message", "action")
_LOG: Sequence[Table | Literal["failed_message"]] = (*_TABLES, "failed_message")
_COLUMNS: Mapping[Table, str] = {"message": ", ".join(_MESSAGE), "action": ", ".join(_ACTION)}
_TS: Mapping[Table, int] = {"message": _MESSAGE.index("ts"), "action": _ACTION.index("ts")}


@dataclass(frozen=True, slots=True)
class Match:
    """Conditions that a row's `data` must all meet. Paths are dotted."""

    field: str | None = None
    values: tuple[tuple[str, str], ...] = ()  # path and text; `StoreConnection.json_matches` says when they match
    action: str | None = None  # the name of an Action in the row


EVERYTHING = Match()

SortKey = tuple[Milliseconds, Position]  # (ts, position): the order of searches


def sort_key(row: MessageRow | ActionRow) -> SortKey:
    return row.ts, row.position


@dataclass(frozen=True, slots=True)
class Range:
    """Rows with `start_ms <= ts <= end_ms` in the order of (ts, position), or `by_arrival`, in the order of positions.

    `after` and `before` are exclusive bounds in the order of (ts, position). At most `limit` rows: the first ones, or
    with `descending` the last ones, the last one first.
    """

    start_ms: Milliseconds | None
    end_ms: Milliseconds | None
    match: Match = EVERYTHING
    limit: int | None = None
    after: SortKey | None = None
    before: SortKey | None = None
    descending: bool = False
    by_arrival: bool = False

    def conditions(self) -> Iterator[str]:
        # The index is searched by one range of `ts`, so a page costs the same wherever it begins.
        if self.start_ms is not None:
            yield "ts BETWEEN :start AND :end"
        if self.after is not None:
            yield "(ts > :after_ts OR position > :after_position)"
        if self.before is not None:
            yield "(ts < :before_ts OR position < :before_position)"

    def parameters(self) -> dict[str, Any]:
        start, end = self.start_ms, self.end_ms
        parameters: dict[str, Any] = {"limit": self.limit, "field": self.match.field, "action": self.match.action}
        if self.after is not None:
            start = self.after[0] if start is None else max(start, self.after[0])
            parameters |= {"after_ts": self.after[0], "after_position": self.after[1]}
        if self.before is not None:
            end = self.before[0] if end is None else min(end, self.before[0])
            parameters |= {"before_ts": self.before[0], "before_position": self.before[1]}
        for index, (path, text) in enumerate(self.match.values):
            number = text if _NUMBER.fullmatch(text) else None
            parameters |= {f"path_{index}": path, f"text_{index}": text, f"number_{index}": number}
        return parameters | {"start": start, "end": end}


class MessageStore:
    def __init__(self, db: StoreConnection) -> None:
        self._db = db
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

    def _is_index_due(self, head: int) -> bool:
        if self._indexed is None:
            self._indexed = self.counter("indexed")
        return head - self._indexed >= _UNINDEXED

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
        self._indexed = head

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
        return [MessageRow(*row) for row in islice(self._read_on("message", position, limit), limit)]

    def actions_after(self, position: Position, *, limit: int) -> list[ActionRow]:
        """The Actions after `position`, in order, without those that cannot be read."""
        return [ActionRow(*row) for row in islice(self._read_on("action", position, limit), limit)]

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

    def _read_on(
        self, table: Table, position: int, limit: int | None = None, more: str = "", parameters: _Parameters = _NONE
    ) -> Iterator[Sequence[Any]]:
        """The rows after a position that meet the conditions `more`, without those that cannot be read."""

        def read(first: int, most: int | None) -> Iterator[Sequence[Any]]:
            most = limit if most is None else most
            return self._db.execute(
                f"SELECT {_COLUMNS[table]} FROM {table} WHERE position >= :first{more}"  # noqa: S608 - constants
                f" ORDER BY position{_limit(most)}",
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
                    f"SELECT {_COLUMNS['message']} FROM message"  # noqa: S608 - constants
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

    # By device and time

    def page(self, devices: Sequence[DeviceKey], search: Range) -> list[MessageRow]:
        return [MessageRow(*row) for row in self._search("message", devices, search)]

    def action_page(self, devices: Sequence[DeviceKey], search: Range) -> list[ActionRow]:
        """The Actions whose destination is one of `devices`."""
        return [ActionRow(*row) for row in self._search("action", devices, search)]

    def count(self, device: DeviceKey, *, start_ms: Milliseconds, end_ms: Milliseconds) -> int:
        indexed = self.counter("indexed")
        which = " AND device = :device AND ts BETWEEN :start AND :end"
        given = {"device": device, "start": start_ms, "end": end_ms}
        row = self._db.execute(f"SELECT count(*) AS count FROM message WHERE indexed = 1{which}", given).one()  # noqa: S608
        late = sum(1 for _ in self._read_on("message", indexed, None, which, given))
        return late + (int(row["count"]) if row else 0)

    def latest(self, devices: Sequence[DeviceKey], *, limit: int, field_path: str | None = None) -> list[MessageRow]:
        """The messages received last from all of `devices` together, newest first."""
        match = Match(field_path)
        # A call for many devices mostly asks for those that are sending: read the end of the log first, in one run.
        with suppress(StoreDamagedError):
            if len(devices) > 1 and len(newest := self._among_newest(devices, match, limit)) == limit:
                return newest
        search = Range(None, None, match=match, limit=limit, by_arrival=True, descending=True)
        return [MessageRow(*row) for row in self._search("message", devices, search)]

    def _among_newest(self, devices: Sequence[DeviceKey], match: Match, limit: int) -> list[MessageRow]:
        """Those of `latest` that are among the last positions of the log."""
        conditions = "".join(f" AND {condition}" for condition in self._matching(match))
        names = {f"device_{index}": device for index, device in enumerate(devices)}
        rows = self._db.execute(
            f"SELECT {_COLUMNS['message']} FROM message WHERE position > :behind"  # noqa: S608 - constants
            f" AND device IN ({', '.join(f':{name}' for name in names)}){conditions}"
            " ORDER BY position DESC LIMIT :limit",
            {"behind": self.last_position() - _NEWEST, "limit": limit, "field": match.field} | names,
        )
        return [MessageRow(*row) for row in rows.tuples()]

    def _search(self, table: Table, devices: Sequence[DeviceKey], search: Range) -> Sequence[Sequence[Any]]:
        try:
            return list(self._found(table, devices, search))
        except StoreDamagedError:
            return list(self._found_around(table, devices, search))

    def _found_around(self, table: Table, devices: Sequence[DeviceKey], search: Range) -> Iterator[Sequence[Any]]:
        """As `_found`, without the rows that cannot be read: the index says where rows are, each is read alone."""
        parameters = search.parameters() | {f"device_{index}": device for index, device in enumerate(devices)}
        given = f"device IN ({', '.join(f':device_{index}' for index in range(len(devices)))})"
        conditions = "".join(f" AND {condition}" for condition in search.conditions())
        matching = "".join(f" AND {condition}" for condition in self._matching(search.match))
        columns = ("position",) if search.by_arrival else ("ts", "position")
        order = ", ".join(f"{column} {'DESC' if search.descending else 'ASC'}" for column in columns)
        indexed = self.counter("indexed")
        # These columns are in the index that has this order: no page of the table is read.
        places = merge(
            *(
                self._db.execute(
                    f"SELECT {', '.join(columns)} FROM {table} WHERE indexed = 1 AND device = :device_{index}"  # noqa: S608
                    f"{conditions} ORDER BY {order}",
                    parameters,
                ).tuples()
                for index in range(len(devices))
            ),
            key=tuple,
            reverse=search.descending,
        )
        ts = _TS[table]
        place = (lambda row: row[0]) if search.by_arrival else (lambda row: (row[ts], row[0]))
        late = self._read_on(table, indexed, None, f" AND {given}{conditions}{matching}", parameters)
        return islice(
            merge(
                self._each(table, places, matching, parameters),
                sorted(late, key=place, reverse=search.descending),
                key=place,
                reverse=search.descending,
            ),
            search.limit,
        )

    def _each(
        self, table: Table, places: Iterator[Sequence[Any]], matching: str, parameters: _Parameters
    ) -> Iterator[Sequence[Any]]:
        sql = f"SELECT {_COLUMNS[table]} FROM {table} WHERE position = :position{matching}"  # noqa: S608 - constants
        for place in places:
            with suppress(StoreDamagedError):
                yield from self._db.execute(sql, {**parameters, "position": place[-1]}).tuples()

    def _found(self, table: Table, devices: Sequence[DeviceKey], search: Range) -> Iterator[Sequence[Any]]:
        """Rows by the index, merged with the rows that have no index entry yet."""
        if not devices:
            return iter(())
        parameters = search.parameters() | {f"device_{index}": device for index, device in enumerate(devices)}
        conditions = "".join(f" AND {condition}" for condition in (*search.conditions(), *self._matching(search.match)))
        columns = ("position",) if search.by_arrival else ("ts", "position")
        order = ", ".join(f"{column} {'DESC' if search.descending else 'ASC'}" for column in columns)
        chosen = _COLUMNS[table] if len(devices) == 1 else ", ".join(columns)
        parts = [
            f"SELECT {chosen} FROM {table} WHERE indexed = 1 AND device = :device_{index}{conditions}"  # noqa: S608 - constants
            f" ORDER BY {order}{_limit(search.limit)}"
            for index in range(len(devices))
        ]
        sql = parts[0]
        if len(devices) > 1:
            # Read the index of each device, merge, and read from the log only the rows of the page.
            merged = " UNION ALL ".join(f"SELECT * FROM ({part}) AS of_{index}" for index, part in enumerate(parts))  # noqa: S608
            sql = (
                f"SELECT {_COLUMNS[table]} FROM {table} WHERE position IN"  # noqa: S608 - constants
                f" (SELECT position FROM ({merged} ORDER BY {order}{_limit(search.limit)}) AS found) ORDER BY {order}"
            )
        rows = self._db.execute(sql, parameters).tuples()
        if self.last_position(table) <= (indexed := Position(self.counter("indexed"))):
            return rows
        late = self._db.execute(
            f"SELECT {_COLUMNS[table]} FROM {table} WHERE position > :indexed"  # noqa: S608 - constants
            f" AND device IN ({', '.join(f':device_{index}' for index in range(len(devices)))}){conditions}"
            f" ORDER BY {order}{_limit(search.limit)}",
            parameters | {"indexed": indexed},
        ).tuples()
        ts = _TS[table]
        place = (lambda row: row[0]) if search.by_arrival else (lambda row: (row[ts], row[0]))
        return islice(merge(rows, late, key=place, reverse=search.descending), search.limit)

    def _matching(self, match: Match) -> Iterator[str]:
        if match.field is not None:
            yield self._db.json_has("data", "field")
        for index in range(len(match.values)):
            yield self._db.json_matches("data", f"path_{index}", f"text_{index}", f"number_{index}")
        if match.action is not None:
            yield self._db.json_any_named("data", "actions", "action")

    def last_ts(self, table: Table, devices: Collection[DeviceKey]) -> dict[DeviceKey, Milliseconds]:
        """The highest `ts` of each of these devices that has a row."""
        found: dict[DeviceKey, Milliseconds] = {}
        for device in devices:
            row = self._db.execute(
                f"SELECT max(ts) AS ts FROM {table} WHERE indexed = 1 AND device = :device",  # noqa: S608 - constants
                {"device": device},
            ).one()
            if row is not None and row["ts"] is not None:
                found[device] = row["ts"]
        wanted = set(devices)
        for device, ts in self._last_late_ts(table):
            if device in wanted:
                found[device] = max(ts, found.get(device, Milliseconds(0)))
        return found

    def _last_late_ts(self, table: Table) -> list[tuple[DeviceKey, Milliseconds]]:
        """The highest `ts` of each device among the rows without an index entry."""
        indexed = self.counter("indexed")
        try:
            late = self._db.execute(
                f"SELECT device, max(ts) AS ts FROM {table} WHERE position > :indexed GROUP BY device",  # noqa: S608
                {"indexed": indexed},
            )
            return [(row["device"], row["ts"]) for row in late]
        except StoreDamagedError:
            return [(row[1], row[_TS[table]]) for row in self._read_on(table, indexed)]

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


def _limit(limit: int | None) -> str:
    return "" if limit is None else " LIMIT :limit"
