"""Counts a device's rollups and its snapshot again after messages in a range of times were deleted.

A bucket that the range touches is counted again from the messages that are left. That takes long for a day with
very many of them, and there are as many buckets as the range has minutes; so it is done in steps, beside the projector.
Each step reads a page of messages, deletes some buckets, or has the projector write the device's folds and puts some
buckets, with the rows that came since, in the place of what the store has. The caller gives the turns of the steps.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from broker.messages.decoding import decode, decoded, flat
from broker.messages.folds import Fields, Open, decode_fields, decode_open, encoded
from broker.messages.intervals import Interval
from broker.messages.projections import Projector
from broker.messages.rollups import (
    EVERY_MESSAGE,
    LEVELS,
    Cells,
    RollupWriter,
    collect,
    merge_into,
    newest_buckets,
    summarised,
    summary_of,
)
from storage.database import Database
from storage.keys import DeviceKey, Milliseconds, Position
from storage.leases import Holder
from storage.message_searches import Range, SortKey
from storage.records import MessageRow, SnapshotRow
from storage.sql import StoreError
from storage.transaction import Transaction

_ROWS: Final = 500  # read at a time
_ROWS_AT_ONCE: Final = 50  # counted until it is enough for a step
#: Rollups that are deleted in one step at most: a day of the minutes of one field.
_STEP_ROLLUPS: Final = 1_440
#: Rollups that are put in one step at most: about these, or those of one bucket.
_STEP_CELLS: Final = 2_000
#: Rows that came while it was counted, and that are added while the projector and the writer wait; with each try more.
_MORE_ROWS: Final = 250
_TRIES: Final = 20

T = TypeVar("T")
_Found = dict[str, tuple[Milliseconds, Position, Any]]
_Counted = dict[int, Cells]  # by the start of the bucket
#: A step is taken while the block lasts; then others have their turn.
Turn = Callable[[], AbstractAsyncContextManager[None]]


class Erased(msgspec.Struct, frozen=True):
    """Messages of a device that were deleted: those with `start_ms <= ts <= end_ms` up to the position `head`."""

    device: DeviceKey
    start_ms: Milliseconds
    end_ms: Milliseconds
    head: Position

    def has(self, ts: int, position: int) -> bool:
        return self.start_ms <= ts <= self.end_ms and position <= self.head

    def part(self, level: Interval, width: int) -> "_Part":
        """The buckets of a level that the range touches."""
        return _Part(
            self.device, level, width, self.start_ms - self.start_ms % width, self.end_ms - self.end_ms % width
        )


class _Part(msgspec.Struct, frozen=True):
    """The buckets of a device and a level that begin from `first` to `last`."""

    device: DeviceKey
    level: Interval
    width: int
    first: int
    last: int


class _Page(NamedTuple):
    counted: _Counted
    place: SortKey | None  # of the last row; None: there are no more


class Recounts:
    def __init__(self, database: Database, projector: Projector, lease: Holder) -> None:
        self._database, self._projector, self._lease = database, projector, lease

    async def recount(self, erased: Erased, turn: Turn) -> None:
        """Bring rollups and snapshot in accord with the messages that are left. Raises StoreError."""
        for level, width in LEVELS:
            part = erased.part(level, width)
            while part.first <= part.last:
                done = await self._recount_some(part, turn)
                part = msgspec.structs.replace(part, first=done + width)
        await self._mend_snapshot(erased, turn)

    async def _recount_some(self, whole: _Part, turn: Turn) -> int:
        """Count the first buckets of a part again; return the start of the last one of them."""
        upto = await self._caught_up(whole.device, turn)
        counted, part = await self._counted(whole, upto, turn)
        await self._delete_old(part, turn)
        for number in range(1, _TRIES + 1):
            counted, upto = await self._follow(part, counted, upto, turn)
            counted, part = _first_of(part, counted)
            async with turn():
                is_done = await self._projector.rewrite(
                    part.device, partial(_replace, part, counted, upto, number * _MORE_ROWS)
                )
            if is_done:
                return part.last
        raise StoreError("messages come faster than they are counted again")

    async def _caught_up(self, device: DeviceKey, turn: Turn) -> Position:
        async with turn():
            return await self._projector.caught_up(device)

    async def _read(self, turn: Turn, work: Callable[[Transaction], T]) -> T:
        async with turn():
            return await self._database.read(work)

    async def _counted(self, whole: _Part, upto: Position, turn: Turn) -> tuple[_Counted, _Part]:
        """The first buckets of a part, as many as are put in one step; and the part that they are."""
        counted, place = _Counted(), None
        end = Milliseconds(whole.last + whole.width - 1)
        while True:
            search = Range(Milliseconds(whole.first), end, limit=_ROWS, after=place, until=upto)
            counted, place = await self._read(turn, partial(_count_page, whole, search, counted))
            if place is None:
                return _first_of(whole, counted)
            if _is_enough(counted):
                newest = max(counted)  # more rows of it may come
                del counted[newest]
                return _first_of(msgspec.structs.replace(whole, last=newest - whole.width), counted)

    async def _follow(self, part: _Part, counted: _Counted, upto: Position, turn: Turn) -> tuple[_Counted, Position]:
        """Count the rows that came since, so that few are left to count while the writer waits."""
        until = await self._caught_up(part.device, turn)
        while upto < until:
            search = Range(None, None, behind=upto, until=until, by_arrival=True, limit=_ROWS)
            counted, place = await self._read(turn, partial(_count_page, part, search, counted))
            if place is None:
                break
            upto = place[1]
        return counted, until

    async def _delete_old(self, part: _Part, turn: Turn) -> None:
        """Delete most of the buckets of a part, in steps."""
        while found := await self._read(turn, partial(_first_buckets, part)):
            first = min(bucket for _, bucket in found)
            last = min(part.last, first + (_STEP_ROLLUPS - 1) * part.width)
            fields = [field for field, bucket in found if bucket <= last]
            at_once = max(1, _STEP_ROLLUPS * part.width // (last - first + part.width))
            for place in range(0, len(fields), at_once):
                some = fields[place : place + at_once]
                async with turn():
                    await self._database.write_own(self._lease, partial(_delete_buckets, part, some, first, last))

    async def _mend_snapshot(self, erased: Erased, turn: Turn) -> None:
        """Put older values in the place of deleted ones."""
        upto = await self._caught_up(erased.device, turn)
        found = await self._newest(erased, upto, turn)
        for number in range(1, _TRIES + 1):
            until = await self._caught_up(erased.device, turn)
            while upto < until:
                search = Range(None, None, behind=upto, until=until, by_arrival=True, limit=_ROWS)
                rows = await self._read(turn, partial(_page, erased.device, search))
                _note_newest(found, rows)
                if len(rows) < _ROWS:
                    break
                upto = rows[-1].position
            upto = until
            async with turn():
                work = partial(_mend, erased, found, upto, number * _MORE_ROWS)
                is_done = await self._projector.rewrite(erased.device, work)
            if is_done:
                return
        raise StoreError("messages come faster than they are counted again")

    async def _newest(self, erased: Erased, upto: Position, turn: Turn) -> _Found:
        """The values that take the place of deleted ones in the snapshot."""
        saved = await self._read(turn, lambda tx: tx.snapshots.of(erased.device))
        fields: Fields = {} if saved is None else decode_fields(saved.fields)
        missing = frozenset(path for path, (ts, position, _) in fields.items() if erased.has(ts, position))
        found: _Found = {}
        place: SortKey | None = None
        while missing:
            search = Range(None, erased.end_ms, limit=_ROWS, before=place, until=upto, descending=True)
            some, place = await self._read(turn, partial(_newest_in_page, erased.device, search, missing))
            found |= some
            missing -= some.keys()
            if place is None:
                break
        return found


def _page(device: DeviceKey, search: Range, tx: Transaction) -> list[MessageRow]:
    return tx.message_searches.page([device], search)


def _count_page(part: _Part, search: Range, before: _Counted, tx: Transaction) -> _Page:
    """Count a page of rows, in the reader's thread, since it takes long. `before` is counted already."""
    rows = _page(part.device, search, tx)
    counted = before
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        counted = _added(part, counted, some)
        if _is_enough(counted) and not search.by_arrival:
            return _Page(counted, (some[-1].ts, some[-1].position))
    return _Page(counted, _place_behind(rows))


def _is_enough(counted: _Counted) -> bool:
    return len(counted) > 1 and sum(map(len, counted.values())) >= _STEP_CELLS


def _first_of(part: _Part, counted: _Counted) -> tuple[_Counted, _Part]:
    """As many buckets of a part as are put in one step, and the part that they are."""
    kept, cells = _Counted(), 0
    for start in sorted(counted):
        cells += len(counted[start])
        if kept and cells > _STEP_CELLS:
            return kept, msgspec.structs.replace(part, last=start - part.width)
        kept[start] = counted[start]
    return kept, part


def _newest_in_page(
    device: DeviceKey, search: Range, missing: frozenset[str], tx: Transaction
) -> tuple[_Found, SortKey | None]:
    rows, found = _page(device, search, tx), _Found()
    for row in rows:
        values = flat(decode(row.data))
        for path in missing.intersection(values) - found.keys():
            found[path] = (row.ts, row.position, values[path])
    return found, _place_behind(rows)


def _place_behind(rows: Sequence[MessageRow]) -> SortKey | None:
    """Where the next page begins; None: there is none."""
    return (rows[-1].ts, rows[-1].position) if len(rows) >= _ROWS else None


def _first_buckets(part: _Part, tx: Transaction) -> list[tuple[int, int]]:
    return tx.erasures.first_buckets(part.device, part.level, part.first, part.last)


def _delete_buckets(part: _Part, fields: Sequence[int], first: int, last: int, tx: Transaction) -> None:
    tx.erasures.delete_buckets(part.device, part.level, fields, first, last)


def _added(part: _Part, before: _Counted, rows: Sequence[MessageRow]) -> _Counted:
    """Add rows of the part to the count before, which stays as it is."""
    counted, own = dict(before), set[int]()
    inside = [row for row in rows if part.first <= row.ts - row.ts % part.width <= part.last]
    for minute, values in collect(decoded(inside)).items():
        start = minute - minute % part.width
        if start not in own:
            own.add(start)
            counted[start] = dict(counted.get(start, ()))
        merge_into(counted[start], summarised(values))
    return counted


def _replace(part: _Part, counted: _Counted, upto: Position, most: int, tx: Transaction) -> bool:
    """Put what was counted up to a position, and the rows behind it, in the place of what the store has.

    False: more than `most` rows came since.
    """
    device = part.device
    if (saved := tx.snapshots.of(device)) is None or tx.devices.device(device) is None:
        return True
    if (rows := _rows_since(tx, device, upto, saved.position, most)) is None:
        return False
    opened = decode_open(saved.open) if saved.open is not None else newest_buckets(tx, device)
    if fields := [field for field, _ in _first_buckets(part, tx)]:
        _delete_buckets(part, fields, part.first, part.last, tx)
    buckets = {(part.level, start): cells for start, cells in _added(part, counted, rows).items()}
    RollupWriter().put(tx, [(device, buckets)])
    if part.level in opened and part.first <= opened[part.level][0] <= part.last:
        _open_newest(tx, device, part.level, opened)
        tx.snapshots.put_all([SnapshotRow(device, saved.position, saved.fields, encoded(opened))])
    return True


def _rows_since(
    tx: Transaction, device: DeviceKey, upto: Position, until: Position, most: int
) -> list[MessageRow] | None:
    """The rows behind a position; None: they are more than `most`."""
    if until <= upto:
        return []
    rows = _page(device, Range(None, None, behind=upto, until=until, by_arrival=True, limit=most + 1), tx)
    return rows if len(rows) <= most else None


def _open_newest(tx: Transaction, device: DeviceKey, level: Any, opened: Open) -> None:
    """The newest bucket that the store has is the open one."""
    del opened[level]
    if (start := tx.rollups.last(device, EVERY_MESSAGE, level)) is not None:
        opened[level] = start, {path: summary_of(row) for path, row in tx.rollups.in_bucket(device, level, start)}


def _mend(erased: Erased, newest: _Found, upto: Position, most: int, tx: Transaction) -> bool:
    """Take deleted values out of the snapshot. False: more than `most` rows came since."""
    device = erased.device
    if (saved := tx.snapshots.of(device)) is None or tx.devices.device(device) is None:
        return True
    if (rows := _rows_since(tx, device, upto, saved.position, most)) is None:
        return False
    fields = _mended(decode_fields(saved.fields), erased, newest, rows)
    tx.snapshots.put_all([SnapshotRow(device, saved.position, encoded(fields), saved.open)])
    return True


def _mended(fields: Fields, erased: Erased, newest: _Found, rows: Iterable[MessageRow]) -> Fields:
    """The snapshot without deleted values. Late rows that came since may be newer than what was found."""
    gone = {path for path, (ts, position, _) in fields.items() if erased.has(ts, position)}
    found = dict(newest)
    _note_newest(found, rows)
    kept = {path: value for path, value in fields.items() if path not in gone}
    return kept | {path: value for path, value in found.items() if path in gone}


def _note_newest(found: _Found, rows: Iterable[MessageRow]) -> None:
    for row in rows:
        for path, value in flat(decode(row.data)).items():
            if path not in found or (row.ts, row.position) > found[path][:2]:
                found[path] = (row.ts, row.position, value)
