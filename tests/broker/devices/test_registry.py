"""The registry: one object for each device, found by id, changed in place, authenticated by its token."""

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.devices import registry
from broker.devices.inventory import DeviceChanges
from broker.devices.registry import Device
from broker.errors import DeviceNotFound, PermissionDenied, SourceDeviceDisabled, Unauthorized
from broker.facts import DeviceChanged, TokenRevoked
from broker.secrets import token_hash
from broker.services import Services
from storage.keys import DeviceKey, UserKey
from storage.records import ManifestRecord
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOBS,
    BOBS_TOKEN,
    HALL,
    HALL_TOKEN,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_MANIFEST,
    World,
    build_world,
    new_device,
)
from tests.fakes import HeldRunner
from tests.rows import each_row


def change(world: World, **values: Any) -> Callable[[Transaction], None]:
    """Changes a device's record in the store, as provisioning does."""
    kept = {
        "owner": world.ada,
        "device_type": world.light_type,
        "name": "Kitchen light",
        "manifest_version": 1,
        "manifest_version_policy": "LATEST",
        "enabled": True,
        "now_ms": 1,
    }

    def work(tx: Transaction) -> None:
        tx.devices.put_device(new_device(KITCHEN, **{**kept, **values}))

    return work


async def test_every_lookup_finds_the_same_device_object(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    assert (device.id, device.key, device.owner, device.type_key) == (
        KITCHEN,
        world.kitchen,
        world.ada,
        world.light_type,
    )
    assert await services.devices.registry.find(KITCHEN) is device
    assert await services.devices.registry.get(world.kitchen) is device
    assert services.devices.registry.get_nowait(world.kitchen) is device
    assert device in await services.devices.registry.owned_by(world.ada)


async def test_concurrent_lookups_find_the_same_device_object(services: Services, world: World) -> None:
    found: list[Device] = []

    async def find() -> None:
        found.append(await services.devices.registry.find(KITCHEN))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(find)
    assert len(set(map(id, found))) == 1


@each_row("device_id", ["", "00" * 16, KITCHEN[:-1], f" {KITCHEN}", f"{KITCHEN} ", "1", "'"])
async def test_ids_are_compared_exactly(services: Services, world: World, device_id: str) -> None:
    with pytest.raises(DeviceNotFound) as caught:
        await services.devices.registry.find(device_id)
    assert caught.value.device_id == device_id


async def test_a_key_that_is_unknown_is_not_found(services: Services, world: World) -> None:
    assert services.devices.registry.get_nowait(DeviceKey(999)) is None
    with pytest.raises(DeviceNotFound):
        await services.devices.registry.get(DeviceKey(999))


async def test_the_devices_of_an_owner(services: Services, world: World) -> None:
    assert {device.id for device in await services.devices.registry.owned_by(world.ada)} == {KITCHEN, HALL}
    assert {device.id for device in await services.devices.registry.owned_by(world.bob)} == {BOBS}
    assert await services.devices.registry.owned_by(UserKey(999)) == []


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_devices_that_are_not_in_use_are_evicted(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch, without_collector: None
) -> None:
    monkeypatch.setattr(registry, "_RECENT", 1)
    held = await services.devices.registry.find(KITCHEN)
    await services.devices.registry.find(HALL)
    await services.devices.registry.find(BOBS)
    gc.collect(0)  # the generation of the devices
    assert services.devices.registry.get_nowait(world.kitchen) is held
    assert services.devices.registry.get_nowait(world.hall) is None
    assert await services.devices.registry.find(KITCHEN) is held
    assert (await services.devices.registry.find(HALL)).id == HALL


async def test_a_change_refreshes_the_shared_device_and_is_published_once(services: Services, world: World) -> None:
    facts: list[DeviceChanged] = []
    services.core.router.subscribe(DeviceChanged, facts.append)
    device = await services.devices.registry.find(KITCHEN)
    await services.devices.registry.find(HALL)
    await services.core.database.write(change(world, enabled=False, name="Dark"))
    assert device.enabled
    await services.devices.registry.reload()
    assert not device.enabled
    assert device.record.name == "Dark"
    assert facts == [DeviceChanged(world.kitchen)]
    await services.devices.registry.reload()
    assert len(facts) == 1


async def test_a_device_that_changes_while_it_is_loaded_is_read_again(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        world = await build_world(services.core.database, services.core.vault)
        found: list[Device] = []

        async def find() -> None:
            found.append(await services.devices.registry.find(KITCHEN))

        runner.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(find)
            await wait_all_tasks_blocked()  # the record was read, and is about to become old
            await services.core.database.write(change(world, enabled=False))
            await services.devices.registry.reload()
            runner.reads.set()
        assert not found[0].enabled


async def test_reading_all_devices_again_does_not_undo_what_changes_meanwhile(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        world = await build_world(services.core.database, services.core.vault)
        kitchen = await services.devices.registry.find(KITCHEN)
        await services.core.database.write(change(world, name="Provisioned"))
        runner.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.devices.registry.reload)
            await wait_all_tasks_blocked()  # the record was read, and is about to become old
            held = runner.reads
            runner.release_later_reads()
            await services.devices.inventory.change(kitchen, DeviceChanges(enabled=False))
            assert not kitchen.enabled
            held.set()
        assert (kitchen.record.name, kitchen.enabled) == ("Provisioned", False)


# The Manifest that its messages are normalised with


async def test_a_device_follows_the_latest_approved_manifest_or_stays_with_its_own(
    services: Services, world: World
) -> None:
    def add(version: int, *, approved: bool) -> Callable[[Transaction], None]:
        document = json.dumps(LIGHT_MANIFEST)
        return lambda tx: tx.device_types.add_manifest(ManifestRecord(world.light_type, version, document, approved, 1))

    device = await services.devices.registry.find(KITCHEN)
    assert device.manifest.version == 1
    await services.core.database.write(add(3, approved=True))
    await services.core.database.write(add(4, approved=False))
    await services.device_types.catalog.reload()
    assert device.manifest.version == 3

    for pinned, used in ((1, 1), (3, 3), (4, 3), (2, 3)):
        await services.core.database.write(change(world, manifest_version=pinned, manifest_version_policy="DEVICE"))
        await services.devices.registry.reload()
        assert device.manifest.version == used


# Authentication


async def test_a_device_authenticates_with_its_own_token(services: Services, world: World) -> None:
    device, caller = await services.devices.registry.authenticate(KITCHEN, KITCHEN_TOKEN)
    assert device is await services.devices.registry.find(KITCHEN)
    assert (caller.device, caller.device_id, caller.token) == (world.kitchen, KITCHEN, token_hash(KITCHEN_TOKEN))
    assert caller.expires_on is None


async def test_devices_that_connect_together_are_found_with_few_reads(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token and device in one read, and one read for all that come while another one runs."""
    light = await services.device_types.catalog.get(world.light_type)
    database, found, reads = services.core.database, set[str](), 0
    read = database.read

    async def counting(work: Callable[[Transaction], Any]) -> Any:
        nonlocal reads
        if trio.lowlevel.current_task().parent_nursery is connecting:  # the workers of the services read, too
            reads += 1
            await wait_all_tasks_blocked()  # until all wait
        return await read(work)

    async def connect(device_id: str, token: str) -> None:
        device, caller = await services.devices.registry.authenticate(device_id, token)
        assert (device.id, device.key, device.type) == (caller.device_id, caller.device, light)
        found.add(device.id)

    monkeypatch.setattr(database, "read", counting)
    async with trio.open_nursery() as connecting:
        for device_id, token in ((KITCHEN, KITCHEN_TOKEN), (HALL, HALL_TOKEN), (BOBS, BOBS_TOKEN)):
            connecting.start_soon(connect, device_id, token)
    assert found == {KITCHEN, HALL, BOBS}
    assert reads == 2


async def test_a_device_that_changes_while_it_authenticates_is_read_again(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        world = await build_world(services.core.database, services.core.vault)
        light = await services.device_types.catalog.get(world.light_type)
        refused: list[str] = []

        async def connect() -> None:
            with pytest.raises(SourceDeviceDisabled):
                await services.devices.registry.authenticate(KITCHEN, KITCHEN_TOKEN)
            refused.append(KITCHEN)

        runner.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await wait_all_tasks_blocked()  # token and record were read, and the record is about to become old
            held = runner.reads
            runner.release_later_reads()
            kitchen = await services.devices.registry.find(KITCHEN)
            await services.devices.inventory.change(kitchen, DeviceChanges(enabled=False))
            held.set()
        assert (refused, kitchen.type) == ([KITCHEN], light)


@each_row(
    ("device_id", "token", "refusal"),
    [
        (KITCHEN, HALL_TOKEN, Unauthorized),
        (KITCHEN, "", Unauthorized),
        (KITCHEN, "ff" * 16, Unauthorized),
        (KITCHEN, KITCHEN_TOKEN.upper().replace("1", "A"), Unauthorized),
        ("ff" * 16, KITCHEN_TOKEN, Unauthorized),
        ("", KITCHEN_TOKEN, Unauthorized),
        # A valid token of another kind has its own error (reference 16.2).
        (KITCHEN, ADA_TOKEN, PermissionDenied),
        (KITCHEN, APPLICATION_TOKEN, PermissionDenied),
    ],
)
async def test_credentials_that_are_refused(
    services: Services, world: World, device_id: str, token: str, refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        await services.devices.registry.authenticate(device_id, token)


async def test_a_disabled_device_cannot_authenticate(services: Services, world: World) -> None:
    await services.core.database.write(change(world, enabled=False))
    with pytest.raises(SourceDeviceDisabled):
        await services.devices.registry.authenticate(KITCHEN, KITCHEN_TOKEN)


async def test_a_token_that_is_revoked_while_the_device_is_loaded_is_refused(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        await build_world(services.core.database, services.core.vault)
        await services.accounts.tokens.caller(KITCHEN_TOKEN)
        runner.hold_reads()
        async with trio.open_nursery() as nursery:

            async def authenticate() -> None:
                with pytest.raises(Unauthorized):
                    await services.devices.registry.authenticate(KITCHEN, KITCHEN_TOKEN)

            nursery.start_soon(authenticate)
            await wait_all_tasks_blocked()
            await services.core.database.write(lambda tx: tx.connection.execute("DELETE FROM device_token"))
            services.core.router.publish(TokenRevoked(token_hash(KITCHEN_TOKEN)))
            runner.reads.set()
