"""The messages of many devices in one order, read piece by piece, with a transaction for each piece.

A piece is a window of time, of all devices in a few statements: each statement waits for the interpreter lock beside a
busy event loop, so that one for each device takes most of the time. A window is as long as it has about as many rows as
may be held.

One moment may have more rows than may be held, and a window may have rows that cannot be read. Such a window is read by
device: one run, a sorted list of rows, of each device is in memory. Rows up to the earliest end among the runs that may
continue are complete, and are sorted together: that costs a fraction of merging row by row with a heap.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from config.limits import EXPORT_ENTRY_MESSAGES
from storage.keys import DeviceKey, Milliseconds, Position
from storage.message_searches import Range, SortKey, sort_key
from storage.records import MessageRow
from storage.sql import StoreDamagedError
from storage.transaction import Transaction

_HELD_ROWS = 20_000  # of all devices together
_LEAST_ROWS = 20  # of one device at a time
_SHORTER, _LONGER = 4, 8  # times, of the next window at most

_Key = Callable[[MessageRow], SortKey]


class MergedRows:
    """Rows with `start_ms <= ts <= end_ms` up to the position `head`, after `place`."""

    def __init__(
        self,
        devices: Sequence[DeviceKey],
        *,
        start_ms: Milliseconds,
        end_ms: Milliseconds,
        head: Position,
        descending: bool,
        place: SortKey | None,
    ) -> None:
        self._devices, self._head, self._descending, self._place = devices, head, descending, place
        #: The time that is left, and how much of it the next window has.
        self._start_ms, self._end_ms = start_ms, end_ms
        if place is not None and descending:
            self._end_ms = min(end_ms, place[0])
        elif place is not None:
            self._start_ms = max(start_ms, place[0])
        self._length = self._end_ms - self._start_ms + 1
        self._runs: _Runs | None = None
        self._ready: list[MessageRow] = []  # in order, the next one first

    def take(self, tx: Transaction, count: int) -> list[MessageRow]:
        """The next rows; fewer than `count` only at the end."""
        while len(self._ready) < count and (self._runs is not None or self._start_ms <= self._end_ms):
            self._ready += self._next(tx)
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def _next(self, tx: Transaction) -> list[MessageRow]:
        if self._runs is not None:
            if rows := self._runs.next(tx):
                return rows
            self._runs = None
            return []
        first, last = self._start_ms, self._end_ms
        if self._descending:
            first = max(first, Milliseconds(last - self._length + 1))
        else:
            last = min(last, Milliseconds(first + self._length - 1))
        after, before = (None, self._place) if self._descending else (self._place, None)
        window = Range(first, last, after=after, before=before, until=self._head, descending=self._descending)
        try:
            found = tx.message_searches.between(self._devices, window, most=2 * _HELD_ROWS)
        except StoreDamagedError:
            found = None
            self._runs = _Runs(self._devices, window)
        if found is None and self._runs is None:
            if first < last:
                self._length = max(1, (last - first + 1) // _SHORTER)
                return []
            self._runs = _Runs(self._devices, window)
        if self._descending:
            self._end_ms = Milliseconds(first - 1)
        else:
            self._start_ms = Milliseconds(last + 1)
        if found is None:
            return []
        self._length = max(1, self._length * _HELD_ROWS // max(len(found), _HELD_ROWS // _LONGER))
        return found


def take_existing(tx: Transaction, rows: MergedRows, devices: Collection[DeviceKey]) -> list[MessageRow]:
    """The next rows of these devices, except rows of deleted ones, which no query returns (reference 6.1)."""
    while taken := rows.take(tx, EXPORT_ENTRY_MESSAGES):
        there = {key for key in {row.device for row in taken}.intersection(devices) if tx.devices.device(key)}
        if found := [row for row in taken if row.device in there]:
            return found
    return []


class _Runs:
    """The rows of a window, read by device."""

    def __init__(self, devices: Sequence[DeviceKey], window: Range) -> None:
        self._window = window
        self._key: _Key = sort_key
        if window.descending:
            self._key = lambda row: (Milliseconds(-row.ts), Position(-row.position))
        self._rows_at_once = max(_LEAST_ROWS, _HELD_ROWS // max(1, len(devices)))
        #: Of devices with more rows.
        place = window.before if window.descending else window.after
        self._places: dict[DeviceKey, SortKey | None] = dict.fromkeys(devices, place)
        self._runs: dict[DeviceKey, list[MessageRow]] = {}

    def next(self, tx: Transaction) -> list[MessageRow]:
        """The next rows; none only at the end."""
        rows: list[MessageRow] = []
        while not rows and (self._places or self._runs):
            rows = self._next(tx)
        return rows

    def _next(self, tx: Transaction) -> list[MessageRow]:
        for device in list(self._places):
            # Lengthen short runs together with empty ones, so that the next step is a long one.
            if len(self._runs.get(device, ())) < self._rows_at_once // 2:
                self._read(tx, device)
        ends = [self._key(self._runs[device][-1]) for device in self._places]
        if not ends:
            rows = [row for run in self._runs.values() for row in run]
            self._runs = {}
        else:
            rows = self._upto(min(ends))
        rows.sort(key=self._key)
        return rows

    def _upto(self, end: SortKey) -> list[MessageRow]:
        rows: list[MessageRow] = []
        for device, run in list(self._runs.items()):
            index = bisect_right(run, end, key=self._key)
            rows += run[:index]
            if index == len(run):
                del self._runs[device]
            else:
                self._runs[device] = run[index:]
        return rows

    def _read(self, tx: Transaction, device: DeviceKey) -> None:
        place = self._places[device]
        after, before = (None, place) if self._window.descending else (place, None)
        search = replace(self._window, limit=self._rows_at_once, after=after, before=before)
        rows = tx.message_searches.page([device], search)
        if len(rows) < self._rows_at_once:
            del self._places[device]
        else:
            self._places[device] = (rows[-1].ts, rows[-1].position)
        if rows:
            self._runs[device] = self._runs.get(device, []) + rows
