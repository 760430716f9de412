"""Provisioning devices: shares, restoring deleted devices, and the facts that are published."""

from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.accounts.permissions import Permission
from broker.devices.inventory import DeviceChanges, NewDevice
from broker.errors import ValidationFailed
from broker.facts import (
    DeviceCreated,
    DeviceDisabled,
    DeviceEnabled,
    DeviceFact,
    DeviceUpdated,
    Fact,
    SharesChanged,
)
from broker.messages.history import Search
from broker.services import Services
from storage.keys import Milliseconds
from tests.factories import BOB_TOKEN, HALL, KITCHEN, KITCHEN_TOKEN, World
from tests.rows import each_row

LIGHT = {"id": KITCHEN, "owner": "ada@example.org", "type": "example.smart_light"}
SHARE = {"device": KITCHEN, "with": "bob@example.org"}


@pytest.fixture
def facts(services: Services) -> list[Fact]:
    heard: list[Fact] = []
    for kind in (DeviceCreated, DeviceUpdated, DeviceEnabled, DeviceDisabled, SharesChanged):
        services.core.router.subscribe(kind, heard.append)
    return heard


async def counts(services: Services, table: str, entry: dict[str, Any]) -> tuple[int, int, int]:
    one = (await services.provisioning.apply({table: [entry]})).tables[table]
    return one.created, one.changed, one.unchanged


# Shares


async def test_a_provisioned_share_is_accepted_at_once(services: Services, world: World, facts: list[Fact]) -> None:
    device = await services.devices.registry.find(KITCHEN)
    reach = await services.accounts.permissions.reach(await services.accounts.tokens.caller(BOB_TOKEN))
    assert await counts(services, "shares", SHARE) == (1, 0, 0)
    assert reach.allows(device, Permission.WRITE)
    assert facts == [SharesChanged(device.key)]
    assert await counts(services, "shares", SHARE) == (0, 0, 1)
    assert len(facts) == 1


async def test_an_invitation_that_waits_is_accepted_by_the_operator(services: Services, world: World) -> None:
    device = await services.devices.registry.find(KITCHEN)
    offered = await services.devices.shares.offer(device, email="bob@example.org")
    assert await counts(services, "shares", SHARE) == (0, 1, 0)
    share = await services.devices.shares.find(device, offered.id)
    assert (share.status, share.user, share.code_hash) == ("ACCEPTED", world.bob, None)


@each_row(
    ("entry", "field", "text"),
    [
        (SHARE | {"device": "ff" * 16}, "shares[0].device", "there is no device"),
        (SHARE | {"with": "nobody@example.org"}, "shares[0].with", "there is no user"),
        (SHARE | {"with": "ada@example.org"}, "shares[0].with", "belongs to ada@example.org"),
        (SHARE | {"more": 1}, "shares[0].more", "unknown key"),
    ],
)
async def test_a_share_that_is_refused(
    services: Services, world: World, entry: dict[str, Any], field: str, text: str
) -> None:
    with pytest.raises(ValidationFailed) as caught:
        await services.provisioning.apply({"shares": [entry]})
    (finding,) = caught.value.findings
    assert finding.field == field
    assert text in finding.messages[0]


async def test_two_entries_for_one_share_are_refused(services: Services, world: World) -> None:
    with pytest.raises(ValidationFailed, match="Validation Error"):
        await services.provisioning.apply({"shares": [SHARE, SHARE]})
    assert not (await services.devices.registry.find(KITCHEN)).record.shared


# Restoring


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_deleted_device_comes_back_when_it_is_provisioned_by_its_id(
    services: Services, world: World, facts: list[Fact], enabled: bool
) -> None:
    device = await services.devices.registry.find(KITCHEN)
    services.messages.ingest.submit(device, b'{"state":true}', 5)
    await services.messages.ingest.wait_committed()
    if not enabled:
        await services.devices.inventory.change(device, DeviceChanges(enabled=False))
    await services.devices.inventory.delete(device)
    facts.clear()
    assert await counts(services, "devices", LIGHT | {"token": KITCHEN_TOKEN}) == (0, 1, 0)
    restored = await services.devices.registry.find(KITCHEN)
    assert (restored.key, restored.enabled) == (world.kitchen, enabled)
    assert [type(fact) for fact in facts] == [DeviceCreated, DeviceEnabled if enabled else DeviceDisabled]
    assert {fact.application_id for fact in facts if isinstance(fact, DeviceFact)} == {None}
    page = await services.messages.history.messages(
        Search(devices=[restored], start_ms=Milliseconds(0), end_ms=Milliseconds(10))
    )
    assert [message.ts for message in page.messages] == [5]
    assert (await services.devices.registry.by_token(KITCHEN_TOKEN))[0] is restored
    assert await counts(services, "devices", LIGHT) == (0, 0, 1)


async def test_a_restored_device_gets_a_new_token_when_the_file_gives_none(services: Services, world: World) -> None:
    await services.devices.inventory.delete(await services.devices.registry.find(KITCHEN))
    report = await services.provisioning.apply({"devices": [LIGHT]})
    (generated,) = report.generated
    assert (generated.table, generated.key) == ("devices", "token")
    token = await services.devices.tokens.of(await services.devices.registry.find(KITCHEN))
    assert token.token == generated.value != KITCHEN_TOKEN


async def test_a_name_does_not_bring_a_deleted_device_back(services: Services, world: World) -> None:
    await services.devices.inventory.delete(await services.devices.registry.find(HALL))
    entry = {"owner": "ada@example.org", "type": "example.smart_light", "name": "Hall light"}
    assert await counts(services, "devices", entry) == (1, 0, 0)


async def test_a_device_whose_vendor_id_was_given_away_cannot_be_restored(services: Services, world: World) -> None:
    new = NewDevice(owner=world.ada, type=(await services.devices.registry.find(KITCHEN)).type, vdid="v")
    former = await services.devices.inventory.create(new)
    await services.devices.inventory.delete(former)
    await services.devices.inventory.create(new)
    with pytest.raises(ValidationFailed) as caught:
        await services.provisioning.apply({"devices": [LIGHT | {"id": former.id}]})
    assert caught.value.findings[0].field == "devices[0].id"


# Facts


async def test_new_and_renamed_devices_are_told_without_an_application(
    services: Services, world: World, facts: list[Fact]
) -> None:
    await counts(services, "devices", {"owner": "bob@example.org", "type": "example.smart_light", "name": "New"})
    await counts(services, "devices", LIGHT | {"name": "Renamed"})
    await counts(services, "devices", LIGHT | {"name": "Renamed"})
    assert [type(fact) for fact in facts] == [DeviceCreated, DeviceEnabled, DeviceUpdated]
    assert {fact.application_id for fact in facts if isinstance(fact, DeviceFact)} == {None}


# Many devices


def many(count: int, **more: str) -> list[dict[str, str]]:
    named = [{"name": f"Light {number}", "key": f"light {number}"} for number in range(count)]
    return [{"owner": "ada@example.org", "type": "example.smart_light", **one, **more} for one in named]


async def test_others_wait_for_few_statements_of_each_new_device(
    services: Services, world: World, statements: list[str]
) -> None:
    """A file is one transaction, in which nobody else writes: 1,000 devices took a second, with 19 statements each."""
    for outcome in ((300, 0, 0), (0, 0, 300)):
        statements.clear()
        report = await services.provisioning.apply({"devices": many(300)})
        counts = report.tables["devices"]
        assert (counts.created, counts.changed, counts.unchanged) == outcome
        assert len(statements) < 300 * 8  # with those of who hears of new devices


async def test_others_do_not_wait_for_all_devices_that_the_owner_has(
    services: Services, world: World, statements: list[str]
) -> None:
    """A renamed device was looked for among all of them: 1,000 more took 15 ms each time."""
    await services.provisioning.apply({"devices": many(300)})
    await wait_all_tasks_blocked()  # those who hear of new devices have read them
    statements.clear()
    report = await services.provisioning.apply({"devices": [{**many(1)[0], "name": "New", "key": "new"}]})
    assert len(statements) < 150
    (notice,) = [one for one in report.notices if one.name == "New"]
    assert notice.text.count("(id ") == 3


@pytest.mark.both_engines
async def test_an_entry_finds_a_device_that_is_new_in_the_same_file(services: Services, world: World) -> None:
    new, token = many(3), "77" * 16
    by_name, by_key = {**new[1], "key": "another"}, {**new[2], "name": "Another"}
    with pytest.raises(ValidationFailed) as caught:
        await services.provisioning.apply(
            {"devices": [{**new[0], "token": token}, *new[1:], by_name, by_key, {**many(4)[3], "token": token}]}
        )
    found = [(one.field, one.messages[0]) for one in caught.value.findings]
    assert found == [
        ("devices[3]", "the same as devices[1]"),
        ("devices[4]", "the same as devices[2]"),
        ("devices[5].token", "somebody else has this token"),
    ]
    devices = await services.core.database.read(lambda tx: tx.devices.names_of_owner(world.ada))
    assert not [name for name in devices if name.startswith("Light")]
