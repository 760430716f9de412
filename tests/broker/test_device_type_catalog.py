"""Device types with their Manifests: one shared object for each type, refreshed in place."""

import json
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.device_types.catalog import DeviceType
from broker.errors import DeviceTypeNotFound
from broker.services import Services
from storage.records import ManifestRecord
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import LIGHT_MANIFEST, LIGHT_TYPE, World, build_world
from tests.fakes import HeldRunner
from tests.rows import each_row


def rename(tx: Transaction) -> None:
    tx.connection.execute("UPDATE device_type SET name = 'Renamed'")


async def test_every_lookup_finds_the_same_type_object(services: Services, world: World) -> None:
    light = await services.device_types.catalog.find(LIGHT_TYPE)
    assert (light.key, light.id, light.latest.version) == (world.light_type, LIGHT_TYPE, 1)
    assert await services.device_types.catalog.find("example.smart_light") is light
    assert await services.device_types.catalog.get(world.light_type) is light
    assert (await services.devices.registry.get(world.kitchen)).type is light


@each_row("name", ["", "nothing", LIGHT_TYPE.upper(), f"{LIGHT_TYPE} ", "Example.smart_light"])
async def test_a_type_that_is_unknown_is_not_found(services: Services, world: World, name: str) -> None:
    with pytest.raises(DeviceTypeNotFound):
        await services.device_types.catalog.find(name)


@pytest.mark.both_engines
async def test_a_change_refreshes_the_shared_type(services: Services, world: World) -> None:
    light = await services.device_types.catalog.find(LIGHT_TYPE)

    def change(tx: Any) -> None:
        rename(tx)
        tx.device_types.add_manifest(ManifestRecord(world.light_type, 2, json.dumps(LIGHT_MANIFEST), True, 1))
        tx.device_types.add_manifest(ManifestRecord(world.light_type, 3, json.dumps(LIGHT_MANIFEST), False, 1))

    await services.core.database.write(change)
    first = light.latest
    await services.device_types.catalog.reload()
    assert (light.record.name, light.latest.version) == ("Renamed", 2)
    assert light.version(1) is first
    assert light.version(3) is None


@pytest.mark.both_engines
async def test_a_type_without_manifest_keeps_nothing(services: Services, world: World) -> None:
    await services.core.database.write(lambda tx: tx.connection.execute("DELETE FROM manifest"))
    light = await services.device_types.catalog.find(LIGHT_TYPE)
    assert light.latest.version == 0
    assert light.latest.normalize(b'{"state":true}') is None


@pytest.mark.both_engines
async def test_a_type_that_changes_while_it_is_loaded_is_read_again(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        await build_world(services.core.database, services.core.vault)
        found: list[DeviceType] = []

        async def find() -> None:
            found.append(await services.device_types.catalog.find(LIGHT_TYPE))

        runner.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(find)
            await wait_all_tasks_blocked()  # the record was read, and changes next
            await services.core.database.write(rename)
            await services.device_types.catalog.reload()
            runner.reads.set()
        assert found[0].record.name == "Renamed"
