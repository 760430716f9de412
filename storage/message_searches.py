"""Searches of the message log by device and time. The caller holds the transaction.

A search reads the index, and then scans the rows that have no entry yet. Rows that cannot be read are left out.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any

from storage.keys import DeviceKey, Milliseconds, Position
from storage.messages import COLUMNS, MessageStore, Parameters, Table, limited
from storage.records import ActionRow, MessageRow
from storage.sql import StoreConnection, StoreDamagedError

_NEWEST = 1_000  # positions at the end of the log
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")

#: Which column of a row is its `ts`.
_TS: Mapping[Table, int] = {table: columns.split(", ").index("ts") for table, columns in COLUMNS.items()}


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


class MessageSearches:
    def __init__(self, db: StoreConnection, log: MessageStore) -> None:
        self._db = db
        self._log = log

    def page(self, devices: Sequence[DeviceKey], search: Range) -> list[MessageRow]:
        return [MessageRow(*row) for row in self._search("message", devices, search)]

    def action_page(self, devices: Sequence[DeviceKey], search: Range) -> list[ActionRow]:
        """The Actions whose destination is one of `devices`."""
        return [ActionRow(*row) for row in self._search("action", devices, search)]

    def count(self, device: DeviceKey, *, start_ms: Milliseconds, end_ms: Milliseconds) -> int:
        indexed = self._log.counter("indexed")
        which = " AND device = :device AND ts BETWEEN :start AND :end"
        given = {"device": device, "start": start_ms, "end": end_ms}
        row = self._db.execute(f"SELECT count(*) AS count FROM message WHERE indexed = 1{which}", given).one()  # noqa: S608
        late = sum(1 for _ in self._log.read_on("message", indexed, None, which, given))
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
            f"SELECT {COLUMNS['message']} FROM message WHERE position > :behind"  # noqa: S608 - constants
            f" AND device IN ({', '.join(f':{name}' for name in names)}){conditions}"
            " ORDER BY position DESC LIMIT :limit",
            {"behind": self._log.last_position() - _NEWEST, "limit": limit, "field": match.field} | names,
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
        indexed = self._log.counter("indexed")
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
        late = self._log.read_on(table, indexed, None, f" AND {given}{conditions}{matching}", parameters)
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
        self, table: Table, places: Iterator[Sequence[Any]], matching: str, parameters: Parameters
    ) -> Iterator[Sequence[Any]]:
        sql = f"SELECT {COLUMNS[table]} FROM {table} WHERE position = :position{matching}"  # noqa: S608 - constants
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
        chosen = COLUMNS[table] if len(devices) == 1 else ", ".join(columns)
        parts = [
            f"SELECT {chosen} FROM {table} WHERE indexed = 1 AND device = :device_{index}{conditions}"  # noqa: S608 - constants
            f" ORDER BY {order}{limited(search.limit)}"
            for index in range(len(devices))
        ]
        sql = parts[0]
        if len(devices) > 1:
            # Read the index of each device, merge, and read from the log only the rows of the page.
            merged = " UNION ALL ".join(f"SELECT * FROM ({part}) AS of_{index}" for index, part in enumerate(parts))  # noqa: S608
            sql = (
                f"SELECT {COLUMNS[table]} FROM {table} WHERE position IN"  # noqa: S608 - constants
                f" (SELECT position FROM ({merged} ORDER BY {order}{limited(search.limit)}) AS found) ORDER BY {order}"
            )
        rows = self._db.execute(sql, parameters).tuples()
        if self._log.last_position(table) <= (indexed := Position(self._log.counter("indexed"))):
            return rows
        late = self._db.execute(
            f"SELECT {COLUMNS[table]} FROM {table} WHERE position > :indexed"  # noqa: S608 - constants
            f" AND device IN ({', '.join(f':device_{index}' for index in range(len(devices)))}){conditions}"
            f" ORDER BY {order}{limited(search.limit)}",
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
        indexed = self._log.counter("indexed")
        try:
            late = self._db.execute(
                f"SELECT device, max(ts) AS ts FROM {table} WHERE position > :indexed GROUP BY device",  # noqa: S608
                {"indexed": indexed},
            )
            return [(row["device"], row["ts"]) for row in late]
        except StoreDamagedError:
            return [(row[1], row[_TS[table]]) for row in self._log.read_on(table, indexed)]
