"""Index of the log: the positions of a device's rows. The caller holds the transaction.

An entry is for some rows of one device whose `ts` lie in the same ten seconds. These rows were stored between two
steps that make entries, so the position up to which the step went orders the entries of different steps. An entry for
each row would have the step change a page of an index for nearly every row, while all senders wait.

Entries of a device that sends seldom have few rows, often one. Later, entries that follow each other are put together
(`LogIndex.merge`), as far as their `ts` rise and lie within a day. An index of its own finds the long ones.

An entry may name rows that were deleted since. A position is never used twice, so they are only not found.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec

from storage.keys import DeviceKey, Milliseconds, Position
from storage.sql import StoreConnection

Table = Literal["message", "action"]

#: Most rows of an entry.
ROWS: Final = 100
_SPAN_MS: Final = 10_000
#: From the first to the last `ts` of an entry, it takes less than this. One that takes `_SPAN_MS` or more is long.
_LONGEST_MS: Final = 86_400_000
_IS_LONG: Final = f"last_ts - first_ts >= {_SPAN_MS}"  # as in storage/schema/0087_long_entries.sql
#: Most rows of a group. Groups grow up to this while the caller reads on.
_GROUP_MOST: Final = 1_024

_encode = msgspec.json.Encoder().encode

_Read = Sequence[Any]  # ordered, number, positions, and by time first_ts, last_ts, key
_READ: Final = "ordered, number, positions, first_ts, last_ts, key"


class Entry(msgspec.Struct, gc=False):
    """Rows of one device: the first and the last `ts`, their number, and their positions in order, with commas.

    `ordered`: their `ts` are in the same order.
    """

    device: DeviceKey
    first_ts: int
    last_ts: int
    ordered: bool
    number: int
    positions: str


class Merged(msgspec.Struct, gc=False):
    """An entry, given by its key, that takes the rows of `others`, which come right before it."""

    key: int
    others: list[int]
    first_ts: int
    last_ts: int
    ordered: int
    number: int
    positions: str


class EntryBuilder:
    """Makes entries of rows, which come in the order of their positions.

    Only the last entry of a device gets more rows. So its entries, as they are made, are in the order of positions.
    """

    def __init__(self) -> None:
        self.made: list[Entry] = []
        self._last: dict[DeviceKey, Entry] = {}

    def add(self, device: DeviceKey, ts: int, position: int) -> None:
        """Add a row."""
        self._put(Entry(device, ts, ts, True, 1, str(position)))

    def add_many(self, device: DeviceKey, stamps: Sequence[int], positions: Sequence[int]) -> None:
        """Add rows of a device, given as their `ts` and their positions."""
        first = 0
        while first < len(positions):
            some = stamps[first : first + ROWS]
            earliest, latest = min(some), max(some)
            if latest // _SPAN_MS != earliest // _SPAN_MS:
                span = some[0] // _SPAN_MS
                some = some[: next(index for index, ts in enumerate(some) if ts // _SPAN_MS != span)]
                earliest, latest = min(some), max(some)
            behind = first + len(some)
            ordered = list(some) == sorted(some)
            written = _encode(positions[first:behind])[1:-1].decode()  # a tenth of the time of `str` for each
            self._put(Entry(device, earliest, latest, ordered, len(some), written))
            first = behind

    def _put(self, more: Entry) -> None:
        entry = self._last.get(more.device)
        if entry is None or entry.number >= ROWS or entry.first_ts // _SPAN_MS != more.first_ts // _SPAN_MS:
            self._last[more.device] = more
            self.made.append(more)
            return
        entry.ordered = entry.ordered and more.ordered and entry.last_ts <= more.first_ts
        entry.first_ts = min(entry.first_ts, more.first_ts)
        entry.last_ts = max(entry.last_ts, more.last_ts)
        entry.number += more.number
        entry.positions = f"{entry.positions},{more.positions}"


class LogIndex:
    """The entries of one table of the log."""

    def __init__(self, db: StoreConnection, table: Table) -> None:
        self._db = db
        self._name = f"{table}_entry"

    def add(self, entries: Sequence[Entry], upto: Position) -> None:
        """Add the entries of a step; `upto` is its highest position, and higher than that of each step before."""
        columns = ("device", "upto", "first_ts", "last_ts", "ordered", "number", "positions")
        rows = [
            (one.device, upto, one.first_ts, one.last_ts, int(one.ordered), one.number, f"[{one.positions}]")
            for one in entries
        ]
        self._db.insert_many(self._name, columns, rows)

    def by_time(
        self,
        device: DeviceKey,
        start_ms: Milliseconds | None,
        end_ms: Milliseconds | None,
        *,
        until: Position | None = None,
        descending: bool = False,
        rows: int = _GROUP_MOST,
    ) -> Iterator[str]:
        """The positions of the device's rows with `start_ms <= ts <= end_ms`, and of some beside them, in groups:
        of those up to the position `until`.

        Each group is the JSON text of an array without an order. All rows of a group come before those of the next
        one in the order of (ts, position), or with `descending` in the opposite order. The first group has about
        `rows` rows, the next ones more and more.
        """
        conditions = ""
        if start_ms is not None:
            conditions += " AND last_ts >= :start"
        if end_ms is not None:
            conditions += " AND first_ts <= :end"
        if until is not None:
            conditions += " AND upto <= :step"
        chosen = f"SELECT {_READ} FROM {self._name} WHERE device = :device{conditions}"  # noqa: S608 - constants
        if start_ms is not None:
            chosen = (
                f"{chosen} AND first_ts > :first UNION ALL"
                f" {chosen} AND first_ts > :day AND first_ts <= :first AND {_IS_LONG}"
            )
        entries = self._db.stream(
            f"{chosen} ORDER BY {'first_ts DESC, key DESC' if descending else 'first_ts, key'}",
            {
                "device": device,
                "first": None if start_ms is None else start_ms - _SPAN_MS,
                "day": None if start_ms is None else start_ms - _LONGEST_MS,
                "start": start_ms,
                "end": end_ms,
                "step": None if until is None else self._step_of(device, until),
            },
        )
        if descending:
            return self._downwards(device, entries, _Group(rows, descending=True, end_ms=end_ms))
        return _upwards(entries, _Group(rows, start_ms=start_ms))

    def between(self, devices: str, start_ms: Milliseconds, end_ms: Milliseconds, *, most: int) -> str | None:
        """The positions of the rows of devices, given as the JSON text of an array of keys, with
        `start_ms <= ts <= end_ms`, and of some beside them, as the JSON text of an array without an order.

        None when they are more than `most`. Two statements, however many devices there are.
        """
        found, given = self._between(devices, start_ms, end_ms)
        counted = self._db.execute(
            f"SELECT sum(number) AS number FROM (SELECT number FROM ({found}) AS found LIMIT :most + 1) AS counted",  # noqa: S608 - constants
            {**given, "most": most},
        ).one()
        if counted is None or not counted["number"]:
            return "[]"
        if counted["number"] > most:
            return None
        every = self._db.all_texts("positions")
        row = self._db.execute(f"SELECT {every} AS positions FROM ({found}) AS found", given).one()  # noqa: S608 - constants
        return "[]" if row is None or row["positions"] is None else str(row["positions"]).replace("],[", ",")

    def number_between(self, devices: str, start_ms: Milliseconds, end_ms: Milliseconds) -> int:
        """How many positions `between` would give."""
        found, given = self._between(devices, start_ms, end_ms)
        row = self._db.execute(f"SELECT sum(number) AS number FROM ({found}) AS found", given).one()  # noqa: S608 - constants
        return 0 if row is None else int(row["number"] or 0)

    def _between(self, devices: str, start_ms: Milliseconds, end_ms: Milliseconds) -> tuple[str, Mapping[str, Any]]:
        """A query for the entries with rows of that time, and its parameters."""
        chosen = (
            f"SELECT number, positions FROM {self._name} WHERE device IN ({self._db.numbers_in('devices')})"  # noqa: S608 - constants
            " AND last_ts >= :start AND first_ts <= :end"
        )
        found = (
            f"{chosen} AND first_ts > :first UNION ALL {chosen} AND first_ts > :day AND first_ts <= :first"
            f" AND {_IS_LONG}"
        )
        times = {"first": start_ms - _SPAN_MS, "day": start_ms - _LONGEST_MS, "start": start_ms, "end": end_ms}
        return found, {"devices": devices, **times}

    def _downwards(self, device: DeviceKey, entries: Iterable[_Read], group: "_Group") -> Iterator[str]:
        floor: _Read | None = None
        reached: int | None = None  # no division from this `ts` on
        free: int | None = None  # no entry that is left reaches rows of this `ts`
        for entry in entries:
            if group.is_full and floor is not None and (reached is None or entry[3] < reached):
                reached = None if floor[3] == free else self._reached_from(device, floor)
                if reached is None:
                    free = floor[3]
                    yield from group.take()
            group.add(entry)
            floor = entry
        yield from group.take()

    def _reached_from(self, device: DeviceKey, floor: _Read) -> int | None:
        """The lowest `first_ts` of the entries that come before this one and have a row at its first one or behind."""
        before = f"SELECT min(first_ts) AS first_ts FROM {self._name} WHERE device = :device AND last_ts >= :floor"  # noqa: S608 - constants
        found = self._db.execute(
            f"SELECT min(first_ts) AS first_ts FROM ({before} AND first_ts > :first AND first_ts <= :floor"  # noqa: S608 - constants
            f" AND (first_ts < :floor OR (last_ts > :floor AND key < :key))"
            f" UNION ALL {before} AND first_ts > :day AND first_ts <= :first AND {_IS_LONG}) AS found",
            {
                "device": device,
                "first": floor[3] - _SPAN_MS,
                "day": floor[3] - _LONGEST_MS,
                "floor": floor[3],
                "key": floor[5],
            },
        ).one()
        return None if found is None else found["first_ts"]

    def by_arrival(
        self,
        device: DeviceKey,
        *,
        behind: Position = Position(0),
        until: Position | None = None,
        start_ms: Milliseconds | None = None,
        end_ms: Milliseconds | None = None,
        descending: bool = False,
        rows: int = _GROUP_MOST,
    ) -> Iterator[str]:
        """Positions as of `by_time`, in their own order: all after `behind` up to `until`, and some others."""
        conditions = " AND last_ts >= :start" if start_ms is not None else ""
        conditions += " AND first_ts <= :end" if end_ms is not None else ""
        conditions += " AND upto <= :step" if until is not None else ""
        order = "upto DESC, key DESC" if descending else "upto, key"
        entries = self._db.stream(
            f"SELECT 1 AS ordered, number, positions FROM {self._name}"  # noqa: S608 - constants
            f" WHERE device = :device AND upto > :behind{conditions} ORDER BY {order}",
            {
                "device": device,
                "behind": behind,
                "start": start_ms,
                "end": end_ms,
                "step": None if until is None else self._step_of(device, until),
            },
        )
        return _divided(entries, _Group(rows, descending=descending))

    def _step_of(self, device: DeviceKey, position: Position) -> int:
        """The end of the first step that may have entries of the device's rows at a position or behind it."""
        row = self._db.execute(
            f"SELECT min(upto) AS upto FROM {self._name} WHERE device = :device AND upto >= :position",  # noqa: S608 - constants
            {"device": device, "position": position},
        ).one()
        return position if row is None or row["upto"] is None else int(row["upto"])

    def devices(self, behind: DeviceKey, *, step: Position, limit: int) -> list[tuple[DeviceKey, int]]:
        """The next devices after `behind`, in the order of their keys, each with the number of its entries that were
        made after a step."""
        # One entry of the index for each device, however many entries it has; the number of rows ends the recursion.
        after = f"SELECT min(device) FROM {self._name} WHERE device >"  # noqa: S608 - constants
        rows = self._db.execute(
            "WITH RECURSIVE next (device, place) AS"  # noqa: S608 - constants
            f" (SELECT min(device), 1 FROM {self._name} WHERE device > :behind UNION ALL"
            f" SELECT ({after} next.device), place + 1 FROM next WHERE device IS NOT NULL AND place < :limit)"
            f" SELECT device, (SELECT count(*) FROM {self._name} AS made WHERE made.device = next.device"
            " AND upto > :step) AS number FROM next WHERE device IS NOT NULL ORDER BY place",
            {"behind": behind, "step": step, "limit": limit},
        )
        return [(row["device"], row["number"]) for row in rows]

    def small(self, device: DeviceKey, *, step: Position) -> list[Merged]:
        """The entries of a device that were made after a step, follow each other and may be one.

        The last one before may be among them, as long as it is small beside them: each row is moved a few times only.
        """
        read = (
            "SELECT ordered, number, CASE WHEN number > :most THEN '' ELSE positions END AS positions, first_ts,"  # noqa: S608 - constants
            f" last_ts, key FROM {self._name} WHERE device = :device"
        )
        given = {"device": device, "step": step, "most": ROWS // 2}
        fresh = list(self._db.execute(f"{read} AND upto > :step ORDER BY upto, key", given).tuples())
        last = self._db.execute(f"{read} AND upto <= :step ORDER BY upto DESC, key DESC LIMIT 1", given).tuples()
        rows = sum(entry[1] for entry in fresh)
        fresh[:0] = [entry for entry in last if entry[1] <= 2 * rows]
        return [_merged(run) for run in _runs(fresh) if len(run) > 1]

    def merge(self, some: Iterable[Merged]) -> int:
        """Replace entries by one each; return how many were deleted. One that is not there any more is left out."""
        entries = {one.key: one for one in some}
        if not entries:
            return 0
        columns = ("key", "first_ts", "last_ts", "ordered", "number", "positions")
        rows = [[getattr(one, name) for name in columns] for one in entries.values()]
        given, parameters = self._db.given(self._name, columns, rows)
        changes = ", ".join(f"{name} = given.{name}" for name in columns[1:])
        kept = self._db.execute(
            f"UPDATE {self._name} SET {changes} FROM ({given}) AS given WHERE {self._name}.key = given.key"  # noqa: S608 - constants
            f" RETURNING {self._name}.key AS kept",
            parameters,
        )
        gone = [str(other) for row in kept for other in entries[row["kept"]].others]
        if gone:
            self._db.execute(
                f"DELETE FROM {self._name} WHERE key IN ({self._db.numbers_in('keys')})",  # noqa: S608 - constants
                {"keys": f"[{','.join(gone)}]"},
            )
        return len(gone)

    def forget(self, device: DeviceKey, *, rows: int) -> list[str]:
        """Delete entries of a device with about `rows` rows in all; return the positions in them."""
        number, keys, positions = 0, [], []
        for key, of_entry, text in self._db.execute(
            f"SELECT key, number, positions FROM {self._name} WHERE device = :device LIMIT :rows",  # noqa: S608 - constants
            {"device": device, "rows": rows},
        ).tuples():
            number += of_entry
            keys.append(str(key))
            positions.append(text)
            if number >= rows:
                break
        self._db.execute(
            f"DELETE FROM {self._name} WHERE key IN ({self._db.numbers_in('keys')})",  # noqa: S608 - constants
            {"keys": f"[{','.join(keys)}]"},
        )
        return positions

    def last_step(self) -> int:
        """The highest position of the last step that has entries; 0 when there are none."""
        row = self._db.execute(f"SELECT max(upto) AS upto FROM {self._name}").one()  # noqa: S608 - constants
        return 0 if row is None else int(row["upto"] or 0)

    def forget_all(self) -> None:
        """Delete all entries."""
        self._db.execute(f"DELETE FROM {self._name}")  # noqa: S608 - constants

    def forget_steps(self, *, behind: int, upto: int, condition: str, parameters: Mapping[str, Any]) -> None:
        """Delete the entries of steps that ended with `behind < position <= upto` and meet a condition."""
        self._db.execute(
            f"DELETE FROM {self._name} WHERE upto > :behind AND upto <= :upto{condition}",  # noqa: S608 - constants
            {**parameters, "behind": behind, "upto": upto},
        )


class _Group:
    """The positions of entries, and how many they are."""

    def __init__(
        self,
        rows: int,
        *,
        descending: bool = False,
        start_ms: Milliseconds | None = None,
        end_ms: Milliseconds | None = None,
    ) -> None:
        self._rows = rows
        self._descending = descending
        self._start_ms = start_ms
        self._end_ms = end_ms
        self._held: list[_Read] = []
        self._number = 0

    @property
    def is_full(self) -> bool:
        return self._number >= self._rows

    def add(self, entry: _Read) -> None:
        self._number += entry[1]
        self._held.append(entry)

    def take(self) -> Iterator[str]:
        """Yield the texts of the entry, an ordered one in parts. Then the entry is empty again."""
        held, self._held, self._number = self._held, [], 0
        if len(held) == 1 and held[0][0] and self._begins_with(held[0]):
            yield from self._parts(held[0][2][1:-1].split(","))
        elif held:
            yield joined([entry[2] for entry in held])
            self._rows = min(2 * self._rows, _GROUP_MOST)

    def _begins_with(self, entry: _Read) -> bool:
        """Whether the first rows of an entry are wanted. Otherwise a part of it might have none that is."""
        return (self._start_ms is None or entry[3] >= self._start_ms) and (
            self._end_ms is None or entry[4] <= self._end_ms
        )

    def _parts(self, positions: list[str]) -> Iterator[str]:
        if self._descending:
            positions.reverse()
        at = 0
        while at < len(positions):
            yield f"[{','.join(positions[at : at + self._rows])}]"
            at += self._rows
            self._rows = min(2 * self._rows, _GROUP_MOST)


def _upwards(entries: Iterable[_Read], group: _Group) -> Iterator[str]:
    last = (-1, 0)
    for entry in entries:
        if group.is_full and _first(entry) > last:
            yield from group.take()
        group.add(entry)
        last = max(last, _last(entry))
    yield from group.take()


def _runs(entries: Iterable[_Read]) -> Iterator[list[_Read]]:
    """Entries in the order of their positions, cut into runs that may be one: few rows, within a day, `ts` rising."""
    run: list[_Read] = []
    number = last = 0
    for entry in entries:
        fits = run and number + entry[1] <= ROWS and entry[3] >= run[-1][3] and entry[1] <= ROWS // 2
        if not fits or max(last, entry[4]) - run[0][3] >= _LONGEST_MS:
            if run:
                yield run
            run, number, last = [], 0, 0
        if entry[1] <= ROWS // 2:
            run.append(entry)
            number += entry[1]
            last = max(last, entry[4])
    if run:
        yield run


def _merged(run: Sequence[_Read]) -> Merged:
    return Merged(
        run[-1][5],
        [entry[5] for entry in run[:-1]],
        run[0][3],
        max(entry[4] for entry in run),
        int(all(entry[0] for entry in run) and all(one[4] <= other[3] for one, other in pairwise(run))),
        sum(entry[1] for entry in run),
        joined([entry[2] for entry in run]),
    )


def _divided(entries: Iterable[_Read], group: _Group) -> Iterator[str]:
    for entry in entries:
        if group.is_full:
            yield from group.take()
        group.add(entry)
    yield from group.take()


def joined(arrays: Sequence[str]) -> str:
    """The JSON texts of arrays that have members as that of one array."""
    return f"[{','.join([array[1:-1] for array in arrays])}]"


def _first(entry: _Read) -> tuple[int, int]:
    """A place before all rows of an entry, or that of the first one."""
    return entry[3], int(entry[2][1:-1].partition(",")[0])


def _last(entry: _Read) -> tuple[int, int]:
    """A place after all rows of an entry, or that of the last one."""
    return entry[4], int(entry[2][1:-1].rpartition(",")[2])
