"""The stores of accounts, types and devices: what is put twice is stored once, and an absent object is None."""

import pytest
from msgspec.structs import replace

from broker.services import Services
from storage.keys import DeviceKey
from storage.records import DeviceTokenRecord, ManifestRecord, PresenceRecord, TokenRecord
from storage.sql import StoreError
from tests.factories import ACME, ADA, DASHBOARD, KITCHEN, LIGHT_TYPE, World, new_application, new_device, new_user


async def test_users_are_found_by_id_email_and_name(services: Services, world: World) -> None:
    by_id, by_email, by_name, by_key = await services.core.database.read(
        lambda tx: (
            tx.accounts.user_by_id(ADA),
            tx.accounts.user_by_email("ADA@Example.org"),
            tx.accounts.user_named("ada-example"),
            tx.accounts.user(world.ada),
        )
    )
    assert by_id is not None
    assert by_id == by_email == by_name == by_key
    assert (by_id.account_type, by_id.created_on, by_id.password_hash) == ("LOCAL", 1, None)


async def test_two_users_cannot_have_one_email_in_any_case(services: Services, world: World) -> None:
    with pytest.raises(StoreError, match=r"(?i)unique.*email"):
        await services.core.database.write(
            lambda tx: tx.accounts.add_user(
                new_user("cc" * 16, email="Ada@EXAMPLE.org", name="c", full_name="C", password_hash=None, now_ms=1)
            )
        )


async def test_roles_of_an_organization(services: Services, world: World) -> None:
    organization = await services.core.database.read(lambda tx: tx.accounts.organization_named("Acme"))
    assert organization is not None
    assert (organization.id, organization.monthly_messages) == (ACME, 100_000)
    key = organization.key
    for role in ("developer", "administrator"):
        await services.core.database.write(lambda tx, r=role: tx.accounts.set_role(key, world.ada, r))  # type: ignore[misc]
        assert await services.core.database.read(lambda tx: tx.accounts.role_of(key, world.ada)) == role
    assert await services.core.database.read(lambda tx: tx.accounts.role_of(key, world.bob)) is None


async def test_an_application_that_is_put_again_keeps_its_key(services: Services, world: World) -> None:
    before = await services.core.database.read(lambda tx: tx.accounts.application_by_id(DASHBOARD))
    assert before is not None
    after = await services.core.database.write(
        lambda tx: tx.accounts.put_application(
            new_application(
                DASHBOARD,
                organization=before.organization,
                name="New name",
                secret=b"sealed",
                methods=("pkce", "implicit"),
                redirect_uris=(),
                permissions=({"device_type": "*", "permissions": ["READ"]},),
            )
        )
    )
    assert after.key == before.key
    assert after == await services.core.database.read(lambda tx: tx.accounts.application(world.application))
    assert after.methods == ("pkce", "implicit")
    assert after.permissions == ({"device_type": "*", "permissions": ["READ"]},)


async def test_a_token_that_is_put_again_is_one_token(services: Services, world: World) -> None:
    token = TokenRecord(b"h" * 32, world.application, world.ada, 1, 10)
    await services.core.database.write(lambda tx: tx.accounts.put_token(token))
    await services.core.database.write(lambda tx: tx.accounts.put_token(replace(token, expires_on=20)))
    stored = await services.core.database.read(lambda tx: tx.accounts.token(token.hash))
    assert stored is not None
    assert stored.expires_on == 20
    assert await services.core.database.read(lambda tx: tx.accounts.token(b"x")) is None


async def test_device_types_are_found_by_id_and_by_unique_name(services: Services, world: World) -> None:
    by_id, by_name, nothing = await services.core.database.read(
        lambda tx: (
            tx.device_types.by_id_or_name(LIGHT_TYPE),
            tx.device_types.by_id_or_name("example.smart_light"),
            tx.device_types.by_id_or_name("Example.smart_light"),
        )
    )
    assert by_id is not None
    assert by_id == by_name
    assert nothing is None
    assert (by_id.organization_id, by_id.published, by_id.tags) == (ACME, True, ())


async def test_a_manifest_version_is_added_once(services: Services, world: World) -> None:
    with pytest.raises(StoreError, match=r"(?i)unique"):
        await services.core.database.write(
            lambda tx: tx.device_types.add_manifest(ManifestRecord(world.light_type, 1, "{}", True, 1))
        )
    (manifest,) = await services.core.database.read(lambda tx: tx.device_types.manifests(world.light_type))
    assert (manifest.version, manifest.approved) == (1, True)


async def test_a_device_has_one_token_and_a_new_one_replaces_it(services: Services, world: World) -> None:
    new = DeviceTokenRecord(world.kitchen, b"n" * 32, b"sealed", None, 5)
    old = await services.core.database.read(lambda tx: tx.devices.token_of(world.kitchen))
    assert old is not None
    await services.core.database.write(lambda tx: tx.devices.put_token(new))
    by_device, by_old_hash, by_new_hash = await services.core.database.read(
        lambda tx: (
            tx.devices.token_of(world.kitchen),
            tx.devices.token_by_hash(old.hash),
            tx.devices.token_by_hash(new.hash),
        )
    )
    assert (by_device, by_old_hash, by_new_hash) == (new, None, new)


async def test_two_devices_cannot_have_one_token(services: Services, world: World) -> None:
    token = await services.core.database.read(lambda tx: tx.devices.token_of(world.kitchen))
    assert token is not None
    with pytest.raises(StoreError, match=r"(?i)unique"):
        await services.core.database.write(lambda tx: tx.devices.put_token(replace(token, device=world.hall)))


async def test_a_device_that_is_put_again_keeps_its_key_owner_and_type(services: Services, world: World) -> None:
    key = await services.core.database.write(
        lambda tx: tx.devices.put_device(
            new_device(
                KITCHEN,
                owner=world.bob,
                device_type=world.light_type,
                name="New",
                manifest_version=2,
                manifest_version_policy="DEVICE",
                enabled=False,
                now_ms=99,
            )
        )
    )
    record = await services.core.database.read(lambda tx: tx.devices.by_id(KITCHEN))
    assert record is not None
    assert (key, record.key, record.owner, record.owner_id, record.created_on) == (
        world.kitchen,
        world.kitchen,
        world.ada,
        ADA,
        1,
    )
    assert (record.name, record.manifest_version, record.enabled) == ("New", 2, False)


async def test_a_row_that_refers_to_no_device_is_refused(services: Services, world: World) -> None:
    with pytest.raises(StoreError, match=r"(?i)foreign.?key"):
        await services.core.database.write(
            lambda tx: tx.devices.put_presences([PresenceRecord(DeviceKey(999), "online", None, None, None)])
        )


@pytest.mark.both_engines
async def test_the_ts_of_the_last_row_of_a_device(services: Services, world: World) -> None:
    kitchen = await services.devices.registry.get(world.kitchen)
    for ts in (5, 9, 2):
        services.messages.ingest.submit(kitchen, b'{"state":true}', ts)
    services.messages.ingest.submit_action(kitchen, kitchen, b'{"actions":[{"name":"a"}]}', 4)
    await services.messages.ingest.wait_committed()
    assert await services.core.database.read(
        lambda tx: (
            tx.message_searches.last_ts("message", [world.kitchen, world.hall]),
            tx.message_searches.last_ts("action", [world.kitchen]),
        )
    ) == ({world.kitchen: 2}, {world.kitchen: 4})
