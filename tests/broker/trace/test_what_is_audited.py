"""Each change that is audited has its entry (reference 28.2); what people do on pages is in test_trace.py."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from broker.device_management.configuration import ConfigurationChange
from broker.device_management.requests import TaskRequest
from broker.devices.inventory import NewDevice
from broker.devices.shares import ShareStatus
from broker.services import Services
from storage.keys import Milliseconds
from storage.records import AuditFilter
from storage.tasks import TaskRecord
from tests.broker.accounts.oauth_world import WEB, OAuthWorld, make_oauth_world
from tests.broker.accounts.test_second_factors import enrolled
from tests.certificates import Authority
from tests.factories import ADA, ADA_TOKEN, BOB, DASHBOARD, HALL, KITCHEN, NOW_MS, World
from tests.fakes import FakeClock
from tests.secure_types import NOW, SECURE_TYPE, provision_secure_type


async def seen(services: Services, *, but: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """Event and object of each entry."""
    found = await services.core.audit.find(AuditFilter(0, 2**62, 1000))
    return [(one.event, one.object) for one in found if one.event not in but]


async def test_device_tokens(services: Services, world: World) -> None:
    kitchen, tokens = await services.devices.registry.find(KITCHEN), services.devices.tokens
    former = await tokens.of(kitchen)
    renewed = await tokens.renew(kitchen, application=None)
    await tokens.remove(kitchen)
    last = await tokens.renew(kitchen, application=None)
    assert await seen(services) == [
        ("device_token_replaced", f"device {KITCHEN}"),
        ("device_token_deleted", f"device {KITCHEN}"),
        ("device_token_made", f"device {KITCHEN}"),
    ]
    entries = str(await services.core.audit.find(AuditFilter(0, 2**62, 1000)))
    assert not [token for token in (former, renewed, last) if token.token in entries]


async def test_devices(services: Services, world: World) -> None:
    kitchen = await services.devices.registry.find(KITCHEN)
    made = await services.devices.inventory.create(NewDevice(owner=world.ada, type=kitchen.type))
    await services.devices.inventory.delete(made)
    assert await seen(services) == [("device_created", f"device {made.id}"), ("device_deleted", f"device {made.id}")]


async def test_shares(services: Services, world: World) -> None:
    shares = services.devices.shares
    for id_, answer in ((KITCHEN, ShareStatus.ACCEPTED), (HALL, ShareStatus.REJECTED)):
        share = await shares.offer(await services.devices.registry.find(id_), uid=BOB)
        await shares.answer(share.id, world.bob, answer)
        await shares.answer(share.id, world.bob, answer)  # changes nothing
        await shares.remove(share.id)
    assert await seen(services) == [
        ("share_offered", f"device {KITCHEN}"),
        ("share_accepted", f"device {KITCHEN}"),
        ("share_removed", f"device {KITCHEN}"),
        ("share_offered", f"device {HALL}"),
        ("share_rejected", f"device {HALL}"),
        ("share_removed", f"device {HALL}"),
    ]


@pytest.mark.both_engines
async def test_registration_with_a_certificate(services: Services, world: World) -> None:
    authority = Authority(now=NOW)
    await provision_secure_type(services, authority)
    shown, registrations = authority.issue().shown, services.registration.registrations
    ada = await services.accounts.tokens.caller(ADA_TOKEN)
    begun = await registrations.begin(shown, SECURE_TYPE, "vendor-1")
    await registrations.confirm_new(ada, begun.pin, owner=world.ada, name="Board")
    completed = await registrations.complete(shown, begun.id, begun.nonce)
    await registrations.revoke(await services.devices.registry.find(completed.device_id))
    about = f"device {completed.device_id}"
    assert await seen(services, but=frozenset({"provisioned"})) == [
        ("device_created", about),
        ("device_token_made", about),
        ("certificate_registered", about),
        ("certificate_revoked", about),
    ]
    entries = str(await services.core.audit.find(AuditFilter(0, 2**62, 1000)))
    assert not [secret for secret in (begun.pin, begun.nonce, completed.token) if secret in entries]


@pytest.mark.both_engines
async def test_approved_lists(services: Services, world: World) -> None:
    type_ = (await services.devices.registry.find(KITCHEN)).type
    lists, pem = services.registration.approved_lists, Authority(now=NOW).pem
    await lists.upload(type_, b"vdid\nv1\n")
    id_, _der = await lists.add_certificate(type_, pem)
    await lists.remove_certificate(type_, id_)
    await lists.set_enabled(type_, enabled=False)
    found = await services.core.audit.find(AuditFilter(0, 2**62, 1000, event="approved_list_changed"))
    assert [one.details["what"] for one in found] == [
        "file uploaded",
        "certificate added",
        "certificate removed",
        "disabled",
    ]
    assert {one.object for one in found} == {f"device_type {type_.id}"}


async def test_consent_and_its_denial(services: Services, world: World) -> None:
    oauth: OAuthWorld = await make_oauth_world(services)
    await oauth.ask_for(WEB, [{"device_type": "*", "permissions": ["READ"]}])
    await services.accounts.authorize.deny(await oauth.read(client_id=WEB, response_type="code"))
    await oauth.code(WEB)
    await oauth.code(WEB)
    assert (await seen(services))[:2] == [
        ("consent_denied", f"application {WEB}"),
        ("consent_given", f"application {WEB}"),
    ]


async def test_provisioning_says_what_it_changed_once(services: Services) -> None:
    given: dict[str, Any] = {
        "organizations": [{"name": "Acme"}],
        "users": [{"email": "ada@example.org", "password": "correct horse battery staple"}],
        "applications": [{"name": "Web", "organization": "Acme", "secret": "one secret"}],
    }
    await services.provisioning.apply(given, dry_run=True)
    assert await seen(services) == []
    for _ in range(2):
        await services.provisioning.apply(given)
    given["applications"][0]["secret"] = "another secret"
    await services.provisioning.apply(given)
    assert [event for event, _ in await seen(services)] == [
        "account_opened",
        "provisioned",
        "secret_renewed",
        "provisioned",
    ]
    found = await services.core.audit.find(AuditFilter(0, 2**62, 1000, event="provisioned"))
    assert found[0].details == {
        "tables": dict.fromkeys(("organizations", "users", "applications"), "1 created, 0 changed")
    }
    assert found[1].details == {"tables": {"applications": "0 created, 1 changed"}}


@pytest.mark.both_engines
async def test_second_factors_and_sessions(services: Services, world: World, fake_clock: FakeClock) -> None:
    accounts, about = services.accounts, f"account {ADA}"
    ada = await accounts.users.find(ADA)
    session = await accounts.sessions.begin(ada)
    await enrolled(services, session, fake_clock)
    await accounts.second_factors.remove(session)
    await enrolled(services, session, fake_clock)
    await accounts.second_factors.reset(ada.email)
    await accounts.second_factors.reset(ada.email)  # changes nothing
    await accounts.sessions.begin(ada)
    (open_session,) = await accounts.open_sessions.of(ada)
    await accounts.open_sessions.end(ada, open_session.id)
    await accounts.open_sessions.end_all(ada)
    assert await seen(services) == [
        ("sign_in", about),
        ("second_factor_set", about),
        ("second_factor_removed", about),
        ("second_factor_set", about),
        ("second_factor_removed", about),
        ("sign_in", about),
        ("sign_out", about),
        ("sign_out", about),
    ]


@pytest.mark.both_engines
async def test_a_revoked_application(services: Services, world: World) -> None:
    await services.accounts.granted.revoke(world.ada, world.application)
    events = await seen(services)
    assert ("consent_revoked", f"application {DASHBOARD}") in events
    assert ("token_revoked", f"user {ADA}") in events


@pytest.mark.both_engines
async def test_device_management(services: Services, world: World) -> None:
    management, kitchen = services.device_management, await services.devices.registry.find(KITCHEN)
    await management.configurations.change(kitchen.type, ConfigurationChange(pmin=60))
    await management.properties.merge(kitchen, {"password": "swordfish"})
    await management.properties.clear(kitchen)
    await management.properties.note_registration(kitchen.key)
    image = await management.images.add(
        kitchen.type, _chunks(b"firmware"), version="2.0", kind="Application", sha256=None
    )
    request = TaskRequest(
        task_type="w",
        target="akc.update",
        expires_after=600,
        dids=(KITCHEN,),
        update_id=image.id,
        needs_acceptance=True,
    )
    for is_accepted in (False, True):
        task = (await management.tasks.create(kitchen.type, request, scheduled_on=None)).record
        await _queued(services, task)
        entry = await management.tasks.entry_of(task, kitchen)
        await management.tasks.answer(entry, is_accepted=is_accepted)
    await management.tasks.cancel_on(entry)
    scheduled = await management.tasks.create(kitchen.type, request, scheduled_on=Milliseconds(NOW_MS + 60_000))
    await management.tasks.cancel(scheduled.record)
    await management.images.remove(image)
    of_task = f"task {task.id}"
    found = await seen(services)
    assert found[:4] == [
        ("management_configured", f"device_type {kitchen.type.record.id}"),
        ("properties_changed", f"device {KITCHEN}"),
        ("properties_removed", f"device {KITCHEN}"),
        ("image_uploaded", f"image {image.id}"),
    ]
    assert [event for event, _ in found[4:6]] == ["task_created", "update_rejected"]
    assert found[6:] == [
        ("task_created", of_task),
        ("update_accepted", of_task),
        ("task_cancelled", of_task),
        ("task_created", f"task {scheduled.record.id}"),
        ("task_cancelled", f"task {scheduled.record.id}"),
        ("image_deleted", f"image {image.id}"),
    ]
    entries = await services.core.audit.find(AuditFilter(0, 2**62, 1000))
    assert "swordfish" not in str(entries)
    assert [one.details["device"] for one in entries if one.event == "update_accepted"] == [KITCHEN]
    (created,) = [one for one in entries if one.object == of_task and one.event == "task_created"]
    assert (created.details["property"], created.details["image"]) == ("akc.update", image.id)


async def _queued(services: Services, task: TaskRecord) -> None:
    """Wait until the task has its devices."""
    while (await services.device_management.tasks.shown(task)).record.status != "PROCESSING":
        await trio.lowlevel.checkpoint()


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    yield content
