"""Where counters are kept, so that they survive a restart: what changed is written every second, in one batch.

A tally is written as it stands, so writing it twice does no harm. The calls of the last minute are written as so many
before one moment: after a restart they count as if they had all been made at that moment, up to a second later than
they were. A batch that could not be written is written again with what came since.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog
import trio

from broker.clock import Clock
from broker.limits.periods import utc_day
from broker.limits.window import WINDOW_MS
from storage.database import Database, Transaction
from storage.records import CallsRecord, TallyRecord
from storage.sql import StoreError

FLUSH_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Batch:
    """What is written next."""

    tallies: dict[str, TallyRecord] = field(default_factory=dict)
    calls: list[CallsRecord] = field(default_factory=list)
    at_ms: int = 0  # the moment that `calls` are written for


class Entry(Protocol):
    """A counter that changed."""

    def save_into(self, batch: Batch) -> None:
        """Put everything that must survive into the batch. Later changes are noted anew."""


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    counters: int
    unwritten: int


class Ledger:
    """Knows how every counter of the current periods stood when it was last written.

    There are at most as many as there are organizations, devices and users of applications; those of past periods go at
    midnight.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._kept: dict[str, TallyRecord] = {}
        self._recent: dict[str, list[tuple[int, int]]] = {}
        self._noted: list[Entry] = []
        self._batch = Batch()
        self._flushing = trio.Lock()
        self._next_day_ms = 0
        self._recent_until_ms = 0

    async def resume(self) -> None:
        """Read how everything stood when the last run ended."""
        now_ms, steady_ms = self._clock.now_ms(), self._clock.steady_ms()
        tallies, calls = await self._database.read(
            lambda tx: (tx.limits.tallies(now_ms=now_ms), tx.limits.calls(after_ms=now_ms - WINDOW_MS))
        )
        self._kept = {record.name: record for record in tallies}
        self._recent_until_ms = steady_ms + WINDOW_MS
        for record in calls:
            # A clock that was set back makes calls of the future, which count as made now.
            age_ms = max(now_ms - record.at_ms, 0)
            self._recent.setdefault(record.name, []).append((steady_ms - age_ms, record.calls))
            self._batch.at_ms = max(self._batch.at_ms, record.at_ms)

    def kept(self, name: str) -> TallyRecord | None:
        return self._kept.get(name)

    def remember(self, record: TallyRecord) -> None:
        """It stands so now, even if that is not written yet."""
        self._kept[record.name] = record

    def take_recent(self, name: str) -> Sequence[tuple[int, int]]:
        """The last run's calls that may still be in the minute, once: moments of the steady clock, and how many."""
        return self._recent.pop(name, ())

    def note(self, entry: Entry) -> None:
        """It changed. It is held until it is written."""
        self._noted.append(entry)

    async def flush(self) -> None:
        """Write what changed since the last time. Raises StoreError; then it is in the next attempt."""
        async with self._flushing:
            now_ms, batch = self._clock.now_ms(), self._batch
            if self._recent and self._clock.steady_ms() >= self._recent_until_ms:
                self._recent = {}  # whoever comes back now has an empty minute
            # Each batch has a moment of its own, whatever the clock says: a row is never written over.
            batch.at_ms = max(now_ms, batch.at_ms + 1)
            noted, self._noted = self._noted, []
            for entry in noted:
                entry.save_into(batch)
            self._kept |= batch.tallies
            ended = now_ms if now_ms >= self._next_day_ms else None
            if not batch.tallies and ended is None:
                return

            def save(tx: Transaction) -> None:
                tx.limits.put_tallies(list(batch.tallies.values()))
                tx.limits.put_calls(batch.calls, forget_before_ms=batch.at_ms - WINDOW_MS)
                if ended is not None:
                    tx.limits.forget_tallies(ended_by_ms=ended)

            await self._database.write(save)
            self._batch = Batch(at_ms=batch.at_ms)
            if ended is not None:
                self._forget(ended)

    def _forget(self, ended_ms: int) -> None:
        _, self._next_day_ms = utc_day(ended_ms)
        self._kept = {name: record for name, record in self._kept.items() if record.until_ms > ended_ms}

    async def save_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await trio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
            except StoreError as error:
                _log.warning("counters_not_saved", reason=str(error))

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(len(self._kept), len(self._noted) + len(self._batch.tallies))
