"""The inventory: which facts are published in which order, and concurrent changes."""

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.kinds import DEVICE
from broker.devices.inventory import DeviceChanges, NewDevice
from broker.errors import Conflict, DeviceNotFound, DomainError, SourceDeviceDisabled
from broker.facts import (
    DeviceChanged,
    DeviceCreated,
    DeviceDeleted,
    DeviceDisabled,
    DeviceEnabled,
    DeviceFact,
    DeviceUpdated,
    Fact,
    TokenRevoked,
)
from broker.routing.connections import CloseReason
from broker.secrets import token_hash
from broker.services import Services
from storage.keys import DeviceKey
from storage.records import DeviceRecord
from storage.transaction import Transaction
from tests.builders import ServicesOpener
from tests.factories import KITCHEN, KITCHEN_TOKEN, LIGHT_TYPE, World, build_world
from tests.fakes import HeldRunner

INVENTORY = (DeviceCreated, DeviceUpdated, DeviceEnabled, DeviceDisabled, DeviceDeleted)


CONNECTOR = {
    "device_type": LIGHT_TYPE,
    "oauth2": {
        "authorize_url": "https://cloud.example.org/authorize",
        "token_url": "https://cloud.example.org/token",
        "client_id": "client",
    },
}


def heard(services: Services, *kinds: type[Fact]) -> list[Fact]:
    facts: list[Fact] = []
    for kind in kinds:
        services.core.router.subscribe(kind, facts.append)
    return facts


async def new_device(services: Services, world: World) -> NewDevice:
    return NewDevice(owner=world.ada, type=await services.device_types.catalog.find(LIGHT_TYPE))


# Creation


async def test_no_device_is_created_when_its_other_rows_cannot_be_written(services: Services, world: World) -> None:
    facts = heard(services, *INVENTORY)

    def refuse(*_about: object) -> None:
        raise Conflict("taken")

    with pytest.raises(Conflict):
        await services.devices.inventory.create(await new_device(services, world), beside=refuse)
    with pytest.raises(Conflict):
        await services.devices.inventory.create(await new_device(services, world), check=refuse)
    assert len(await services.devices.registry.owned_by(world.ada)) == 2
    assert not facts


async def test_other_rows_of_a_device_are_written_in_its_transaction(services: Services, world: World) -> None:
    seen: list[DeviceRecord | None] = []

    def beside(tx: Transaction, record: DeviceRecord) -> None:
        seen.append(tx.devices.device(record.key))

    device = await services.devices.inventory.create(await new_device(services, world), beside=beside)
    assert seen == [device.record]


@pytest.mark.both_engines
@pytest.mark.parametrize("ids", [{"vdid": "v"}, {"eid": "e"}])
async def test_ids_of_vendors_and_connectors_are_taken_until_their_device_is_deleted(
    services: Services, world: World, ids: dict[str, str]
) -> None:
    light = await services.device_types.catalog.find(LIGHT_TYPE)
    new = NewDevice(owner=world.ada, type=light, **ids)  # type: ignore[arg-type]
    device = await services.devices.inventory.create(new)
    find = (
        partial(services.devices.registry.by_vdid, light.key)
        if "vdid" in ids
        else partial(services.devices.registry.by_eid, world.ada, light.key)
    )
    (text,) = ids.values()
    assert await find(text) is device
    with pytest.raises(Conflict):
        await services.devices.inventory.create(new)
    await services.devices.inventory.delete(device)
    assert await find(text) is None
    assert await find(text) is not await services.devices.inventory.create(new)


async def test_a_type_with_a_connector_waits_for_its_authorization(services: Services, world: World) -> None:
    await services.provisioning.apply({"connectors": [CONNECTOR]})
    device = await services.devices.inventory.create(await new_device(services, world))
    assert device.record.cloud_authorization == "UNAUTHORIZED"
    facts = heard(services, DeviceChanged)
    await services.devices.inventory.set_cloud_authorization(device, "AUTHORIZED")
    assert device.record.cloud_authorization == "AUTHORIZED"
    assert facts == [DeviceChanged(device.key)]


# Changes


async def test_the_shared_device_is_changed_before_facts_are_published(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    seen: list[tuple[type, str, bool]] = []
    for kind in (DeviceChanged, *INVENTORY):
        services.core.router.subscribe(kind, lambda fact: seen.append((type(fact), device.record.name, device.enabled)))
    await services.devices.inventory.change(device, DeviceChanges(name="New", enabled=False))
    assert seen == [(kind, "New", False) for kind in (DeviceChanged, DeviceUpdated, DeviceDisabled)]


async def test_a_disabled_device_loses_its_connections(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    closed: list[CloseReason] = []
    with services.routing.connections.connect(
        device, protocol="MQTT", token=b"t", exclusive=True, deliver=lambda _action: True, close=closed.append
    ):
        await services.devices.inventory.change(device, DeviceChanges(name="New"))
        assert closed == []
        await services.devices.inventory.change(device, DeviceChanges(enabled=False))
        assert closed == [CloseReason.DEVICE_DISABLED]


async def test_facts_of_concurrent_changes_come_in_the_order_of_commits(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    facts = heard(services, *INVENTORY)
    async with trio.open_nursery() as nursery:
        for number in range(20):
            changes = DeviceChanges(enabled=number % 2 == 1)
            nursery.start_soon(partial(services.devices.inventory.change, device, changes))
    stored = await services.core.database.read(lambda tx: tx.devices.device(device.key))
    assert device.record == stored
    expected = [DeviceDisabled, DeviceEnabled] * 10
    assert [type(fact) for fact in facts] == expected[: len(facts)]
    assert isinstance(facts[-1], DeviceEnabled if device.enabled else DeviceDisabled)


async def test_a_durable_change_is_published_after_its_caller_was_cancelled(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        await build_world(services.core.database, services.core.vault)
        device = await services.devices.registry.find(KITCHEN)
        facts = heard(services, DeviceDeleted, TokenRevoked)
        runner.hold_commits()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(services.devices.inventory.delete, device)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert not facts
        runner.commits.set()
        await wait_all_tasks_blocked()
        assert [type(fact) for fact in facts] == [TokenRevoked, DeviceDeleted]
        with pytest.raises(DeviceNotFound):
            await services.devices.registry.find(KITCHEN)


# Deletion


async def test_a_deletion_publishes_its_facts_in_order(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    facts = heard(services, *INVENTORY, TokenRevoked, DeviceChanged)
    was = await services.devices.inventory.delete(device, application_id="a" * 32)
    assert was.enabled
    assert [type(fact) for fact in facts] == [DeviceDisabled, TokenRevoked, DeviceChanged, DeviceDeleted]
    assert facts[1] == TokenRevoked(token_hash(KITCHEN_TOKEN))
    assert {fact.application_id for fact in facts if isinstance(fact, DeviceFact)} == {"a" * 32}


async def test_no_message_is_accepted_after_a_deletion(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    services.messages.ingest.submit(device, b'{"state":true}')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(services.devices.inventory.delete, device)
        nursery.start_soon(services.messages.ingest.wait_committed)
    with pytest.raises(SourceDeviceDisabled):
        services.messages.ingest.submit(device, b'{"state":true}')


async def test_of_two_concurrent_deletions_one_is_published(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    facts = heard(services, DeviceDeleted)
    refused: list[DomainError] = []

    async def delete() -> None:
        try:
            await services.devices.inventory.delete(device)
        except DeviceNotFound as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        nursery.start_soon(delete)
    assert (len(facts), len(refused)) == (1, 1)


async def test_a_deleted_device_is_changed_by_nobody(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    await services.devices.inventory.delete(device)
    for call in (
        partial(services.devices.inventory.change, device, DeviceChanges(name="New")),
        partial(services.devices.inventory.delete, device),
        partial(services.devices.inventory.set_cloud_authorization, device, "AUTHORIZED"),
        partial(services.devices.tokens.renew, device, application=None),
        partial(services.devices.shares.offer, device, email="carol@example.org"),
    ):
        with pytest.raises(DeviceNotFound):
            await call()
    assert await services.devices.registry.id_of(device.key) == KITCHEN
    assert await services.devices.registry.id_of(DeviceKey(999)) is None


async def test_a_device_that_is_loaded_while_it_is_deleted_is_not_found(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        world = await build_world(services.core.database, services.core.vault)

        async def find() -> None:
            with pytest.raises(DeviceNotFound):
                await services.devices.registry.find(KITCHEN)

        runner.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(find)
            await wait_all_tasks_blocked()  # the record was read, and is deleted next

            def delete_and_tell_of_another(tx: Transaction) -> None:
                tx.devices.set_deleted(world.kitchen, 1)
                tx.tell(DEVICE, world.hall)

            await services.core.database.write(delete_and_tell_of_another)
            runner.reads.set()
