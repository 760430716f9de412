"""Retention: rows that are too old are deleted in small steps, and no others."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
import trio
from msgspec.structs import asdict
from trio.testing import MockClock

from broker.clock import Clock
from broker.cluster.leases import Lease, LeaseName
from broker.devices.registry import Device
from broker.facts import MessagesStored
from broker.messages.intervals import DAY_MS, HOUR_MS, Interval
from broker.messages.retention import RETENTION_SWEEP_SECONDS, Retention
from broker.messages.rollup_days import RollupDays
from broker.services import Services
from config.settings import Settings, Storage
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, Position
from storage.records import DeviceTypeRecord, MessageRow
from storage.retention import LogTable, RetentionStore
from storage.sizes import measure
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.damaged_pages import damage, leaves
from tests.factories import LIGHT_MANIFEST, NOW_MS, World, build_world, new_device, new_device_type
from tests.fakes import FakeClock
from tests.tickets import at


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the steps: nobody else writes. Sizes are measured, which tests/conftest.py spares the others."""
    monkeypatch.setattr("broker.messages.retention._PAUSE_SECONDS", 0)
    monkeypatch.setattr("broker.messages.retention.measure", measure)


_BY_DEFAULT = RollupDays()


@dataclass
class Fleet:
    """A light of a type without its own retention, and a sensor of another type."""

    services: Services
    clock: FakeClock
    light: Device
    sensor: Device
    sensor_type: DeviceTypeKey

    def retention(self, days: int, rollups: RollupDays = _BY_DEFAULT) -> Retention:
        return Retention(
            self.services.core.database, Lease(LeaseName.UPKEEP), Clock(self.clock), days=days, rollups=rollups
        )

    async def levels(self) -> list[str]:
        """The levels of which there are rollups."""
        rows = await self.services.core.database.read(
            lambda tx: list(tx.connection.execute("SELECT DISTINCT level FROM rollup ORDER BY level"))
        )
        return [row["level"] for row in rows]

    async def keep_sensors(self, days: int | None) -> None:
        await self.services.core.database.write(lambda tx: tx.retention.set_days(self.sensor_type, days))

    async def send(self, *devices: Device, action: bool = False, failing: bool = False) -> list[Position]:
        ingest = self.services.messages.ingest
        tickets = [
            ingest.submit_action(one, one, b'{"actions":[{"name":"setOn"}]}')
            if action
            else ingest.submit(one, b'{"unknown":1}' if failing else b'{"intensity":1}')
            for one in devices
        ]
        await ingest.wait_committed()
        await self.services.messages.projector.flush()
        return [at(ticket) for ticket in tickets]

    async def left(self, table: LogTable = "message") -> list[int]:
        rows = await self.services.core.database.read(
            lambda tx: list(tx.connection.execute(f"SELECT position FROM {table} ORDER BY position"))  # noqa: S608
        )
        return [row["position"] for row in rows]


@pytest.fixture
async def fleet(services: Services, world: World, fake_clock: FakeClock) -> Fleet:
    def add(tx: Transaction) -> tuple[DeviceTypeKey, DeviceKey]:
        light = tx.device_types.device_type(world.light_type)
        assert isinstance(light, DeviceTypeRecord)
        type_ = tx.device_types.put_device_type(
            new_device_type(
                "dt" + "5e" * 16,
                unique_name="example.sensor",
                name="Sensor",
                organization=light.organization,
                published=True,
                protected=False,
                rsp=False,
                description=None,
                tags=(),
                now_ms=1,
            )
        )
        (manifest,) = tx.device_types.manifests(world.light_type)
        assert manifest.document == json.dumps(LIGHT_MANIFEST)
        tx.device_types.add_manifest(type(manifest)(type_, 1, manifest.document, approved=True, created_on=1))
        device = tx.devices.put_device(
            new_device(
                "5e" * 16,
                owner=world.ada,
                device_type=type_,
                name="Sensor",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=True,
                now_ms=1,
            )
        )
        return type_, device

    type_, sensor = await services.core.database.write(add)
    light = await services.devices.registry.get(world.kitchen)
    return Fleet(services, fake_clock, light, await services.devices.registry.get(DeviceKey(sensor)), type_)


@pytest.mark.sqlite("damaged pages")
async def test_a_page_that_cannot_be_read_stops_neither_retention_nor_the_folds(fleet: Fleet, tmp_path: Path) -> None:
    """Rows beside the damage stay; a sweep goes on behind them, and the next sweep behind those."""
    first = await fleet.send(*[fleet.light] * 3_000)
    page = leaves(tmp_path / "store.sqlite", "message")[3]
    damage(tmp_path / "store.sqlite", page)
    later = await fleet.send(*[fleet.light] * 10)
    assert fleet.services.messages.projector.position == later[-1]
    fleet.clock.advance(40 * DAY_MS)
    fresh = await fleet.send(fleet.light)
    retention = fleet.retention(30)
    await retention.sweep()
    database = fleet.services.core.database
    assert len(first) + len(later) - retention.statistics().deleted_messages <= 1_000
    behind = await database.read(lambda tx: [row.position for row in tx.messages.after(first[1_200])])
    assert behind[-1:] == fresh
    assert set(behind) & set(first[1_200:2_500]) == set()
    await retention.sweep()
    assert await database.read(lambda tx: tx.messages.last_position("message")) == fresh[0]


async def test_nothing_is_deleted_without_a_retention(fleet: Fleet) -> None:
    sent = await fleet.send(fleet.light, fleet.sensor)
    fleet.clock.advance(9_000 * DAY_MS)
    await fleet.retention(0).sweep()
    assert await fleet.left() == sent


@pytest.mark.both_engines
async def test_older_rows_are_deleted_and_the_others_stay(fleet: Fleet) -> None:
    retention = fleet.retention(30)
    old = await fleet.send(fleet.light, fleet.sensor)
    actions = await fleet.send(fleet.light, action=True)
    fleet.clock.advance(1)
    young = await fleet.send(fleet.light)
    fleet.clock.advance(30 * DAY_MS - 1)
    await retention.sweep()
    assert await fleet.left() == old + young
    fleet.clock.advance(1)
    await retention.sweep()
    assert (await fleet.left(), await fleet.left("action")) == (young, [])
    assert (retention.statistics().deleted_messages, retention.statistics().deleted_actions) == (2, len(actions))
    fleet.clock.advance(1)
    await retention.sweep()
    assert await fleet.left() == []


@pytest.mark.both_engines
async def test_a_device_type_has_a_retention_of_its_own(fleet: Fleet) -> None:
    retention = fleet.retention(30)
    await fleet.keep_sensors(2)
    light, _ = await fleet.send(fleet.light, fleet.sensor)
    fleet.clock.advance(3 * DAY_MS)
    later = await fleet.send(fleet.light, fleet.sensor)
    await retention.sweep()
    assert await fleet.left() == [light, *later]
    assert retention.statistics().types_with_own_days == 1


@pytest.mark.both_engines
async def test_a_type_may_be_kept_for_ever(fleet: Fleet) -> None:
    retention = fleet.retention(1)
    await fleet.keep_sensors(0)
    _, sensor = await fleet.send(fleet.light, fleet.sensor)
    fleet.clock.advance(999 * DAY_MS)
    await retention.sweep()
    assert await fleet.left() == [sensor]


@pytest.mark.both_engines
async def test_a_shorter_retention_deletes_rows_that_were_kept_before(fleet: Fleet) -> None:
    retention = fleet.retention(10)
    await fleet.keep_sensors(100)
    _, sensor = await fleet.send(fleet.light, fleet.sensor)
    fleet.clock.advance(20 * DAY_MS)
    await retention.sweep()
    assert await fleet.left() == [sensor]
    await fleet.keep_sensors(None)
    await retention.sweep()
    assert await fleet.left() == []


@pytest.mark.both_engines
async def test_failed_messages_are_kept_for_seven_days(fleet: Fleet) -> None:
    retention = fleet.retention(0)
    await fleet.send(fleet.light, failing=True)
    fleet.clock.advance(1)
    young = await fleet.send(fleet.light, failing=True)
    fleet.clock.advance(7 * DAY_MS)
    await retention.sweep()
    assert await fleet.left("failed_message") == young
    assert retention.statistics().deleted_failed_messages == 1


async def test_rows_that_a_consumer_has_not_read_stay(fleet: Fleet) -> None:
    position = fleet.services.messages.ingest.submit(fleet.light, b'{"intensity":1}')
    await fleet.services.messages.ingest.wait_committed()
    fleet.clock.advance(99 * DAY_MS)
    retention = fleet.retention(1)
    await retention.sweep()
    assert await fleet.left() == [position]
    await fleet.services.messages.projector.flush()
    await retention.sweep()
    assert await fleet.left() == []


async def test_analytics_and_snapshots_outlive_messages(fleet: Fleet) -> None:
    await fleet.send(fleet.light)
    fleet.clock.advance(40 * DAY_MS)
    before = await fleet.services.messages.snapshots.of(fleet.light.key)
    await fleet.retention(1).sweep()
    assert await fleet.left() == []
    assert await fleet.services.messages.snapshots.of(fleet.light.key) == before
    found = await fleet.services.messages.analytics.aggregates(
        fleet.light, "intensity", start_ms=Milliseconds(NOW_MS - HOUR_MS), end_ms=Milliseconds(NOW_MS + HOUR_MS)
    )
    assert found.aggregate is not None
    assert found.aggregate.count == 1


@pytest.mark.both_engines
async def test_minute_rollups_are_deleted_before_hours_and_days(fleet: Fleet) -> None:
    retention = fleet.retention(30)
    await fleet.send(fleet.light)
    fleet.clock.advance(2 * DAY_MS)
    await fleet.send(fleet.light)  # the buckets of the first message are closed

    fleet.clock.advance(397 * DAY_MS)
    await retention.sweep()
    assert await fleet.levels() == ["day", "hour", "minute"]
    fleet.clock.advance(2 * DAY_MS)
    await retention.sweep()
    assert await fleet.levels() == ["day", "hour"]
    fleet.clock.advance(3_300 * DAY_MS)
    await retention.sweep()
    assert await fleet.levels() == []
    assert retention.statistics().deleted_rollups == 6  # every message and `intensity`, on three levels


@pytest.mark.both_engines
async def test_each_level_of_rollups_has_days_of_its_own(fleet: Fleet) -> None:
    """Also where messages are kept for ever, and until the day is over, not longer."""
    retention = fleet.retention(0, RollupDays(minutes=10, hours=20))
    await fleet.send(fleet.light)
    fleet.clock.advance(2 * DAY_MS)
    await fleet.send(fleet.light)
    for days, levels in ((7, ["day", "hour", "minute"]), (2, ["day", "hour"]), (10, ["day"]), (9_000, ["day"])):
        fleet.clock.advance(days * DAY_MS)
        await retention.sweep()
        assert await fleet.levels() == levels
    assert len(await fleet.left()) == 2


@pytest.mark.parametrize(
    ("rollups", "messages", "kept"),
    [
        (RollupDays(), 0, (0, 0, 0)),
        (RollupDays(), 30, (400, 3_700, 3_700)),
        (RollupDays(), 5_000, (10_000, 10_000, 10_000)),
        (RollupDays(minutes=30), 0, (30, 0, 0)),
        (RollupDays(minutes=30), 30, (30, 3_700, 3_700)),
        (RollupDays(minutes=800, hours=90), 30, (90, 90, 3_700)),
        (RollupDays(days=100), 30, (100, 100, 100)),
        (RollupDays(days=100), 300, (300, 300, 300)),  # days stay as long as messages
        (RollupDays(days=100), 0, (0, 0, 0)),
    ],
)
def test_how_long_each_level_is_kept(rollups: RollupDays, messages: int, kept: tuple[int, int, int]) -> None:
    assert tuple(rollups.of_device(messages)[level] for level in (Interval.MINUTE, Interval.HOUR, Interval.DAY)) == kept
    for days, known in zip(kept[:2], (rollups.kept.minutes_ms, rollups.kept.hours_ms), strict=True):
        assert not days or known < days * DAY_MS


async def test_rollups_of_many_fields_are_deleted_in_small_steps(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        await fleet.send(fleet.light)
        fleet.clock.advance(DAY_MS)
    await fleet.send(fleet.light)
    fleet.clock.advance(100 * DAY_MS)
    written: list[int] = []
    original = RetentionStore.delete_rollups

    def counted(store: RetentionStore, *arguments: Any) -> int:
        written.append(original(store, *arguments))
        return written[-1]

    monkeypatch.setattr(RetentionStore, "delete_rollups", counted)
    monkeypatch.setattr("broker.messages.retention._STEP_ROLLUPS", 1)
    retention = fleet.retention(0, RollupDays(minutes=10, hours=10))
    await retention.sweep()
    assert retention.statistics().deleted_rollups == sum(written) == 12  # of three closed days, two fields, two levels
    assert set(written) == {1}


async def test_answers_by_hours_and_days_stay_when_minutes_have_gone(
    opener: ServicesOpener, settings: Settings, fake_clock: FakeClock
) -> None:
    """In a zone whose days do not begin at whole hours of UTC, too."""
    storage = Storage(retention_days=30, minute_rollup_days=2, hour_rollup_days=5)
    async with opener(settings=msgspec.structs.replace(settings, storage=storage)) as services:
        world = await build_world(services.core.database, services.core.vault)
        light = await services.devices.registry.get(world.kitchen)
        start = Interval.DAY.start_of(fake_clock.now)

        async def histogram() -> list[tuple[int, int]]:
            found = await services.messages.analytics.histogram(
                light,
                "intensity",
                Interval.DAY,
                start_ms=Milliseconds(start - DAY_MS),
                end_ms=Milliseconds(start + 4 * DAY_MS),
                zone=ZoneInfo("Asia/Kolkata"),
            )
            return [(ts, aggregate.count) for ts, aggregate in found.buckets]

        for _ in range(48):
            services.messages.ingest.submit(light, b'{"intensity":1}')
            await services.messages.ingest.wait_committed()
            fake_clock.advance(HOUR_MS)
        await services.messages.projector.flush()
        for days in (3, 3):  # minutes are gone, then hours
            fake_clock.advance(days * DAY_MS)
            before = await histogram()
            await services.messages.retention.sweep()
            assert await histogram() == before
            assert sum(count for _, count in before) == 48


async def test_positions_are_not_reused_after_deleting(fleet: Fleet) -> None:
    (last,) = await fleet.send(fleet.light)
    fleet.clock.advance(2 * DAY_MS)
    await fleet.retention(1).sweep()
    assert await fleet.send(fleet.light) == [last + 1]


async def test_disk_use_is_estimated(fleet: Fleet) -> None:
    await fleet.send(*[fleet.light] * 500)
    retention = fleet.retention(30)
    await retention.sweep()
    found = retention.statistics()
    assert found.days == 30
    assert found.store_bytes > found.message_bytes > 500 * len('{"intensity":1}')
    parts = [value for name, value in asdict(found).items() if name.endswith("_bytes") and name != "store_bytes"]
    assert sum(parts) == pytest.approx(found.store_bytes, rel=0.01)
    assert found.index_bytes > 0


@pytest.mark.both_engines
async def test_the_sweep_runs_every_ten_minutes(services: Services, fleet: Fleet, autojump_clock: MockClock) -> None:
    await fleet.send(fleet.light, failing=True)
    fleet.clock.advance(8 * DAY_MS)
    await trio.sleep(RETENTION_SWEEP_SECONDS + 1)
    assert await fleet.left("failed_message") == []
    assert services.messages.retention.statistics().deleted_failed_messages == 1


# A step takes a thousand positions, and finds its boundary by halving


@pytest.fixture
async def many(fleet: Fleet) -> Fleet:
    rows = [
        MessageRow(Position(position), fleet.light.key, Milliseconds(1), Milliseconds(position), 1, "{}")
        for position in range(3, 7_000, 2)
    ]
    await fleet.services.core.database.write(lambda tx: tx.messages.append(rows, (), (), head=7_000))
    fleet.services.core.router.publish(MessagesStored(rows))
    return fleet


@pytest.mark.sqlite("its rows have positions that no commit gave")
async def test_many_steps_delete_exactly_what_is_older(many: Fleet) -> None:
    await many.services.messages.projector.flush()
    many.clock.now = 30 * DAY_MS + 5_000
    await many.retention(30).sweep()
    assert await many.left() == list(range(5_001, 7_000, 2))


@pytest.mark.both_engines
async def test_nothing_is_deleted_from_the_first_row_on_that_is_young_enough(fleet: Fleet) -> None:
    """A later row may have an older `cts`, because the clock was set back between them."""
    for fleet.clock.now in (DAY_MS, 5 * DAY_MS, 2 * DAY_MS, 6 * DAY_MS):
        await fleet.send(fleet.light)
    fleet.clock.now = 8 * DAY_MS
    await fleet.retention(4).sweep()
    assert await fleet.left() == [2, 3, 4]


async def test_a_row_from_when_the_clock_was_ahead_goes_with_those_around_it(fleet: Fleet) -> None:
    for fleet.clock.now in (DAY_MS, 400 * DAY_MS, 2 * DAY_MS, 6 * DAY_MS):
        await fleet.send(fleet.light)
    fleet.clock.now = 8 * DAY_MS
    await fleet.retention(4).sweep()
    assert await fleet.left() == [4]


@pytest.mark.sqlite("autovacuum gives the space of PostgreSQL back")
async def test_the_space_of_a_large_sweep_goes_back_to_the_disk_in_small_steps(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some free pages stay for the next messages, and nothing is moved while there are no more."""
    for name, value in (("_FREE_BYTES_KEPT", 1_000_000), ("_PAUSE_BETWEEN_PAGES_SECONDS", 0)):
        monkeypatch.setattr(f"broker.messages.retention.{name}", value)
    database, steps = fleet.services.core.database, []
    original = RetentionStore.give_back

    def counted(store: RetentionStore, pages: int) -> bool:
        before = store.size_bytes()[0]
        more = original(store, pages)
        steps.append(before - store.size_bytes()[0])
        return more

    monkeypatch.setattr(RetentionStore, "give_back", counted)
    body = json.dumps({"unknown": "x" * 900}).encode()

    async def fill(rows: int) -> None:
        for _ in range(rows // 1_000):
            for _ in range(1_000):
                fleet.services.messages.ingest.submit(fleet.light, body)
            await fleet.services.messages.ingest.wait_committed()
        await fleet.services.messages.projector.flush()

    await fill(6_000)
    retention = fleet.retention(30)
    await retention.sweep()
    full = retention.statistics()
    assert steps == []
    fleet.clock.advance(31 * DAY_MS)
    young = await fleet.send(fleet.light)
    await retention.sweep()
    left = retention.statistics()
    assert full.store_bytes > 6_000_000
    assert left.store_bytes < full.store_bytes * 2 / 5  # the empty tables have some 1.5 MB
    assert left.free_bytes <= 1_000_000
    assert 32 * 4_096 < max(steps) <= 66 * 4_096  # with pages that say where others are
    assert await fleet.left() == young
    check = await database.read(lambda tx: list(tx.connection.execute("PRAGMA quick_check").tuples()))
    assert [tuple(row) for row in check] == [("ok",)]
