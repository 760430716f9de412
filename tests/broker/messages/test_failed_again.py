"""Failed messages are read again with a new version of the Manifest: with their own times, each once."""

from collections.abc import Sequence
from typing import Any, Final

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.device_types.overview import FailedReading
from broker.devices.inventory import DeviceChanges
from broker.devices.registry import Device
from broker.messages.failed_again import failed_payload
from broker.services import Services
from config.limits import FAILED_DAYS
from storage.failed_readings import FailedReadingRecord
from storage.keys import Position
from tests.factories import HALL, LIGHT_TYPE, NOW_MS, World
from tests.fakes import FakeClock

DAY_MS: Final = 86_400_000
CELSIUS: Final[dict[str, Any]] = {"fields": [{"name": "celsius", "valueClass": "Integer"}]}
BINARY: Final[dict[str, Any]] = CELSIUS | {
    "transform": {"format": "binary", "layout": [{"name": "celsius", "type": "uint32"}]}
}


@pytest.fixture
async def kitchen(services: Services, world: World) -> Device:
    return await services.devices.registry.get(world.kitchen)


@pytest.fixture
async def hall(services: Services, kitchen: Device) -> Device:
    return await services.devices.registry.find(HALL)


async def upload(services: Services, manifest: dict[str, Any]) -> None:
    await services.device_types.manifests.upload(LIGHT_TYPE, manifest, approve=True)
    await wait_all_tasks_blocked()


async def stored(services: Services) -> Sequence[tuple[Device | None, int, int, int, str]]:
    rows = await services.core.database.read(lambda tx: tx.messages.after(Position(0)))
    registry = services.devices.registry
    return [(registry.get_nowait(row.device), row.ts, row.cts, row.mv, row.data) for row in rows]


async def failed(services: Services) -> list[str]:
    return [one.payload for one in (await services.device_types.manifests.failures(LIGHT_TYPE, limit=1_000)).messages]


async def reading(services: Services) -> FailedReading | None:
    return (await services.device_types.manifests.failures(LIGHT_TYPE, limit=1)).reading


@pytest.mark.both_engines
async def test_what_fits_the_new_version_is_a_message_with_its_own_time(
    services: Services, kitchen: Device, hall: Device, fake_clock: FakeClock
) -> None:
    ingest, units = services.messages.ingest, services.limits.quotas.statistics
    ingest.submit(kitchen, b'{"celsius":20}', NOW_MS - 5_000)
    ingest.submit(kitchen, b'{"kelvin":290}', NOW_MS - 4_000)
    ingest.submit(hall, b'{"celsius":"21","x":1}')
    ingest.submit(hall, b'{"state":true}', 7)
    await ingest.wait_committed()
    fake_clock.advance(1_000)
    before = units()
    await upload(services, CELSIUS)
    assert await stored(services) == [
        (hall, 7, NOW_MS, 1, '{"state":true}'),
        (kitchen, NOW_MS - 5_000, NOW_MS + 1_000, 2, '{"celsius":20}'),
        (hall, NOW_MS, NOW_MS + 1_000, 2, '{"celsius":21}'),
    ]
    assert await failed(services) == ['{"kelvin":290}']
    assert await reading(services) == FailedReading(2, 3, 2, NOW_MS + 1_000, NOW_MS + 1_000)
    assert units() == before, "they were charged when they came"
    assert sorted(await services.messages.snapshots.of(hall.key)) == ["celsius", "state"]


async def test_each_is_read_once_for_a_version(services: Services, kitchen: Device) -> None:
    """And again with the next one, which begins anew."""
    ingest = services.messages.ingest
    for number in range(450):
        ingest.submit(kitchen, b'{"celsius":%d}' % number if number % 3 else b'{"kelvin":%d}' % number, number)
    await ingest.wait_committed()
    await upload(services, CELSIUS)
    assert [row[1] for row in await stored(services)] == [number for number in range(450) if number % 3]
    await upload(services, {"fields": [*CELSIUS["fields"], {"name": "kelvin", "valueClass": "Integer"}]})
    assert sorted(row[1] for row in await stored(services)) == list(range(450))
    assert await failed(services) == []
    assert await reading(services) == FailedReading(3, 150, 150, NOW_MS, NOW_MS)


async def test_what_failed_while_the_version_changed_is_read_too(services: Services, kitchen: Device) -> None:
    """It is in the group of the commit that is open when the types are read again."""
    services.messages.ingest.submit(kitchen, b'{"x":1}')
    await services.messages.ingest.wait_committed()
    reload = services.device_types.catalog.reload

    async def late() -> None:
        services.messages.ingest.submit(kitchen, b'{"celsius":9}', 9)
        await reload()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services.device_types.catalog, "reload", late)
        await upload(services, CELSIUS)
    assert [row[1:] for row in await stored(services)] == [(9, NOW_MS, 2, '{"celsius":9}')]


async def test_what_was_refused_is_no_failed_message_of_the_manifest(services: Services, kitchen: Device) -> None:
    """A record of a connector is not in the order of the Manifest's making: its time may be wrong."""
    services.messages.ingest.keep_failed(kitchen, b'{"celsius":1}', "Invalid ts value")
    await services.messages.ingest.wait_committed()
    await upload(services, CELSIUS)
    assert (await stored(services), await failed(services)) == ([], ['{"celsius":1}'])


async def test_older_ones_and_those_of_disabled_devices_stay(
    services: Services, kitchen: Device, hall: Device, fake_clock: FakeClock
) -> None:
    ingest = services.messages.ingest
    ingest.submit(kitchen, b'{"celsius":1}')
    await ingest.wait_committed()
    fake_clock.advance(FAILED_DAYS * DAY_MS + 1)
    ingest.submit(kitchen, b'{"celsius":2}')
    ingest.submit(hall, b'{"celsius":3}')
    await ingest.wait_committed()
    await services.devices.inventory.change(hall, DeviceChanges(enabled=False))
    await upload(services, CELSIUS)
    assert [row[4] for row in await stored(services)] == ['{"celsius":2}']


@pytest.mark.both_engines
async def test_bytes_are_read_as_they_came(services: Services, kitchen: Device) -> None:
    await upload(services, BINARY)
    services.messages.ingest.submit(kitchen, b"\x00\xff\x07", 5)
    await services.messages.ingest.wait_committed()
    assert await failed(services) == ["hex:00ff07"]
    layout = [{"name": "celsius", "type": "uint16"}]
    await upload(services, BINARY | {"transform": {"format": "binary", "layout": layout}})
    assert [row[1::3] for row in await stored(services)] == [(5, '{"celsius":255}')]


def test_a_text_that_looks_like_bytes_is_a_text() -> None:
    for text in ("hex:", "hex:6162", "hex:zz", "hex", "hex:0", ""):
        assert failed_payload(text) == text.encode()
    assert failed_payload("hex:ff00") == b"\xff\x00"


async def test_a_reading_of_a_type_reads_no_other_type(services: Services, kitchen: Device) -> None:
    services.messages.ingest.submit(kitchen, b'{"celsius":1}')
    await services.messages.ingest.wait_committed()
    before = await services.device_types.manifests.overview()
    key = (await services.device_types.catalog.find(LIGHT_TYPE)).key
    await services.core.database.write(lambda tx: tx.failed_readings.begin(key, 1, now_ms=NOW_MS))
    records = await services.core.database.read(lambda tx: tx.failed_readings.open())
    assert records == [FailedReadingRecord(key, 1, Position(0), 0, 0, NOW_MS, None)]
    assert await services.device_types.manifests.overview() == before


async def test_without_a_failed_message_nothing_begins(services: Services, kitchen: Device) -> None:
    await upload(services, CELSIUS)
    key = (await services.device_types.catalog.find(LIGHT_TYPE)).key
    assert await services.core.database.read(lambda tx: tx.failed_readings.of_type(key)) is None
