"""Whatever happens at the same time, a read finds each acknowledged message once.

Random senders, readers and workers of the projector run beside each other, commits fail, a page of the store is
damaged, and the daemon ends without saving. The projector's bounds are small, so that what is rare in a real fleet
happens in each run. A plain model of the messages says what a read may find.
"""

import json
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import pytest
import trio
from hypothesis import Phase, given
from hypothesis import settings as tries
from hypothesis import strategies as st
from trio.testing import MockClock

from broker.devices.registry import Device
from broker.errors import StorageUnavailable
from broker.messages import folds, log_indexer, projections
from broker.messages.ingest import Commit
from broker.messages.intervals import DAY_MS, HOUR_MS, MINUTE_MS, Interval
from broker.services import Services
from storage.keys import DeviceKey, Milliseconds, Position, Ticket
from storage.message_searches import Range
from storage.snapshots import SnapshotStore
from storage.sql import StoreDamagedError, StoreError
from storage.transaction import Transaction
from tests.builders import opener_in
from tests.factories import NOW_MS, build_world
from tests.fakes import BreakableEngine, OnTheLoop
from tests.properties import examples
from tests.stores import MigratedEngine

pytestmark = pytest.mark.slow


T = TypeVar("T")

LIGHTS: Final = ("11" * 16, "12" * 16, "13" * 16)
FIRST_MS: Final = NOW_MS - HOUR_MS
RANGE: Final[dict[str, Any]] = {
    "start_ms": Milliseconds(FIRST_MS - 9 * MINUTE_MS),
    "end_ms": Milliseconds(FIRST_MS + 9 * MINUTE_MS),
}
#: Values of the bounds of the projector and of the folds.
BOUNDS: Final = (
    (projections, "_HELD_ROWS", (5, 20, 50_000)),
    (projections, "_READ_ROWS", (1, 3, 50)),
    (projections, "_LOOK_ROWS", (1, 4, 50)),
    (projections, "_LOOK_ROWS_OF_A_DEVICE", (1, 8)),
    (projections, "_HELD_DEVICES", (1, 2, 9_999)),
    (projections, "_HELD_FIELDS", (10, 400_000)),
    (projections, "_WRITE_DEVICES", (1, 2, 50)),
    (projections, "WRITE_SECONDS", (0, 5, 60)),
    (projections, "_RETRY_SECONDS", (0, 5)),
    (projections, "_UNWRITTEN_ROWS", (10, 250_000)),
    (log_indexer, "_UNINDEXED_MOST", (1, 20, 16_000)),
    (folds, "_WAITING", (1, 3, 16)),
    (folds, "_ROWS_AT_ONCE", (2, 512)),
)


@dataclass(frozen=True, slots=True)
class Sent:
    commit: Commit
    ticket: Ticket
    ts: Milliseconds
    data: dict[str, Any]

    @property
    def position(self) -> Position:
        """Known behind the commit; nobody finds the message before."""
        return self.commit.position(self.ticket)


# Expected snapshots and rollups


def snapshot(sent: Sequence[Sent]) -> dict[str, tuple[Milliseconds, Position, Any]]:
    fields = dict[str, tuple[Milliseconds, Position, Any]]()
    for one in sorted(sent, key=lambda one: (one.ts, one.position)):
        fields |= {path: (one.ts, one.position, value) for path, value in one.data.items()}
    return fields


def count_and_sum(sent: Sequence[Sent]) -> tuple[int, int]:
    values = [one.data["intensity"] for one in sent if "intensity" in one.data]
    return len(values), sum(values)


def by_minute(sent: Sequence[Sent]) -> dict[int, tuple[int, int]]:
    minutes = defaultdict[int, list[Sent]](list)
    for one in sent:
        if "intensity" in one.data:
            minutes[minute_of(one)].append(one)
    return {minute: count_and_sum(some) for minute, some in minutes.items()}


def minutes_with_state(sent: Sequence[Sent]) -> set[int]:
    return {minute_of(one) for one in sent if "state" in one.data}


def in_order(sent: Sequence[Sent]) -> list[tuple[Milliseconds, Position]]:
    return sorted((one.ts, one.position) for one in sent)


def minute_of(one: Sent) -> int:
    return one.ts - one.ts % MINUTE_MS


class Slow(OnTheLoop):
    """Runs blocking work after a while, and tells of it after another while."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.seconds = 0.0

    async def __call__(
        self,
        sync_fn: Callable[[], T],
        /,
        *,
        limiter: trio.CapacityLimiter | None = None,  # noqa: ARG002 # all work takes its time
    ) -> T:
        await self._wait()
        result = sync_fn()
        await self._wait()
        return result

    async def _wait(self) -> None:
        if self.seconds and self._chance.random() < 0.3:
            await trio.sleep(self._chance.random() * self.seconds)
        else:
            await trio.lowlevel.checkpoint()


@dataclass
class Model:
    """The sent messages, and one daemon after the other on the same store."""

    chance: random.Random
    engine: BreakableEngine
    services: Services = field(init=False)
    devices: Sequence[Device] = ()
    acknowledged: defaultdict[DeviceKey, list[Sent]] = field(default_factory=lambda: defaultdict(list))
    submitted: defaultdict[DeviceKey, list[Sent]] = field(default_factory=lambda: defaultdict(list))
    #: The next write of snapshots finds a damaged page.
    is_damaged: bool = False

    async def enter(self, services: Services) -> None:
        self.services = services
        if not self.devices:
            await build_world(services.core.database, services.core.vault)
        records = await services.core.database.read(lambda tx: [tx.devices.by_id(device) for device in LIGHTS])
        self.devices = [await services.devices.registry.get(record.key) for record in records if record is not None]

    async def live(self, seconds: float) -> None:
        """Send, read, work and break, all at once."""
        chance = self.chance
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._repeat, self.send, chance.choice([0.3, 2]))
                for _ in range(3):
                    nursery.start_soon(self._repeat, self.read, 1)
                for _ in range(chance.choice([1, 2])):
                    nursery.start_soon(self._repeat, self.work, chance.choice([0.5, 4]))
                nursery.start_soon(self.break_things)
        self.engine.error = None

    async def _repeat(self, do: Callable[[], Awaitable[None]], longest_pause: float) -> None:
        while True:
            with trio.CancelScope(shield=True):  # what is sent is answered, and what is read is compared
                await do()
            await trio.sleep(self.chance.random() * longest_pause)

    async def send(self) -> None:
        batch = [self._submit() for _ in range(self.chance.choice([1, 1, 3, 10, 30]))]
        try:
            await self.services.messages.ingest.wait_committed()
        except (StorageUnavailable, StoreError):
            batch = []
        for device, sent in batch:
            self.acknowledged[device].append(sent)
        self.submitted.clear()

    def _submit(self) -> tuple[DeviceKey, Sent]:
        chance, device, value = self.chance, self.chance.choice(self.devices), self.chance.randint(0, 99)
        data: dict[str, Any] = chance.choice(
            [{"intensity": value}, {"intensity": value}, {"intensity": value, "state": True}, {"text": "x"}]
        )
        if chance.random() < 0.02:
            data["text"] = "y" * 600
        ts = Milliseconds(FIRST_MS + chance.choice([0, 0, 0, 1, -1, -2]) * MINUTE_MS + chance.randrange(20))
        ingest = self.services.messages.ingest
        sent = Sent(ingest.group, ingest.submit(device, json.dumps(data).encode(), ts), ts, data)
        self.submitted[device.key].append(sent)
        return device.key, sent

    async def read(self) -> None:
        messages, device = self.services.messages, self.chance.choice(self.devices)
        durable = {one.key: len(self.acknowledged[one.key]) for one in self.devices}
        match self.chance.randrange(6):
            case 0:
                some = self.chance.sample(self.devices, self.chance.randint(1, len(self.devices)))
                snapshots = await messages.snapshots.of_all([one.key for one in some])
                for one in some:
                    self._check(one, durable, snapshots[one.key], snapshot)
            case 1:
                day: dict[str, Any] = {"start_ms": Milliseconds(NOW_MS - DAY_MS), "end_ms": NOW_MS}
                summary = (await messages.analytics.aggregates(device, "intensity", **day)).aggregate
                found = (summary.count, summary.sum) if summary is not None else (0, 0)
                self._check(device, durable, found, count_and_sum)
            case 2:
                answer = await messages.analytics.histogram(device, "intensity", Interval.MINUTE, **RANGE)
                buckets = {start: (bucket.count, bucket.sum) for start, bucket in answer.buckets}
                self._check(device, durable, buckets, by_minute)
            case 3:
                present = await messages.analytics.presence([device], Interval.MINUTE, field="state", **RANGE)
                self._check(device, durable, set(present.buckets), minutes_with_state)
            case 4:
                rows = await self.services.core.database.read(
                    lambda tx: tx.message_searches.page([device.key], Range(None, None))
                )
                self._check(device, durable, [(row.ts, row.position) for row in rows], in_order)
            case _:
                await self._check_store()

    def _check(
        self, device: Device, durable: dict[DeviceKey, int], found: object, expect: Callable[[Sequence[Sent]], object]
    ) -> None:
        """A read finds what was acknowledged before it began, and may find what came until it ended."""
        sent = self.acknowledged[device.key] + self.submitted[device.key]
        expected = [expect(sent[:count]) for count in range(len(sent), durable[device.key] - 1, -1)]
        assert found in expected, f"{expect.__name__} of {device.id}: {found}, expected {expected[0]}"

    async def _check_store(self) -> None:
        """No message up to the position that is written is missing in the snapshots that are written."""

        def positions(tx: Transaction) -> tuple[Position, dict[DeviceKey, Position]]:
            rows = [(device.key, tx.snapshots.of(device.key)) for device in self.devices]
            return projections.saved_position(tx), {key: row.position for key, row in rows if row is not None}

        written, saved = await self.services.core.database.read(positions)
        for device, sent in self.acknowledged.items():
            assert [one for one in sent if saved.get(device, 0) < one.position <= written] == []

    async def work(self) -> None:
        chance, projector = self.chance, self.services.messages.projector
        with suppress(StoreError):
            match chance.randrange(6):
                case 0 | 1:
                    await projector._step()
                case 2:
                    await projector.flush()
                case 3:
                    with trio.move_on_after(chance.random() * 3):
                        await chance.choice([projector._step, projector.flush])()
                case 4:
                    async with projector._working:
                        await projector._catch_up()
                        if projector._unwritten:
                            await projector._write(list(islice(projector._unwritten, chance.randint(1, 2))))
                case _:
                    async with projector._working:
                        projector._follows = False  # as after too many rows

    async def break_things(self) -> None:
        while True:
            await trio.sleep(self.chance.random() * 20)
            if self.chance.random() < 0.5:
                self.engine.error = StoreError("full")
                await trio.sleep(self.chance.random() * 4)
                self.engine.error = None
            else:
                self.is_damaged = True
                await trio.sleep(30)  # a device whose write is damaged twice in a row is left out

    async def check_all(self) -> None:
        """After a restart nothing is in memory, and everything is right when it was added again."""
        await self.services.messages.projector.flush()
        for _ in range(20):
            await self.read()
        statistics = self.services.messages.projector.statistics()
        assert statistics.written_position == statistics.position
        indexed, entries = await self.services.core.database.read(_index)
        for device, sent in self.acknowledged.items():
            assert entries[device] == [one.position for one in sent if one.position <= indexed]


def _index(tx: Transaction) -> tuple[int, defaultdict[DeviceKey, list[int]]]:
    """Up to which position there are index entries, and the positions in the entries of each device."""
    found = defaultdict[DeviceKey, list[int]](list)
    for row in tx.connection.execute("SELECT device, positions FROM message_entry ORDER BY key"):
        found[row["device"]] += json.loads(row["positions"])
    return tx.messages.counter("indexed"), found


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


async def play(chance: random.Random, folder: Path, patch: pytest.MonkeyPatch) -> None:
    opener = opener_in(folder)
    model = Model(chance, BreakableEngine(MigratedEngine(folder / "store.sqlite")))
    put_all = SnapshotStore.put_all

    def put_all_but_for_damage(store: SnapshotStore, rows: Sequence[Any]) -> None:
        if model.is_damaged and rows:
            model.is_damaged = False
            raise StoreDamagedError("malformed")
        put_all(store, rows)

    patch.setattr(SnapshotStore, "put_all", put_all_but_for_damage)
    for _ in range(chance.randint(1, 3)):
        runner = Slow(chance)
        async with opener(engine=model.engine, run_sync=runner) as services:
            await model.enter(services)
            runner.seconds = chance.choice([0.5, 3])
            await model.live(chance.choice([5, 30]))
            if chance.random() < 0.6:  # killed
                patch.setattr(services.messages.projector, "flush", nothing)
            runner.seconds = 0
            model.is_damaged = False
    async with opener(engine=model.engine) as services:
        await model.enter(services)
        await model.check_all()


@pytest.mark.both_engines
@tries(max_examples=examples(40, run=2), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**32))
def test_a_read_finds_each_acknowledged_message_once(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for module, name, values in BOUNDS:
            patch.setattr(module, name, chance.choice(values))
        trio.run(play, chance, Path(folder), patch, clock=MockClock(autojump_threshold=0))
