"""Deleted devices are kept for 30 days, then removed with all their rows (reference 6.1)."""

import pytest
import trio
from trio.testing import MockClock

from broker.devices.inventory import NewDevice
from broker.devices.removal import REMOVAL_SWEEP_SECONDS
from broker.messages.history import Search
from broker.messages.intervals import DAY_MS
from broker.services import Services
from config.limits import DELETED_DEVICE_DAYS
from storage.keys import DeviceKey, Milliseconds
from storage.transaction import Transaction
from tests.factories import HALL, KITCHEN, World
from tests.fakes import FakeClock

KEPT_MS = DELETED_DEVICE_DAYS * DAY_MS
ROWS = ("message", "action", "snapshot", "rollup", "presence", "device_token", "device_share")


def left(tx: Transaction, device: DeviceKey) -> dict[str, int]:
    """The number of a device's rows in each table."""
    counts = {}
    for table in ROWS:
        sql = f"SELECT count(*) AS count FROM {table} WHERE device = :device"  # noqa: S608 - a constant
        row = tx.connection.execute(sql, {"device": device}).one()
        counts[table] = 0 if row is None else int(row["count"])
    return counts


async def fill(services: Services) -> None:
    """Give both of Ada's lights rows in every table."""
    kitchen, hall = await services.devices.registry.find(KITCHEN), await services.devices.registry.find(HALL)
    for device, other in ((kitchen, hall), (hall, kitchen)):
        for ts in range(25):
            services.messages.ingest.submit(device, b'{"state":true,"intensity":1}', ts * 60_000)
            services.messages.ingest.submit_action(other, device, b'{"actions":[{"name":"setOn"}]}', ts)
        await services.devices.presence.set(device.key, "online")
        await services.devices.shares.offer(device, email="bob@example.org")
    await services.messages.ingest.wait_committed()
    await services.messages.projector.flush()


@pytest.mark.both_engines
@pytest.mark.parametrize("step_rows", [7, 1_000])
async def test_removal_deletes_all_rows_of_the_device_and_no_others(
    services: Services, world: World, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch, step_rows: int
) -> None:
    monkeypatch.setattr("broker.devices.removal._STEP_ROWS", step_rows)
    await fill(services)
    kitchen = await services.devices.registry.find(KITCHEN)
    services.messages.ingest.submit_action(
        kitchen, kitchen, b'{"actions":[{"name":"setOn"}]}'
    )  # it has no index entry yet
    await services.messages.ingest.wait_committed()
    before = await services.core.database.read(lambda tx: (left(tx, world.kitchen), left(tx, world.hall)))
    assert all(before[0].values())
    await services.core.database.write(lambda tx: tx.provision_marks.put("device", "kitchen", KITCHEN))
    await services.devices.inventory.delete(kitchen)
    fake_clock.advance(KEPT_MS)
    await services.devices.removal.sweep()
    assert services.devices.removal.statistics().removed_devices == 0
    assert await services.devices.registry.id_of(world.kitchen) == KITCHEN

    fake_clock.advance(1)
    await services.devices.removal.sweep()
    after = await services.core.database.read(lambda tx: (left(tx, world.kitchen), left(tx, world.hall)))
    assert after == (dict.fromkeys(ROWS, 0), before[1])
    assert await services.core.database.read(lambda tx: tx.provision_marks.object_of("device", "kitchen")) is None
    assert services.devices.removal.statistics().removed_devices == 1
    assert await services.core.database.read(lambda tx: tx.devices.id_of(world.kitchen)) is None
    # Actions that the device sent belong to their destinations; they stay, without their source.
    hall = await services.devices.registry.find(HALL)
    page = await services.messages.history.actions(
        Search(devices=[hall], start_ms=Milliseconds(0), end_ms=Milliseconds(100))
    )
    assert {action.sdid for action in page.messages} == {HALL}
    assert len(page.messages) == 25


@pytest.mark.both_engines
async def test_a_new_device_is_never_taken_for_one_that_was_removed(
    services: Services, world: World, fake_clock: FakeClock
) -> None:
    light = (await services.devices.registry.find(KITCHEN)).type
    last = await services.devices.inventory.create(NewDevice(owner=world.ada, type=light))
    hall = await services.devices.registry.find(HALL)
    services.messages.ingest.submit_action(last, hall, b'{"actions":[{"name":"setOn"}]}', 7)
    await services.messages.ingest.wait_committed()
    await services.devices.inventory.delete(last)
    fake_clock.advance(KEPT_MS + 1)
    await services.devices.removal.sweep()

    new = await services.devices.inventory.create(NewDevice(owner=world.bob, type=light))
    assert new.key > last.key
    page = await services.messages.history.actions(
        Search(devices=[hall], start_ms=Milliseconds(0), end_ms=Milliseconds(100))
    )
    assert [action.sdid for action in page.messages] == [HALL]


@pytest.mark.both_engines
async def test_a_device_that_was_restored_meanwhile_is_not_removed(
    services: Services, world: World, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(services)
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    fake_clock.advance(KEPT_MS + 1)
    before_ms = fake_clock() - KEPT_MS
    await services.core.database.write(lambda tx: tx.devices.set_deleted(world.kitchen, None))
    done = await services.core.database.write(
        lambda tx: tx.removal.remove_some(world.kitchen, before_ms=before_ms, limit=1_000)
    )
    assert done
    assert (await services.core.database.read(lambda tx: left(tx, world.kitchen)))["message"] == 25


@pytest.mark.both_engines
async def test_the_worker_sweeps_every_hour(
    services: Services, world: World, fake_clock: FakeClock, autojump_clock: MockClock
) -> None:
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    fake_clock.advance(KEPT_MS + 1)
    autojump_clock.jump(REMOVAL_SWEEP_SECONDS)  # each worker of the services wakes up once
    await trio.sleep(1)
    assert services.devices.removal.statistics().removed_devices == 1
