"""Counts a device's rollups and its snapshot again after messages in a range of times were deleted.

A bucket that the range touches is counted again from the messages that are left. That takes long for a day with
very many of them, so it is done beside the projector, up to a position; then the projector writes the device's folds,
and the result takes the place of what the store has, in one transaction with the rows that came since.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import trio

from broker.messages.decoding import decode, flat
from broker.messages.folds import Fields, Open, decode_fields, decode_open, encoded
from broker.messages.projections import Projector
from broker.messages.rollups import (
    EVERY_MESSAGE,
    LEVELS,
    Buckets,
    RollupWriter,
    add_row,
    merge_into,
    newest_buckets,
    summarised,
    summary_of,
    values_in,
)
from storage.database import Database, Transaction
from storage.keys import DeviceKey, Milliseconds, Position
from storage.leases import Holder
from storage.message_searches import Range, SortKey
from storage.records import MessageRow, SnapshotRow
from storage.sql import StoreError

_ROWS: Final = 500  # read at a time
#: Rollups that are deleted in one step at most: a day of the minutes of one field.
_STEP_ROLLUPS: Final = 1_440
_PAUSE_SECONDS: Final = 0.01
#: Rows that came while it was counted, and that are added while the projector waits.
_MORE_ROWS: Final = 2_000
_TRIES: Final = 10

_Found = dict[str, tuple[Milliseconds, Position, Any]]


class Erased(msgspec.Struct, frozen=True):
    """Messages of a device that were deleted: those with `start_ms <= ts <= end_ms` up to the position `head`."""

    device: DeviceKey
    start_ms: Milliseconds
    end_ms: Milliseconds
    head: Position

    def has(self, ts: int, position: int) -> bool:
        return self.start_ms <= ts <= self.end_ms and position <= self.head

    def first_and_last(self, width: int) -> tuple[int, int]:
        """The starts of the first and the last bucket that the range touches."""
        return self.start_ms - self.start_ms % width, self.end_ms - self.end_ms % width


class Recounts:
    def __init__(self, database: Database, projector: Projector, lease: Holder) -> None:
        self._database, self._projector, self._lease = database, projector, lease

    async def recount(self, erased: Erased) -> None:
        """Bring rollups and snapshot in accord with the messages that are left. Raises StoreError."""
        upto = await self._projector.caught_up(erased.device)
        buckets = await self._counted(erased, upto)
        fields = await self._newest(erased, upto)
        await self._delete_old(erased)
        for _ in range(_TRIES):
            upto = await self._follow(erased, buckets, fields, upto)
            work = partial(_replace, erased, buckets, fields, upto)
            if await self._projector.rewrite(erased.device, work):
                return
        raise StoreError("messages come faster than they are counted again")

    async def _follow(self, erased: Erased, buckets: Buckets, found: _Found, upto: Position) -> Position:
        """Count the rows that came since, so that few are left to count while the projector waits."""
        until = await self._projector.caught_up(erased.device)
        while upto < until:
            search = Range(None, None, behind=upto, until=until, by_arrival=True, limit=_ROWS)
            rows = await self._database.read(partial(_page, erased.device, search))
            _add(buckets, erased, rows)
            _note_newest(found, rows)
            if len(rows) < _ROWS:
                break
            upto = rows[-1].position
            await trio.sleep(_PAUSE_SECONDS)
        return until

    async def _counted(self, erased: Erased, upto: Position) -> Buckets:
        """The buckets that the range touches."""
        _, width = LEVELS[-1]
        first, last = erased.first_and_last(width)
        buckets: Buckets = {}
        place: SortKey | None = None
        while True:
            search = Range(Milliseconds(first), Milliseconds(last + width - 1), limit=_ROWS, after=place, until=upto)
            rows = await self._database.read(partial(_page, erased.device, search))
            _add(buckets, erased, rows)
            if len(rows) < _ROWS:
                return buckets
            place = (rows[-1].ts, rows[-1].position)
            await trio.sleep(_PAUSE_SECONDS)

    async def _newest(self, erased: Erased, upto: Position) -> _Found:
        """The values that take the place of deleted ones in the snapshot."""
        saved = await self._database.read(lambda tx: tx.snapshots.of(erased.device))
        fields: Fields = {} if saved is None else decode_fields(saved.fields)
        missing = {path for path, (ts, position, _) in fields.items() if erased.has(ts, position)}
        found: _Found = {}
        place: SortKey | None = None
        while missing:
            search = Range(None, erased.end_ms, limit=_ROWS, before=place, until=upto, descending=True)
            rows = await self._database.read(partial(_page, erased.device, search))
            for row in rows:
                values = flat(decode(row.data))
                for path in missing.intersection(values):
                    found[path] = (row.ts, row.position, values[path])
                missing -= found.keys()
            if len(rows) < _ROWS:
                break
            place = (rows[-1].ts, rows[-1].position)
            await trio.sleep(_PAUSE_SECONDS)
        return found

    async def _delete_old(self, erased: Erased) -> None:
        """Delete most of the buckets that the range touches, in steps."""
        for level, width in LEVELS:
            first, last = erased.first_and_last(width)
            while found := await self._database.read(partial(_first_buckets, erased.device, level, first, last)):
                upto = min(last, min(bucket for _, bucket in found) + (_STEP_ROLLUPS - 1) * width)
                for field, bucket in found:
                    if bucket <= upto:
                        await self._database.write_own(
                            self._lease, partial(_delete_buckets, erased.device, level, field, bucket, upto)
                        )
                        await trio.sleep(_PAUSE_SECONDS)


def _page(device: DeviceKey, search: Range, tx: Transaction) -> list[MessageRow]:
    return tx.message_searches.page([device], search)


def _first_buckets(device: DeviceKey, level: str, first: int, last: int, tx: Transaction) -> list[tuple[int, int]]:
    return tx.erasures.first_buckets(device, level, first, last)


def _delete_buckets(device: DeviceKey, level: str, field: int, first: int, last: int, tx: Transaction) -> None:
    tx.erasures.delete_buckets(device, level, [field], first, last)


def _add(buckets: Buckets, erased: Erased, rows: Iterable[MessageRow]) -> None:
    """Count rows in the buckets that the range touches."""
    for row in rows:
        fields = flat(decode(row.data))
        for level, width in LEVELS:
            first, last = erased.first_and_last(width)
            start = row.ts - row.ts % width
            if first <= start <= last:
                minutes: Any = {}
                add_row(minutes, row.ts, fields)
                merge_into(buckets.setdefault((level, start), {}), summarised(values_in(minutes, row.ts)))


def _replace(erased: Erased, counted: Buckets, newest: _Found, upto: Position, tx: Transaction) -> bool:
    """Put what was counted up to a position, and the rows behind it, in the place of what the store has.

    False: too many rows came since.
    """
    device = erased.device
    if (saved := tx.snapshots.of(device)) is None or tx.devices.device(device) is None:
        return True
    behind = Range(None, None, behind=upto, until=saved.position, by_arrival=True, limit=_MORE_ROWS + 1)
    rows: Sequence[MessageRow] = tx.message_searches.page([device], behind) if saved.position > upto else []
    if len(rows) > _MORE_ROWS:
        return False
    buckets = {place: dict(cells) for place, cells in counted.items()}
    _add(buckets, erased, rows)
    opened = decode_open(saved.open) if saved.open is not None else newest_buckets(tx, device)
    for level, width in LEVELS:
        first, last = erased.first_and_last(width)
        for field, bucket in tx.erasures.first_buckets(device, level, first, last):
            tx.erasures.delete_buckets(device, level, [field], bucket, last)
    RollupWriter().put(tx, [(device, buckets)])
    for level, width in LEVELS:
        first, last = erased.first_and_last(width)
        if level in opened and first <= opened[level][0] <= last:
            _open_newest(tx, device, level, opened)
    fields = _mended(decode_fields(saved.fields), erased, newest, rows)
    tx.snapshots.put_all([SnapshotRow(device, saved.position, encoded(fields), encoded(opened))])
    return True


def _open_newest(tx: Transaction, device: DeviceKey, level: Any, opened: Open) -> None:
    """The newest bucket that the store has is the open one."""
    del opened[level]
    if (start := tx.rollups.last(device, EVERY_MESSAGE, level)) is not None:
        opened[level] = start, {path: summary_of(row) for path, row in tx.rollups.in_bucket(device, level, start)}


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
