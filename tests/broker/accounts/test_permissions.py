"""Tables of who may do what with a device (reference 4.7)."""

import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from broker.accounts.consent import sign_in_grant
from broker.accounts.permissions import Grants, Permission, Reach
from broker.accounts.tokens import Caller, TokenKind
from broker.devices.registry import Device
from broker.errors import PermissionDenied
from broker.facts import GrantsChanged
from broker.services import Services
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, OrganizationKey, UserKey
from storage.records import GrantRecord
from tests.builders import ServicesOpener
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    HALL,
    KITCHEN_TOKEN,
    World,
    allow,
    build_world,
    make_device,
)
from tests.fakes import HeldRunner
from tests.rows import each_row

READ, WRITE, MANAGE = Permission.READ, Permission.WRITE, Permission.MANAGE
ADA, BOB, CAROL = UserKey(1), UserKey(2), UserKey(3)
LIGHT, LOCK = DeviceTypeKey(1), DeviceTypeKey(2)
OURS, THEIRS = OrganizationKey(1), OrganizationKey(2)
DASHBOARD = ApplicationKey(1)

device = Caller(kind=TokenKind.DEVICE, token=b"", expires_on=None, device=DeviceKey(10))
ada = Caller(
    kind=TokenKind.USER,
    token=b"",
    expires_on=1,
    user=ADA,
    application=DASHBOARD,
    application_organization=OURS,
)
bob, carol = replace(ada, user=BOB), replace(ada, user=CAROL)
application = Caller(
    kind=TokenKind.APPLICATION,
    token=b"",
    expires_on=1,
    application=DASHBOARD,
    application_organization=OURS,
)

adas_light = make_device(10, owner=ADA, type_key=LIGHT, organization=THEIRS)
adas_other_light = make_device(11, owner=ADA, type_key=LIGHT, organization=THEIRS)
adas_lock = make_device(12, owner=ADA, type_key=LOCK, organization=THEIRS)
adas_own_brand = make_device(13, owner=ADA, type_key=DeviceTypeKey(3), organization=OURS)
adas_protected = make_device(14, owner=ADA, type_key=LOCK, organization=THEIRS)
adas_protected.type.refresh(replace(adas_protected.type.record, protected=True), [])
bobs_light = make_device(20, owner=BOB, type_key=LIGHT, organization=THEIRS)
bobs_own_brand = make_device(21, owner=BOB, type_key=DeviceTypeKey(3), organization=OURS)
shared_light = make_device(10, owner=ADA, type_key=LIGHT, organization=THEIRS)
shared_light.refresh(replace(shared_light.record, shared_with=frozenset({BOB})), shared_light.type)


def grant(type_key: DeviceTypeKey | None, *, read: bool = True, write: bool = True, user: UserKey = ADA) -> GrantRecord:
    return GrantRecord(user, DASHBOARD, type_key, read, write)


@each_row(
    ("caller", "grants", "target", "reads", "writes"),
    [
        (device, [], adas_light, True, True),
        (device, [], adas_other_light, False, False),
        (device, [], bobs_light, False, False),
        # A user token reaches no more than its user may reach, and of that no more than its user granted.
        (ada, [], adas_light, False, False),
        (ada, [], adas_own_brand, False, False),
        (ada, [sign_in_grant(DASHBOARD, ADA)], adas_light, False, False),
        (ada, [sign_in_grant(DASHBOARD, ADA)], adas_own_brand, True, True),
        (ada, [sign_in_grant(DASHBOARD, ADA)], bobs_own_brand, False, False),
        (ada, [sign_in_grant(DASHBOARD, BOB)], adas_own_brand, False, False),
        (ada, [grant(LIGHT)], adas_light, True, True),
        (ada, [grant(LIGHT)], adas_lock, False, False),
        (ada, [grant(LIGHT)], adas_own_brand, True, True),
        (ada, [grant(LIGHT, user=BOB)], bobs_light, False, False),
        (ada, [grant(LIGHT, write=False)], adas_light, True, False),
        (ada, [grant(LIGHT, read=False)], adas_light, False, True),
        (ada, [grant(None)], adas_light, True, True),
        (ada, [grant(None)], bobs_light, False, False),
        (ada, [grant(None), grant(LOCK)], adas_protected, False, False),
        (application, [], adas_light, False, False),
        (application, [grant(LIGHT)], adas_light, True, True),
        (application, [grant(LIGHT)], adas_lock, False, False),
        (application, [grant(LIGHT)], bobs_light, False, False),
        (application, [grant(LIGHT, write=False)], adas_light, True, False),
        (application, [grant(LIGHT, read=False)], adas_light, False, True),
        (application, [grant(LIGHT, read=False, write=False)], adas_light, False, False),
        (application, [grant(None)], adas_light, True, True),
        (application, [grant(None)], adas_lock, True, True),
        (application, [grant(None, write=False)], adas_lock, True, False),
        (application, [grant(None)], bobs_light, False, False),
        (application, [grant(LIGHT, write=False), grant(None, read=False)], adas_light, True, True),
        (application, [grant(LIGHT, write=False), grant(LOCK)], adas_light, True, False),
        # Any grant covers the types of the application's own organization, of this user only.
        (application, [], adas_own_brand, False, False),
        (application, [grant(LIGHT, write=False)], adas_own_brand, True, True),
        (application, [grant(LIGHT)], bobs_own_brand, False, False),
        (application, [grant(LIGHT, user=BOB)], bobs_own_brand, True, True),
    ],
)
def test_what_a_caller_may_do_with_a_device(
    caller: Caller, grants: list[GrantRecord], target: Device, reads: bool, writes: bool
) -> None:
    reach = Reach(caller, Grants(grants))
    assert (reach.allows(target, READ), reach.allows(target, WRITE)) == (reads, writes)


@each_row(
    ("caller", "grants", "reads", "writes", "manages"),
    [
        (device, [], True, True, True),  # its own device; which calls accept a device token is declared with each call
        (ada, [], False, False, False),
        (ada, [grant(LIGHT)], True, True, True),
        (ada, [grant(LIGHT, write=False)], True, False, False),
        (ada, [grant(LIGHT, read=False)], False, True, True),
        (bob, [], False, False, False),
        (bob, [grant(LIGHT)], False, False, False),  # the owner's grant is not Bob's
        (bob, [grant(LIGHT, user=BOB)], True, True, False),
        (bob, [grant(LIGHT, user=BOB, write=False)], True, False, False),
        (bob, [sign_in_grant(DASHBOARD, BOB)], False, False, False),
        (carol, [grant(LIGHT, user=CAROL)], False, False, False),
        (application, [], False, False, False),
        (application, [grant(LIGHT)], True, True, True),
        (application, [grant(LIGHT, write=False)], True, False, False),
        (application, [grant(LIGHT, read=False)], False, True, True),
        # Bob's grants cover devices that are shared with him, without MANAGE, as the share does.
        (application, [grant(LIGHT, user=BOB)], True, True, False),
        (application, [grant(LIGHT, user=BOB, write=False)], True, False, False),
        (application, [grant(LOCK, user=BOB)], False, False, False),
        (application, [grant(None, user=CAROL)], False, False, False),
        (
            application,
            [grant(LIGHT, write=False), grant(LIGHT, user=BOB)],
            True,
            True,
            False,
        ),
    ],
)
def test_what_a_share_gives(
    caller: Caller, grants: list[GrantRecord], reads: bool, writes: bool, manages: bool
) -> None:
    reach = Reach(caller, Grants(grants))
    assert [reach.allows(shared_light, one) for one in (READ, WRITE, MANAGE)] == [reads, writes, manages]


def test_a_reach_follows_the_device() -> None:
    light, reach = make_device(30, owner=ADA), Reach(bob, Grants([sign_in_grant(DASHBOARD, BOB)]))
    assert not reach.allows(light, READ)
    light.refresh(replace(light.record, shared_with=frozenset({BOB})), light.type)
    assert reach.allows(light, READ)


def test_what_a_caller_may_do_with_a_type() -> None:
    light, own = adas_light.type.record, adas_own_brand.type.record
    protected = replace(light, protected=True)
    reach = Reach(application, Grants([grant(LIGHT, write=False)]))
    assert [reach.allows_type(ADA, light, one) for one in (READ, WRITE)] == [True, False]
    assert [reach.allows_type(UserKey(user), own, WRITE) for user in (ADA, BOB)] == [True, False]
    assert not reach.allows_type(ADA, protected, READ)
    reach = Reach(ada, Grants([grant(LIGHT, write=False)]))
    assert [reach.allows_type(ADA, light, one) for one in (READ, WRITE)] == [True, False]
    assert [reach.allows_type(UserKey(user), own, WRITE) for user in (ADA, BOB)] == [True, False]
    assert not Reach(ada, Grants()).allows_type(ADA, own, READ)
    assert not Reach(device, Grants()).allows_type(ADA, light, READ)


def test_an_application_without_organization_of_its_own_has_no_own_types() -> None:
    stranger = Caller(kind=TokenKind.APPLICATION, token=b"", expires_on=1, application=ApplicationKey(7))
    assert not Reach(stranger, Grants([grant(LOCK)])).allows(adas_own_brand, READ)


@each_row(
    ("caller", "grants", "user", "covered"),
    [
        (ada, [], ADA, True),
        (ada, [], BOB, False),
        (application, [], ADA, False),
        (application, [grant(LIGHT)], ADA, True),
        (application, [grant(LIGHT)], BOB, False),
        (device, [], ADA, False),
    ],
)
def test_for_whom_a_caller_acts(caller: Caller, grants: list[GrantRecord], user: UserKey, covered: bool) -> None:
    assert Reach(caller, Grants(grants)).covers_user(user) is covered


async def test_the_grants_come_from_the_store(services: Services, world: World) -> None:
    kitchen, bobs = await services.devices.registry.get(world.kitchen), await services.devices.registry.get(world.bobs)
    caller = await services.accounts.tokens.caller(APPLICATION_TOKEN)
    reach = await services.accounts.permissions.reach(caller)
    assert reach.allows(kitchen, WRITE)
    assert not reach.allows(bobs, READ)
    await services.accounts.permissions.require(caller, kitchen, WRITE)
    with pytest.raises(PermissionDenied, match=f"READ on device {bobs.id}"):
        await services.accounts.permissions.require(caller, bobs, READ)
    await services.accounts.permissions.require_user(caller, world.ada)
    with pytest.raises(PermissionDenied):
        await services.accounts.permissions.require_user(caller, world.bob)


async def test_a_grant_is_seen_at_once_and_only_replaced_by_one_for_the_same_type(
    services: Services, world: World
) -> None:
    caller = await services.accounts.tokens.caller(APPLICATION_TOKEN)
    bobs = await services.devices.registry.get(world.bobs)
    for type_key in (None, None, world.light_type, world.light_type):
        record = GrantRecord(world.bob, world.application, type_key, True, False)
        await allow(services, record)
    assert len(await services.core.database.read(lambda tx: tx.accounts.grants(world.application, world.bob))) == 2
    assert (await services.accounts.permissions.reach(caller)).allows(bobs, READ)


async def test_users_and_devices_reach_their_own(services: Services, world: World) -> None:
    kitchen, bobs = await services.devices.registry.get(world.kitchen), await services.devices.registry.get(world.bobs)
    hall = await services.devices.registry.find(HALL)
    ada_caller, bob_caller = (
        await services.accounts.tokens.caller(ADA_TOKEN),
        await services.accounts.tokens.caller(BOB_TOKEN),
    )
    light = await services.accounts.tokens.caller(KITCHEN_TOKEN)
    await services.accounts.permissions.require(ada_caller, kitchen, WRITE)
    await services.accounts.permissions.require(bob_caller, bobs, WRITE)
    await services.accounts.permissions.require(light, kitchen, WRITE)
    await services.accounts.permissions.require_user(ada_caller, world.ada)
    for caller, target in ((ada_caller, bobs), (bob_caller, kitchen), (light, hall)):
        with pytest.raises(PermissionDenied):
            await services.accounts.permissions.require(caller, target, READ)
    for caller, user in ((ada_caller, world.bob), (light, world.ada)):
        with pytest.raises(PermissionDenied):
            await services.accounts.permissions.require_user(caller, user)


async def test_a_reach_follows_the_grants(services: Services, world: World) -> None:
    reach = await services.accounts.permissions.reach(await services.accounts.tokens.caller(APPLICATION_TOKEN))
    bobs = await services.devices.registry.get(world.bobs)
    assert not reach.allows(bobs, READ)
    await allow(services, GrantRecord(world.bob, world.application, None, read=True, write=False))
    assert reach.allows(bobs, READ)
    services.core.router.publish(GrantsChanged(world.bob, world.application, ()))
    assert not reach.allows(bobs, READ)
    assert not reach.covers_user(world.bob)


async def test_provisioned_grants_are_in_force_at_once(services: Services, world: World) -> None:
    reach = await services.accounts.permissions.reach(await services.accounts.tokens.caller(APPLICATION_TOKEN))
    entry = {"user": "bob@example.org", "application": "Dashboard", "device_type": "*", "permissions": ["READ"]}
    await services.provisioning.apply({"grants": [entry]}, dry_run=True)
    assert not reach.covers_user(world.bob)
    await services.provisioning.apply({"grants": [entry]})
    assert reach.covers_user(world.bob)


async def test_grants_that_change_while_they_are_read_are_read_again(opener: ServicesOpener) -> None:
    runner = HeldRunner()
    async with opener(run_sync=runner) as services:
        world = await build_world(services.core.database, services.core.vault)
        caller = await services.accounts.tokens.caller(APPLICATION_TOKEN)
        found: list[Reach] = []

        async def look() -> None:
            found.append(await services.accounts.permissions.reach(caller))

        runner.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await wait_all_tasks_blocked()  # the grants were read; the next lines change them
            await allow(services, GrantRecord(world.bob, world.application, None, read=True, write=True))
            runner.reads.set()
        assert found[0].covers_user(world.bob)
