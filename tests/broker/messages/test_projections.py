"""The folds of the devices: every row counts once, whatever happens to the write of what they came to."""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.leases import Lease, LeaseName
from broker.devices.registry import Device
from broker.facts import MessagesStored
from broker.messages import folds, log_indexer, projections
from broker.messages.decoding import decode
from broker.messages.folds import Folds, Unsaved, open_buckets, write_folds
from broker.messages.intervals import DAY_MS, HOUR_MS, MINUTE_MS, Interval
from broker.messages.projections import WRITE_SECONDS, Projector
from broker.services import Services
from storage.engines.sqlite import SqliteEngine
from storage.keys import DeviceKey, Milliseconds, Position
from storage.message_searches import Range
from storage.records import MessageRow, RollupRow, SnapshotRow
from storage.snapshots import SnapshotStore
from storage.sql import StoreDamagedError, StoreError
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import NOW_MS, World, build_world, new_device
from tests.fakes import BreakableEngine, FakeClock, HeldRunner
from tests.tickets import at


@pytest.fixture
def runner() -> HeldRunner:
    return HeldRunner()


@pytest.fixture
async def held(opener: ServicesOpener, runner: HeldRunner) -> AsyncIterator[Services]:
    """Services whose reads and commits wait for the test."""
    async with opener(run_sync=runner) as services:
        await build_world(services.core.database, services.core.vault)
        yield services


async def send(services: Services, device: Device, *values: int, ts: int = NOW_MS - HOUR_MS) -> None:
    for value in values:
        services.messages.ingest.submit(device, b'{"intensity":%d}' % value, ts)
    await services.messages.ingest.wait_committed()


async def count_and_sum(services: Services, device: Device) -> tuple[int, float]:
    found = await services.messages.analytics.aggregates(
        device, "intensity", start_ms=Milliseconds(NOW_MS - DAY_MS), end_ms=NOW_MS
    )
    assert found.aggregate is not None
    return found.aggregate.count, found.aggregate.sum


async def kitchen_of(services: Services) -> Device:
    key = await services.core.database.read(lambda tx: tx.devices.by_id("11" * 16))
    assert key is not None
    return await services.devices.registry.get(key.key)


async def test_a_flush_that_was_cancelled_before_its_commit_counts_once(held: Services, runner: HeldRunner) -> None:
    kitchen = await kitchen_of(held)
    await send(held, kitchen, 1, 2, 3)
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.messages.projector.flush)
        await runner.holds_commit.wait()
        nursery.cancel_scope.cancel()
        runner.commits.set()
    await held.messages.projector.flush()
    assert await count_and_sum(held, kitchen) == (3, 6)
    await send(held, kitchen, 4)
    await held.messages.projector.flush()
    assert await count_and_sum(held, kitchen) == (4, 10)


async def test_a_node_without_the_lease_holds_nothing_that_it_could_forget(held: Services) -> None:
    """Of several nodes: the removal of devices may run where the folds are not."""
    kitchen, core = await kitchen_of(held), held.core
    await send(held, kitchen, 1, 2, 3)
    projector = Projector(core.database, Lease(LeaseName.FOLDS, is_held=False), core.router)
    await projector.forget([kitchen.key])
    assert (projector.position, projector.statistics().unwritten_devices) == (0, 0)


async def test_two_flushes_at_once_count_once(held: Services, runner: HeldRunner) -> None:
    kitchen = await kitchen_of(held)
    await send(held, kitchen, 1, 2, 3)
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.messages.projector.flush)
        nursery.start_soon(held.messages.projector.flush)
        await wait_all_tasks_blocked()
        runner.commits.set()
    assert await count_and_sum(held, kitchen) == (3, 6)


async def test_a_read_during_a_write_counts_every_row_once(held: Services, runner: HeldRunner) -> None:
    """It reads before the commit and after it; buckets are new, closed, or added to."""
    kitchen = await kitchen_of(held)
    await send(held, kitchen, 1, ts=NOW_MS - HOUR_MS - MINUTE_MS)
    await held.messages.projector.flush()
    await send(held, kitchen, 2)
    await held.messages.projector.flush()
    await send(held, kitchen, 3, ts=NOW_MS - HOUR_MS - MINUTE_MS)
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.messages.projector.flush)
        await runner.holds_commit.wait()
        assert await count_and_sum(held, kitchen) == (3, 6)
        runner.hold_reads()
        found: list[tuple[int, float]] = []

        async def read() -> None:
            found.append(await count_and_sum(held, kitchen))

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        runner.commits.set()
        await wait_all_tasks_blocked()
        runner.reads.set()
    assert found == [(3, 6)]
    assert await count_and_sum(held, kitchen) == (3, 6)


@pytest.mark.parametrize("minutes", [0, 1], ids=["an open bucket", "a bucket that was written"])
async def test_a_write_whose_commit_failed_is_repeated(
    opener: ServicesOpener, engine: SqliteEngine, minutes: int
) -> None:
    breakable = BreakableEngine(engine)
    async with opener(engine=breakable) as services:
        await build_world(services.core.database, services.core.vault)
        kitchen = await kitchen_of(services)
        projector = services.messages.projector
        ts = NOW_MS - HOUR_MS
        await send(services, kitchen, 1, ts=ts)
        await send(services, kitchen, 0, ts=ts + minutes * MINUTE_MS)
        await projector.flush()
        await send(services, kitchen, 2, ts=ts)
        breakable.error = StoreError("the disk is full")
        for _ in range(2):
            with pytest.raises(StoreError, match="disk is full"):
                await projector.flush()
        breakable.error = None
        assert await count_and_sum(services, kitchen) == (3, 3)
        await send(services, kitchen, 3, ts=ts)
        await projector.flush()
        assert await count_and_sum(services, kitchen) == (4, 6)
        statistics = projector.statistics()
        assert statistics.written_position == statistics.position
    async with opener(engine=breakable) as services:
        assert await count_and_sum(services, await kitchen_of(services)) == (4, 6)


async def test_a_flush_leaves_what_is_stored_meanwhile(
    held: Services, runner: HeldRunner, mock_clock: MockClock
) -> None:
    """Otherwise a flush would go on for as long as devices send."""
    kitchen = await kitchen_of(held)
    await send(held, kitchen, 1, 2, 3)
    durable = at(held.messages.ingest.submit(kitchen, b'{"intensity":4}'))
    await held.messages.ingest.wait_committed()
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.core.database.write, lambda _tx: None)
        await wait_all_tasks_blocked()
        nursery.start_soon(held.messages.projector.flush)
        await wait_all_tasks_blocked()
        for value in (5, 6):  # they commit together with what the flush writes
            held.messages.ingest.submit(kitchen, b'{"intensity":%d}' % value)
        runner.commits.set()
    statistics = held.messages.projector.statistics()
    assert (statistics.position, statistics.written_position, statistics.held_rows) == (durable, durable, 2)


async def all_lights(services: Services) -> Sequence[Device]:
    found = [await services.core.database.read(lambda tx, id_=id_: tx.devices.by_id(id_)) for id_ in LIGHTS]  # type: ignore[misc]
    return [await services.devices.registry.get(record.key) for record in found if record is not None]


LIGHTS = ("11" * 16, "12" * 16, "13" * 16)


async def test_devices_are_written_in_parts_and_the_position_follows(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """The devices that wait longest come first, and nothing up to the written position is missing in the store."""
    monkeypatch.setattr(projections, "_WRITE_DEVICES", 1)
    kitchen, hall, bobs = await all_lights(services)
    for device in (hall, kitchen, hall, bobs, hall):
        await send(services, device, 1)
    positions: list[int] = []

    def noted(*arguments: Any) -> None:
        write_folds(*arguments)
        positions.append(services.messages.projector.statistics().written_position)

    monkeypatch.setattr(projections, "write_folds", noted)
    before = services.messages.projector.position
    await services.messages.projector.flush()
    positions.append(services.messages.projector.statistics().written_position)
    assert positions == [before, before + 1, before + 3, before + 5]


@pytest.mark.parametrize("bound", [{"_UNWRITTEN_ROWS": 3}, {"_HELD_DEVICES": 2}, {"_HELD_FIELDS": 15}], ids=str)
async def test_what_waits_to_be_written_has_bounds(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, bound: dict[str, int]
) -> None:
    monkeypatch.setattr(folds, "_WAITING", 1)
    for name, value in bound.items():
        monkeypatch.setattr(projections, name, value)
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        lights = await all_lights(services)
        for minute in range(4):
            for device in lights:
                await send(services, device, 1, ts=NOW_MS - HOUR_MS - minute * MINUTE_MS)
        await trio.sleep(2)
        statistics = services.messages.projector.statistics()
        assert statistics.position > statistics.written_position > 0 or statistics.unwritten_devices == 0
        for device in lights:
            await send(services, device, 2)
            assert await count_and_sum(services, device) == (5, 6)
        await trio.sleep(WRITE_SECONDS + 2)
        for device in lights:
            assert await count_and_sum(services, device) == (5, 6)


async def test_rows_beyond_those_that_are_held_are_read_from_the_log(
    held: Services, runner: HeldRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections, "_HELD_ROWS", 5)
    monkeypatch.setattr(projections, "_READ_ROWS", 4)
    kitchen = await kitchen_of(held)
    await send(held, kitchen, 1)
    await held.messages.projector.flush()
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        await send_without_commit(held, kitchen, 2)
        nursery.start_soon(held.messages.projector.flush)
        await wait_all_tasks_blocked()
        runner.commits.set()
        await send(held, kitchen, *range(10))
    await send(held, kitchen, *range(10))
    await held.messages.projector.flush()
    assert await count_and_sum(held, kitchen) == (22, 93)
    assert held.messages.projector.statistics().held_rows == 0


async def send_without_commit(services: Services, device: Device, value: int) -> None:
    services.messages.ingest.submit(device, b'{"intensity":%d}' % value, NOW_MS - HOUR_MS)


async def test_a_read_adds_the_rows_that_wait_instead_of_reading_them(
    held: Services, runner: HeldRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    kitchen, projector = await kitchen_of(held), held.messages.projector
    await send(held, kitchen, 1)
    await projector.flush()
    before = projector.position
    await send(held, kitchen, 2, 3)
    assert (await held.messages.snapshots.of(kitchen.key))["intensity"][2] == 3
    await send(held, kitchen, 4)
    for _ in range(2):
        assert await count_and_sum(held, kitchen) == (4, 10)
    position, fields = projector.fields_of([kitchen.key])
    assert (position, fields[kitchen.key][0]) == (before + 3, before + 3)
    assert projector.position == before  # other devices may have rows up to there
    await projector.flush()
    assert projector.position == projector.statistics().written_position == before + 3
    assert await count_and_sum(held, kitchen) == (4, 10)


async def test_what_a_read_added_is_written_and_counts_once_after_a_crash(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        lights = await all_lights(services)
        for device in lights:
            await send(services, device, 1)
        await services.messages.projector.flush()
        for device in lights:
            await send(services, device, 2)
        assert await count_and_sum(services, lights[1]) == (2, 3)  # its rows come after those of others
        # The others are written, with a row of this device that is in the folds already.
        await services.messages.projector._catch_up()
        await services.messages.projector._write([lights[0].key])
        await send(services, lights[1], 3)
        assert await count_and_sum(services, lights[1]) == (3, 6)
        monkeypatch.setattr(services.messages.projector, "flush", trio.lowlevel.checkpoint)  # a stop without a write
    async with opener() as services:
        lights = await all_lights(services)
        expected = {device.key: (2, 3.0) for device in lights} | {lights[1].key: (3, 6.0)}
        for _ in range(2):
            assert {device.key: await count_and_sum(services, device) for device in lights} == expected
            await services.messages.projector.flush()


@pytest.mark.both_engines
async def test_a_read_of_a_device_whose_folds_are_not_in_memory_counts_every_row_once(
    held: Services, runner: HeldRunner
) -> None:
    """A device's first rows wait, and those of another one that a read has added."""
    kitchen, projector = await kitchen_of(held), held.messages.projector
    lamp = next(device for device in await all_lights(held) if device.key != kitchen.key)
    await send(held, kitchen, 1)
    await projector.flush()
    await send(held, kitchen, 2)
    assert await count_and_sum(held, kitchen) == (2, 3)
    await send(held, lamp, 5, 6)
    found = await held.messages.snapshots.of_all([kitchen.key, lamp.key])
    assert [fields["intensity"][2] for fields in found.values()] == [2, 6]
    assert await count_and_sum(held, lamp) == (2, 11)
    assert await count_and_sum(held, kitchen) == (2, 3)


async def test_a_read_while_rows_are_added_counts_every_row_once(
    held: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    lights, projector = await all_lights(held), held.messages.projector
    for device in lights:
        await send(held, device, 1)
    await projector.flush()
    for device in lights:
        await send(held, device, 2)
    monkeypatch.setattr(projections, "_LOOK_ROWS", 1)
    found, checkpoint = list[tuple[Position, dict[DeviceKey, Unsaved]]](), trio.lowlevel.checkpoint

    async def read() -> None:
        """Between two devices: what one has in memory is ahead of the other."""
        if projector._adding.number:
            found.append(projector.captured([device.key for device in lights]))
        await checkpoint()

    monkeypatch.setattr(trio.lowlevel, "checkpoint", read)
    before = projector.position
    await projector._add_held()
    monkeypatch.setattr(trio.lowlevel, "checkpoint", checkpoint)
    assert len(found) >= len(lights)  # and other tasks have checkpoints as well
    for position, folds_of in found:
        assert projector.position == position == before + len(lights)
        counts = [sum(unsaved.whole[place][""].count for place in unsaved.whole) for unsaved in folds_of.values()]
        assert counts == [3 * 2] * len(lights)  # a minute, an hour and a day, each with two messages
    for device in lights:
        assert await count_and_sum(held, device) == (2, 3)


@pytest.mark.parametrize(("devices", "rows"), [(1, 4), (2, 4), (3, 6), (4, 8), (5, 9), (9, 9)])
async def test_rows_of_many_devices_wait_for_more_of_each(
    held: Services, monkeypatch: pytest.MonkeyPatch, devices: int, rows: int
) -> None:
    monkeypatch.setattr(projections, "_LOOK_ROWS", 4)
    monkeypatch.setattr(projections, "_LOOK_ROWS_OF_A_DEVICE", 2)
    monkeypatch.setattr(projections, "_LOOK_ROWS_MOST", 9)
    monkeypatch.setattr(projections, "_LOOK_SECONDS", math.inf)
    projector, head = held.messages.projector, held.messages.projector.position
    await projector.flush()
    for number in range(1, rows + 1):
        assert projector.statistics().held_rows == number - 1
        row = MessageRow(
            Position(head + number), DeviceKey(1_000 + number % devices), NOW_MS, NOW_MS, 1, '{"intensity":1}'
        )
        projector._messages_stored(MessagesStored([row]))
        await wait_all_tasks_blocked()
    assert projector.statistics().held_rows == 0


async def test_rows_of_many_devices_do_not_wait_when_too_many_have_no_index_entry(
    held: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections, "_LOOK_ROWS", 2)
    monkeypatch.setattr(projections, "_LOOK_ROWS_MOST", 6)
    monkeypatch.setattr(log_indexer, "_UNINDEXED_MOST", 8)
    monkeypatch.setattr(projections, "_LOOK_SECONDS", math.inf)
    monkeypatch.setattr(log_indexer, "_INDEX_SECONDS", math.inf)
    projector = held.messages.projector
    await projector.flush()
    head, most = projector.position, 0
    for number in range(1, 50):
        row = MessageRow(Position(head + number), DeviceKey(1_000 + number), NOW_MS, NOW_MS, 1, '{"intensity":1}')
        projector._messages_stored(MessagesStored([row]))
        await wait_all_tasks_blocked()
        most = max(most, head + number - projector.statistics().indexed_position)
    assert most == 8 - 1


async def test_adding_rows_to_a_part_of_the_devices_is_not_cancelled(
    held: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    lights, projector = await all_lights(held), held.messages.projector
    for device in lights:
        await send(held, device, 1)
    await projector.flush()
    for device in lights:
        await send(held, device, 2)
    monkeypatch.setattr(projections, "_LOOK_ROWS", 1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await projector._add_held()
    assert projector.position == projector.statistics().written_position + len(lights)
    for device in lights:
        assert await count_and_sum(held, device) == (2, 3)


async def test_a_read_during_a_write_adds_nothing_to_the_folds_that_are_written(
    held: Services, runner: HeldRunner
) -> None:
    kitchen, projector = await kitchen_of(held), held.messages.projector
    await send(held, kitchen, 1)
    await projector.flush()
    await send(held, kitchen, 2)
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(projector.flush)
        await runner.holds_commit.wait()
        before = projector.position
        rows = [
            MessageRow(Position(before + number), kitchen.key, Milliseconds(NOW_MS - HOUR_MS), NOW_MS, 1, "{}")
            for number in range(1, 1_001)
        ]
        held.core.router.publish(MessagesStored(rows))
        during, found = projector.captured([kitchen.key])
        runner.commits.set()
    assert (during, found[kitchen.key].position) == (before, before)
    assert projector.captured([kitchen.key])[0] == before + 1_000
    await projector.flush()
    assert projector.position == before + 1_000


async def test_a_read_of_a_device_that_is_written_with_rows_of_an_earlier_read_counts_every_row_once(
    held: Services, runner: HeldRunner
) -> None:
    kitchen, projector = await kitchen_of(held), held.messages.projector
    await send(held, kitchen, 1)
    await projector._catch_up()
    await send(held, kitchen, 2)
    assert await count_and_sum(held, kitchen) == (2, 3)
    runner.hold_commits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(projector._write, [kitchen.key])
        await runner.holds_commit.wait()
        held.messages.ingest.submit(kitchen, b'{"intensity":3}', NOW_MS - HOUR_MS)
        position, found = projector.captured([kitchen.key])
        assert found[kitchen.key].position == position + 1
        assert await count_and_sum(held, kitchen) == (2, 3)
        runner.commits.set()
    assert await count_and_sum(held, kitchen) == (3, 6)


async def test_what_is_written_already_is_not_written_again(held: Services) -> None:
    kitchen, projector = await kitchen_of(held), held.messages.projector
    await send(held, kitchen, 1)
    await projector._catch_up()
    await send(held, kitchen, 2)
    assert await count_and_sum(held, kitchen) == (2, 3)
    await projector._write([kitchen.key])  # with the row that the read added
    await projector._catch_up()
    assert projector.statistics().unwritten_devices == 0
    assert await count_and_sum(held, kitchen) == (2, 3)


async def test_nothing_is_added_to_folds_that_lack_rows_of_the_log(
    held: Services, runner: HeldRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that came while the log was read are after the unread ones."""
    monkeypatch.setattr(projections, "_HELD_ROWS", 3)
    monkeypatch.setattr(projections, "_READ_ROWS", 2)
    kitchen, projector = await kitchen_of(held), held.messages.projector
    await send(held, kitchen, 1)
    await projector.flush()
    await send(held, kitchen, 2, 3, 4, 5, 6, 7)  # more than are held
    async with trio.open_nursery() as nursery:
        runner.hold_reads()
        nursery.start_soon(projector.flush)
        await wait_all_tasks_blocked()
        await send(held, kitchen, 8)
        position, found = projector.captured([kitchen.key])
        assert position == found[kitchen.key].position == projector.position
        runner.reads.set()
    assert await count_and_sum(held, kitchen) == (8, 36)


async def test_rows_whose_adding_failed_are_read_from_the_log(held: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    kitchen, projector = await kitchen_of(held), held.messages.projector
    await send(held, kitchen, 1)
    await projector.flush()
    await send(held, kitchen, 2, 3)

    def fail(folds: Folds, rows: Sequence[MessageRow]) -> bool:
        raise LookupError("no")

    with monkeypatch.context() as patched:
        patched.setattr(Folds, "fold", fail)
        with pytest.raises(LookupError):
            await projector.flush()
    await send(held, kitchen, 4)
    await projector.flush()
    assert await count_and_sum(held, kitchen) == (4, 10)
    assert await found_in_search(held, kitchen) == [1, 2, 3, 4]


@pytest.mark.parametrize(("characters", "number"), [(100, 15), (600, 0)])
async def test_only_few_short_rows_of_a_device_wait(
    services: Services, world: World, characters: int, number: int
) -> None:
    """They are in every answer all the same."""
    kitchen = await kitchen_of(services)
    for index in range(40):
        payload = b'{"text":"%s","intensity":%d}' % (b"x" * characters, index)
        services.messages.ingest.submit(kitchen, payload, NOW_MS - HOUR_MS)
        await services.messages.ingest.wait_committed()
        await services.messages.projector._catch_up()
        waiting = len(services.messages.projector._folds[kitchen.key]._waiting)
        assert waiting <= number
    assert waiting == (40 % 16 if number else 0)
    assert (await services.messages.snapshots.of(kitchen.key))["intensity"][2] == 39
    assert await count_and_sum(services, kitchen) == (40, sum(range(40)))


async def test_the_numbers_that_wait_in_all_folds_have_a_bound(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folds, "_VALUES_MOST", 100)
    lights, projector = await all_lights(services), services.messages.projector
    most = 0
    for index in range(60):
        for device in lights:
            payload = b'{"intensity":%d,"state":true}' % index if index < 30 else b'{"intensity":%d}' % index
            services.messages.ingest.submit(device, payload, NOW_MS - HOUR_MS)
        await services.messages.ingest.wait_committed()
        await projector._catch_up()
        waiting = [
            of for one in projector._folds.values() for minute in one._minutes.values() for of in minute.values()
        ]
        most = max(most, sum(len(values.numbers) for values in waiting))
        assert projector._tally.values <= 100
    assert 30 < most <= 100
    for device in lights:
        assert await count_and_sum(services, device) == (60, sum(range(60)))
    await projector.flush()
    assert projector._tally.values == 0
    for device in lights:
        services.messages.ingest.submit(device, b'{"intensity":1}', NOW_MS - HOUR_MS)
    await services.messages.ingest.wait_committed()
    await services.messages.snapshots.of_all([device.key for device in lights])  # in the folds, and not to be written
    assert projector._tally.values == len(lights)
    projector._drop([device.key for device in lights])
    assert (projector._tally.fields, projector._tally.values) == (0, 0)


async def test_the_written_position_does_not_pass_rows_whose_adding_failed(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`until` follows from the next device that waits, though the rows before it were never added."""
    monkeypatch.setattr(projections, "_READ_ROWS", 1)
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        kitchen, hall, _ = await all_lights(services)
        projector = services.messages.projector
        await send(services, kitchen, 1)
        await send(services, hall, 1)
        await projector.flush()
        for value in (2, 3, 4):
            await send(services, kitchen, value)
        await send(services, hall, 2)

        def fail(folds: Folds, rows: Sequence[MessageRow]) -> None:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(Folds, "fold", fail)
            with pytest.raises(MemoryError):
                await projector._catch_up()
        # The log is read on, a row at a time, and a write is due after the first one.
        monkeypatch.setattr(projections, "_UNWRITTEN_ROWS", 0)
        monkeypatch.setattr(projections, "_WRITE_DEVICES", 1)
        reads = 0
        add = projector._add

        async def stop_at_the_second(rows: Any) -> None:
            nonlocal reads
            reads += 1
            if reads == 2:
                raise StoreError("crash")
            await add(rows)

        monkeypatch.setattr(projector, "_add", stop_at_the_second)
        with pytest.raises(StoreError, match="crash"):
            await projector._catch_up()
        assert projector.statistics().written_position <= projector.position
        monkeypatch.setattr(projector, "flush", trio.lowlevel.checkpoint)
    async with opener() as services:
        assert await count_and_sum(services, await kitchen_of(services)) == (4, 10)


async def test_rows_that_a_read_failed_to_add_are_not_lost(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`position` counts rows that `_add` has taken out of `_waiting` and not added."""
    kitchen, projector = await kitchen_of(services), services.messages.projector
    await send(services, kitchen, 1)
    await projector.flush()
    await send(services, kitchen, 2, 3)

    with monkeypatch.context() as patched:

        def fail(*_: Any) -> Any:
            raise MemoryError

        patched.setattr(folds, "decoded", fail)
        with pytest.raises(MemoryError):
            await count_and_sum(services, kitchen)
    await projector.flush()
    assert await count_and_sum(services, kitchen) == (3, 6)


@pytest.mark.both_engines
async def test_a_field_that_is_new_in_a_write_that_met_damage_keeps_its_name(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """The keys of fields of the transaction that was undone are used in the tries that follow."""
    put_all = SnapshotStore.put_all
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        kitchen, hall, _ = await all_lights(services)

        def put(store: SnapshotStore, rows: Sequence[SnapshotRow]) -> None:
            if any(row.device == hall.key for row in rows):
                raise StoreDamagedError("DatabaseError: database disk image is malformed")
            put_all(store, rows)

        await send(services, kitchen, 1, 2)
        await send(services, kitchen, 3, ts=NOW_MS - 50 * 60_000)
        await send(services, hall, 1)
        with monkeypatch.context() as patched:
            patched.setattr(SnapshotStore, "put_all", put)
            await services.messages.projector.flush()
        names = await services.core.database.read(
            lambda tx: [(r["key"], r["path"]) for r in tx.connection.execute("SELECT key, path FROM field")]
        )
        used = await services.core.database.read(
            lambda tx: {r["field"] for r in tx.connection.execute("SELECT DISTINCT field FROM rollup")}
        )
        assert used <= {key for key, _ in names}
        assert await count_and_sum(services, kitchen) == (3, 6)


async def test_devices_that_are_read_beside_a_damaged_one_do_not_add_to_the_tally_for_ever(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kitchen, hall, bobs = await all_lights(services)
    projector = services.messages.projector
    for device in (kitchen, hall, bobs):
        await send(services, device, 1)
    await projector.flush()
    load = Folds.load.__func__  # type: ignore[attr-defined]

    def fail(tx: Transaction, devices: Any, tally: Any) -> dict[DeviceKey, Folds]:
        if bobs.key in devices:
            raise StoreDamagedError("DatabaseError: database disk image is malformed")
        return load(Folds, tx, devices, tally)  # type: ignore[no-any-return]

    monkeypatch.setattr(Folds, "load", fail)
    for _ in range(5):
        projector._drop(list(projector._folds))
        for device in (kitchen, hall, bobs):
            await send(services, device, 1)
        await projector.flush()
    assert projector._tally.fields == sum(folds._size for folds in projector._folds.values())


@pytest.mark.both_engines
async def test_a_row_that_cannot_be_decoded_is_left_out_alone(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is damaged in a way that the engine does not see."""
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        kitchen, hall, _ = await all_lights(services)
        for value in (1, *range(100, 120)):
            await send(services, kitchen, value)
        await send(services, hall, 1)
        monkeypatch.setattr(services.messages.projector, "flush", trio.lowlevel.checkpoint)  # a stop without a write
        await services.core.database.write(
            lambda tx: tx.connection.execute(
                "UPDATE message SET data = '{' || substr(data, 3) WHERE position = (SELECT min(position) FROM message)"
            )
        )
    with capture_logs() as logs:
        async with opener() as services:
            kitchen, hall, _ = await all_lights(services)
            await services.messages.projector.flush()
            assert await count_and_sum(services, kitchen) == (20, sum(range(100, 120)))
            assert await count_and_sum(services, hall) == (1, 1)
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["snapshot_incomplete"]


async def test_a_write_that_met_a_defect_leaves_the_devices_waiting(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kitchen, projector = await kitchen_of(services), services.messages.projector
    await send(services, kitchen, 1, 2)

    def fail(*_: Any) -> None:
        raise LookupError("no")

    with monkeypatch.context() as patched:
        for module, name in ((projections, "write_folds"), (Folds, "unsaved")):
            patched.setattr(module, name, fail)
            with pytest.raises(LookupError):
                await projector.flush()
            assert projector.statistics().unwritten_devices == 1
    await projector.flush()
    assert projector.statistics().unwritten_devices == 0
    assert await count_and_sum(services, kitchen) == (2, 3)


async def test_very_many_rows_of_a_device_are_added_piece_by_piece(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections, "_FOLD_SECONDS", 0)
    kitchen, projector = await kitchen_of(services), services.messages.projector
    await send(services, kitchen, 1)
    await projector.flush()
    before = projector.position
    async with projector._working:  # the worker waits
        for index in range(5_000):
            services.messages.ingest.submit(kitchen, b'{"intensity":%d}' % index, NOW_MS - HOUR_MS - index)
        await services.messages.ingest.wait_committed()
        position, found = projector.captured([kitchen.key])
        assert (position, found[kitchen.key].position) == (before, before)  # a read leaves this number to the log
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while projector.position == before:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(projector.flush)
        nursery.start_soon(count_turns)
    assert turns > 20
    assert await count_and_sum(services, kitchen) == (5_001, 1 + sum(range(5_000)))


async def test_a_read_adds_no_rows_that_wait_behind_very_many_others(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kitchen, projector = await kitchen_of(services), services.messages.projector
    await send(services, kitchen, 1)
    await projector.flush()
    before, found, checkpoint = projector.position, list[Position](), trio.lowlevel.checkpoint

    async def read() -> None:
        """Between two pieces of the many rows, after a further one has come."""
        if projector._adding.number and not found:
            position = Position(before + 5_001)
            row = MessageRow(position, kitchen.key, Milliseconds(NOW_MS - HOUR_MS), NOW_MS, 1, '{"intensity":7}')
            services.core.router.publish(MessagesStored([row]))
            position, folds_of = projector.captured([kitchen.key])
            found.extend((position, folds_of[kitchen.key].position))
        await checkpoint()

    async with projector._working:  # the worker would add the further row between two pieces
        for index in range(5_000):
            services.messages.ingest.submit(kitchen, b'{"intensity":%d}' % index, NOW_MS - HOUR_MS)
        await services.messages.ingest.wait_committed()
        monkeypatch.setattr(trio.lowlevel, "checkpoint", read)
        await projector._add_held()
        monkeypatch.setattr(trio.lowlevel, "checkpoint", checkpoint)
        assert found[0] == before < found[1] < before + 5_000
        await projector._add_held()
    _, folds_of = projector.captured([kitchen.key])
    minute = max(place for place in folds_of[kitchen.key].whole if place[0] is Interval.MINUTE)
    assert folds_of[kitchen.key].whole[minute]["intensity"].count == 5_002


async def test_folds_with_rows_of_a_read_are_not_dropped_before_the_worker_has_come_to_them(
    services: Services, world: World
) -> None:
    """A read that still waits for its transaction has these rows, and the store would get a part of them."""
    kitchen, hall, _ = await all_lights(services)
    projector = services.messages.projector
    for device in (kitchen, hall):
        await send(services, device, 1)
    await projector.flush()
    await send(services, kitchen, 2)
    assert await count_and_sum(services, kitchen) == (2, 3)
    projector._drop_written()
    assert set(projector._folds) == {kitchen.key}


# The index of the log


async def without_entries(services: Services) -> int:
    """How many positions at the end of the log have no index entry."""
    return await services.core.database.read(lambda tx: tx.messages.head() - tx.messages.counter("indexed"))


async def found_in_search(services: Services, device: Device) -> list[int]:
    """The values that a search of all messages of the device finds."""
    rows = await services.core.database.read(lambda tx: tx.message_searches.page([device.key], Range(None, None)))
    return [decode(row.data)["intensity"] for row in rows]


async def test_rows_get_their_index_entries_together(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """All senders wait for them: a second passes between two steps, unless there are very many rows."""
    monkeypatch.setattr(projections, "_LOOK_ROWS", 1)
    monkeypatch.setattr(projections, "_LOOK_ROWS_OF_A_DEVICE", 1)
    monkeypatch.setattr(log_indexer, "_UNINDEXED", 4)
    monkeypatch.setattr(log_indexer, "_UNINDEXED_MOST", 10)
    kitchen, counts = await kitchen_of(services), []

    async def count() -> None:
        await wait_all_tasks_blocked()
        counts.append(await without_entries(services))
        shown = services.messages.projector.statistics().indexed_position
        assert services.messages.ingest.head - shown == counts[-1]

    await nursery.start(services.messages.projector.project_forever)
    await send(services, kitchen, 1)
    await trio.sleep(0.5)
    await count()  # the first one of this run
    await send(services, kitchen, 2, 3, 4, 5)
    await count()
    await trio.sleep(1.5)
    await count()
    await send(services, kitchen, *range(6, 15))
    await count()
    await send(services, kitchen, 15)
    await count()
    await send(services, kitchen, 16)
    await trio.sleep(58)
    await count()
    await trio.sleep(4)
    await count()
    assert counts == [0, 4, 0, 9, 0, 1, 0]
    assert await found_in_search(services, kitchen) == list(range(1, 17))


async def test_index_entries_whose_write_failed_are_made_of_the_log(
    opener: ServicesOpener, engine: SqliteEngine
) -> None:
    breakable = BreakableEngine(engine)
    async with opener(engine=breakable) as services:
        await build_world(services.core.database, services.core.vault)
        kitchen = await kitchen_of(services)
        await send(services, kitchen, 1)
        breakable.error = StoreError("the disk is full")
        with pytest.raises(StoreError, match="disk is full"):
            await services.messages.projector.flush()
        breakable.error = None
        assert await without_entries(services) > 0
        await send(services, kitchen, 2)
        await services.messages.projector.flush()
        assert await without_entries(services) == 0
        assert await found_in_search(services, kitchen) == [1, 2]


@pytest.mark.both_engines
async def test_rows_that_are_added_again_have_one_index_entry(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart adds rows behind the last written position to the folds again, some at a time."""
    monkeypatch.setattr(projections, "_READ_ROWS", 1)
    kitchen, projector = await kitchen_of(services), services.messages.projector
    await send(services, kitchen, 1, 2)
    await projector.flush()
    before = projector.position
    await services.core.database.write(lambda tx: tx.messages.set_consumer_position("folds", Position(before - 2)))
    await projector.resume()
    projector._follows = False  # as after a start
    for value in (3, 4):
        await projector.flush()
        await send(services, kitchen, value)
    await projector.flush()
    assert await found_in_search(services, kitchen) == [1, 2, 3, 4]
    assert await without_entries(services) == 0
    entries = await services.core.database.read(
        lambda tx: [row["number"] for row in tx.connection.execute("SELECT number FROM message_entry ORDER BY key")]
    )
    assert entries == [2, 1, 1]


async def test_a_reading_of_the_log_that_was_cancelled_begins_again(
    held: Services, runner: HeldRunner, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    kitchen = await kitchen_of(held)
    await held.messages.projector.flush()
    with monkeypatch.context() as patched:
        patched.setattr(projections, "_HELD_ROWS", 1)
        await send(held, kitchen, 1, 2, 3)
    runner.hold_reads()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.messages.projector.flush)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    runner.reads.set()
    await send(held, kitchen, 4)
    await held.messages.projector.flush()
    assert await count_and_sum(held, kitchen) == (4, 10)


async def test_a_stop_does_not_wait_for_what_can_be_written_later(
    opener: ServicesOpener, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """Each write takes three seconds here, and there are three."""

    def slow(*arguments: Any) -> None:
        mock_clock.jump(3)
        write_folds(*arguments)

    monkeypatch.setattr(projections, "_WRITE_DEVICES", 1)
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        lights = await all_lights(services)
        for device in lights:
            await send(services, device, *range(10))
        monkeypatch.setattr(projections, "write_folds", slow)
        projector, stopping_at = services.messages.projector, trio.current_time()
    assert trio.current_time() - stopping_at <= 4
    statistics = projector.statistics()
    assert (statistics.unwritten_devices, statistics.written_position) == (2, 10)
    monkeypatch.setattr(projections, "write_folds", write_folds)
    async with opener() as services:
        for device in await all_lights(services):
            assert await count_and_sum(services, device) == (10, 45)


@pytest.mark.both_engines
async def test_a_store_of_a_version_that_wrote_every_bucket_at_once_goes_on(opener: ServicesOpener) -> None:
    ts = NOW_MS - HOUR_MS
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        kitchen = await kitchen_of(services)
        await send(services, kitchen, 1, ts=ts - MINUTE_MS)
        await send(services, kitchen, 2, 3, ts=ts)
    async with opener() as services:
        await services.core.database.write(lambda tx: as_before(tx, kitchen))
    async with opener() as services:
        kitchen = await kitchen_of(services)
        assert await count_and_sum(services, kitchen) == (3, 6)
        for at in (ts - MINUTE_MS, ts, ts + MINUTE_MS, ts):
            await send(services, kitchen, 4, ts=at)
        for _ in range(2):
            assert await count_and_sum(services, kitchen) == (7, 22)
            found = await services.messages.analytics.histogram(
                kitchen,
                "intensity",
                Interval.MINUTE,
                start_ms=Milliseconds(ts - 9 * MINUTE_MS),
                end_ms=Milliseconds(ts + 9 * MINUTE_MS),
            )
            assert [bucket.count for _, bucket in found.buckets] == [2, 4, 1]
            assert (await services.messages.snapshots.of(kitchen.key))["intensity"][0] == ts + MINUTE_MS
            await services.messages.projector.flush()


async def test_late_messages_of_many_minutes_take_few_statements(
    services: Services, world: World, statements: list[str]
) -> None:
    """Each bucket that they are added to was a statement of its own."""
    kitchen, *_ = await all_lights(services)
    minutes = range(200)
    for value in (1, 2):
        statements.clear()
        for minute in minutes:
            services.messages.ingest.submit(kitchen, b'{"intensity":%d}' % value, NOW_MS - DAY_MS + minute * MINUTE_MS)
        await services.messages.ingest.wait_committed()
        await services.messages.projector.flush()
        assert len(statements) < 50
    assert await count_and_sum(services, kitchen) == (400, 600)


async def test_folds_of_many_devices_are_read_in_few_statements(
    services: Services, world: World, statements: list[str]
) -> None:
    records = [
        new_device(
            f"{number:032x}",
            owner=world.ada,
            device_type=world.light_type,
            name=f"Light {number}",
            manifest_version=1,
            manifest_version_policy="LATEST",
            enabled=True,
            now_ms=1,
        )
        for number in range(100)
    ]
    keys = await services.core.database.write(lambda tx: [tx.devices.put_device(one) for one in records])
    lights = [await services.devices.registry.get(key) for key in keys]
    for _ in range(2):  # they are new, and then they are in the store
        statements.clear()
        for light in lights:
            services.messages.ingest.submit(light, b'{"intensity":1}', NOW_MS - HOUR_MS)
        await services.messages.ingest.wait_committed()
        await services.messages.projector.flush()
        services.messages.projector._drop_written()
        await services.messages.snapshots.of_all([light.key for light in lights])
        assert len(statements) < 60


def as_before(tx: Transaction, device: Device) -> None:
    """Bring the rows of a device into the form of that version: no bucket was held beside the rollups."""
    saved = tx.snapshots.of(device.key)
    assert saved is not None
    for (level, start), cells in open_buckets(saved).items():
        for path, (count, of) in ((path, (one.count, one.numbers)) for path, one in cells.items()):
            numbers = () if of is None else (of.count, of.min, of.max, of.sum, of.mean_high, of.mean_low, of.m2)
            key = tx.rollups.add_fields([path])[path]
            tx.rollups.put_all([RollupRow(device.key, key, level, start, count, *numbers)])
    tx.connection.execute("UPDATE snapshot SET position = 0, open = NULL")


@pytest.mark.both_engines
async def test_what_a_removed_device_left_in_memory_is_not_written(services: Services, world: World) -> None:
    kitchen, hall, _ = await all_lights(services)
    await send(services, kitchen, 1)
    await send(services, hall, 1)

    def remove(tx: Transaction) -> None:
        for table in ("device_token", "presence", "device"):
            column = "key" if table == "device" else "device"
            tx.connection.execute(f"DELETE FROM {table} WHERE {column} = :key", {"key": kitchen.key})  # noqa: S608

    await services.core.database.write(remove)
    await services.messages.projector.flush()
    for device, is_there in ((kitchen, False), (hall, True)):
        saved = await services.core.database.read(lambda tx, key=device.key: tx.snapshots.of(key))  # type: ignore[misc]
        assert (saved is not None) is is_there


async def test_a_device_on_a_damaged_page_stops_no_other_device(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    kitchen, hall, bobs = await all_lights(services)
    put_all = SnapshotStore.put_all

    def put(store: SnapshotStore, rows: Sequence[SnapshotRow]) -> None:
        if any(row.device == hall.key for row in rows):
            raise StoreDamagedError("DatabaseError: database disk image is malformed")
        put_all(store, rows)

    monkeypatch.setattr(SnapshotStore, "put_all", put)
    projector = services.messages.projector
    with capture_logs() as logs:
        for _ in range(2):
            for device in (kitchen, hall, bobs):
                await send(services, device, 1)
            await projector.flush()
    told = [line for line in logs if line["event"] == "snapshot_incomplete"]
    assert [line["device"] for line in told] == [hall.key]
    assert projector.statistics().written_position == projector.position
    for device in (kitchen, bobs):
        assert await count_and_sum(services, device) == (2, 2)
    monkeypatch.setattr(SnapshotStore, "put_all", put_all)
    await send(services, hall, 1)
    await projector.flush()
    assert await count_and_sum(services, hall) == (1, 1)


async def test_after_a_message_from_the_future_every_earlier_one_counts(opener: ServicesOpener) -> None:
    """Its buckets are the newest for an hour: buckets of all later messages are written already, or never were."""
    start = NOW_MS - NOW_MS % MINUTE_MS - HOUR_MS
    for run in range(3):
        async with opener() as services:
            if run == 0:
                await build_world(services.core.database, services.core.vault)
                await send(services, await kitchen_of(services), 1, ts=NOW_MS + MINUTE_MS)
            kitchen = await kitchen_of(services)
            for minute in (0, 1, 0, 2):
                await send(services, kitchen, minute, ts=start + minute * MINUTE_MS)
                await services.messages.projector.flush()
            found = await services.messages.analytics.histogram(
                kitchen,
                "intensity",
                Interval.MINUTE,
                start_ms=Milliseconds(start),
                end_ms=Milliseconds(start + HOUR_MS),
            )
            counts = [bucket.count for _, bucket in found.buckets]
            assert counts == [2 * (run + 1), run + 1, run + 1]


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_read_does_not_change_which_value_counts_after_a_clock_was_set_back(
    opener: ServicesOpener, fake_clock: FakeClock, is_read: bool
) -> None:
    """A value from 4 minutes ahead is replaced by one from 10 minutes ahead, and that by one of the right time."""
    async with opener() as services:
        await build_world(services.core.database, services.core.vault)
        kitchen, projector = await kitchen_of(services), services.messages.projector
        for seconds, value in ((240, 0), (600, 1), (0, 2)):
            fake_clock.now = NOW_MS + seconds * 1_000
            services.messages.ingest.submit(kitchen, b'{"intensity":%d}' % value)
            await services.messages.ingest.wait_committed()
            await projector._catch_up()
            if is_read and value == 0:
                await services.messages.snapshots.of(kitchen.key)
        assert (await services.messages.snapshots.of(kitchen.key))["intensity"][2] == 2


async def test_of_several_nodes_the_one_that_folds_reads_the_log(
    held: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others store most of the rows. When many come it reads on soon, so that the index is not far behind."""
    monkeypatch.setattr(projections, "_READ_ON_ROWS", 3)
    kitchen = await kitchen_of(held)
    projector = Projector(held.core.database, Lease(LeaseName.FOLDS), None)
    await projector.resume()
    for number, is_soon in ((3, True), (2, False), (0, False)):
        await send(held, kitchen, *range(number))
        assert await projector._step() is is_soon
        assert projector.position == await held.core.database.read(lambda tx: tx.messages.head())
    assert projector.statistics().held_rows == 0
