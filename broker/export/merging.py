"""Merges the messages of many devices into one order, read piece by piece, with a transaction for each piece.

One run, a sorted list of rows, of each device is in memory. Rows up to the earliest end among the runs that may
continue are complete, and are sorted together: that costs a fraction of merging row by row with a heap.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from storage.database import Transaction
from storage.keys import DeviceKey, Milliseconds, Position
from storage.message_searches import Range, SortKey, sort_key
from storage.records import MessageRow

_HELD_ROWS = 20_000  # of all devices together
_LEAST_ROWS = 20  # of one device at a time

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
        self._start_ms, self._end_ms, self._head = start_ms, end_ms, head
        self._descending = descending
        self._key: _Key = sort_key
        if descending:
            self._key = lambda row: (Milliseconds(-row.ts), Position(-row.position))
        self._rows_at_once = max(_LEAST_ROWS, _HELD_ROWS // max(1, len(devices)))
        self._places: dict[DeviceKey, SortKey | None] = dict.fromkeys(
            devices, place
        )  # of devices with more rows; None: from the beginning
        self._runs: dict[DeviceKey, list[MessageRow]] = {}
        self._ready: list[MessageRow] = []  # in order, the next one first

    def take(self, tx: Transaction, count: int) -> list[MessageRow]:
        """The next rows; fewer than `count` only at the end."""
        while len(self._ready) < count and (self._places or self._runs):
            self._ready += self._next(tx)
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

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
        rows: list[MessageRow] = []
        while not rows and device in self._places:
            place = self._places[device]
            search = Range(
                self._start_ms,
                self._end_ms,
                limit=self._rows_at_once,
                after=None if self._descending else place,
                before=place if self._descending else None,
                descending=self._descending,
            )
            found = tx.message_searches.page([device], search)
            if len(found) < self._rows_at_once:
                del self._places[device]
            else:
                self._places[device] = (found[-1].ts, found[-1].position)
            rows = [row for row in found if row.position <= self._head]
        if rows:
            self._runs[device] = self._runs.get(device, []) + rows
