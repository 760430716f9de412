"""Consumers of the message log: whoever keeps something that can be worked out from it.

A consumer's cursor is saved in the same transaction as what it kept, so after a crash it resumes there: nothing is
lost and nothing counts twice. All folds share one cursor, one read and one decoding of each row.

What was committed lately is at hand in memory. When a consumer falls behind so far that this would be too much, the
rows are let go and read from the log again.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog
import trio

from broker.facts import MessagesStored, Router
from broker.messages.intervals import LAST_MS
from storage.database import Database, Transaction
from storage.records import MessageRow
from storage.sql import StoreError

# Until they are folded, rows are read from the log; a fold writes each bucket and snapshot it touches, however many
# rows there were, so folding seldom is cheap.
FLUSH_SECONDS = 5.0
# One step of work, so that nobody waits long for the writer: what it writes is told by the devices, not by the rows.
_STEP_ROWS = 5_000
_STEP_ROWS_OF_FEW = 25_000
_FEW_DEVICES = 500
_HELD_ROWS = 50_000
_CONSUMER = "folds"
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_log = structlog.get_logger(__name__)

#: Rows, each with its fields by dotted path.
Decoded = Sequence[tuple[MessageRow, Mapping[str, Any]]]
Save = Callable[[Transaction], None]


class Fold(Protocol):
    """Something kept per device that each message changes."""

    def fold(self, tx: Transaction, rows: Decoded) -> Save:
        """Work out beside the writer what these rows change; the answer writes it."""

    def forget(self) -> None:
        """The last step was not kept."""


@dataclass(frozen=True, slots=True)
class FolderStatistics:
    position: int
    held_rows: int


class Folder:
    """Drives the folds along the log."""

    def __init__(self, database: Database, router: Router, folds: Sequence[Fold]) -> None:
        self._database = database
        self._folds = folds
        self._position = 0
        self._held: deque[Sequence[MessageRow]] = deque()
        self._held_rows = 0
        self._follows = False  # the held rows go on where the cursor stands, without a gap
        self._full = trio.Event()
        self._flushing = trio.Lock()
        router.subscribe(MessagesStored, self._messages_stored)

    @property
    def position(self) -> int:
        """Everything up to here is folded."""
        return self._position

    def _messages_stored(self, fact: MessagesStored) -> None:
        self._held.append(fact.rows)
        self._held_rows += len(fact.rows)
        if self._held_rows >= _HELD_ROWS // 2:
            self._full.set()
        if self._held_rows > _HELD_ROWS:
            self._held, self._held_rows, self._follows = deque(), 0, False

    async def resume(self) -> None:
        """Stand where the last run stood. What it did not get to fold is folded beside everything else."""
        self._position = await self._database.read(lambda tx: tx.messages.consumer_position(_CONSUMER))

    async def flush(self) -> None:
        """Fold everything that is durable now.

        What is stored meanwhile waits for the next time: under load there is always more, and a step of a few rows
        writes nearly as many buckets as one of thousands.
        """
        async with self._flushing:
            until = self._held[-1][-1].position if self._held else 0
            try:
                while not self._follows or (self._held and self._held[0][0].position <= until):
                    if self._follows:
                        await self._step(self._take_held())
                    else:
                        await self._read_on()
            except BaseException:
                self._lose_track()
                raise

    async def _read_on(self) -> None:
        # From here on every commit is held; what is both held and read is folded once, because `_step` looks.
        self._held, self._held_rows, self._follows = deque(), 0, True
        is_behind = True
        while self._follows and is_behind:
            rows = await self._database.read(partial(_after, self._position))
            await self._step(rows)
            is_behind = len(rows) == _STEP_ROWS

    def _lose_track(self) -> None:
        self._follows = False  # what was taken is read from the log next time
        for one in self._folds:
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
        saves = await self._database.read(partial(_fold, self._folds, fresh))
        last = fresh[-1].position
        stood = await self._database.write(partial(_save, saves, position, last))
        if stood == position:
            self._position = last
        else:
            self._position = stood
            self._lose_track()

    async def fold_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            with trio.move_on_after(FLUSH_SECONDS):
                await self._full.wait()
            self._full = trio.Event()
            try:
                await self.flush()
            except StoreError as error:  # the log is the truth: the next attempt folds it again
                _log.warning("folds_not_saved", reason=str(error))

    def statistics(self) -> FolderStatistics:
        return FolderStatistics(self._position, self._held_rows)


def decoded(rows: Sequence[MessageRow]) -> Decoded:
    return [(row, flat(_decode(row.data))) for row in rows]


def flat(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every field of normalised data by its dotted path; a collection is one field."""
    for value in data.values():
        if type(value) is dict:
            return dict(_leaves(data, ""))
    return data  # as it nearly always is


def _leaves(group: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in group.items():
        if type(value) is dict:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def unfolded(tx: Transaction, devices: Collection[int], *, start_ms: int = 0, end_ms: int = LAST_MS) -> Decoded:
    """The devices' rows of this time that no fold has seen in this transaction: lay them on top of what is kept."""
    rows = tx.messages.after_of(devices, tx.messages.consumer_position(_CONSUMER))
    return decoded([row for row in rows if start_ms <= row.ts < end_ms])


def _after(position: int, tx: Transaction) -> list[MessageRow]:
    return tx.messages.after(position, limit=_STEP_ROWS)


def _fold(folds: Sequence[Fold], rows: Sequence[MessageRow], tx: Transaction) -> list[Save]:
    pairs = decoded(rows)
    return [one.fold(tx, pairs) for one in folds]


def _save(saves: Sequence[Save], before: int, after: int, tx: Transaction) -> int:
    """Write what was folded and return where the cursor stood.

    When it did not stand where the fold began, nothing is written: a write that was cancelled while it waited for its
    commit may have been committed after all, and what it folded must not count twice.
    """
    stood = tx.messages.consumer_position(_CONSUMER)
    if stood == before:
        for save in saves:
            save(tx)
        tx.messages.set_consumer_position(_CONSUMER, after)
        tx.messages.index()  # so that who asks a quiet store finds everything there
    return stood
