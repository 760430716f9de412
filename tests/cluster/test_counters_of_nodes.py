"""R10: counters of several nodes have one sum, which no failure changes, and limits hold within what is not written.

When a device was seen does not go back where nodes that have seen it at different times write one after the other.
"""

from typing import Any

import pytest

from broker.devices.presence import Presence
from broker.facts import Router
from broker.limits.allowance import Allowance
from broker.limits.meters import Meters
from broker.limits.periods import utc_day
from broker.limits.shared_ledger import SharedLedger
from broker.trace.refusals import Refusals
from config.rates import Rate
from storage.devices import DeviceStore
from storage.keys import DeviceKey
from storage.records import TallyRecord
from storage.sql import StoreDoubtfulError, StoreError
from storage.transaction import Transaction
from tests.cluster.history import Part, parts_of_a_cluster
from tests.factories import NOW_MS
from tests.fakes import FakeClock

pytestmark = pytest.mark.slow


DEVICE = DeviceKey(1)
LIMIT = 100
NAME = "quota device 1"


class Counting:
    """The counters of one node."""

    def __init__(self, part: Part, node: str, clock: FakeClock) -> None:
        self.part = part
        self.ledger = SharedLedger(part.database, clock.clock, node)
        self.now_ms = clock.clock.now_ms
        self.quota = Allowance(NAME, utc_day, LIMIT, self.ledger, self.now_ms())
        self.organization = Allowance("quota organization 1", utc_day, -1, self.ledger, self.now_ms())
        self.meters = Meters({}, self.ledger, clock.clock, Refusals(clock.clock, lambda *_: None))
        self.meter = self.meters.named("rest device 1", Rate(10, 1000))

    def used(self) -> int:
        return self.quota.usage(self.now_ms()).used


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_MS)


async def test_all_nodes_together_count_exactly(clock: FakeClock) -> None:
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = (Counting(part, name, clock) for part, name in zip(parts, "ab", strict=True))
        for round_ in range(1, 6):
            for one, number in ((a, 3), (b, 4)):
                for _ in range(number):
                    assert one.quota.take(1, one.now_ms())
                one.organization.take(2, one.now_ms())
                await one.ledger.flush()
            assert b.used() == 7 * round_
            assert a.used() == 7 * round_ - 4, "it takes back what others have added by its own flush"
            clock.advance(1000)
        await a.ledger.flush()
        assert a.organization.usage(a.now_ms()).used == 20, "without having changed it"
        again = Counting(parts[0], "a", clock)
        await again.ledger.resume()
        assert again.ledger.kept(NAME) == TallyRecord(NAME, *utc_day(a.now_ms()), 35)


async def test_a_limit_holds_within_what_is_not_written(clock: FakeClock) -> None:
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = (Counting(part, name, clock) for part, name in zip(parts, "ab", strict=True))
        taken, a_second = 0, 7
        for _ in range(20):
            for one in (a, b):
                taken += sum(one.quota.take(1, one.now_ms()) for _ in range(a_second))
                await one.ledger.flush()
            clock.advance(1000)
        assert LIMIT <= taken <= LIMIT + 2 * a_second


async def test_a_commit_in_doubt_counts_once(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with parts_of_a_cluster(1, follow=False) as (part,):
        a = Counting(part, "a", clock)
        write = part.database.write

        async def in_doubt(work: Any) -> None:
            await write(work)
            raise StoreDoubtfulError("nobody knows")

        a.quota.take(5, a.now_ms())
        monkeypatch.setattr(part.database, "write", in_doubt)
        for _ in range(3):
            with pytest.raises(StoreError):
                await a.ledger.flush()
            a.quota.take(1, a.now_ms())
        monkeypatch.setattr(part.database, "write", write)
        await a.ledger.flush()
        assert a.used() == 8
        kept = await part.database.read(lambda tx: tx.limits.tallies(now_ms=a.now_ms()))
        assert [one.used for one in kept if one.name == NAME] == [8]


async def test_a_minute_has_the_calls_that_another_node_got(clock: FakeClock) -> None:
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = (Counting(part, name, clock) for part, name in zip(parts, "ab", strict=True))
        for _ in range(6):
            a.meter.count()
        await a.ledger.flush()
        b.meter.count()
        await b.ledger.flush()
        await b.ledger.flush()
        assert b.meter.standing().remaining == Rate(3, 993)
        clock.advance(1000)
        await a.ledger.flush()
        assert a.meter.standing().remaining.minute == 3
        clock.advance(60_000)
        assert b.meter.standing().remaining.minute == 10


async def test_a_node_does_not_set_back_when_another_one_has_seen_a_device(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceStore, "existing", lambda _store, devices: set(devices))
    async with parts_of_a_cluster(2, follow=False) as parts:
        a, b = (Presence(part.database, Router(), clock.clock, name) for part, name in zip(parts, "ab", strict=True))
        await parts[0].database.write(_without_devices)
        b.touch(DEVICE)
        clock.advance(1000)
        a.touch(DEVICE)
        clock.advance(1000)
        for one in (a, b):
            await one.flush()
            for reader in (a, b):
                assert (await reader.of(DEVICE)).last_seen_on == NOW_MS + 1000


def _without_devices(tx: Transaction) -> None:
    tx.connection.execute("ALTER TABLE presence DROP CONSTRAINT presence_device_fkey")
