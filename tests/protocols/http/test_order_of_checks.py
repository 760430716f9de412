"""Token, path object, permission, rate limit, body: in this order on every path (reference 3.2).

Who makes the calls has none left in this minute. What it is told of objects is the same as ever, and nothing happens.
"""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import httpx
import pytest
import trio

from broker.accounts.tokens import Caller
from broker.alarms.changes import AlarmChange, AlarmRule, Change, carry_out
from broker.device_management.requests import TaskRequest
from broker.device_management.states import TaskStatus
from broker.export.requests import ExportRequest
from broker.export.status import ExportStatus
from broker.limits.overhead import Overhead
from broker.rules.rulebook import NewRule
from broker.services import Services
from broker.subscriptions.creation import NewSubscription
from broker.subscriptions.subscription import Subscription
from broker.topics.space import TopicMessage
from broker.trials.documents import DocumentKind
from broker.trials.invitations import NewInvitation
from broker.trials.roles import TrialRole
from broker.trials.trials import NewTrial
from config.settings import Discover, Limits, Mqtt, Settings, TrialSettings
from protocols.http.answers import REST_ROOT
from protocols.http.application import build_app
from storage.alarms import AlarmFilter
from storage.deliveries import NotificationRecord
from storage.keys import ApplicationKey, Milliseconds, OrganizationKey, UserKey
from storage.records import GrantRecord
from storage.transaction import Transaction
from tests.certificates import Authority
from tests.factories import (
    ADA,
    ADA_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    DASHBOARD,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
    allow,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.secure_types import NOW, SECURE_TYPE, provision_secure_type
from tests.stores import table_names
from tests.type_world import BETA_APPLICATION, CAROL, CAROL_TOKEN, add_types

pytestmark = pytest.mark.slow


ID: Final = "f" * 32
UNKNOWN_TYPE: Final = "dt" + "e" * 32
FOREIGN_TYPE: Final = "dt-" + "f" * 32
FOREIGN_DEVICE: Final = "d" * 32
VDID: Final = "vendor-1"

#: Every call that a user may make on something its path names, and how a broken query or body of it is refused.
ON_OBJECTS: Final = """
GET /users/{user}/properties -
POST /users/{user}/properties 400
PUT /users/{user}/properties 400
DELETE /users/{user}/properties -
GET /users/{user}/applications -
DELETE /users/{user}/applications/{application} -
GET /users/{user}/devices 4001
GET /users/{user}/devicetypes 4001
GET /users/{user}/shares 4001
PUT /users/{user} 400
DELETE /users/{user} -
POST /users/{user}/archive -
GET /users/{user}/archive -
GET /users/{user}/archive/result -
GET /users/{user}/audit 4001
GET /users/{user}/automations -
GET /users/{user}/sessions -
DELETE /users/{user}/sessions -
DELETE /users/{user}/sessions/{session} -
GET /devices/{device} 4001
PUT /devices/{device} 400
DELETE /devices/{device} -
GET /devices/{device}/tokens -
PUT /devices/{device}/tokens -
DELETE /devices/{device}/tokens -
POST /devices/{device}/providerauth 400
DELETE /devices/{device}/providerauth -
GET /devices/{device}/status 4001
PUT /devices/{device}/status 400
GET /devices/{device}/presence -
GET /devices/{device}/failures 4001
GET /devices/{device}/refusals -
GET /devices/{device}/dropped -
GET /devices/{device}/lwm2m -
GET /devices/{device}/wanted -
PUT /devices/{device}/wanted 400
DELETE /devices/{device}/wanted -
GET /users/{user}/telling -
PUT /users/{user}/telling 400
POST /users/{user}/telling/test -
GET /alarms/{alarm} -
PUT /alarms/{alarm} 400
GET /alarms/{alarm}/explain -
GET /devices/{device}/quota -
POST /devices/{device}/shares 400
GET /devices/{device}/shares 4001
GET /devices/{device}/shares/{share} -
PUT /devices/{lent}/shares/{invitation} 400
DELETE /devices/{device}/shares/{share} -
POST /devices/{device}/transfer 400
GET /devices/{device}/transfer -
PUT /devices/{handed}/transfer 400
DELETE /devices/{device}/transfer -
GET /users/{user}/transfers -
GET /users/{user}/found -
PUT /found/{found} 400
GET /devices/registrations/{registration}/status -
DELETE /devices/{device}/registrations -
GET /devicetypes/{type} -
GET /applications/{application}/devicetypes 4001
GET /devicetypes/{type}/availablemanifestversions -
GET /devicetypes/{type}/manifests/{version}/properties -
POST /devicetypes/{type}/whitelist 400
GET /devicetypes/{type}/whitelist 4001
GET /devicetypes/{type}/whitelist/status -
PUT /devicetypes/{type}/whitelist/enable 400
GET /devicetypes/{type}/whitelist/{upload}/status -
GET /devicetypes/{type}/whitelist/{upload}/rejectedRows 4001
GET /devicetypes/{type}/whitelist/vdid/{vdid} -
DELETE /devicetypes/{type}/whitelist/{vdid} -
GET /devicetypes/{type}/whitelist/certificates 4001
POST /devicetypes/{type}/whitelist/certificates 400
DELETE /devicetypes/{type}/whitelist/certificates/{certificate} -
GET /messages/deletions/{deletion} -
GET /users/{user}/readers -
GET /devicetypes/{type}/sheet -
GET /messages/import/{import}/status -
GET /messages/export/{export}/status -
GET /messages/export/{export}/result -
GET /pricing/devices/{device}/revenueshare/upgradepath 4001
GET /pricing/devicetypes/{type}/pricingtiers 4001
POST /pricing/devicetypes/{type}/pricingtiers 400
GET /pricing/devices/{device}/pricingtiers 4001
PUT /pricing/devices/{device}/pricingtiers 400
GET /devicemgmt/devices/{managed}/properties 4001
POST /devicemgmt/devices/{managed}/serverproperties 400
DELETE /devicemgmt/devices/{managed}/serverproperties -
GET /devicemgmt/devicetypes/{type} -
PUT /devicemgmt/devicetypes/{type} 400
GET /devicemgmt/devicetypes/{type}/manifest/properties -
POST /devicemgmt/devicetypes/{type}/images 4001
GET /devicemgmt/devicetypes/{type}/images 4001
DELETE /devicemgmt/devicetypes/{type}/images/{image} -
GET /devicemgmt/tasks/{task} -
PUT /devicemgmt/tasks/{task} 400
GET /devicemgmt/tasks/{task}/statuses 4001
GET /devicemgmt/tasks/{task}/statuses/history -
PUT /devicemgmt/tasks/{task}/devices/{managed} 400
POST /devicemgmt/tasks/{task}/devices/{managed}/acceptance 400
GET /devicemgmt/devices/{managed}/tasks 4001
GET /devicemgmt/devices/{managed}/pendingtasks -
GET /users/{user}/rules 4001
GET /rules/{rule} -
PUT /rules/{rule} 400
DELETE /rules/{rule} -
GET /rules/{rule}/provision -
GET /rules/{rule}/actions -
POST /rules/{rule}/actions -
GET /rules/{rule}/executions -
GET /rules/{rule}/explain 4001
POST /rules/{rule}/replay 400
GET /users/{user}/boards -
POST /users/{user}/boards 400
GET /boards/{board} -
PUT /boards/{board} 400
DELETE /boards/{board} -
PUT /boards/{board}/link 403
DELETE /boards/{board}/link -
GET /users/{user}/scenes 4001
GET /scenes/{scene} -
PUT /scenes/{scene} 400
DELETE /scenes/{scene} -
POST /scenes/{scene} 400
GET /scenes/{scene}/provision -
GET /ml/models/{model} -
DELETE /ml/models/{model} -
POST /ml/models/{model}/predict 400
GET /users/{user}/trials 4001
GET /trials/{trial} -
PUT /trials/{trial} 400
DELETE /trials/{trial} -
PUT /trials/{trial}/application -
POST /trials/{trial}/invitations 400
GET /trials/{trial}/invitations 4001
GET /trials/{trial}/invitations/{asked} -
PUT /trials/{trial}/invitations/{asked} 400
DELETE /trials/{trial}/invitations/{asked} -
GET /trials/{trial}/administrators 4001
DELETE /trials/{trial}/administrators/{member} -
GET /trials/{trial}/participants 4001
DELETE /trials/{trial}/participants/{member} -
GET /trials/{trial}/devices 4001
GET /trials/{trial}/participants/{member}/devices 4001
POST /trials/{trial}/participants/{member}/devices 400
DELETE /trials/{trial}/participants/{member}/devices/{device} -
GET /trials/{trial}/devicetypes 4001
POST /trials/{trial}/devicetypes 400
DELETE /trials/{trial}/devicetypes/{type} -
GET /trials/sessions/{sitting} -
PUT /trials/sessions/{sitting} 400
DELETE /trials/sessions/{sitting} -
GET /trials/{trial}/sessions 4001
GET /trials/{trial}/sessions/ongoing 4001
GET /trials/{trial}/sessions/metadata 4001
POST /trials/{trial}/sessions/metadata 400
GET /trials/{trial}/sessions/metadata/{kept} -
PUT /trials/{trial}/sessions/metadata/{kept} 400
DELETE /trials/{trial}/sessions/metadata/{kept} -
GET /trials/{trial}/sessions/metadata/key/{word} 4001
GET /trials/{trial}/sessions/rules 4001
POST /trials/{trial}/sessions/rules 400
GET /trials/sessions/rules/{ruled} -
PUT /trials/sessions/rules/{ruled} 400
DELETE /trials/sessions/rules/{ruled} -
GET /trials/sessions/rules/{ruled}/sharing -
PUT /trials/sessions/rules/{ruled}/sharing 400
GET /trials/{trial}/sessions/rules/metadata 4001
POST /trials/{trial}/sessions/rules/metadata 400
GET /trials/{trial}/sessions/rules/metadata/{about} -
PUT /trials/{trial}/sessions/rules/metadata/{about} 400
DELETE /trials/{trial}/sessions/rules/metadata/{about} -
GET /subscriptions/{subscription} -
PUT /subscriptions/{subscription} 400
DELETE /subscriptions/{subscription} -
POST /subscriptions/{subscription}/secret -
GET /subscriptions/{subscription}/deliveries 4001
POST /subscriptions/{subscription}/deliveries/replay 400
GET /notifications/{notification}/messages 4001
GET /developer/organizations/{organization}/applications 4001
POST /developer/organizations/{organization}/applications 400
POST /developer/organizations/{organization}/devicetypes 400
GET /developer/organizations/{organization}/subscriptions 4001
GET /developer/organizations/{organization}/boards 4001
GET /developer/organizations/{organization}/tasks 4001
GET /developer/organizations/{organization}/connectors 4001
GET /developer/applications/{made} -
PUT /developer/applications/{made} 400
POST /developer/applications/{made}/secret -
GET /developer/applications/{made}/deletion -
DELETE /developer/applications/{made} -
POST /developer/applications/{made}/subscriptions 400
PUT /developer/devicetypes/{type} 400
GET /developer/devicetypes/{type}/failures 4001
GET /developer/devicetypes/{type}/connector -
GET /devicetypes/{type}/manifests 4001
POST /devicetypes/{type}/manifests 400
POST /devicetypes/{type}/manifests/try 400
"""
#: Something is wrong with this, whatever a call reads. It has the type of a form, but no form is there.
BROKEN_BODY: Final = b"{"
BROKEN_TYPE: Final = {"Content-Type": "multipart/form-data"}
BROKEN: Final = ("count", "includeProperties", "includeSnapshot", "includeTimestamp", "latest", "active", "action")
BROKEN_QUERY: Final = "?" + "&".join(f"{name}=none" for name in BROKEN)
#: No token is asked for here, or none is counted: those of the accounts, of third parties, and for firmware.
UNCOUNTED: Final = re.compile(r"/(accounts|cloudconnectors|updates)/.*|/openapi\.json|/subscriptions/<\w+>/validate")
#: Calls that take no user token.
FOR_APPLICATIONS: Final = {("GET", "/subscriptions")}
PARAMETER: Final = re.compile(r"<[^>]+>|{[^}]+}")


@dataclass(frozen=True)
class Named:
    """Ids in a path: of no object, of an object that Ada may not use, and of one that she may."""

    unknown: str
    foreign: str
    own: str


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        limits=Limits(rest_user="1/1000", messages_user="1/1000", rest_device="1/1000", quotas="off"),
        trials=TrialSettings(sessions="on"),
        mqtt=Mqtt(topics="open"),
        discover=(Discover(KITCHEN, "ada@example.org"), Discover(BOBS, "bob@example.org")),
    )


@pytest.fixture
async def named(services: Services, world: World) -> dict[str, Named]:
    """Ada administrates Acme. She shared a light with Bob; he offered her his, and Carol, too."""
    await add_types(services.core.database, world)
    private = {"id": FOREIGN_TYPE, "unique_name": "example.secret", "organization": "Beta", "published": False}
    secret = {"id": FOREIGN_DEVICE, "owner": "bob@example.org", "type": "example.secret", "name": "Secret"}
    await services.provisioning.apply({"device_types": [private], "devices": [secret]})
    await services.core.database.write(lambda tx: tx.accounts.set_role(OrganizationKey(1), world.ada, "administrator"))
    ada, bob = [await services.accounts.tokens.caller(token) for token in (ADA_TOKEN, BOB_TOKEN)]
    kitchen, bobs = [await services.devices.registry.find(id_) for id_ in (KITCHEN, BOBS)]
    to_bob, to_ada, to_carol = [
        (await services.devices.shares.offer(device, uid=uid)).id
        for device, uid in ((kitchen, BOB), (bobs, ADA), (bobs, CAROL))
    ]
    for device, uid in ((kitchen, BOB), (bobs, ADA)):
        await services.devices.transfers.offer(device, uid=uid)
    upload, certificate = await approved_list(services)
    subscriptions = [await a_subscription(services, caller) for caller in (bob, ada)]
    return {
        "user": Named(ID, BOB, ADA),
        "device": Named(ID, BOBS, KITCHEN),
        "share": Named(ID, to_carol, to_bob),
        "session": Named(ID, *await sessions(services, BOB, ADA)),
        "lent": Named(ID, KITCHEN, BOBS),
        "invitation": Named(ID, to_bob, to_ada),
        "handed": Named(ID, KITCHEN, BOBS),
        "registration": Named(ID, *await registrations(services, bob, ada)),
        "type": Named(UNKNOWN_TYPE, FOREIGN_TYPE, LIGHT_TYPE),
        "version": Named("9", "1", "1"),
        "application": Named(ID, BETA_APPLICATION, DASHBOARD),
        "upload": Named(ID, upload, upload),
        "vdid": Named("vendor-9", VDID, VDID),
        "certificate": Named(ID, certificate, certificate),
        "managed": Named(ID, FOREIGN_DEVICE, KITCHEN),
        "image": Named(ID, *[await an_image(services, type_) for type_ in (FOREIGN_TYPE, LIGHT_TYPE)]),
        "task": Named(
            ID, await a_task(services, FOREIGN_TYPE, FOREIGN_DEVICE), await a_task(services, LIGHT_TYPE, KITCHEN)
        ),
        "rule": Named(ID, *[await a_rule(services, *whose) for whose in ((bob, BOB, BOBS), (ada, ADA, KITCHEN))]),
        "alarm": Named(ID, *[await an_alarm(services, *whose) for whose in ((bob, BOB, BOBS), (ada, ADA, KITCHEN))]),
        "model": Named(ID, await a_model(services, bob, BOBS), await a_model(services, ada, KITCHEN)),
        "board": Named(ID, *[await a_board(services, uid) for uid in (BOB, ADA)]),
        "scene": Named(ID, await a_scene(services, bob, BOBS), await a_scene(services, ada, KITCHEN)),
        **await trials(services, world),
        "subscription": Named(ID, *[one.id for one in subscriptions]),
        "notification": Named(ID, *[await a_notification(services, one) for one in subscriptions]),
        "organization": Named(ID, *await organizations(services, "Beta", "Acme")),
        "made": Named(ID, BETA_APPLICATION, DASHBOARD),
        "found": Named(ID, *await found_devices(services, BOBS, KITCHEN)),
        "import": Named(ID, *[await an_import(services, *whose) for whose in ((bob, BOBS), (ada, KITCHEN))]),
        "deletion": Named(ID, *[await a_deletion(services, *whose) for whose in ((bob, BOBS), (ada, KITCHEN))]),
        "export": Named(ID, await exported(services, bob, BOBS), await exported(services, ada, KITCHEN)),
    }


async def organizations(services: Services, *names: str) -> list[str]:
    found = [await services.core.database.read(lambda tx, n=name: tx.accounts.organization_named(n)) for name in names]  # type: ignore[misc]
    return [one.id for one in found if one is not None]


async def approved_list(services: Services) -> tuple[str, str]:
    """An upload that is worked through, and a certificate."""
    lists, type_ = services.registration.approved_lists, await services.device_types.catalog.find(LIGHT_TYPE)
    upload = await lists.upload(type_, f"vdid\n{VDID}\n".encode())
    with trio.fail_after(10):
        while (await lists.upload_status(type_, upload)).status == "Processing":
            await trio.lowlevel.checkpoint()
    certificate, _ = await lists.add_certificate(type_, Authority("Vendor", now=NOW).pem)
    return upload, certificate


async def registrations(services: Services, *callers: Caller) -> list[str]:
    """One whose PIN each of them has entered."""
    authority = Authority(now=NOW)
    await provision_secure_type(services, authority)
    ids = []
    for caller in callers:
        begun = await services.registration.registrations.begin(
            authority.issue().shown, SECURE_TYPE, f"vendor-{caller.user}"
        )
        await services.registration.registrations.confirm_new(
            caller, begun.pin, owner=caller.user or UserKey(0), name="Board"
        )
        ids.append(begun.id)
    return ids


async def an_image(services: Services, type_id: str) -> str:
    async def content() -> AsyncIterator[bytes]:
        yield b"firmware"

    type_ = await services.device_types.catalog.find(type_id)
    image = await services.device_management.images.add(type_, content(), version="2", kind="", sha256=None)
    return image.id


async def a_task(services: Services, type_id: str, device: str) -> str:
    """One that has come to its device."""
    tasks, type_ = services.device_management.tasks, await services.device_types.catalog.find(type_id)
    wanted = TaskRequest(task_type="R", target="serverProperties.site", expires_after=0, dids=(device,))
    task = (await tasks.create(type_, wanted, scheduled_on=None)).record
    with trio.fail_after(10):
        while (await tasks.find(task.id)).status != TaskStatus.COMPLETE:
            await trio.lowlevel.checkpoint()
    return task.id


async def a_rule(services: Services, caller: Caller, user: str, device: str) -> str:
    condition = {"sdid": device, "field": "state", "operator": "=", "operand": {"value": True}}
    body = {"if": condition, "then": {"ddid": device, "action": "setOn"}}
    owner = await services.accounts.users.find(user)
    rule = await services.rules.rulebook.create(caller, owner, NewRule("Rule", json.dumps(body).encode()))
    return rule.id


async def an_alarm(services: Services, caller: Caller, user: str, device: str) -> str:
    """One of a rule, which the time raised."""
    rule = await services.rules.rulebook.find(await a_rule(services, caller, user, device))
    found = await services.devices.registry.find(device)
    of_rule = AlarmRule(rule.key, rule.id, rule.name, rule.owner, rule.application)
    change = AlarmChange(of_rule, Change.RAISED, found.key, False, NOW_MS, NOW_MS, 1, "info", "Alarm")
    await services.core.database.write(lambda tx: carry_out(tx, [change]))
    (alarm,) = (await services.alarms.alarms.page(AlarmFilter(rule.owner), offset=0, count=1))[0]
    return alarm.id


async def a_subscription(services: Services, caller: Caller) -> Subscription:
    """One to a stream, which is active at once."""
    wanted = NewSubscription(
        spelling="cloudStream",
        message_type="message",
        uid=caller.user_id or "",
        stream_key="k",
        stream_secret="secret",
        stream_region="eu-west-1",
        stream_name="s",
    )
    return await services.subscriptions.subscriptions.create(caller, wanted)


async def a_notification(services: Services, subscription: Subscription) -> str:
    """One without messages."""
    now = Milliseconds(NOW_MS)
    record = NotificationRecord(subscription.key, subscription.key, "DELIVERED", now, now, now, ())
    await services.core.database.write(lambda tx: tx.deliveries.put([record]))
    (one,), _ = await services.subscriptions.log.page(subscription, None, offset=0, limit=1)
    return one.id


async def a_board(services: Services, uid: str) -> str:
    return (await services.boards.boards.create(await services.accounts.users.find(uid), {"name": "Board"})).id


async def a_model(services: Services, caller: Caller, device: str) -> str:
    """One that has too few values to be trained."""
    source = {"did": device, "field": "temperature"}
    parameters = {"sourceToPredict": source, "predictIn": 60}
    members = {"data": {"sources": [source]}, "type": "prediction", "parameters": parameters}
    model = (await services.models.models.create(caller, members)).record
    with trio.fail_after(10):
        while await services.core.database.read(lambda tx: tx.models.due(NOW_MS, latest_ms=NOW_MS * 2)):
            await trio.lowlevel.checkpoint()

    def not_today(tx: Transaction) -> None:
        status, reason = model.status, model.reason
        tx.models.set_training(
            model.key, status=status, reason=reason, next_training_on=NOW_MS + 86_400_000, trained_on=None, state=None
        )

    await services.core.database.write(not_today)
    return model.id


async def a_scene(services: Services, caller: Caller, device: str) -> str:
    members = {"name": "Evening", "actions": [{"ddid": device, "action": "setOn"}]}
    return (await services.scenes.scenes.create(caller, members)).record.id


async def found_devices(services: Services, *clients: str) -> list[str]:
    """What each of these devices has announced."""
    space, finder, ids = services.topics.space, services.found.finder, []
    assert space is not None
    assert finder is not None
    finder._due_at = 0.0
    for client in clients:
        device = await services.devices.registry.find(client)
        topic = b"homeassistant/sensor/node/temperature/config"
        message = TopicMessage(topic, b'{"stat_t":"a"}', 0, False, b"", None)
        with trio.fail_after(10):
            while not (found := finder.of_user(device.owner)):
                finder._wakeup.set()
                finder.hear(message, device.key, device.owner, Overhead().pace())
                await trio.sleep(0.01)
        ids.append(found[0][1].record.id)
    return ids


async def sessions(services: Services, *users: str) -> list[str]:
    """A browser session of each, and an application that may change their profiles."""
    ids = []
    for user in map(services.accounts.users.find, users):
        await services.accounts.sessions.begin(found := await user)
        await allow(services, GrantRecord(found.key, ApplicationKey(1), None, read=False, write=False, profile=True))
        ids += [session.id for session in await services.accounts.open_sessions.of(found)]
    return ids


async def trials(services: Services, world: World) -> dict[str, Named]:
    """Carol's trial of lights, and Ada's, in each of which its administrator takes part with a session."""
    carol = (await services.accounts.users.find(CAROL)).key
    made = []
    for token, user, device in ((CAROL_TOKEN, carol, None), (ADA_TOKEN, world.ada, KITCHEN)):
        caller, room = await services.accounts.tokens.caller(token), services.trials
        invited = NewInvitation("eve@example.org", TrialRole.PARTICIPANT)
        trial = (await room.trials.create(caller, NewTrial("Trial", None, [LIGHT_TYPE], [invited]))).record
        owner = await services.accounts.users.self_of(caller)
        own = await room.invitations.invite(owner, trial, NewInvitation(owner.email, TrialRole.PARTICIPANT))
        await room.invitations.accept(trial, own.id, user)
        if device is not None:
            await room.members.connect(trial, user, await services.devices.registry.find(device))
        (asked, _), _ = await room.invitations.of_trial(trial, None, offset=0, count=2)
        session = await room.sessions.create(trial, owner, [])
        kept = [(await room.documents.add(trial, kind, {"key": "mood"})).record.id for kind in DocumentKind]
        made.append((trial.id, asked.id, owner.id, session.id, *kept, "mood"))
    names = ("trial", "asked", "member", "sitting", "kept", "ruled", "about", "word")
    return {name: Named(ID, foreign, own) for name, foreign, own in zip(names, *made, strict=True)}


async def an_import(services: Services, caller: Caller, device: str) -> str:
    async def content() -> AsyncGenerator[bytes]:
        yield b"time,text"

    async with aclosing(content()) as chunks:
        found = await services.devices.registry.find(device)
        made = await services.my_data.imports.create(caller, chunks, found)
    with trio.fail_after(10):
        while (await services.my_data.imports.find(caller, made.id)).ended_on is None:
            await trio.lowlevel.checkpoint()
    return made.id


async def a_deletion(services: Services, caller: Caller, device: str) -> str:
    found = await services.devices.registry.find(device)
    made = (await services.my_data.erasures.create(caller, found, 0, 1)).record
    with trio.fail_after(10):
        while (await services.my_data.erasures.find(caller, made.id)).record.ended_on is None:
            await trio.lowlevel.checkpoint()
    return made.id


async def exported(services: Services, caller: Caller, device: str) -> str:
    """One that is ready."""
    wanted = ExportRequest(start_ms=Milliseconds(NOW_MS - 1), end_ms=NOW_MS, sdids=device)
    export = await services.export.create(caller, wanted)
    with trio.fail_after(10):
        while (await services.export.find(caller, export)).status is not ExportStatus.SUCCESS:
            await trio.lowlevel.checkpoint()
    return export


def routes(services: Services) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Method and path of every counted call: those that name something, with {} for it, and the others.

    Where this version serves nothing yet, there is nothing to look up.
    """
    on_objects: set[tuple[str, str]] = set()
    others: set[tuple[str, str]] = set()
    for rule in build_app(services).url_map.iter_rules():
        path = rule.rule.removeprefix(REST_ROOT)
        if path == rule.rule or UNCOUNTED.fullmatch(path):
            continue
        names_one = "<" in path and not rule.endpoint.startswith("not_yet.")
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            (on_objects if names_one else others).add((method, PARAMETER.sub("{}", path)))
    return on_objects, others


def rows() -> list[tuple[str, str, str]]:
    return [(method, path, code) for method, path, code in map(str.split, ON_OBJECTS.split("\n")[1:-1])]


async def call(api: httpx.AsyncClient, method: str, path: str, token: str = ADA_TOKEN) -> httpx.Response:
    """With all that can be wrong with it."""
    body = BROKEN_BODY if method in {"POST", "PUT"} else None
    return await api.request(method, path + BROKEN_QUERY, headers=bearer(token) | BROKEN_TYPE, content=body)


def unknown(path: str, named: dict[str, Named]) -> Iterator[str]:
    """The path, with one after the other of what it names unknown, the others own."""
    parameters = re.findall("{([^}]+)}", path)
    for missing in parameters:
        yield path.format(**{one: named[one].unknown if one == missing else named[one].own for one in parameters})


def everything(tx: Transaction) -> dict[str, list[tuple[object, ...]]]:
    """All that is stored, but for the counters themselves, and mails, which are on their way."""
    tables = set(table_names(tx)) - {"tally", "recent_call", "mail"}
    return {table: list(map(tuple, tx.connection.execute(f"SELECT * FROM {table}").tuples())) for table in tables}  # noqa: S608 - its own tables


async def test_objects_and_permissions_go_before_the_limit_and_the_limit_before_the_body(
    api: httpx.AsyncClient, services: Services, named: dict[str, Named], fake_clock: FakeClock
) -> None:
    foreign, own = ({name: getattr(one, which) for name, one in named.items()} for which in ("foreign", "own"))
    before = await services.core.database.read(everything)
    wrong = []
    for method, path, code in rows():
        fake_clock.advance(60_000)
        last = await (
            api.get("/users/self", headers=bearer(ADA_TOKEN))
            if code == "-"
            else call(api, method, path.format(**own))  # what is wrong with it is told while there are calls left
        )
        told = "-" if last.status_code == 200 else str(last.json()["error"]["code"])
        remaining = last.headers["X-Rate-Limit-Remaining"]
        expected = [(one, 404) for one in unknown(path, named)]
        expected += [(path.format(**foreign), 403)]
        is_of_console = "/archive" in path or path.endswith("/link")  # for the console alone
        expected += [(path.format(**own), 403 if is_of_console else 429)]
        for asked, status in expected:
            answer = await call(api, method, asked)
            seen = (told, answer.status_code, answer.headers.get("X-Rate-Limit-Remaining"))
            if seen != (code, status, remaining):
                wrong.append((method, asked, seen, (code, status, remaining)))
    assert wrong == []
    assert await services.core.database.read(everything) == before, "nothing took effect"


async def test_the_table_has_every_path_that_names_something(services: Services) -> None:
    on_objects, _ = routes(services)
    assert {(method, PARAMETER.sub("{}", path)) for method, path, _ in rows()} == on_objects


async def test_where_the_path_names_nothing_the_limit_goes_before_all_else(
    api: httpx.AsyncClient, services: Services, named: dict[str, Named]
) -> None:
    """Objects that a query or a body names are looked up when these are read, and so after it."""
    for path in ("/tags", "/messages"):
        await call(api, "GET" if path == "/tags" else "POST", path)
    wrong = []
    for method, path in sorted(routes(services)[1]):
        if path.startswith("/forwarded"):
            continue  # of tokens of edges (reference 30)
        query = f"?mid={ID}&sdid={BOBS}&sdids={BOBS}&dids={ID}&uid={BOB}"
        answer = await api.request(method, path.replace("{}", ID) + query, headers=bearer(ADA_TOKEN))
        is_refused = (
            (method, path) in FOR_APPLICATIONS or path.startswith("/operator/") or path in {"/names", "/values"}
        )
        if answer.status_code != (403 if is_refused else 429):
            wrong.append((method, path, answer.status_code))
    assert wrong == []


async def test_a_token_that_the_call_does_not_take_goes_before_the_limit(api: httpx.AsyncClient) -> None:
    await api.get(f"/devices/{KITCHEN}", headers=bearer(KITCHEN_TOKEN))
    for method, path in (("GET", "/users/self"), ("DELETE", f"/devices/{ID}")):
        error_of(await call(api, method, path, KITCHEN_TOKEN), 403)
    error_of(await call(api, "GET", f"/devices/{KITCHEN}", KITCHEN_TOKEN), 429)


async def test_it_is_the_same_for_a_token_in_the_body(api: httpx.AsyncClient) -> None:
    for device, status in ((KITCHEN, 4001), (ID, 404), (BOBS, 403), (KITCHEN, 429)):
        answer = await api.post(f"/devices/{device}/providerauth?mobile=7", json={"token": ADA_TOKEN})
        assert answer.json()["error"]["code"] == status


async def test_a_body_that_is_too_long_is_refused_last(api: httpx.AsyncClient) -> None:
    for device, status in ((KITCHEN, 413), (ID, 404), (BOBS, 403), (KITCHEN, 429)):
        headers = bearer(ADA_TOKEN)
        answer = await api.post(f"/devices/{device}/providerauth", headers=headers, content=b" " * 20_000)
        error_of(answer, status)
