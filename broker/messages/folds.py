"""The folds of one device: its snapshot and its rollups, computed from its messages.

Messages may come in any order of their `ts`. The bucket with the latest start of each level is open: it is held here as
a whole, and saved with the snapshot. When a later bucket begins, it is closed, and written into the rollups once. A
message that comes late for a closed bucket that is written already is added to it.

A row counts once because the position of the last row is saved in the transaction of everything else.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec
import structlog

from broker.messages.columns import Columns, FieldShape, shape_of
from broker.messages.decoding import Decoded, decode, decoded
from broker.messages.intervals import MINUTE_MS, Interval
from broker.messages.rollups import (
    EVERY_MESSAGE,
    LEVELS,
    Buckets,
    Cells,
    Minutes,
    RollupWriter,
    add_row,
    merge_into,
    newest_buckets,
    summarised,
    values_in,
)
from config.limits import CLOCK_AHEAD_MS
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow, SnapshotRow
from storage.transaction import Transaction

Fields = dict[str, tuple[Milliseconds, Position, Any]]  # dotted path to (ts, position, value)
_Newest = tuple[MessageRow, FieldShape | Mapping[str, Any]]  # a message with its fields, or the shape that it has
Open = dict[Interval, tuple[int, Cells]]  # the newest bucket of each level: its start (ms) and what is in it

#: Rows whose numbers are summed up together: one by one takes ten times as long, and all at once more memory.
_ROWS_AT_ONCE: Final = 512
#: When more values wait in the folds of all devices, a device's are summed up as soon as some are added. A number takes
#: 32 to 40 bytes.
_VALUES_MOST: Final = 1_000_000
#: From this many rows on, it pays to look at columns.
_MANY: Final = 8
#: Rows of a device are added together, because each would touch all held data of the device.
_WAITING: Final = 16
#: Longer rows are added at once: very many devices may have rows that wait.
_WAITING_CHARACTERS: Final = 512

_log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode
decode_fields = msgspec.json.Decoder(Fields).decode
decode_open = msgspec.json.Decoder(Open).decode


class Unsaved(msgspec.Struct, frozen=True):
    """Buckets of a device that the store may lack. `whole` ones replace those of the store, `more` is added to them.

    They are in the store when its snapshot of the device has this position.
    """

    position: Position
    whole: Buckets
    more: Buckets


@dataclass(slots=True)
class FoldTally:
    """The size of all folds in memory: the fields of all their buckets, and the values that are not summed up yet."""

    fields: int = 0
    values: int = 0


class Folds:
    """The snapshot and rollups of a device up to `position`; the store has them up to `saved_position`."""

    __slots__ = (
        "_closed",
        "_fields",
        "_late",
        "_minutes",
        "_newest",
        "_open",
        "_rows",
        "_shape",
        "_size",
        "_sums",
        "_tally",
        "_values",
        "_waiting",
        "device",
        "position",
        "saved_position",
    )

    def __init__(self, device: DeviceKey, saved: SnapshotRow | None, opened: Open, tally: FoldTally) -> None:
        self.device = device
        self._tally = tally
        self.position = self.saved_position = saved.position if saved is not None else Position(0)
        self._fields: Fields = decode_fields(saved.fields) if saved is not None else {}
        # The newest message, as long as those before it had the same fields: it is merged into the fields later.
        self._newest: _Newest | None = None
        self._minutes: Minutes = {}  # not summed up yet
        self._sums: dict[int, Cells] = {}  # of minutes, by their start (ms), which are not in the buckets yet
        self._rows = self._values = 0  # of these minutes
        self._shape: FieldShape | None = None  # of the last rows
        self._waiting: list[MessageRow] = []  # not added yet, though `position` counts them
        self._open = opened
        self._closed: Buckets = {}
        self._late: Buckets = {}
        self._size = 0  # the fields of this device in the tally

    @classmethod
    def load(cls, tx: Transaction, devices: Sequence[DeviceKey], tally: FoldTally) -> "dict[DeviceKey, Folds]":
        saved = tx.snapshots.of_all(devices)
        opened = {device: decode_open(row.open) for device, row in saved.items() if row.open is not None}
        if others := [device for device in devices if device not in opened]:
            # Of a version that wrote every bucket at once. New devices have no rollups.
            opened |= {device: newest_buckets(tx, device) for device in tx.rollups.with_any(others)}
        return {device: cls(device, saved.get(device), opened.get(device, {}), tally) for device in devices}

    # Rows

    def fold(self, rows: Sequence[MessageRow]) -> None:
        """Add rows, in their order; rows that were added before are skipped."""
        if rows[0].position <= self.position:
            rows = rows[bisect_right(rows, self.position, key=attrgetter("position")) :]
            if not rows:
                return
        self.position = rows[-1].position
        waiting = self._waiting
        waiting += rows
        if len(waiting) >= _WAITING:
            self._add()
            return
        for row in rows:
            if len(row.data) > _WAITING_CHARACTERS:
                self._add()
                break

    def _add(self) -> None:
        if not (rows := self._waiting):
            return
        minutes = len(self._minutes)
        values = self._add_columns(rows) if len(rows) >= _MANY else 0
        if not values:
            for row, fields in _decodable(rows):
                add_row(self._minutes, row.ts, fields)
                self._merge(row, fields)
                values += len(fields)
        self._waiting = []  # not before, so that a failure of decoding loses none
        self._rows += len(rows)
        self._values += values
        self._tally.values += values
        if self._rows >= _ROWS_AT_ONCE or self._tally.values > _VALUES_MOST:
            self._summarise()
        elif len(self._minutes) == minutes:
            return
        self._measure()

    def _add_columns(self, rows: Sequence[MessageRow]) -> int:
        """Add rows of one minute that have the same fields; return the number of their values. 0: they are not such
        rows, and nothing was added."""
        stamps = [row.ts for row in rows]
        ordered = sorted(stamps)  # they mostly are, and that takes a quarter of the time of `min` and `max`
        if ordered[0] < ordered[-1] - ordered[-1] % MINUTE_MS:
            return 0
        if (columns := self._columns([row.data for row in rows])) is None:
            return 0
        values = values_in(self._minutes, ordered[-1])
        number = len(rows)
        values[EVERY_MESSAGE].count += number
        for name, column in columns.numbers():
            of_field = values[name]
            of_field.count += number
            of_field.numbers += column
        for name in columns.shape.others:
            values[name].count += number
        newest = number - 1 - stamps[::-1].index(ordered[-1])  # of equal ts the last received
        self._merge(rows[newest], columns.shape)
        return number * len(columns.shape.names)

    def _columns(self, texts: Sequence[str]) -> Columns | None:
        if self._shape is not None and (columns := self._shape.columns(texts)) is not None:
            return columns
        before, self._shape = self._shape, shape_of(texts[0])
        return None if self._shape is None or self._shape is before else self._shape.columns(texts)

    def _merge(self, row: MessageRow, fields: FieldShape | Mapping[str, Any]) -> None:
        newest = self._newest
        if newest is None or not _are_same(fields, newest[1]):
            self._merge_newest()
            self._newest = row, fields
        elif row.ts >= newest[0].ts:
            self._newest = row, fields
        elif newest[0].ts > row.cts + CLOCK_AHEAD_MS:
            self._merge_newest()  # it may have replaced a value that would replace this one
            self._newest = row, fields

    def _merge_newest(self) -> None:
        if self._newest is not None:
            row, fields = self._newest
            merge_fields(self._fields, decode(row.data) if isinstance(fields, FieldShape) else fields, row)
            self._newest = None

    # Buckets

    def _summarise(self) -> None:
        self._add()
        for minute, values in self._minutes.items():
            merge_into(self._sums.setdefault(minute, {}), summarised(values))
        self._tally.values -= self._values
        self._minutes, self._rows, self._values = {}, 0, 0
        if len(self._sums) > 1:
            self._fill_buckets()

    def _fill_buckets(self) -> None:
        for minute, cells in self._sums.items():
            for level, width in LEVELS:
                merge_into(self._bucket(level, minute - minute % width), cells)
        self._sums = {}

    def _catch_up(self) -> None:
        """Bring every row into the buckets."""
        self._summarise()
        self._fill_buckets()
        self._measure()

    def _bucket(self, level: Interval, start: int) -> Cells:
        opened = self._open.get(level)
        if opened is not None and start < opened[0]:
            closed = self._closed.get((level, start))
            return self._late.setdefault((level, start), {}) if closed is None else closed
        if opened is not None and start == opened[0]:
            return opened[1]
        if opened is not None:
            self._closed[level, opened[0]] = opened[1]
        cells: Cells = {}
        self._open[level] = start, cells
        return cells

    # Reading

    def fields(self) -> Fields:
        """A copy of the snapshot."""
        return dict(self._current())

    def _current(self) -> Fields:
        self._add()
        self._merge_newest()
        return self._fields

    def capture(self) -> Unsaved:
        """A copy of the buckets in memory, with the open ones."""
        self._catch_up()
        whole = {(level, start): dict(cells) for level, (start, cells) in self._open.items()} | _copied(self._closed)
        return Unsaved(self.position, whole, _copied(self._late))

    # Writing. No rows are added between the two.

    def unsaved(self) -> tuple[SnapshotRow, Unsaved]:
        """The row and buckets to write. Call `saved` when they are durable."""
        self._catch_up()
        row = SnapshotRow(self.device, self.position, _encode(self._current()).decode(), _encode(self._open).decode())
        return row, Unsaved(self.position, self._closed, self._late)

    def saved(self) -> None:
        """Forget the buckets that `unsaved` returned: they are durable, or cannot be written."""
        self.saved_position = self.position
        self._closed, self._late = {}, {}
        self._measure()

    def _measure(self) -> None:
        size = sum(len(cells) for _, cells in self._open.values())
        parts = (self._minutes, self._sums, self._closed, self._late)
        size += sum(len(held) for part in parts for held in part.values())
        self._tally.fields += size - self._size
        self._size = size

    def enter_tally(self) -> None:
        """This object is held from now on."""
        self._measure()

    def leave_tally(self) -> None:
        """This object is dropped."""
        self._tally.fields -= self._size
        self._tally.values -= self._values


def encoded(part: Fields | Open) -> str:
    """As a snapshot has it."""
    return _encode(part).decode()


def write_folds(tx: Transaction, saves: Sequence[tuple[SnapshotRow, Unsaved]], writer: RollupWriter) -> None:
    """Write the snapshots and buckets of devices, without those of removed devices."""
    there = tx.devices.existing([row.device for row, _ in saves])
    saves = [(row, unsaved) for row, unsaved in saves if row.device in there]
    writer.put(tx, ((row.device, unsaved.whole) for row, unsaved in saves))
    writer.add(tx, ((row.device, unsaved.more) for row, unsaved in saves))
    tx.snapshots.put_all([row for row, _ in saves])


def _are_same(one: FieldShape | Mapping[str, Any], other: FieldShape | Mapping[str, Any]) -> bool:
    """Whether they are the same fields, as far as that is known without decoding."""
    if isinstance(one, FieldShape) or isinstance(other, FieldShape):
        return one is other
    return one.keys() == other.keys()


def merge_fields(fields: Fields, data: Mapping[str, Any], row: MessageRow) -> None:
    """Update fields with a message that came after those before, or again.

    The value with the highest ts counts, of equal ts the last received: a late message never replaces a newer value.
    A value whose ts is far ahead of the time at which a later message came is of a clock that was set back: the later
    message counts (reference 27.7).
    """
    ts, position, ahead_ms = row.ts, row.position, row.cts + CLOCK_AHEAD_MS
    for path, value in data.items():
        known = fields.get(path)
        if known is None or (ts, position) > known[:2] or (known[0] > ahead_ms and position > known[1]):
            fields[path] = (ts, position, value)


def saved_fields(tx: Transaction, device: DeviceKey) -> tuple[Fields, Position]:
    """The snapshot in the store, and the position up to which it has the device's rows."""
    saved = tx.snapshots.of(device)
    return (decode_fields(saved.fields), saved.position) if saved is not None else ({}, Position(0))


def saved_fields_of(tx: Transaction, devices: Sequence[DeviceKey]) -> dict[DeviceKey, Fields]:
    """The snapshots in the store; a device without one is left out."""
    return {device: decode_fields(saved.fields) for device, saved in tx.snapshots.of_all(devices).items()}


def open_buckets(saved: SnapshotRow | None) -> Buckets:
    if saved is None or saved.open is None:
        return {}
    return {(level, start): cells for level, (start, cells) in decode_open(saved.open).items()}


def _decodable(rows: Sequence[MessageRow]) -> Decoded:
    """The rows with their fields, without rows that are damaged in the log."""
    try:
        return decoded(rows)
    except (msgspec.DecodeError, UnicodeError):
        pass
    found = list[tuple[MessageRow, Mapping[str, Any]]]()
    for row in rows:
        try:
            found += decoded([row])
        except (msgspec.DecodeError, UnicodeError):
            _log.error("snapshot_incomplete", position=row.position, device=row.device)
    return found


def _copied(buckets: Buckets) -> Buckets:
    return {place: dict(cells) for place, cells in buckets.items()}
