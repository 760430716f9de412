"""A sweep of half of a large store: others hardly wait for it, and its room goes back to the disk in small steps."""

import sqlite3
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

import pytest
import trio

from broker.clock import Clock
from broker.cluster.leases import Lease, LeaseName
from broker.messages.retention import Retention
from broker.messages.rollup_days import RollupDays
from storage.database import Database
from storage.engines.sqlite import SqliteEngine
from storage.journal import Journal
from storage.keys import DeviceKey, Milliseconds
from tests.properties import in_ci
from tests.sizes.store import DAYS, fill_log
from tests.stores import make_store

pytestmark = pytest.mark.slow


NOW_MS: Final = 1_760_000_000_000
MESSAGES: Final = 400_000
SECONDS: Final = 1.2
ROUNDS: Final = 3
MOST: Final = 3.0


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[Database, Journal]]:
    database = Database(SqliteEngine(path))
    await database.open()
    head = await database.read(lambda tx: tx.messages.head())
    async with trio.open_nursery() as nursery:
        await nursery.start(database.commit_forever)
        yield database, Journal(database, head=head)
        nursery.cancel_scope.cancel()


class Innocent:
    """Somebody who stores a message and reads the latest one, again and again."""

    def __init__(self, database: Database, journal: Journal) -> None:
        self._database = database
        self._journal = journal

    async def p99_ms(self) -> float:
        """Of some seconds."""
        times, until = [], time.perf_counter() + SECONDS
        while (began := time.perf_counter()) < until:
            self._journal.append_message(DeviceKey(1), Milliseconds(NOW_MS), Milliseconds(NOW_MS), 1, '{"a":1}')
            await self._journal.wait_committed()
            await self._database.read(lambda tx: tx.messages.last_position("message"))
            times.append((time.perf_counter() - began) * 1000)
            with trio.move_on_after(0.002):  # as one who has other things to do, too
                await trio.sleep_forever()
        return statistics.quantiles(times, n=100)[98]


@in_ci
@pytest.mark.sqlite("its file and its writer")
async def test_an_innocent_hardly_waits_for_a_sweep_of_half_of_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    make_store(store)
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        fill_log(db, MESSAGES, end_ms=NOW_MS)
    async with opened(store) as (database, journal):
        await database.write(lambda tx: tx.messages.set_consumer_position("folds", journal.head))
        clock = Clock(now_ms=lambda: Milliseconds(NOW_MS))
        retention = Retention(database, Lease(LeaseName.UPKEEP), clock, days=DAYS // 2, rollups=RollupDays())
        innocent = Innocent(database, journal)
        deleting = await ratio(innocent, retention)
        assert 0 < retention.statistics().deleted_messages < MESSAGES // 2  # it was under way all the time
        await database.write(lambda tx: tx.retention.delete("message", behind=0, upto=MESSAGES // 2, types=None))
        size = store.stat().st_size
        giving_back = await ratio(innocent, retention)
        assert store.stat().st_size < size
    assert max(deleting, giving_back) <= MOST


async def ratio(innocent: Innocent, retention: Retention) -> float:
    """The innocent's p99 during a sweep to that before. On a busy machine, the best of a few rounds."""
    found: list[float] = []
    while len(found) < ROUNDS and (not found or min(found) > MOST):
        before = await innocent.p99_ms()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(retention.sweep)
            found.append(await innocent.p99_ms() / before)
            nursery.cancel_scope.cancel()
    return min(found)
