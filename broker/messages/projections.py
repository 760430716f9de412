"""Projections of the message log: tables, such as snapshots and rollups, that are computed from the log.

The position of the projections is saved in the same transaction as their tables, so after a crash they resume there: no
row is lost and none counts twice. All projections share one position, one read and one decoding of each row.

Rows that were committed lately are held in memory. When there are too many of them, they are dropped and later read
from the log.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog
import trio

from broker.facts import FactPhase, MessagesStored, Router
from broker.loops import Wakeup, repeat
from broker.messages.intervals import FIRST_MS, LAST_MS
from storage.database import Database, Transaction
from storage.keys import DeviceKey, Milliseconds, Position
from storage.records import MessageRow
from storage.sql import StoreDamagedError

# Rows that are not projected yet are read from the log. A step writes each changed bucket and snapshot once, however
# many rows changed it, so seldom steps are cheap.
PROJECTION_FLUSH_SECONDS = 5.0
# Rows of one step: others wait for the writer meanwhile. The number of devices decides how much a step writes.
_STEP_ROWS = 5_000
_STEP_ROWS_OF_FEW = 25_000
_FEW_DEVICES = 500
_HELD_ROWS = 50_000
#: A stop is not held up by rows that are in the log and can be projected later.
_SAVE_SECONDS = 2.0
_CONSUMER = "folds"
_log = structlog.get_logger(__name__)
_decode = msgspec.json.Decoder(dict[str, Any]).decode

#: Rows, each with its fields by dotted path.
Decoded = Sequence[tuple[MessageRow, Mapping[str, Any]]]
SaveProjection = Callable[[Transaction], None]


class Projection(Protocol):
    """A table for each device that each message changes."""

    def project(self, tx: Transaction, rows: Decoded) -> SaveProjection:
        """Compute, in a read transaction, what these rows change; the returned function writes the changes."""

    def forget(self) -> None:
        """Drop what is remembered: the last step may not have been saved."""


@dataclass(frozen=True, slots=True)
class ProjectorStatistics:
    position: Position
    held_rows: int


class Projector:
    """Brings the projections up to date with the log."""

    def __init__(self, database: Database, router: Router, projections: Sequence[Projection]) -> None:
        self._database = database
        self._projections = projections
        self._position = Position(0)
        self._held: deque[Sequence[MessageRow]] = deque()
        self._held_rows = 0
        self._follows = False  # the held rows follow `_position` without a gap
        self._full = Wakeup()
        self._flushing = trio.Lock()
        router.subscribe(MessagesStored, self._messages_stored, FactPhase.STATE)

    @property
    def position(self) -> Position:
        """Every row up to this position is projected."""
        return self._position

    def _messages_stored(self, fact: MessagesStored) -> None:
        self._held.append(fact.rows)
        self._held_rows += len(fact.rows)
        if self._held_rows >= _HELD_ROWS // 2:
            self._full.set()
        if self._held_rows > _HELD_ROWS:
            self._held, self._held_rows, self._follows = deque(), 0, False

    async def resume(self) -> None:
        """Read the position of the last run. Rows after it are projected while the daemon runs."""
        self._position = await self._database.read(lambda tx: tx.messages.consumer_position(_CONSUMER))

    async def flush(self) -> None:
        """Project everything that is durable now.

        Rows that are stored meanwhile wait for the next flush: under load there are always more, and a step of a few
        rows writes nearly as many buckets as a step of thousands.
        """
        async with self._flushing:
            until = self._held[-1][-1].position if self._held else 0
            try:
                while not self._follows or (self._held and self._held[0][0].position <= until):
                    if self._follows:
                        await self._step(self._take_held())
                    else:
                        await self._read_on()
            except BaseException:  # also a cancellation leaves rows that were taken and not projected; raised again
                self._lose_track()
                raise

    async def save(self) -> None:
        """Project for a short time, when the daemon stops: what remains is projected after the next start."""
        with trio.move_on_after(_SAVE_SECONDS):
            await self.flush()

    async def _read_on(self) -> None:
        # From now on every commit is held. `_step` compares positions, so a row that is held and read counts once.
        self._held, self._held_rows, self._follows = deque(), 0, True
        is_behind = True
        while self._follows and is_behind:
            rows = await self._database.read(partial(_after, self._position))
            await self._step(rows)
            is_behind = len(rows) == _STEP_ROWS

    def _lose_track(self) -> None:
        self._follows = False  # rows that were taken are read from the log next time
        for one in self._projections:
            one.forget()

    def _take_held(self) -> list[MessageRow]:
        rows = self._take_up_to(_STEP_ROWS)
        if self._held and len({row.device for row in rows}) <= _FEW_DEVICES:
            rows += self._take_up_to(_STEP_ROWS_OF_FEW - len(rows))
        return rows

    def _take_up_to(self, most: int) -> list[MessageRow]:
        rows: list[MessageRow] = []
        while self._held and len(rows) < most:
            rows += self._held.popleft()
        if len(rows) > most:
            self._held.appendleft(rows[most:])
            del rows[most:]
        self._held_rows -= len(rows)
        return rows

    async def _step(self, rows: Sequence[MessageRow]) -> None:
        position = self._position
        fresh = [row for row in rows if row.position > position]
        if not fresh:
            return
        last = fresh[-1].position
        try:
            saves = await self._database.read(partial(_project, self._projections, fresh))
            stood = await self._database.write(partial(_save, saves, position, last))
        except StoreDamagedError:
            await self._step_around(fresh)
            return
        self._saved(stood, last)

    def _saved(self, stood: Position, last: Position) -> None:
        if stood == self._position:
            self._position = last
        else:
            self._position = stood
            self._lose_track()

    async def _step_around(self, rows: Sequence[MessageRow]) -> None:
        """Project the rows in halves; leave out a row whose snapshot or rollup is on a page that cannot be read."""
        for one in self._projections:
            one.forget()
        if len(rows) == 1:
            last = rows[0].position
            _log.error("message_not_in_folds", position=last, device=rows[0].device)
            self._saved(await self._database.write(partial(_save, (), self._position, last)), last)
            return
        middle = len(rows) // 2
        await self._step(rows[:middle])
        await self._step(rows[middle:])

    async def project_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await repeat(self.flush, every=PROJECTION_FLUSH_SECONDS, wakeup=self._full, failure="folds_not_saved")

    def statistics(self) -> ProjectorStatistics:
        return ProjectorStatistics(self._position, self._held_rows)


def decoded(rows: Sequence[MessageRow]) -> Decoded:
    return [(row, flat(_decode(row.data))) for row in rows]


def flat(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every field of normalised data by its dotted path; a collection is one field."""
    for value in data.values():
        if type(value) is dict:
            return dict(_leaves(data, ""))
    return data  # no groups: the common case


def _leaves(group: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in group.items():
        if type(value) is dict:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def unprojected(
    tx: Transaction,
    devices: Collection[DeviceKey],
    *,
    start_ms: Milliseconds = FIRST_MS,
    end_ms: Milliseconds = LAST_MS,
) -> Decoded:
    """The devices' rows of this time that are not projected yet, as this transaction sees them."""
    rows = tx.messages.after_of(devices, tx.messages.consumer_position(_CONSUMER))
    return decoded([row for row in rows if start_ms <= row.ts < end_ms])


def _after(position: Position, tx: Transaction) -> list[MessageRow]:
    return tx.messages.after(position, limit=_STEP_ROWS)


def _project(projections: Sequence[Projection], rows: Sequence[MessageRow], tx: Transaction) -> list[SaveProjection]:
    pairs = decoded(rows)
    return [one.project(tx, pairs) for one in projections]


def _save(saves: Sequence[SaveProjection], before: Position, after: Position, tx: Transaction) -> Position:
    """Write the changes of a step and return the position found in the store.

    When that is not the position at which the step began, nothing is written: a write that was cancelled while it
    waited for its commit may have been committed after all, and its rows must not count twice.
    """
    stood = tx.messages.consumer_position(_CONSUMER)
    if stood == before:
        for save in saves:
            save(tx)
        tx.messages.set_consumer_position(_CONSUMER, after)
        tx.messages.index()  # so that searches in a quiet store find every row in the indexes
    return stood
