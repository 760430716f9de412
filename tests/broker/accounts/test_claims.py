"""An address changes hands: nothing of the former holder stays; nothing is given by an address that is not proved."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import pytest
import trio

from broker.accounts.permissions import Permission
from broker.accounts.sessions import WrongPassword
from broker.errors import (
    Conflict,
    DeviceNotFound,
    NotFound,
    PermissionDenied,
    Unauthorized,
    UserNotFound,
    ValidationFailed,
)
from broker.facts import DeviceDeleted, RuleReported
from broker.secrets import token_hash
from broker.services import Services
from broker.trials.invitations import NewInvitation
from broker.trials.roles import TrialRole
from broker.trials.trials import NewTrial
from config.settings import Settings
from storage.records import DeviceTokenRecord, UserRecord
from storage.transaction import Transaction
from tests.broker.accounts.claim_world import (
    ADDRESS,
    Former,
    give_everything,
    make_rule_and_subscription,
    open_unproved,
)
from tests.broker.accounts.oauth_world import WEB, OAuthWorld, basic, granted
from tests.broker.accounts.test_resets import mails
from tests.factories import ADA_TOKEN, BOB, DASHBOARD, KITCHEN, LIGHT_TYPE, World, build_world, new_device

HERE, PASSWORD = "192.0.2.1", "a password of the owner"
_CODE: Final = re.compile(r"code=([0-9a-f]{32})")


@pytest.fixture
async def world(services: Services) -> World:
    return await build_world(services.core.database, services.core.vault)


async def code_mailed(services: Services) -> str:
    recipient, text = (await mails(services))[-1]
    assert recipient == ADDRESS
    found = _CODE.search(text)
    assert found is not None
    return found[1]


async def by_reset(services: Services) -> UserRecord:
    await services.accounts.resets.ask(ADDRESS, address=HERE)
    done = await services.accounts.resets.set_password(await code_mailed(services), PASSWORD)
    assert done.is_claim
    return done.user


async def by_operators_link(services: Services) -> UserRecord:
    reset = await services.accounts.resets.open_for(ADDRESS)
    return (await services.accounts.resets.set_password(reset.code, PASSWORD)).user


async def by_invitation(services: Services) -> UserRecord:
    await services.provisioning.apply({"invitations": [{"email": ADDRESS}]})
    code = await code_mailed(services)
    return await services.accounts.invitations.accept(code, password=PASSWORD, full_name="The Boss")


async def by_take_over(services: Services) -> UserRecord:
    entry = {"id": "b055" * 8, "email": ADDRESS, "password": PASSWORD, "take_over": True}
    report = await services.provisioning.apply({"users": [entry]})
    assert report.tables["users"].created == 1
    user = await services.accounts.users.named(ADDRESS)
    assert user.id == "b055" * 8
    again = await services.provisioning.apply({"users": [entry]})
    assert (again.tables["users"].unchanged, again.generated) == (1, [])
    return user


_WAYS: Final[Mapping[str, Callable[[Services], Awaitable[UserRecord]]]] = {
    "reset": by_reset,
    "link": by_operators_link,
    "invitation": by_invitation,
    "take_over": by_take_over,
}


@pytest.mark.both_engines
@pytest.mark.parametrize("way", list(_WAYS))
async def test_nothing_of_the_former_holder_stays(services: Services, world: World, way: str) -> None:
    stranger = await open_unproved(services)
    former = await give_everything(services, world, stranger)
    told: list[object] = []
    services.core.router.subscribe(DeviceDeleted, told.append)
    services.core.router.subscribe(RuleReported, told.append)
    user = await _WAYS[way](services)
    assert (user.email, user.name, user.email_verified_on is not None) == (ADDRESS, stranger.name, True)
    assert (user.id, user.key) != (stranger.id, stranger.key)
    assert [type(one) for one in told] == [DeviceDeleted]
    await _nothing_works(services, former)
    await _nothing_is_left(services, former.user)
    claim = await services.accounts.claims.of(user.key)
    assert claim is not None
    assert {one.kind: one.names for one in claim.ended} == {
        "Applications with access": ("Dashboard",),
        "Second factor": ("one-time codes of an app",),
        "Devices of others, shared with the account": ("Kitchen light",),
        "Devices": ("Spy",),
        "Trials": ("Trial",),
        "Scenes": ("Evening",),
        "Rules": ("Watch",),
        "Subscriptions": ("https://app.example.org/x",),
    }
    # No factor asks the owner for a code.
    session = await services.accounts.sessions.sign_in(ADDRESS, PASSWORD, address=HERE)
    assert session.user.key == user.key
    for name in (stranger.name, ADDRESS):
        with pytest.raises(WrongPassword):
            await services.accounts.sessions.sign_in(name, "x", address=HERE)


async def _nothing_works(services: Services, former: Former) -> None:
    for token in (former.token, former.device_token):
        with pytest.raises(Unauthorized):
            await services.accounts.tokens.caller(token)
    assert await services.accounts.sessions.find(former.session.id) is None
    with pytest.raises(DeviceNotFound):
        await services.devices.registry.find(former.device.id)


async def _nothing_is_left(services: Services, user: UserRecord) -> None:
    def work(tx: Any) -> dict[str, object]:
        tables = {
            "access_grant": "user",
            "alarm": "owner",
            "alarm_notice": "user",
            "alarm_telling": "user",
            "application_properties": "user",
            "board": "user",
            "device_share": "user",
            "device_transfer": "user",
            "external_identity": "user",
            "membership": "user",
            "model": "user",
            "rule": "owner",
            "scene": "user",
            "second_factor": "user",
            "session": "user",
            "token": "user",
            "token_family": "user",
            "trial": "owner",
            "trial_member": "user",
        }
        conditions = {table: f"{key} = :user" for table, key in tables.items()}
        conditions["subscription"] = "user = :user AND removed_on IS NULL"
        conditions["device"] = "owner = :user AND deleted_on IS NULL"
        conditions["device_token"] = "device IN (SELECT key FROM device WHERE owner = :user)"
        found = {}
        for table, condition in conditions.items():
            counted = f"SELECT count(*) AS n FROM {table} WHERE {condition}"  # noqa: S608 - constants
            row = tx.connection.execute(counted, {"user": user.key}).one()
            if row["n"]:
                found[table] = row["n"]
        return found

    assert await services.core.database.read(work) == {}
    kitchen = await services.devices.registry.get((await services.devices.registry.find(KITCHEN)).key)
    assert user.key not in kitchen.shared_with
    assert services.subscriptions.subscriptions.all() == []


async def test_an_application_of_the_former_holder_does_not_reach_what_the_owner_adds(oauth: OAuthWorld) -> None:
    """The case of the issue: the application reads and sends with client credentials."""
    services = oauth.services
    await oauth.change_methods(WEB, "authorization_code", "client_credentials")
    stranger = await open_unproved(services)
    theirs = OAuthWorld(services, stranger, oauth.bob)
    await theirs.user_tokens(WEB)
    user = await by_reset(services)
    await services.provisioning.apply({"devices": [{"owner": ADDRESS, "type": "example.smart_light", "name": "Safe"}]})
    own = granted(await oauth.token(basic(WEB), grant_type="client_credentials"))
    caller = await services.accounts.tokens.caller(own["access_token"])
    (key,) = await services.core.database.read(lambda tx: tx.devices.keys_of_owner(user.key))
    device = await services.devices.registry.get(key)
    reach = await services.accounts.permissions.reach(caller)
    assert not any(reach.allows(device, permission) for permission in Permission)


@pytest.mark.both_engines
async def test_many_devices_are_deleted_in_steps_and_have_no_token_at_once(services: Services, world: World) -> None:
    """A stranger's thousands of devices must not hold up the writes of everybody."""
    stranger = await open_unproved(services)

    def add(tx: Transaction) -> None:
        for number in range(250):
            light = new_device(
                f"{number:032x}",
                owner=stranger.key,
                device_type=world.light_type,
                name=f"Spy {number}",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=True,
                now_ms=1,
            )
            key = tx.devices.put_device(light)
            tx.devices.put_token(DeviceTokenRecord(key, token_hash(f"{number:032x}"), b"", None, 1))

    await services.core.database.write(add)
    told: list[DeviceDeleted] = []
    services.core.router.subscribe(DeviceDeleted, told.append)
    user = await by_reset(services)
    for number in (0, 249):
        with pytest.raises(Unauthorized):
            await services.accounts.tokens.caller(f"{number:032x}")
    with trio.fail_after(10):
        while len(told) < 250:
            await trio.lowlevel.checkpoint()
    assert await services.core.database.read(lambda tx: tx.devices.keys_of_owner(stranger.key)) == []
    claim = await services.accounts.claims.of(user.key)
    assert claim is not None
    (devices,) = [one for one in claim.ended if one.kind == "Devices"]
    assert (devices.count, len(devices.names)) == (250, 100)


# Receivers that are named by an address


async def provisioned(services: Services, document: Mapping[str, Any]) -> None:
    await services.provisioning.apply(document)


def _document(table: str, **entry: object) -> Callable[[Services], Awaitable[None]]:
    async def give(services: Services) -> None:
        await services.provisioning.apply({table: [entry]})

    return give


async def _reset_second_factor(services: Services) -> None:
    await services.accounts.second_factors.reset(ADDRESS)


async def _console_link(services: Services) -> None:
    await services.accounts.console.new_code(ADDRESS)


async def _operator(services: Services) -> None:
    user = await services.accounts.users.named(ADDRESS)
    if not services.accounts.operators.has(user):
        raise PermissionDenied("an operator")


async def _share_without_code(services: Services) -> None:
    user = await services.accounts.users.named(ADDRESS)
    share = await services.devices.shares.offer(await services.devices.registry.find(KITCHEN), email=ADDRESS)
    if not await services.devices.shares.is_for(user.key, share):
        raise PermissionDenied("the share")


async def _transfer(services: Services) -> None:
    user = await services.accounts.users.named(ADDRESS)
    kitchen = await services.devices.registry.find(KITCHEN)
    offered = await services.devices.transfers.offer(kitchen, email=ADDRESS)
    await services.devices.transfers.answer(kitchen, offered, user.key, accept=True)


async def _trial_without_code(services: Services) -> None:
    user = await services.accounts.users.named(ADDRESS)
    ada = await services.accounts.tokens.caller(ADA_TOKEN)
    invited = NewInvitation(ADDRESS, TrialRole.ADMINISTRATOR)
    trial = await services.trials.trials.create(ada, NewTrial("Trial", None, (), (invited,)))
    (sent,), _total = await services.trials.invitations.of_trial(trial.record, None, offset=0, count=9)
    await services.trials.invitations.accept(trial.record, sent.id, user.key)


_GIFTS: Final[Mapping[str, Callable[[Services], Awaitable[None]]]] = {
    "users: role": _document("users", email=ADDRESS, organization="Acme", role="administrator"),
    "users: password": _document("users", email=ADDRESS, password=PASSWORD, reset_password=True),
    "users: name": _document("users", email=ADDRESS, full_name="Boss"),
    "devices: owner": _document("devices", owner=ADDRESS, type="example.smart_light", name="Safe"),
    "device_types: owner": _document(
        "device_types",
        unique_name="example.safe",
        organization="Acme",
        owner=ADDRESS,
        manifest={"fields": [{"name": "open", "valueClass": "Boolean"}]},
    ),
    "tokens: user": _document("tokens", application=DASHBOARD, user=ADDRESS),
    "grants: user": _document(
        "grants", application=DASHBOARD, user=ADDRESS, device_type=LIGHT_TYPE, permissions=["READ"]
    ),
    "shares: with": _document("shares", device=KITCHEN, **{"with": ADDRESS}),
    "scenes: owner": _document(
        "scenes", owner=ADDRESS, application=DASHBOARD, name="S", actions=[{"ddid": "self", "action": "setOn"}]
    ),
    "topic_rules: user": _document("topic_rules", user=ADDRESS, topic="a/b", publish=True),
    "user reset --second-factor": _reset_second_factor,
    "console link": _console_link,
    "console.operators": _operator,
    "share by address": _share_without_code,
    "trial by address": _trial_without_code,
    "transfer by address": _transfer,
}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    console = msgspec.structs.replace(settings.console, operators=(ADDRESS,))
    return msgspec.structs.replace(settings, console=console)


@pytest.mark.both_engines
@pytest.mark.parametrize("way", list(_GIFTS))
@pytest.mark.parametrize("proved", [False, True])
async def test_who_may_be_given_something_by_an_address(
    services: Services, world: World, way: str, proved: bool
) -> None:
    user = await open_unproved(services)
    if proved:
        await services.core.database.write(lambda tx: tx.accounts.verify_email(user.key, now_ms=1))
    before = await _held_by(services, user)
    try:
        await _GIFTS[way](services)
    except ValidationFailed as refused:
        texts = [text for finding in refused.findings for text in finding.messages]
        is_refused = any("nobody has proved to own the address" in text and "take_over" in text for text in texts)
        assert is_refused or way == "scenes: owner", texts
    except (Conflict, PermissionDenied, UserNotFound, NotFound):
        is_refused = True
    else:
        is_refused = False
    assert is_refused is not proved, way
    if not proved:
        assert await _held_by(services, user) == before


async def _held_by(services: Services, user: UserRecord) -> list[object]:
    def work(tx: Any) -> list[object]:
        return [
            tx.accounts.user(user.key),
            tx.accounts.memberships(user.key),
            tx.accounts.grants_of(user.key),
            tx.accounts.tokens_of_user(user.key),
            tx.devices.keys_of_owner(user.key),
            tx.shares.accepted_by(user.key, 1),
            tx.scenes.of_user(user.key),
        ]

    return await services.core.database.read(work)


async def test_by_its_id_an_account_is_given_what_the_operator_says(services: Services, world: World) -> None:
    user = await open_unproved(services)
    entries = [{"id": user.id, "email": ADDRESS, "organization": "Acme", "role": "viewer"}]
    device = {"owner": user.id, "type": "example.smart_light", "name": "Safe"}
    await services.provisioning.apply({"users": entries, "devices": [device]})
    assert len(await services.core.database.read(lambda tx: tx.devices.keys_of_owner(user.key))) == 1


async def test_a_second_run_with_take_over_and_the_id_of_the_former_account(services: Services, world: World) -> None:
    former = await open_unproved(services)
    await services.provisioning.apply({"users": [{"id": former.id, "email": ADDRESS, "take_over": True}]})
    user = await services.accounts.users.find(former.id)
    assert (user.email, user.key != former.key) == (ADDRESS, True)


@pytest.mark.both_engines
async def test_a_dry_run_of_a_take_over_ends_nothing(services: Services, world: World) -> None:
    former = await give_everything(services, world, await open_unproved(services))
    await services.provisioning.apply({"users": [{"email": ADDRESS, "take_over": True}]}, dry_run=True)
    await services.accounts.tokens.caller(former.device_token)
    assert (await services.accounts.users.named(ADDRESS)).key == former.user.key


@pytest.mark.both_engines
async def test_a_disabled_stranger_does_not_come_back_by_a_mail(services: Services, world: World) -> None:
    await open_unproved(services)
    await services.accounts.disabling.disable(ADDRESS)
    user = await by_reset(services)
    assert (await services.accounts.users.find(user.id)).disabled_on is not None


# A verified account


async def test_a_reset_of_a_proved_account_ends_grants_and_leaves_what_applications_made(oauth: OAuthWorld) -> None:
    services = oauth.services
    world_application = (await services.accounts.applications.named(DASHBOARD)).key
    await make_rule_and_subscription(services, oauth.ada)
    reset = await services.accounts.resets.open_for("ada@example.org")
    done = await services.accounts.resets.set_password(reset.code, PASSWORD)
    assert (done.is_claim, done.user.key) == (False, oauth.ada.key)
    left = await services.core.database.read(lambda tx: tx.accounts.grants(world_application, oauth.ada.key))
    assert [(one.device_type, one.read, one.write) for one in left] == [
        (None, False, False)
    ]  # of her provisioned token
    rules = await services.rules.rulebook.made_by_applications(oauth.ada.key)
    waiting = await services.subscriptions.subscriptions.made_for(oauth.ada.key)
    assert [(one.name, one.application) for one in (*rules, *waiting)] == [
        ("Watch", "Dashboard"),
        ("https://app.example.org/x", "Dashboard"),
    ]
    await services.rules.rulebook.end_made_by_applications(oauth.ada.key)
    await services.subscriptions.subscriptions.end_made_for(oauth.ada.key)
    assert await services.rules.rulebook.made_by_applications(oauth.ada.key) == []
    assert await services.subscriptions.subscriptions.made_for(oauth.ada.key) == []
    assert (await services.accounts.users.find(BOB)).id == BOB


# Consent after a revocation


@pytest.mark.parametrize("how", ["the user", "a new password"])
async def test_after_its_end_a_consent_is_asked_for_once_more(oauth: OAuthWorld, how: str) -> None:
    services = oauth.services
    asked = await oauth.read(client_id=WEB, response_type="code")
    assert await services.accounts.authorize.consent_needed(asked, oauth.ada.key) is None
    await oauth.user_tokens(WEB)
    if how == "the user":
        await services.accounts.granted.revoke(oauth.ada.key, asked.application.key)
    else:
        reset = await services.accounts.resets.open_for("ada@example.org")
        await services.accounts.resets.set_password(reset.code, PASSWORD)
    screen = await services.accounts.authorize.consent_needed(asked, oauth.ada.key)
    assert screen is not None
    assert "of the types of Acme (Smart Light" in screen.sentences[-1]
    # Without the screen no code is issued; with it, the next sign-in needs none.
    assert await services.accounts.authorize.allow(asked, oauth.ada.key) == screen
    assert await services.core.database.read(lambda tx: tx.accounts.grants(asked.application.key, oauth.ada.key)) == []
    await services.accounts.authorize.allow(asked, oauth.ada.key, agreed=screen)
    assert await services.accounts.authorize.consent_needed(asked, oauth.ada.key) is None
    # Bob never revoked anything.
    assert await services.accounts.authorize.consent_needed(asked, oauth.bob.key) is None
