"""Searches of the message log by device, and time or arrival. The caller holds the transaction.

A search reads the index, and then scans the rows that have no entry yet. Rows that cannot be read are left out.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heapreplace, merge
from itertools import chain, islice
from types import GenericAlias
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from storage.keys import BY_CLOUD, DeviceKey, Milliseconds, Position
from storage.log_index import LogIndex, Table
from storage.messages import COLUMNS, MessageStore, Parameters, limited
from storage.records import ActionRow, MessageRow
from storage.sql import StoreConnection, StoreDamagedError

_NEWEST = 1_000  # positions at the end of the log
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")
#: Rows that are read of a device first, at least, when the rows of several devices are merged.
_FIRST_ROWS = 8
#: Rows to read at a time when a search has no limit: about `_ROWS`, at most `_ROWS_AT_ONCE`.
_ROWS = 1_024
_ROWS_AT_ONCE = 4_096
#: More of them are not written into a statement.
_NAMED_DEVICES = 100

_Row = TypeVar("_Row", MessageRow, ActionRow)


class FieldMatch(msgspec.Struct, frozen=True):
    """Conditions that a row's `data` must all meet. Paths are dotted."""

    field: str | None = None
    fields: tuple[str, ...] = ()  # as `field`, more of them
    values: tuple[tuple[str, str], ...] = ()  # path and text; `StoreConnection.json_matches` says when they match
    action: str | None = None  # the name of an Action in the row
    source: DeviceKey | None = None  # of an Action: the device that sent it


EVERYTHING = FieldMatch()
#: No row has it.
NO_DEVICE = DeviceKey(0)

SortKey = tuple[Milliseconds, Position]  # (ts, position): the order of searches
Place = SortKey | Position  # `by_arrival`, the position alone


def sort_key(row: MessageRow | ActionRow) -> SortKey:
    return row.ts, row.position


class Range(msgspec.Struct, frozen=True):
    """Rows with `start_ms <= ts <= end_ms` in the order of (ts, position), or `by_arrival`, in the order of positions.

    `after` and `before` are exclusive bounds in the order of (ts, position), `behind` is one of positions; `until` is
    the last position. At most `limit` rows: the first ones, or with `descending` the last ones, the last one first.
    """

    start_ms: Milliseconds | None
    end_ms: Milliseconds | None
    match: FieldMatch = EVERYTHING
    limit: int | None = None
    after: SortKey | None = None
    before: SortKey | None = None
    behind: Position = Position(0)
    until: Position | None = None
    descending: bool = False
    by_arrival: bool = False

    def bounds(self) -> tuple[Milliseconds | None, Milliseconds | None]:
        """The first and the last `ts` of rows that it can have."""
        start, end = self.start_ms, self.end_ms
        if self.after is not None:
            start = self.after[0] if start is None else max(start, self.after[0])
        if self.before is not None:
            end = self.before[0] if end is None else min(end, self.before[0])
        return start, end

    def conditions(self) -> Iterator[str]:
        start, end = self.bounds()
        if start is not None:
            yield "ts >= :start"
        if end is not None:
            yield "ts <= :end"
        if self.after is not None:
            yield "(ts > :after_ts OR position > :after_position)"
        if self.before is not None:
            yield "(ts < :before_ts OR position < :before_position)"
        if self.behind:
            yield "position > :behind"
        if self.until is not None:
            yield "position <= :until"

    def parameters(self) -> dict[str, Any]:
        start, end = self.bounds()
        parameters: dict[str, Any] = {"start": start, "end": end, "behind": self.behind, "limit": self.limit}
        parameters["until"] = self.until
        parameters |= {"field": self.match.field, "action": self.match.action, "source": self.match.source}
        parameters |= {f"field_{index}": path for index, path in enumerate(self.match.fields)}
        if self.after is not None:
            parameters |= {"after_ts": self.after[0], "after_position": self.after[1]}
        if self.before is not None:
            parameters |= {"before_ts": self.before[0], "before_position": self.before[1]}
        for index, (path, text) in enumerate(self.match.values):
            number = text if _NUMBER.fullmatch(text) else None
            parameters |= {f"path_{index}": path, f"text_{index}": text, f"number_{index}": number}
        return parameters


class Part(NamedTuple, Generic[_Row]):
    """Result of a bounded search, in its order.

    `upto`: it has found all up to this place in its order, and none behind it; None when it has looked at all rows.
    """

    rows: list[_Row]
    upto: Place | None


class MessageSearches:
    def __init__(self, db: StoreConnection, log: MessageStore) -> None:
        self._db = db
        self._log = log

    def page(self, devices: Sequence[DeviceKey], search: Range) -> list[MessageRow]:
        return list(self._search(_MESSAGES, devices, search))

    def action_page(self, devices: Sequence[DeviceKey], search: Range) -> list[ActionRow]:
        """The Actions whose destination is one of `devices`."""
        return list(self._search(_ACTIONS, devices, search))

    def some(self, devices: Sequence[DeviceKey], search: Range, *, most: int) -> Part[MessageRow]:
        """As `page`, but look at about `most` rows only, though at least at a few of each device."""
        return self._some(_MESSAGES, devices, search, most)

    def some_actions(self, devices: Sequence[DeviceKey], search: Range, *, most: int) -> Part[ActionRow]:
        """As `action_page`, but look at about `most` rows only."""
        return self._some(_ACTIONS, devices, search, most)

    def after_of(self, devices: Collection[DeviceKey], position: Position) -> list[MessageRow]:
        """The devices' rows after `position`, those of each device in order."""
        if self._log.last_position() <= position:
            return []  # without a look into the index of each device
        try:
            return self.page(tuple(devices), Range(None, None, behind=position, by_arrival=True))
        except StoreDamagedError:
            wanted = set(devices)
            return [row for row in self._log.after(position) if row.device in wanted]

    def latest_actions_of(self, device: DeviceKey, position: Position, *, limit: int) -> list[tuple[Position, str]]:
        """Position and `data` of the device's newest Actions after `position`, in order."""
        newest = Range(None, None, limit=limit, behind=position, by_arrival=True, descending=True)
        return [(row.position, row.data) for row in reversed(self.action_page([device], newest))]

    def between(self, devices: Sequence[DeviceKey], search: Range, *, most: int) -> list[MessageRow] | None:
        """As `page` of a range of times, without a limit: in a few statements, however many devices there are.

        None when the index has more than about `most` rows of that time. Raises StoreDamagedError: the rows of each
        device can still be read.
        """
        start_ms, end_ms = search.bounds()
        assert start_ms is not None, "a range of times"  # noqa: S101 - the caller's
        assert end_ms is not None, "a range of times"  # noqa: S101 - the caller's
        found, keys = _Found(self._db, self._log, _MESSAGES, search), json.dumps(devices)
        positions = LogIndex(self._db, "message").between(keys, start_ms, end_ms, most=most)
        if positions is None:
            return None
        return sorted(found.late(devices) + found.of_all(keys, positions), key=found.place, reverse=search.descending)

    def about(self, devices: Sequence[DeviceKey], *, start_ms: Milliseconds, end_ms: Milliseconds) -> int:
        """How many rows of that time there are, with some beside them."""
        late = _Found(self._db, self._log, _MESSAGES, Range(start_ms, end_ms)).late(devices)
        return len(late) + LogIndex(self._db, "message").number_between(json.dumps(devices), start_ms, end_ms)

    def latest(
        self, devices: Sequence[DeviceKey], *, limit: int, field_path: str | None = None, most: int
    ) -> list[MessageRow]:
        """The messages received last from all of `devices` together, newest first: with a field, of about `most`."""
        match = FieldMatch(field_path)
        # A call for many devices mostly asks for devices that are sending: read the end of the log first, in one run.
        with suppress(StoreDamagedError):
            if len(devices) > 1 and len(newest := self._among_newest(devices, match, limit)) == limit:
                return newest
        search = Range(None, None, match=match, limit=limit, by_arrival=True, descending=True)
        return self.page(devices, search) if field_path is None else self.some(devices, search, most=most).rows

    def _among_newest(self, devices: Sequence[DeviceKey], match: FieldMatch, limit: int) -> list[MessageRow]:
        """The rows of `latest` that are among the last positions of the log."""
        conditions = "".join(f" AND {condition}" for condition in _matching(self._db, match))
        names = {f"device_{index}": device for index, device in enumerate(devices)}
        rows = self._db.execute(
            f"SELECT {COLUMNS['message']} FROM message WHERE position > :behind"  # noqa: S608 - constants
            f" AND device IN ({', '.join(f':{name}' for name in names)}){conditions}"
            " ORDER BY position DESC LIMIT :limit",
            {"behind": self._log.last_position() - _NEWEST, "limit": limit, "field": match.field} | names,
        )
        return [MessageRow(*row) for row in rows.tuples()]

    def _search(self, log: "_LogTable[_Row]", devices: Sequence[DeviceKey], search: Range) -> Iterator[_Row]:
        if not devices:
            return iter(())
        found = _Found(self._db, self._log, log, search)
        rows = _ROWS if search.limit is None else max(search.limit // len(devices), _FIRST_ROWS)
        late = found.late(devices)
        every: list[Iterator[_Row]] = [iter(late)] if late else []
        if search.behind < found.upto:
            every += [chain.from_iterable(found.indexed(device, rows)) for device in devices]
        merged = every[0] if len(every) == 1 else merge(*every, key=found.place, reverse=search.descending)
        return islice(merged, search.limit)

    def _some(self, log: "_LogTable[_Row]", devices: Sequence[DeviceKey], search: Range, most: int) -> Part[_Row]:
        if search.match == EVERYTHING:  # the limit is the bound
            return Part(list(self._search(log, devices, search)), None)
        found, limit = _Found(self._db, self._log, log, search), search.limit or most
        rows = found.late(devices)
        # The device that is the least far is the next one to be read, so that all of them come equally far.
        reached: list[tuple[tuple[int, ...], int, _Looking[_Row]]] = []
        if search.behind < found.upto:
            size = max(min(limit, most) // len(devices), _FIRST_ROWS)
            reached = [((), index, _Looking(found, one, size)) for index, one in enumerate(devices)]
        while reached:
            least, index, looking = reached[0]
            if least and (most <= 0 or _are_before(rows, found, least, limit)):
                break
            if (more := looking.step()) is None:
                heappop(reached)
                continue
            rows += more
            most -= looking.looked_at
            if len(devices) > 1 or most <= 0 or len(rows) >= limit:
                heapreplace(reached, (looking.reached() or least, index, looking))
        rows.sort(key=found.place, reverse=search.descending)
        if not reached:
            return Part(rows[:limit], None)
        least, _, looking = reached[0]
        rows = [row for row in rows if found.ordered(found.place(row)) <= least]
        return Part(rows[:limit], looking.upto)

    def last_ts(self, table: Table, devices: Collection[DeviceKey]) -> dict[DeviceKey, Milliseconds]:
        """The `ts` of the last row, by position, of each of these devices that has one."""
        last = Range(None, None, limit=1, descending=True, by_arrival=True)
        newest: _Found[Any] = _Found(self._db, self._log, _LOGS[table], last)
        found: dict[DeviceKey, Milliseconds] = {}
        for device in devices:
            for rows in newest.indexed(device, 1):
                if rows:
                    found[device] = rows[0].ts
                    break
        wanted = set(devices)
        return found | {device: ts for device, ts in self._last_late_ts(table) if device in wanted}

    def _last_late_ts(self, table: Table) -> list[tuple[DeviceKey, Milliseconds]]:
        """The `ts` of the rows without an index entry that are the last of their devices; those come last."""
        indexed = self._log.counter("indexed")
        try:
            late = self._db.execute(
                f"SELECT device, ts FROM {table} WHERE position IN"  # noqa: S608 - constants
                f" (SELECT max(position) FROM {table} WHERE position > :indexed GROUP BY device)",
                {"indexed": indexed},
            )
            return [(row["device"], row["ts"]) for row in late]
        except StoreDamagedError:
            return [(row[1], row[2]) for row in self._log.read_on(table, indexed, columns="position, device, ts")]


class _LogTable(Generic[_Row]):
    """A table of the log, and the type of its rows."""

    def __init__(self, table: Table, row: type[_Row]) -> None:
        self.table: Table = table
        self.row: type[_Row] = row
        self.columns = row.__struct_fields__
        self.decode: Callable[[str], list[_Row]] = msgspec.json.Decoder(GenericAlias(list, (row,))).decode


_MESSAGES = _LogTable("message", MessageRow)
_ACTIONS = _LogTable("action", ActionRow)
_LOGS: Mapping[Table, _LogTable[Any]] = {"message": _MESSAGES, "action": _ACTIONS}


class _Found(Generic[_Row]):
    """Matches of a search in one table: through the index, and in the rows that have no index entry yet."""

    def __init__(self, db: StoreConnection, messages: MessageStore, log: _LogTable[_Row], search: Range) -> None:
        self._db = db
        self._messages = messages
        self._log: _LogTable[_Row] = log
        self._search = search
        self._index = LogIndex(db, log.table)
        #: Rows up to this position have an entry, as far as `late` knows.
        self.upto = Position(0)
        in_range = "".join(f" AND {condition}" for condition in search.conditions())
        self._conditions = in_range + "".join(f" AND {condition}" for condition in _matching(db, search.match))
        self._of_device = f" AND device = :device{self._conditions}"
        self._in_range = f" AND device = :device{in_range}"
        self._parameters = search.parameters()
        self.place: Callable[[_Row], Any] = _position if search.by_arrival else sort_key
        direction = "DESC" if search.descending else "ASC"
        order = f"position {direction}" if search.by_arrival else f"ts {direction}, position {direction}"
        self._first = f"ORDER BY {order}{limited(search.limit)}"

    def indexed(self, device: DeviceKey, rows: int) -> Iterator[list[_Row]]:
        """The rows of a device that have an entry, in order; about `rows` are read first."""
        for positions in self.groups(device, rows):
            found = self.read(device, positions)
            found.sort(key=self.place, reverse=self._search.descending)
            yield found

    def groups(self, device: DeviceKey, rows: int) -> Iterator[str]:
        search = self._search
        if search.by_arrival:
            start_ms, end_ms = search.bounds()
            return self._index.by_arrival(
                device,
                behind=search.behind,
                until=search.until,
                start_ms=start_ms,
                end_ms=end_ms,
                descending=search.descending,
                rows=rows,
            )
        return self._index.by_time(
            device, *search.bounds(), until=search.until, descending=search.descending, rows=rows
        )

    def read(self, device: DeviceKey, positions: str) -> list[_Row]:
        log, limit, number = self._log, self._search.limit, positions.count(",") + 1
        if limit is None and number > _ROWS_AT_ONCE:  # in one span, and they overlap
            return list(chain.from_iterable(self.read(device, part) for part in _parts(positions)))
        has_more = limit is not None and number > 2 * limit  # to order them costs something, too
        try:
            found = self._db.rows_at(
                log.table,
                log.columns,
                positions,
                self._of_device,
                {**self._parameters, "device": device},
                first=self._first if has_more else "",
            )
        except StoreDamagedError:
            return self._read_each(device, positions)
        return log.decode(found)

    def of_all(self, devices: str, positions: str) -> list[_Row]:
        """The rows at `positions` of devices, the JSON text of an array of keys, in no order."""
        among = f" AND device IN ({self._db.numbers_in('devices')}){self._conditions}"
        given, log = {**self._parameters, "devices": devices}, self._log
        found = (self._db.rows_at(log.table, log.columns, part, among, given) for part in _parts(positions))
        return list(chain.from_iterable(map(log.decode, found)))

    def _read_each(self, device: DeviceKey, positions: str, conditions: str = "") -> list[_Row]:
        """As `read`, but skip unreadable rows. `conditions` replaces the condition on the device."""
        columns = COLUMNS[self._log.table]
        sql = f"SELECT {columns} FROM {self._log.table} WHERE position = :position{conditions or self._of_device}"  # noqa: S608 - constants
        found: list[_Row] = []
        for position in msgspec.json.decode(positions, type=list[int]):
            with suppress(StoreDamagedError):
                given = {**self._parameters, "device": device, "position": position}
                found += [self._log.row(*row) for row in self._db.execute(sql, given).tuples()]
        return found

    def ordered(self, place: Place) -> tuple[int, ...]:
        """A place, so that what comes later in the order of the search is larger."""
        sign = -1 if self._search.descending else 1
        return tuple(sign * one for one in place) if isinstance(place, tuple) else (sign * place,)

    def last_place(self, device: DeviceKey, positions: str) -> Place | None:
        """The place of the last row of a device at `positions`, whether it matches or not, in the order of the search.
        None when none of them is in the range, or can be read."""
        direction = "" if self._search.descending else " DESC"
        by = f"position{direction}" if self._search.by_arrival else f"ts{direction}, position{direction}"
        sql = (
            f"SELECT ts, position FROM {self._log.table} WHERE position IN ({self._db.numbers_in('positions')})"  # noqa: S608 - constants
            f"{self._in_range} ORDER BY {by} LIMIT 1"
        )
        try:
            row = self._db.execute(sql, {**self._parameters, "device": device, "positions": positions}).one()
        except StoreDamagedError:
            found = self._read_each(device, positions, self._in_range)
            return max((self.place(one) for one in found), key=self.ordered, default=None)
        if row is None:
            return None
        return Position(row["position"]) if self._search.by_arrival else (row["ts"], row["position"])

    def late(self, devices: Sequence[DeviceKey]) -> list[_Row]:
        """The rows of devices that have no entry yet, in order."""
        try:
            self.upto, last = self._messages.unindexed(self._log.table)
            return self._late(devices, is_damaged=False) if last > self.upto else []
        except StoreDamagedError:
            self.upto = Position(self._messages.counter("indexed"))
            return self._late(devices, is_damaged=True)

    def _late(self, devices: Sequence[DeviceKey], *, is_damaged: bool) -> list[_Row]:
        table, search = self._log.table, self._search
        if len(devices) > _NAMED_DEVICES:
            names: dict[str, Any] = {"devices": json.dumps(devices)}
            listed = self._db.numbers_in("devices")
        else:
            names = {f"device_{index}": device for index, device in enumerate(devices)}
            listed = ", ".join(f":{name}" for name in names)
        more = f" AND device IN ({listed}){self._conditions}"
        parameters: Parameters = {**self._parameters, **names}
        if is_damaged:
            rows = self._messages.read_on(table, self.upto, None, more, parameters)
        else:
            sql = f"SELECT {COLUMNS[table]} FROM {table} WHERE position > :indexed{more} {self._first}"  # noqa: S608 - constants
            rows = self._db.execute(sql, {**parameters, "indexed": self.upto}).tuples()
        found = [self._log.row(*row) for row in rows]
        found.sort(key=self.place, reverse=search.descending)
        return found


class _Looking(Generic[_Row]):
    """How far a search has come with one device."""

    def __init__(self, found: _Found[_Row], device: DeviceKey, rows: int) -> None:
        self._found: _Found[_Row] = found
        self._device = device
        self._groups = found.groups(device, rows)
        self._positions = ""
        #: Rows of the last step.
        self.looked_at = 0
        #: The place in the log that it has reached.
        self.upto: Place | None = None

    def step(self) -> list[_Row] | None:
        """The rows that match among the next ones; None when there are no more."""
        positions = next(self._groups, None)
        if positions is None:
            return None
        self._positions, self.looked_at = positions, positions.count(",") + 1
        found: list[_Row] = self._found.read(self._device, positions)
        return found

    def reached(self) -> tuple[int, ...]:
        """The place that it has reached, as `_Found.ordered` has it; empty when it is not known."""
        place = self._found.last_place(self._device, self._positions)
        self.upto = self.upto if place is None else place
        return () if self.upto is None else self._found.ordered(self.upto)


def _parts(positions: str) -> Iterator[str]:
    """The JSON text of an array of positions, cut into arrays that are read at once."""
    places = positions[1:-1].split(",") if len(positions) > len("[]") else []
    for at in range(0, len(places), _ROWS_AT_ONCE):
        yield f"[{','.join(places[at : at + _ROWS_AT_ONCE])}]"


def _are_before(rows: Sequence[_Row], found: _Found[_Row], place: tuple[int, ...], number: int) -> bool:
    """Whether the first `number` rows are final: all lie at or before `place`, so no later find comes between."""
    return len(rows) >= number and sum(found.ordered(found.place(row)) <= place for row in rows) >= number


def _matching(db: StoreConnection, match: FieldMatch) -> Iterator[str]:
    if match.field is not None:
        yield db.json_has("data", "field")
    for index in range(len(match.fields)):
        yield db.json_has("data", f"field_{index}")
    for index in range(len(match.values)):
        yield db.json_matches("data", f"path_{index}", f"text_{index}", f"number_{index}")
    if match.action is not None:
        yield db.json_any_named("data", "actions", "action")
    if match.source is not None:
        yield f"(source = :source OR (source = {BY_CLOUD} AND device = :source))"


def _position(row: MessageRow | ActionRow) -> Position:
    return row.position
