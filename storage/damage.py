"""Unreadable parts of a store: found while it is used, logged for the operator once an hour for each table.

The functions below go on where a damaged page would stop a caller for ever. They cost something only when it does.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any, Final

import msgspec
import structlog

from config.shown_command import shown_command
from storage.sql import StoreDamagedError

#: Steps of one position behind damage; then the steps double. A page has fewer rows.
_NEAR: Final = 2_000
_TELL_SECONDS: Final = 3600.0
_TABLE: Final = re.compile(r"\b(?:FROM|INTO|UPDATE)\s+(\w+)")
_log = structlog.get_logger(__name__)


def repair_hint() -> str:
    return f"stop the daemon and run: {shown_command('store salvage')}"


class DamageStatistics(msgspec.Struct, frozen=True):
    """`set_aside`: tables that were replaced by empty ones at a start, because nothing could be added to them."""

    failures: int
    tables: tuple[str, ...]
    set_aside: tuple[str, ...]


class Damage:
    """The damage that all connections of one store have met since the start. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._told_at: dict[str, float] = {}
        self._failures = 0
        self.set_aside: tuple[str, ...] = ()

    def met(self, sql: str, reason: str) -> None:
        """Note that a statement failed on a part that cannot be read."""
        found = _TABLE.search(sql)
        table = found[1] if found else "unknown"
        now = monotonic()
        with self._lock:
            self._failures += 1
            told_at = self._told_at.get(table)
            if told_at is not None and now - told_at < _TELL_SECONDS:
                return
            self._told_at[table] = now
        _log.error("store_damaged", table=table, reason=reason, help=repair_hint())

    def is_met(self) -> bool:
        return bool(self._told_at or self.set_aside)

    def statistics(self) -> DamageStatistics:
        with self._lock:
            return DamageStatistics(self._failures, tuple(sorted(self._told_at)), self.set_aside)


def first_readable(is_readable: Callable[[int], bool], position: int, last: int) -> int | None:
    """The first position after `position` from which rows can be read, up to `last`; None when there is none.

    `position` itself is damaged. Behind many damaged positions, the end of the damage is found by halving.
    """
    for near in range(position + 1, min(position + _NEAR, last) + 1):
        if is_readable(near):
            return near
    damaged, step = position + _NEAR, _NEAR
    while damaged < last:
        readable = min(damaged + step, last)
        if is_readable(readable):
            return _halved(is_readable, damaged, readable)
        damaged, step = readable, step * 2
    return None


def _halved(is_readable: Callable[[int], bool], damaged: int, readable: int) -> int:
    while readable - damaged > 1:
        middle = (damaged + readable) // 2
        if is_readable(middle):
            readable = middle
        else:
            damaged = middle
    return readable


def read_past_damage(
    read: Callable[[int, int | None], Iterator[Sequence[Any]]], first: int, last: Callable[[], int]
) -> Iterator[Sequence[Any]]:
    """The rows from the position `first` on. Unreadable rows are skipped.

    Args:
        read: up to a number of rows from a position on, in order; the position is the first value of each row. (The
            search for the rows behind a position would begin on the page of that position, which may be damaged.)
        first: where to begin.
        last: the highest position of a row, asked for when there is damage.
    """

    def is_readable(at: int) -> bool:
        try:
            next(read(at, 1), None)
        except StoreDamagedError:
            return False
        return True

    at: int | None = first
    while at is not None:
        try:
            for row in read(at, None):
                yield row
                at = row[0] + 1
        except StoreDamagedError:
            pass
        else:
            return
        # Python's driver reads a row ahead: the last rows before the damage are read one by one.
        with suppress(StoreDamagedError):
            while (single := next(read(at, 1), None)) is not None:
                yield single
                at = single[0] + 1
            return
        at = first_readable(is_readable, at, last())
