"""The ledger saves counters over restarts: every second, the counters that changed are written in one batch.

A tally is written as a total, so writing it twice does no harm. Calls of the last minute are written as a number of
calls up to one moment: after a restart they count as made at that moment, which is at most a second too late. A batch
that could not be written is written later, together with newer changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import trio

from broker.clock import Clock
from broker.limits.periods import PeriodUsage, utc_day
from broker.limits.window import WINDOW_MS
from broker.loops import Loop
from storage.database import Database
from storage.records import CallsRecord, TallyRecord
from storage.transaction import Transaction

_FLUSH_SECONDS: Final = 1.0


@dataclass(slots=True)
class LedgerBatch:
    """The counters to be written next."""

    tallies: dict[str, TallyRecord] = field(default_factory=dict)
    calls: list[CallsRecord] = field(default_factory=list)
    at_ms: int = 0  # the moment at which `calls` count as made

    def put(self, tally: PeriodUsage) -> None:
        self.tallies[tally.name] = tally.record()


class _Counter(Protocol):
    """A counter that changed."""

    def save_into(self, batch: LedgerBatch) -> None:
        """Put the count into the batch. The counter notes its next change with `Ledger.note` again."""


class LedgerStatistics(msgspec.Struct, frozen=True):
    counters: int
    unwritten: int


class Ledger:
    """Holds every counter of the current periods as it was last written.

    There is at most one for each organization, device and user of an application; counters of past periods are deleted
    at midnight.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._kept: dict[str, TallyRecord] = {}
        self._recent: dict[str, list[tuple[int, int]]] = {}
        self._noted: list[_Counter] = []
        self._batch = LedgerBatch()
        self._flushing = trio.Lock()
        self._next_day_ms = 0
        self._recent_until_ms = 0
        #: Of several nodes: counts calls that another one got, at a steady time; False: nobody has the meter now.
        self.on_calls: Callable[[CallsRecord, int], bool] = lambda _calls, _steady_ms: True
        self.save_forever = Loop(self.flush, every=_FLUSH_SECONDS, failure="counters_not_saved").run

    async def resume(self) -> None:
        """Read the counters that the last run saved. Raises StoreError."""
        now_ms, steady_ms = self._clock.now_ms(), self._clock.steady_ms()
        tallies, calls = await self._database.read(
            lambda tx: (tx.limits.tallies(now_ms=now_ms), tx.limits.calls(after_ms=now_ms - WINDOW_MS))
        )
        self._kept = {record.name: record for record in tallies}
        self._recent_until_ms = steady_ms + WINDOW_MS
        for record in calls:
            # If the clock was set back, calls with future times count as if they were made now.
            age_ms = max(now_ms - record.at_ms, 0)
            self._recent.setdefault(record.name, []).append((steady_ms - age_ms, record.calls))
            self._batch.at_ms = max(self._batch.at_ms, record.at_ms)

    def watch(self, tally: PeriodUsage) -> None:
        """The counter is in use. On one node it is right by itself."""

    def kept(self, name: str) -> TallyRecord | None:
        return self._kept.get(name)

    def current(self, _tx: Transaction) -> list[TallyRecord]:
        """The counters of the current periods, as they were last written."""
        now_ms = self._clock.now_ms()
        return [record for record in self._kept.values() if record.since_ms <= now_ms < record.until_ms]

    def remember(self, record: TallyRecord) -> None:
        """Replace the counter by a newer one that is not written yet."""
        self._kept[record.name] = record

    def take_recent(self, name: str) -> Sequence[tuple[int, int]]:
        """Remove and return the last run's calls that may still count: steady times, each with a number of calls."""
        return self._recent.pop(name, ())

    def note(self, entry: _Counter) -> None:
        """Write the counter with the next batch."""
        self._noted.append(entry)

    async def flush(self) -> None:
        """Write the counters that changed. Raises StoreError; the next call writes them then."""
        async with self._flushing:
            now_ms, batch = self._clock.now_ms(), self._batch
            if self._recent and self._clock.steady_ms() >= self._recent_until_ms:
                self._recent = {}  # by now these calls are older than a minute
            # Each batch has its own moment, even when the clock stands still: a row is never overwritten.
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
                # Measured from now, not from `at_ms`, which may be ahead of the clock: calls count for a full minute.
                tx.limits.put_calls(batch.calls, forget_before_ms=now_ms - WINDOW_MS)
                if ended is not None:
                    tx.limits.forget_tallies(ended_by_ms=ended)

            await self._database.write(save)
            self._batch = LedgerBatch(at_ms=batch.at_ms)
            if ended is not None:
                self._forget(ended)

    def _forget(self, ended_ms: int) -> None:
        _, self._next_day_ms = utc_day(ended_ms)
        self._kept = {name: record for name, record in self._kept.items() if record.until_ms > ended_ms}

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(len(self._kept), len(self._noted) + len(self._batch.tallies))
