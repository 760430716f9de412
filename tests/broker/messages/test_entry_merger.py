"""Entries of devices that send seldom are put together, and every search finds the same."""

from pathlib import Path

import pytest

from broker.cluster.leases import Lease, LeaseName
from broker.devices.registry import Device
from broker.messages.entry_merger import EntryMerger
from broker.services import Services
from storage.keys import Milliseconds, Position
from storage.message_searches import Range
from storage.transaction import Transaction
from tests.damaged_pages import damage, leaves
from tests.factories import NOW_MS, World
from tests.fakes import FakeClock

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.messages.entry_merger._PAUSE_SECONDS", 0)


async def send(services: Services, clock: FakeClock, device: Device, *, number: int, every_ms: int) -> None:
    """Messages with a step of the index after each one, as for a device that sends seldom in a quiet store."""
    for _ in range(number):
        clock.advance(every_ms)
        services.messages.ingest.submit_action(device, device, b'{"actions":[{"name":"setOn"}]}')
        services.messages.ingest.submit(device, b'{"intensity":1}')
        await services.messages.ingest.wait_committed()
        await services.messages.projector.flush()


def entries(tx: Transaction) -> dict[str, list[int]]:
    """How many rows each entry has, by table."""
    return {
        table: [row["number"] for row in tx.connection.execute(f"SELECT number FROM {table} ORDER BY upto, key")]  # noqa: S608
        for table in ("message_entry", "action_entry")
    }


def found(device: Device, tx: Transaction) -> list[list[Position]]:
    """What searches of several times find, in both directions and both orders."""
    hour = 3_600_000
    ranges = [(None, None), (NOW_MS + hour, NOW_MS + 3 * hour), (NOW_MS + 90_001, NOW_MS + 90_001 + hour)]
    return [
        [
            row.position
            for row in tx.message_searches.page(
                [device.key],
                Range(
                    None if start is None else Milliseconds(start),
                    None if end is None else Milliseconds(end),
                    descending=descending,
                    by_arrival=by_arrival,
                ),
            )
        ]
        for start, end in ranges
        for descending in (False, True)
        for by_arrival in (False, True)
    ]


@pytest.mark.both_engines
async def test_a_device_that_sends_once_a_minute_has_few_entries(
    services: Services, world: World, fake_clock: FakeClock
) -> None:
    kitchen, hall = [await services.devices.registry.get(key) for key in (world.kitchen, world.hall)]
    await send(services, fake_clock, kitchen, number=250, every_ms=60_000)
    await send(services, fake_clock, hall, number=3, every_ms=60_000)
    database = services.core.database
    before = await database.read(lambda tx: (found(kitchen, tx), found(hall, tx)))
    assert {len(of) for of in (await database.read(entries)).values()} == {253}
    await EntryMerger(database, Lease(LeaseName.FOLDS)).merge()
    assert await database.read(entries) == {"message_entry": [100, 100, 50, 3], "action_entry": [100, 100, 50, 3]}
    assert await database.read(lambda tx: (found(kitchen, tx), found(hall, tx))) == before
    # A device that sends less than once an hour: the last entry grows with it.
    for _ in range(2):
        await send(services, fake_clock, hall, number=1, every_ms=60_000)
        await EntryMerger(database, Lease(LeaseName.FOLDS)).merge()
    assert (await database.read(entries))["message_entry"] == [100, 100, 50, 3, 2]


@pytest.mark.both_engines
async def test_an_entry_lasts_a_day_at_most_and_has_rising_times(
    services: Services, world: World, fake_clock: FakeClock
) -> None:
    kitchen = await services.devices.registry.get(world.kitchen)
    await send(services, fake_clock, kitchen, number=5, every_ms=40_000_000)
    fake_clock.advance(-3_600_000)
    await send(services, fake_clock, kitchen, number=2, every_ms=1_000)
    database = services.core.database
    before = await database.read(lambda tx: found(kitchen, tx))
    await EntryMerger(database, Lease(LeaseName.FOLDS)).merge()
    assert (await database.read(entries))["message_entry"] == [3, 2, 2]
    assert await database.read(lambda tx: found(kitchen, tx)) == before


@pytest.mark.both_engines
async def test_many_small_steps_leave_nothing_out(
    services: Services, world: World, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.messages.entry_merger._STEP_ENTRIES", 1)
    monkeypatch.setattr("broker.messages.entry_merger._DEVICES_AT_ONCE", 1)
    devices = [await services.devices.registry.get(key) for key in (world.kitchen, world.hall)]
    for device in devices:
        await send(services, fake_clock, device, number=4, every_ms=60_000)
    await EntryMerger(services.core.database, Lease(LeaseName.FOLDS)).merge()
    assert await services.core.database.read(entries) == {"message_entry": [4, 4], "action_entry": [4, 4]}


@pytest.mark.sqlite("damaged pages")
async def test_entries_on_a_damaged_page_stay(
    services: Services, world: World, fake_clock: FakeClock, tmp_path: Path
) -> None:
    kitchen, hall = [await services.devices.registry.get(key) for key in (world.kitchen, world.hall)]
    await send(services, fake_clock, kitchen, number=420, every_ms=60_000)
    await send(services, fake_clock, hall, number=90, every_ms=60_000)
    damage(tmp_path / "store.sqlite", leaves(tmp_path / "store.sqlite", "message_entry")[0])
    await EntryMerger(services.core.database, Lease(LeaseName.FOLDS)).merge()
    left = await services.core.database.read(
        lambda tx: list(tx.connection.execute("SELECT number FROM message_entry WHERE upto > 840"))
    )
    assert [row["number"] for row in left] == [90]


@pytest.mark.both_engines
async def test_entries_that_went_meanwhile_do_not_come_back(
    services: Services, world: World, fake_clock: FakeClock
) -> None:
    """The device was removed between reading and writing."""
    kitchen = await services.devices.registry.get(world.kitchen)
    await send(services, fake_clock, kitchen, number=4, every_ms=60_000)

    def work(tx: Transaction) -> tuple[int, int]:
        index = tx.messages.index("message")
        small = index.small(kitchen.key, step=Position(0))
        index.forget(kitchen.key, rows=2)
        tx.connection.execute("DELETE FROM message_entry WHERE key = :key", {"key": small[0].key})
        return index.merge(small), len(entries(tx)["message_entry"])

    assert await services.core.database.write(work) == (0, 1)
