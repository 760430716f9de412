"""Reach of a trial's application, and its end with the trial (reference 14.1 and 14.2)."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import pytest
from msgspec.structs import replace

from broker.accounts.consent import sign_in_grant
from broker.accounts.permissions import ADMINISTRATORS, Permission
from broker.accounts.tokens import CONSOLE_ID, Caller
from broker.errors import (
    Conflict,
    DeviceTypeNotFound,
    NotFound,
    PermissionDenied,
    Unauthorized,
    ValidationFailed,
)
from broker.export.requests import ExportRequest
from broker.ids import new_id
from broker.routing.connections import CloseReason
from broker.secrets import token_hash
from broker.services import Services
from broker.trials.invitations import NewInvitation
from broker.trials.roles import TooManyTrials, TrialRole
from broker.trials.trials import NewTrial, Trial
from storage.keys import ApplicationKey, Milliseconds
from storage.records import NEW_KEY, ApplicationRecord, AuditFilter, TokenRecord
from storage.transaction import Transaction
from tests.broker.export.test_exports import exported, send, stamps
from tests.broker.routing.test_feeds import Codec, Watcher
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOBS,
    KITCHEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
    new_user,
)
from tests.fakes import FakeClock
from tests.mail_queue import waiting_mails
from tests.stores import table_names
from tests.trial_world import (
    SAM,
    SAM_TOKEN,
    TrialWorld,
    add_people,
    build_trial,
    invite,
    join,
    new_trial,
    user_of,
)
from tests.type_world import add_types

Act = Callable[[Services, TrialWorld, World], Any]


@pytest.fixture
async def made(services: Services, world: World) -> TrialWorld:
    await add_people(services, world)
    return await build_trial(services, world)


async def caller_of(services: Services, trial: Trial) -> Caller:
    """The application of the trial, with a new token."""
    token = new_id()
    record = TokenRecord(token_hash(token), trial.record.application, None, NOW_MS, NOW_MS * 2)
    await services.core.database.write(lambda tx: tx.accounts.put_token(record))
    return await services.accounts.tokens.caller(token)


async def stop(services: Services, made: TrialWorld, _world: World) -> None:
    await services.trials.trials.change(made.trial.record, name=None, description=None, stop=True)


async def delete(services: Services, made: TrialWorld, _world: World) -> None:
    await services.trials.trials.delete(made.trial.record)


async def remove_bob(services: Services, made: TrialWorld, world: World) -> None:
    bob = await user_of(services, world.bob)
    await services.trials.members.remove(made.trial.record, bob, TrialRole.PARTICIPANT)


async def renew(services: Services, made: TrialWorld, _world: World) -> None:
    await services.trials.trials.renew_application(made.trial.record)


async def remove_type(services: Services, made: TrialWorld, _world: World) -> None:
    type_ = await services.trials.device_types.known(LIGHT_TYPE)
    await services.trials.device_types.remove(made.trial.record, type_)


REVOKED, FORBIDDEN = CloseReason.TOKEN_REVOKED, CloseReason.PERMISSION_REMOVED


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("act", "application", "own", "is_valid"),
    [
        # Why the link of the application, and that of the device with a token that the application made, are closed.
        (stop, [FORBIDDEN, REVOKED], [REVOKED], False),
        (delete, [FORBIDDEN, REVOKED], [REVOKED], False),
        (renew, [REVOKED], [], False),
        (remove_bob, [FORBIDDEN], [REVOKED], True),
        (remove_type, [FORBIDDEN], [], True),
    ],
)
async def test_open_connections_end_at_once(
    services: Services,
    world: World,
    made: TrialWorld,
    act: Act,
    application: list[CloseReason],
    own: list[CloseReason],
    is_valid: bool,
) -> None:
    device = await services.devices.registry.find(BOBS)
    kitchen = await services.devices.registry.find(KITCHEN)
    caller = await caller_of(services, made.trial)
    reach = await services.accounts.permissions.reach(caller)
    assert reach.allows(device, Permission.WRITE)
    token = (await services.devices.tokens.renew(device, application=made.trial.record.application)).token
    closed: dict[str, list[CloseReason]] = {"application": [], "own": [], "other": []}
    with ExitStack() as links:
        for name, of, hashed, is_allowed in (
            ("application", device, caller.token, lambda: reach.allows(device, Permission.WRITE)),
            ("own", device, token_hash(token), lambda: True),
            ("other", kitchen, token_hash(ADA_TOKEN), lambda: True),
        ):
            links.enter_context(
                services.routing.connections.connect(
                    of,
                    protocol="WEBSOCKET",
                    token=hashed,
                    exclusive=name != "application",
                    deliver=None,
                    close=closed[name].append,
                    is_allowed=is_allowed,
                )
            )
        await act(services, made, world)
        assert (set(closed["application"]), closed["own"], closed["other"]) == (set(application), own, [])
    tokens = services.accounts.tokens
    if own:
        with pytest.raises(Unauthorized):
            await tokens.caller(token)
    else:
        assert (await tokens.caller(token)).device == device.key
    assert reach.allows(device, Permission.READ) is (act is renew)
    found = await services.core.database.read(lambda tx: tx.accounts.token(caller.token))
    assert (found is not None) is is_valid
    assert (await tokens.caller(ADA_TOKEN)).user == world.ada


@pytest.mark.both_engines
async def test_a_live_feed_of_the_application_has_what_is_granted_at_each_moment(
    services: Services, world: World, made: TrialWorld
) -> None:
    device = await services.devices.registry.find(BOBS)
    reach = await services.accounts.permissions.reach(await caller_of(services, made.trial))
    watcher = Watcher(Codec(), lambda one: reach.allows(one, Permission.READ))
    ada = await services.accounts.tokens.caller(ADA_TOKEN)
    numbers = []
    with services.routing.feeds.subscribe(watcher.subscriber):
        for act in (None, remove_type, lambda *_: services.trials.device_types.add(ada, made.trial.record, LIGHT_TYPE)):
            if act is not None:
                await act(services, made, world)
            await send(services, (device, NOW_MS, {"state": True}))
            numbers.append(sum(count for _, count in watcher.got))
    assert numbers == [1, 1, 2]


@pytest.mark.both_engines
async def test_the_application_has_no_rights_of_its_organization(
    services: Services, world: World, made: TrialWorld
) -> None:
    """The application of the Dashboard has them: both belong to Acme."""
    await add_types(services.core.database, world)
    permissions, trial = services.accounts.permissions, made.trial.record
    ours = await caller_of(services, made.trial)
    dashboard = await services.accounts.tokens.caller(APPLICATION_TOKEN)
    private = await services.device_types.catalog.find("dt-lamp_private")
    acme = private.record.organization
    await permissions.require_organization(dashboard, acme, ADMINISTRATORS)
    await permissions.require_type(dashboard, private.record)
    for refused in (
        permissions.require_organization(ours, acme, ADMINISTRATORS),
        permissions.require_type(ours, private.record),
        permissions.require(ours, await services.devices.registry.find(KITCHEN), Permission.READ),
    ):
        with pytest.raises(PermissionDenied):
            await refused
    ada = await services.accounts.tokens.caller(ADA_TOKEN)
    await services.trials.device_types.add(ada, trial, "dt-lamp_private")
    await permissions.require_type(ours, private.record)
    await permissions.require_granted(ours, world.bob, private.record, Permission.WRITE)


async def test_types_that_the_administrator_may_not_use_are_not_added(
    services: Services, world: World, made: TrialWorld
) -> None:
    await add_types(services.core.database, world)
    ada = await services.accounts.tokens.caller(ADA_TOKEN)
    for type_, refusal in (
        ("dt-sensor_guard", PermissionDenied),
        ("dt-sensor_private", PermissionDenied),
        ("dt-none", DeviceTypeNotFound),
    ):
        with pytest.raises(refusal):
            await services.trials.device_types.add(ada, made.trial.record, type_)
    assert (await services.trials.device_types.add(ada, made.trial.record, "example.sensor")).id == "dt-sensor"


def everything(tx: Transaction) -> dict[str, list[tuple[object, ...]]]:
    names = table_names(tx)
    return {name: list(map(tuple, tx.connection.execute(f"SELECT * FROM {name}").tuples())) for name in names}  # noqa: S608


async def test_a_refused_trial_leaves_nothing(services: Services, world: World) -> None:
    await add_people(services, world)
    before = await services.core.database.read(everything)
    people = [NewInvitation(f"{name}@example.net", TrialRole.PARTICIPANT) for name in ("a", "b")]
    for members, refusal in (
        ({"device_types": [LIGHT_TYPE, "no.such"]}, DeviceTypeNotFound),
        ({"device_types": [LIGHT_TYPE, "example.smart_light"]}, Conflict),
        ({"invitations": [*people, NewInvitation("nobody", TrialRole.PARTICIPANT)]}, ValidationFailed),
        ({"invitations": [*people, people[0]]}, Conflict),
    ):
        with pytest.raises(refusal):
            await new_trial(services, world, **members)
        assert await services.core.database.read(everything) == before


async def test_one_call_invites_a_hundred_people(services: Services, world: World) -> None:
    await add_people(services, world)
    people = [NewInvitation(f"p{n}@example.net", TrialRole.PARTICIPANT) for n in range(100)]
    await new_trial(services, world, invitations=people)
    assert len(await services.core.database.read(waiting_mails)) == 100


async def test_who_is_a_member_of_no_organization_gets_a_personal_one_once(services: Services, world: World) -> None:
    await add_people(services, world)

    def of(tx: Transaction, trial: Trial) -> tuple[str, int]:
        application = tx.accounts.application(trial.record.application)
        organization = None if application is None else tx.accounts.organization(application.organization)
        assert organization is not None
        return organization.name, organization.key

    sam = await services.accounts.tokens.caller(SAM_TOKEN)
    made = []
    for caller in (sam, sam, await services.accounts.tokens.caller(ADA_TOKEN)):
        trial = await services.trials.trials.create(caller, NewTrial("Trial", None))
        made.append(await services.core.database.read(lambda tx, trial=trial: of(tx, trial)))  # type: ignore[misc]
    assert made[0] == made[1]
    assert (made[0][0], made[2][0]) == ("Personal organization of sam-example", "Acme")
    role = await services.core.database.read(lambda tx: tx.accounts.has_role(sam.user or world.bob, "administrator"))
    assert not role  # it has no members


@pytest.mark.both_engines
async def test_the_bounds_of_trials(
    services: Services, world: World, monkeypatch: pytest.MonkeyPatch, fake_clock: FakeClock
) -> None:
    await add_people(services, world)
    monkeypatch.setattr("broker.trials.trials.TRIALS_PER_DAY", 3)
    monkeypatch.setattr("broker.trials.trials.TRIALS_OF_ONE_USER", 4)
    monkeypatch.setattr("broker.trials.device_types.TRIAL_DEVICE_TYPES", 1)
    monkeypatch.setattr("broker.trials.invitations.TRIAL_INVITATIONS_OPEN", 2)
    monkeypatch.setattr("broker.trials.invitations.TRIAL_INVITATIONS_KEPT", 3)
    monkeypatch.setattr("broker.trials.invitations.TRIAL_MEMBERS", {"participant": 1, "administrator": 1})
    monkeypatch.setattr("broker.trials.members.TRIAL_DEVICES_OF_ONE", 1)
    trial, room = await new_trial(services, world), services.trials
    await room.trials.delete((await new_trial(services, world)).record)
    await new_trial(services, world)
    with pytest.raises(TooManyTrials) as refused:
        await new_trial(services, world)
    assert refused.value.retry_seconds == (86_400_000 - NOW_MS % 86_400_000) // 1000 + 1
    fake_clock.advance(86_400_000)
    for _ in range(2):
        await new_trial(services, world)
    with pytest.raises(Conflict):
        await new_trial(services, world)
    await add_types(services.core.database, world)
    ada = await services.accounts.tokens.caller(ADA_TOKEN)
    with pytest.raises(Conflict):
        await room.device_types.add(ada, trial.record, "dt-sensor")
    await join(services, world, trial, world.ada, TrialRole.PARTICIPANT)
    with pytest.raises(Conflict):
        await join(services, world, trial, world.bob, TrialRole.PARTICIPANT)
    invited = await invite(services, world, trial, "sam@example.org")
    with pytest.raises(Conflict):
        await invite(services, world, trial, "ina@example.org")
    await room.members.connect(trial.record, world.ada, await services.devices.registry.find(KITCHEN))
    hall = await services.devices.registry.get(world.hall)
    with pytest.raises(Conflict):
        await room.members.connect(trial.record, world.ada, hall)
    for _ in range(3):
        await room.invitations.revoke(trial.record, invited.id)
        invited = await invite(services, world, trial, "sam@example.org")
    kept, total = await room.invitations.of_trial(trial.record, None, offset=0, count=9)
    assert (total, kept[-1].id) == (4, invited.id)  # three, and an older one that is open
    assert [one.status for one in kept] == ["sent", "revoked", "revoked", "sent"]


@pytest.mark.both_engines
async def test_an_unverified_address_is_verified_by_the_code_only(
    services: Services, world: World, made: TrialWorld
) -> None:
    def unverify(tx: Transaction) -> None:
        tx.connection.execute("UPDATE user SET email_verified_on = NULL WHERE id = :id", {"id": SAM})

    await services.core.database.write(unverify)
    sam, room, trial = await services.accounts.users.find(SAM), services.trials, made.trial
    prepared = room.invitations.prepared(sam, "Sleep", NewInvitation("sam@example.org", TrialRole.PARTICIPANT))
    code = "c0de" * 8
    prepared = replace(prepared, record=replace(prepared.record, code_hash=token_hash(code)))
    sent = await services.core.database.write(lambda tx: room.invitations.send(tx, trial.record, prepared))
    assert not await room.invitations.is_for(sam.key, sent)
    assert await room.invitations.is_for(sam.key, sent, code=code)
    with pytest.raises(PermissionDenied):
        await room.invitations.accept(trial.record, sent.id, sam.key)
    with pytest.raises(PermissionDenied):
        await room.invitations.accept(trial.record, sent.id, world.ada, code=code)
    await room.invitations.accept(trial.record, sent.id, sam.key, code=code)
    assert (await services.accounts.users.find(SAM)).email_verified_on is not None


@pytest.mark.both_engines
async def test_a_deleted_device_is_connected_no_more(services: Services, world: World, made: TrialWorld) -> None:
    await services.devices.inventory.delete(await services.devices.registry.find(BOBS))
    assert await services.trials.members.devices(made.trial.record, None, offset=0, count=9) == ([], 0)


@pytest.mark.both_engines
async def test_changes_are_audited(services: Services, world: World, made: TrialWorld) -> None:
    await renew(services, made, world)
    await remove_type(services, made, world)
    await remove_bob(services, made, world)
    await stop(services, made, world)
    await delete(services, made, world)
    found = await services.core.audit.find(AuditFilter(0, 2**62, 1000))
    events = [one.event for one in found if "trial" in one.event or one.event == "secret_renewed"]
    assert events == [
        "trial_created",
        "trial_invitation_sent",
        "trial_invitation_accepted",
        "trial_device_connected",
        "trial_invitation_sent",
        "secret_renewed",
        "trial_type_removed",
        "trial_member_removed",
        "trial_stopped",
        "trial_deleted",
    ]
    assert all(str(made.trial.secret) not in str(one.details) for one in found)


# Export by trial

START: Final = NOW_MS - 1_000


def asking(trial: Trial, **more: Any) -> ExportRequest:
    return ExportRequest(
        start_ms=Milliseconds(START), end_ms=Milliseconds(NOW_MS + 1_000), trial_id=trial.record.id, **more
    )


@pytest.fixture
async def bobs_message(services: Services, made: TrialWorld) -> int:
    """The time of a message of Bob's light, which is connected to the trial. Ada's lights sent one, too."""
    for did in (BOBS, KITCHEN):
        await send(services, (await services.devices.registry.find(did), NOW_MS - 5, {"state": True}))
    return NOW_MS - 5


@pytest.mark.both_engines
async def test_an_export_by_trial_has_the_connected_devices_by_participant(
    services: Services, world: World, made: TrialWorld, bobs_message: int, autojump_clock: object
) -> None:
    ada, ours = await services.accounts.tokens.caller(ADA_TOKEN), await caller_of(services, made.trial)
    expected = {f"{BOB}-{bobs_message}.json": [bobs_message]}
    for caller in (ada, ours):
        assert stamps(await exported(services, caller, asking(made.trial))) == expected
    for narrowed in ({"uids": BOB}, {"sdids": BOBS}, {"uids": BOB, "sdtids": LIGHT_TYPE}):
        assert stamps(await exported(services, ada, asking(made.trial, **narrowed))) == expected
    (history, total) = await services.export.history(ada, trial=made.trial.record.id, offset=0, count=9)
    assert (len(history), total) == (4, 4)
    sam, dashboard = [await services.accounts.tokens.caller(one) for one in (SAM_TOKEN, APPLICATION_TOKEN)]
    for caller, more, refusal in (
        (sam, {}, PermissionDenied),
        (dashboard, {}, PermissionDenied),
        (ada, {"uids": SAM}, PermissionDenied),
        (ada, {"sdids": KITCHEN}, PermissionDenied),
    ):
        with pytest.raises(refusal):
            await services.export.create(caller, asking(made.trial, **more))
    await delete(services, made, world)
    with pytest.raises(NotFound):
        await services.export.create(ada, asking(made.trial))


@pytest.mark.both_engines
async def test_an_export_by_trial_ends_with_the_grant_and_with_the_trial(
    services: Services,
    world: World,
    made: TrialWorld,
    bobs_message: int,
    autojump_clock: object,
    fake_clock: FakeClock,
) -> None:
    ada, light = await services.accounts.tokens.caller(ADA_TOKEN), await services.devices.registry.find(BOBS)
    await stop(services, made, world)
    fake_clock.advance(10)
    await send(services, (light, NOW_MS + 5, {"state": False}))
    found = stamps(await exported(services, ada, asking(made.trial)))
    assert found == {f"{BOB}-{bobs_message}.json": [bobs_message]}  # nothing after the end
    other = await build_trial(services, world)
    await services.accounts.granted.revoke(world.bob, other.trial.record.application)
    owner = (await services.accounts.users.self_of(ada)).id
    assert stamps(await exported(services, ada, asking(other.trial))) == {f"{owner}-0.json": []}


async def test_callers_of_trials_do_not_show_their_secret(made: TrialWorld) -> None:
    assert made.trial.secret is not None
    assert made.trial.secret not in repr(made.trial)


@pytest.mark.both_engines
async def test_who_accepts_in_the_console_grants_every_type(services: Services, world: World, made: TrialWorld) -> None:
    """The console reaches what its user may reach, without a grant (reference 4.10)."""

    def install(tx: Transaction) -> ApplicationKey:
        owner = tx.accounts.add_organization("0c" * 16, "Console", -1).key
        new = ApplicationRecord(NEW_KEY, CONSOLE_ID, owner, "Console", b"", (), (), ())
        return tx.accounts.put_application(new).key

    console = await services.core.database.write(install)
    sam, trial = await services.accounts.users.find(SAM), made.trial.record
    invited = await invite(services, world, made.trial, sam.email)
    await services.trials.invitations.accept(trial, invited.id, sam.key, through=console)
    await add_types(services.core.database, world)
    await services.trials.device_types.add(await services.accounts.tokens.caller(ADA_TOKEN), trial, "example.sensor")
    granted = await services.core.database.read(lambda tx: tx.accounts.grants(trial.application, sam.key))
    assert [(one.read, one.write) for one in granted if one.device_type is not None] == [(True, True)] * 2


@pytest.mark.both_engines
async def test_access_to_a_trial_of_many_participants_takes_few_statements(
    services: Services, world: World, made: TrialWorld, statements: list[str]
) -> None:
    """Over PostgreSQL each one is a trip to the server, and nobody else writes meanwhile."""
    await add_types(services.core.database, world)
    trial, application = made.trial.record, made.trial.record.application

    def take_part(tx: Transaction) -> None:
        for number in range(40):
            id_ = f"{number:032x}"
            person = new_user(id_, email=f"{id_}@example.org", name=id_, full_name=id_, password_hash=None, now_ms=1)
            user = tx.accounts.add_user(person).key
            tx.trials.add_member(trial.key, user, TrialRole.PARTICIPANT, now_ms=1, application=world.application)
            tx.accounts.add_grant(sign_in_grant(application, user))
            tx.accounts.put_grant(replace(sign_in_grant(world.application, user), read=True, write=True))
            family = tx.authorizations.add_family(application=application, user=user, method="code", now_ms=1)
            for of in (family, None):
                hashed = token_hash(new_id())
                tx.accounts.put_token(TokenRecord(hashed, application, user, NOW_MS, NOW_MS * 2, of))

    await services.core.database.write(take_part)
    statements.clear()
    ada = await services.accounts.tokens.caller(ADA_TOKEN)
    await services.trials.device_types.add(ada, trial, "example.sensor")
    assert len(statements) < 40
    granted = await services.core.database.read(lambda tx: tx.accounts.grants(application))
    assert sum(grant.device_type is not None and grant.read and grant.write for grant in granted) > 40
    statements.clear()
    await services.trials.trials.delete(trial)
    assert len(statements) < 60
    wanted = AuditFilter(since_ms=0, until_ms=NOW_MS * 2, limit=1_000, event="token_revoked")
    assert len(await services.core.audit.find(wanted)) == 80
    assert await services.core.database.read(lambda tx: tx.accounts.grants(application)) == []
