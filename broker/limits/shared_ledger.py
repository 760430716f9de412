"""The ledger of a node among several: each counts its own, and all together have one sum.

Every second a node adds what it has counted since the last time, and takes back the sum, with what the others have
added. So a payer that uses several nodes uses too much for two seconds at most, and a minute has the calls that other
nodes got up to a second ago (design rule R10).
"""

from dataclasses import dataclass, field

from broker.clock import Clock
from broker.limits.ledger import Ledger, LedgerBatch
from broker.limits.periods import PeriodUsage
from broker.limits.window import WINDOW_MS
from storage.database import Database
from storage.records import CallsRecord, TallyRecord
from storage.transaction import Transaction

#: The counters of this name are read again whether this node has changed them or not.
_ORGANIZATIONS = "quota organization "


@dataclass(slots=True)
class SharedBatch(LedgerBatch):
    """`tallies` are what was added; `counters` take the sums back."""

    counters: dict[str, PeriodUsage] = field(default_factory=dict)

    def put(self, tally: PeriodUsage) -> None:
        self.tallies[tally.name] = tally.take()
        self.counters[tally.name] = tally


class SharedLedger(Ledger):
    def __init__(self, database: Database, clock: Clock, node: str) -> None:
        """`node`: the name of this node."""
        super().__init__(database, clock)
        self._node = node
        self._unwritten: list[SharedBatch] = []  # the first one may be in the store: nobody could tell
        self._heard: dict[str, int] = {}  # up to which batch the calls of another node are counted
        self._watched: dict[str, PeriodUsage] = {}

    async def resume(self) -> None:
        await super().resume()
        now_ms = self._clock.now_ms()
        calls = await self._database.read(lambda tx: tx.limits.calls_of_others(self._node, after_ms=now_ms - WINDOW_MS))
        for node, record in calls:
            self._heard[node] = max(self._heard.get(node, 0), record.at_ms)

    def current(self, tx: Transaction) -> list[TallyRecord]:
        return tx.limits.tallies(now_ms=self._clock.now_ms())

    def watch(self, tally: PeriodUsage) -> None:
        if tally.name.startswith(_ORGANIZATIONS):
            self._watched[tally.name] = tally

    async def flush(self) -> None:
        """As `Ledger.flush`."""
        async with self._flushing:
            self._collect()
            while self._unwritten:
                await self._write(self._unwritten[0])
                del self._unwritten[0]

    def _collect(self) -> None:
        """Take what was counted since the last time. Behind a batch that may be in the store it waits for its turn."""
        now_ms = self._clock.now_ms()
        self._forget_old_calls()
        batch = SharedBatch(at_ms=max(now_ms, self._batch.at_ms + 1))
        noted, self._noted = self._noted, []
        for entry in noted:
            entry.save_into(batch)
        self._batch.at_ms = batch.at_ms
        if len(self._unwritten) > 1:
            _join(self._unwritten[-1], batch)
        else:
            self._unwritten.append(batch)

    def _forget_old_calls(self) -> None:
        steady_ms = self._clock.steady_ms()
        for name, calls in list(self._recent.items()):
            if calls[-1][0] <= steady_ms - WINDOW_MS:
                del self._recent[name]

    async def _write(self, batch: SharedBatch) -> None:
        now_ms, node = self._clock.now_ms(), self._node
        ended = now_ms if now_ms >= self._next_day_ms else None
        heard = dict(self._heard)

        def save(tx: Transaction) -> tuple[list[TallyRecord], list[tuple[str, CallsRecord]]]:
            if batch.tallies and tx.messages.counter(f"tallies {node}") < batch.at_ms:  # not by a commit in doubt
                tx.limits.add_to_tallies(list(batch.tallies.values()))
                tx.limits.put_calls(batch.calls, forget_before_ms=now_ms - WINDOW_MS, node=node)
                tx.messages.set_counter(f"tallies {node}", batch.at_ms)
            if ended is not None:
                tx.limits.forget_tallies(ended_by_ms=ended)
            sums = tx.limits.tallies_with(list(batch.tallies), like=_ORGANIZATIONS)
            since_ms = min(heard.values(), default=now_ms - WINDOW_MS)
            return sums, tx.limits.calls_of_others(node, after_ms=max(since_ms, now_ms - WINDOW_MS))

        if batch.tallies or ended is not None:
            sums, calls = await self._database.write(save)
        else:
            sums, calls = await self._database.read(save)
        for record in sums:
            self._kept[record.name] = record
            if (tally := batch.counters.get(record.name) or self._watched.get(record.name)) is not None:
                tally.settle(record)
        self._count_calls(calls)
        if ended is not None:
            self._forget(ended)

    def _count_calls(self, calls: list[tuple[str, CallsRecord]]) -> None:
        """Calls that others have got count as made now."""
        steady_ms, heard = self._clock.steady_ms(), dict(self._heard)
        for node, record in calls:
            if record.at_ms > heard.get(node, 0):
                self._heard[node] = max(self._heard.get(node, 0), record.at_ms)
                if not self.on_calls(record, steady_ms):
                    self._recent.setdefault(record.name, []).append((steady_ms, record.calls))


def _join(batch: SharedBatch, later: SharedBatch) -> None:
    for name, record in later.tallies.items():
        known = batch.tallies.get(name)
        is_same = known is not None and known.since_ms == record.since_ms
        used = record.used + (known.used if known is not None and is_same else 0)
        batch.tallies[name] = TallyRecord(name, record.since_ms, record.until_ms, used)
    batch.counters |= later.counters
    batch.calls += [CallsRecord(one.name, later.at_ms, one.calls) for one in later.calls]
    batch.at_ms = later.at_ms
