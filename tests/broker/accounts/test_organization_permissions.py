"""Roles in organizations, and unpublished and protected device types."""

import pytest

from broker.accounts.permissions import ADMINISTRATORS, Grants, Permission, Reach, Role
from broker.accounts.tokens import Caller, TokenKind
from broker.errors import PermissionDenied
from broker.services import Services
from storage.keys import ApplicationKey, DeviceKey, DeviceTypeKey, OrganizationKey, UserKey
from storage.records import DeviceTypeRecord, GrantRecord
from tests.factories import ACME, ADA_TOKEN, APPLICATION_TOKEN, BOB_TOKEN, DASHBOARD, KITCHEN_TOKEN, World, make_device
from tests.rows import each_row

OURS, THEIRS = OrganizationKey(1), OrganizationKey(2)
DEVELOPERS = frozenset({Role.ADMINISTRATOR, Role.DEVELOPER})
application = Caller(
    kind=TokenKind.APPLICATION,
    token=b"",
    expires_on=1,
    application=ApplicationKey(1),
    application_organization=OURS,
)


class ProtectedDevice:
    """A device of Ada's, of type 7."""

    key, id, owner, type_key, type_protected = DeviceKey(1), "1" * 32, UserKey(1), DeviceTypeKey(7), True
    shared_with: tuple[UserKey, ...] = ()

    def __init__(self, organization: OrganizationKey) -> None:
        self.type_organization = organization


@pytest.mark.parametrize("type_key", [7, None])
@pytest.mark.parametrize(("organization", "reached"), [(OURS, True), (THEIRS, False)])
def test_applications_of_others_never_reach_a_protected_type(
    organization: OrganizationKey, reached: bool, type_key: DeviceTypeKey | None
) -> None:
    reach = Reach(application, Grants([GrantRecord(UserKey(1), ApplicationKey(1), type_key, True, True)]))
    assert reach.allows(ProtectedDevice(organization), Permission.READ) is reached


def test_applications_of_others_reach_types_that_are_not_protected() -> None:
    assert Reach(
        application, Grants([GrantRecord(UserKey(1), ApplicationKey(1), DeviceTypeKey(1), True, True)])
    ).allows(make_device(organization=THEIRS), Permission.READ)


@each_row(
    ("role", "administers", "develops"),
    [
        (Role.ADMINISTRATOR, True, True),
        (Role.DEVELOPER, False, True),
        (Role.VIEWER, False, False),
        (None, False, False),
    ],
)
async def test_what_members_may_do_for_their_organization(
    services: Services, world: World, role: Role | None, administers: bool, develops: bool
) -> None:
    acme = await services.core.database.read(lambda tx: tx.accounts.organization_by_id(ACME))
    assert acme is not None
    if role is not None:
        await join(services, "Acme", role)
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    for roles, allowed in ((ADMINISTRATORS, administers), (DEVELOPERS, develops)):
        if allowed:
            await services.accounts.permissions.require_organization(caller, acme.key, roles)
            continue
        with pytest.raises(PermissionDenied, match=r"administrator.* of the organization"):
            await services.accounts.permissions.require_organization(caller, acme.key, roles)


async def test_only_its_own_applications_and_members_act_for_an_organization(services: Services, world: World) -> None:
    acme = await services.core.database.read(lambda tx: tx.accounts.organization_by_id(ACME))
    assert acme is not None
    await join(services, "Acme", Role.ADMINISTRATOR)
    permissions = services.accounts.permissions
    own = await services.accounts.tokens.caller(APPLICATION_TOKEN)
    await permissions.require_organization(own, acme.key, ADMINISTRATORS)
    for token, organization in (
        (APPLICATION_TOKEN, acme.key + 1),
        (ADA_TOKEN, acme.key + 1),
        (BOB_TOKEN, acme.key),
        (KITCHEN_TOKEN, acme.key),
    ):
        with pytest.raises(PermissionDenied):
            await permissions.require_organization(
                await services.accounts.tokens.caller(token), OrganizationKey(organization), DEVELOPERS
            )


async def test_an_application_acts_for_its_organization_only_if_it_manages_it(services: Services, world: World) -> None:
    """The mark counts from the next call on."""
    acme = await services.core.database.read(lambda tx: tx.accounts.organization_by_id(ACME))
    assert acme is not None
    caller = await services.accounts.tokens.caller(APPLICATION_TOKEN)
    for manages in (True, False, True):
        entry = {"id": DASHBOARD, "name": "Dashboard", "organization": "Acme", "manages_organization": manages}
        await services.provisioning.apply({"applications": [entry]})
        for roles in (ADMINISTRATORS, DEVELOPERS):
            if manages:
                await services.accounts.permissions.require_organization(caller, acme.key, roles)
                continue
            with pytest.raises(PermissionDenied, match="an application that manages its organization"):
                await services.accounts.permissions.require_organization(caller, acme.key, roles)


async def test_provisioned_applications_manage_their_organization(services: Services, world: World) -> None:
    """A new one does; one that is there stays as it is, unless the file says something else."""
    entry = {"name": "Robot", "organization": "Acme", "methods": ["client_credentials"]}
    for more, expected in (({}, True), ({"manages_organization": False}, False), ({}, False)):
        await services.provisioning.apply({"applications": [entry | more]})
        assert (await services.accounts.applications.named("Robot")).record.manages_organization is expected


async def join(services: Services, organization: str, role: Role) -> None:
    """Make Ada a member, as an operator does it."""
    await services.provisioning.apply(
        {"users": [{"email": "ada@example.org", "organization": organization, "role": role.value}]}
    )


def type_of(organization: OrganizationKey, *, published: bool, protected: bool) -> DeviceTypeRecord:
    return DeviceTypeRecord(
        DeviceTypeKey(5), "dt5", "a.b", "B", organization, "0" * 32, published, protected, False, None, (), 1
    )


@pytest.mark.parametrize(
    ("published", "protected", "free"),
    [(True, False, True), (False, False, False), (True, True, False), (False, True, False)],
)
async def test_who_may_use_a_device_type(
    services: Services, world: World, published: bool, protected: bool, free: bool
) -> None:
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    organization = caller.application_organization
    assert organization is not None
    await services.provisioning.apply({"organizations": [{"name": "Others"}]})
    others = await services.core.database.read(lambda tx: tx.accounts.organization_named("Others"))
    assert others is not None
    ours, theirs = (type_of(key, published=published, protected=protected) for key in (organization, others.key))
    await services.accounts.permissions.require_type(caller, ours)  # through the organization's application
    if free:
        return await services.accounts.permissions.require_type(caller, theirs)
    for token in (ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN):
        with pytest.raises(PermissionDenied, match="use of device type dt5"):
            await services.accounts.permissions.require_type(await services.accounts.tokens.caller(token), theirs)
    await join(services, "Others", Role.VIEWER)
    return await services.accounts.permissions.require_type(caller, theirs)
