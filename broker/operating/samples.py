"""A ring of samples in the store, one for every five minutes of a day: the curves of the operator's page."""

from collections.abc import Mapping
from typing import Any, Final

import trio

from broker.core import Core
from broker.loops import Loop
from storage.keys import Milliseconds
from storage.operating import SampleRecord
from storage.transaction import Transaction

EVERY_SECONDS: Final = 300
_KEPT_MS: Final = 86_400_000


class Samples:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._last: tuple[int, Mapping[str, int]] | None = None

    async def take_forever(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._last = (self._core.clock.now_ms(), self._counts())
        task_status.started()
        await Loop(self.take, every=EVERY_SECONDS, failure="sample_not_stored").run()

    async def take(self) -> None:
        """Store what has happened since the sample before. Raises StoreError."""
        now_ms, counts = self._core.clock.now_ms(), self._counts()
        before_ms, before = self._last or (now_ms, counts)
        grown = {name: max(0, counts[name] - before[name]) for name in counts}
        commits = grown["commits"]
        links = self._read("connections", "links")  # statistics are read on the loop, not in the writer's thread

        def work(tx: Transaction) -> None:
            store_bytes, _free = tx.connection.size_bytes()
            sample = SampleRecord(
                at=Milliseconds(now_ms),
                seconds=max(1, (now_ms - before_ms) // 1000),
                messages=grown["messages"],
                connections=links,
                commits=commits,
                commit_us=grown["commit_us"] // commits if commits else 0,
                refusals=grown["refusals"],
                store_bytes=store_bytes,
            )
            tx.operating.add_sample(sample, kept_from_ms=now_ms - _KEPT_MS)

        await self._core.database.write(work)
        self._last = (now_ms, counts)

    async def all(self) -> list[SampleRecord]:
        """The oldest first."""
        return await self._core.database.read(lambda tx: tx.operating.samples())

    def _counts(self) -> dict[str, int]:
        """Since the start."""
        return {
            "messages": self._read("ingest", "messages"),
            "commits": self._read("store", "commits"),
            "commit_us": round(self._core.database.commit_durations.seconds * 1_000_000),
            "refusals": sum(one.times for one in self._core.refusals.tally.latest()),
        }

    def _read(self, part: str, name: str) -> int:
        statistics: Any = self._core.life.statistics().get(part)
        return int(getattr(statistics, name, 0))
