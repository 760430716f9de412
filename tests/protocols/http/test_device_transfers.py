"""Handing a device over to another user (reference 6.5)."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.facts import DeviceHandedOver, DeviceTakenOver, FactPhase
from broker.services import Services
from broker.trials.roles import TrialRole
from storage.keys import DeviceKey, Milliseconds
from storage.records import GrantRecord
from storage.transaction import Transaction
from storage.transfers import TransferRecord
from tests.builders import ServicesOpener
from tests.callbacks import FakeCallbacks
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    NOW_MS,
    World,
    allow,
    new_device,
)
from tests.fakes import FakeClock
from tests.leaving_world import HER_LIGHT, Life, add_zoe
from tests.mail_queue import waiting_mails
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row
from tests.trial_world import join, new_trial

BOBS_ADDRESS = "bob@example.org"
PATH = f"/devices/{KITCHEN}/transfer"


@pytest.fixture
async def services(opener: ServicesOpener) -> AsyncIterator[Services]:
    async with opener(callbacks=FakeCallbacks()) as opened:
        yield opened


@pytest.fixture
async def life(services: Services, api: httpx.AsyncClient, world: World) -> Life:
    """Bob's application may read and write his lights."""
    panel = (await services.accounts.tokens.caller(BOB_TOKEN)).application
    assert panel is not None
    await allow(services, GrantRecord(world.bob, panel, world.light_type, read=True, write=True))
    return Life(services, api)


async def offered(life: Life) -> list[dict[str, Any]]:
    answer = await life.call("GET", f"/users/{BOB}/transfers", token=BOB_TOKEN)
    found: list[dict[str, Any]] = answer["data"]["transfers"]
    return found


async def test_a_device_changes_hands(life: Life, services: Services, world: World) -> None:
    told: list[object] = []
    for kind in (DeviceHandedOver, DeviceTakenOver):
        services.core.router.subscribe(kind, told.append, FactPhase.EFFECT)
    await life.call("POST", "/messages", token=ADA_TOKEN, json={"sdid": KITCHEN, "data": {"intensity": 7}})
    made = (await life.call("POST", PATH, token=ADA_TOKEN, json={"email": BOBS_ADDRESS}))["data"]
    assert made == {
        "id": made["id"],
        "did": KITCHEN,
        "email": BOBS_ADDRESS,
        "offeredOn": NOW_MS,
        "expiresOn": NOW_MS + 14 * 86_400_000,
    }
    assert (await life.call("GET", PATH, token=ADA_TOKEN))["data"] == made
    own = (await life.call("GET", f"/users/{ADA}/transfers", token=ADA_TOKEN))["data"]
    assert own == {"transfers": [], "offers": [made]}
    (one,) = await offered(life)
    assert one == made | {"deviceName": "Kitchen light", "ownerId": ADA, "ownerName": "Ada"}
    (mail,) = await services.core.database.read(waiting_mails)
    assert (mail.kind, mail.recipient) == ("device_transfer_offer", BOBS_ADDRESS)
    await life.call("PUT", PATH, token=BOB_TOKEN, json={"status": "ACCEPTED"})
    device = (await life.call("GET", f"/devices/{KITCHEN}", token=BOB_TOKEN))["data"]
    assert device["uid"] == BOB
    await life.call("GET", f"/devices/{KITCHEN}", token=ADA_TOKEN, status=403)
    (message,) = (await life.call("GET", f"/messages/last?sdids={KITCHEN}", token=BOB_TOKEN))["data"]
    assert message["data"] == {"intensity": 7}
    # The device goes on with its token.
    await life.call("POST", "/messages", token=KITCHEN_TOKEN, json={"sdid": KITCHEN, "data": {"intensity": 8}})
    await life.call("GET", PATH, token=BOB_TOKEN, status=404)
    assert await offered(life) == []
    assert [type(one).__name__ for one in told] == ["DeviceHandedOver", "DeviceTakenOver"]
    kinds = [one.kind for one in await services.core.database.read(waiting_mails)]
    assert kinds == ["device_transfer_offer", "device_transfer_answered"]


async def test_what_the_former_owner_gave_and_made_ends(life: Life, services: Services, world: World) -> None:
    zoe = await add_zoe(services, world)
    share = (await life.call("POST", f"/devices/{KITCHEN}/shares", token=ADA_TOKEN, json={"email": zoe.email}))["id"]
    await services.devices.shares.answer(share, zoe.key, "ACCEPTED")  # type: ignore[arg-type]
    on = {"ddid": KITCHEN, "action": "setOn", "parameters": {}}
    warm = {"sdid": KITCHEN, "field": "temperature", "operator": ">", "operand": {"value": 25}}
    rule = {"name": "Warm", "rule": {"if": {"and": [warm]}, "then": [on]}}
    rule_id = (await life.call("POST", "/rules", token=ADA_TOKEN, json=rule))["data"]["id"]
    scene = {"name": "Evening", "actions": [on]}
    scene_id = (await life.call("POST", "/scenes", token=ADA_TOKEN, json=scene))["data"]["id"]
    wanted = {"messageType": "message", "uid": ADA, "sdid": KITCHEN, "callbackUrl": "https://app.example.org/c"}
    await life.call("POST", "/subscriptions", token=ADA_TOKEN, json=wanted)
    await life.call("POST", PATH, token=ADA_TOKEN, json={"uid": BOB})
    await life.call("PUT", PATH, token=BOB_TOKEN, json={"status": "accepted"})
    await wait_all_tasks_blocked()
    assert (await services.devices.registry.find(KITCHEN)).shared_with == frozenset()
    assert services.subscriptions.subscriptions.all() == []
    for path in (f"/rules/{rule_id}", f"/scenes/{scene_id}"):
        assert "invalidatedOn" in (await life.call("GET", path, token=ADA_TOKEN))["data"], path


async def test_the_new_owner_does_not_see_from_where_the_former_one_sent(life: Life) -> None:
    await life.call("POST", "/messages", token=ADA_TOKEN, status=400, json={"sdid": KITCHEN, "data": {}, "ts": 10**17})
    refused = (await life.call("GET", f"/devices/{KITCHEN}/refusals", token=ADA_TOKEN))["data"]["refusals"]
    assert [one["actor"] for one in refused] == [f"user {ADA}"]
    await life.call("POST", PATH, token=ADA_TOKEN, json={"email": BOBS_ADDRESS})
    await life.call("PUT", PATH, token=BOB_TOKEN, json={"status": "ACCEPTED"})
    answer = await life.call("GET", f"/devices/{KITCHEN}/refusals", token=BOB_TOKEN)
    assert answer["data"]["refusals"] == []


async def test_a_token_that_a_trial_made_ends(life: Life, services: Services, world: World) -> None:
    """Whoever leaves the trial ends it, but the former owner's leaving does not concern the device any more."""
    trial = await new_trial(services, world)
    await join(services, world, trial, world.bob, TrialRole.PARTICIPANT)
    bobs = await services.devices.registry.find(BOBS)
    made = await services.devices.tokens.renew(bobs, application=trial.record.application)
    await life.call("POST", "/messages", token=made.token, json={"sdid": BOBS, "data": {"intensity": 1}})
    path = f"/devices/{BOBS}/transfer"
    await life.call("POST", path, token=BOB_TOKEN, json={"email": "ada@example.org"})
    await life.call("PUT", path, token=ADA_TOKEN, json={"status": "ACCEPTED"})
    assert (await life.call("GET", f"/devices/{BOBS}", token=ADA_TOKEN))["data"]["uid"] == ADA
    await life.call("POST", "/messages", token=made.token, status=401, json={"sdid": BOBS, "data": {"intensity": 2}})
    await life.call("GET", f"/devices/{BOBS}/tokens", token=ADA_TOKEN, status=404)


async def test_an_offer_is_declined_or_withdrawn_and_nothing_changes(life: Life) -> None:
    for is_declined in (True, False):
        await life.call("POST", PATH, token=ADA_TOKEN, json={"email": BOBS_ADDRESS})
        if is_declined:
            await life.call("PUT", PATH, token=BOB_TOKEN, json={"status": "DECLINED"})
        else:
            await life.call("DELETE", PATH, token=ADA_TOKEN)
        await life.call("PUT", PATH, token=BOB_TOKEN, status=404, json={"status": "ACCEPTED"})
        await life.call("DELETE", PATH, token=ADA_TOKEN, status=404)
        assert (await life.call("GET", f"/devices/{KITCHEN}", token=ADA_TOKEN))["data"]["uid"] == ADA


async def test_many_offers_of_one_user_hide_none_of_another(life: Life, services: Services, world: World) -> None:
    await add_zoe(services, world)

    def offer(tx: Transaction, device: DeviceKey, number: int) -> None:
        offered = TransferRecord(
            device, f"{number:032x}", BOBS_ADDRESS, world.bob, BOB, NOW_MS, Milliseconds(NOW_MS * 2)
        )
        tx.transfers.put(offered, now_ms=NOW_MS)

    def flood(tx: Transaction) -> None:
        for number in range(150):
            device = new_device(
                f"{number:032x}",
                owner=world.ada,
                device_type=world.light_type,
                name="Buy my lamps",
                manifest_version=1,
                manifest_version_policy="LATEST",
                enabled=True,
                now_ms=1,
            )
            offer(tx, tx.devices.put_device(device), number)

    await services.core.database.write(flood)
    await life.call("POST", f"/devices/{HER_LIGHT}/transfer", json={"uid": BOB})
    shown = await offered(life)
    assert len(shown) == 100
    assert HER_LIGHT in {one["did"] for one in shown}


async def test_an_offer_ends_by_itself_and_a_new_one_replaces_it(
    life: Life, services: Services, world: World, fake_clock: FakeClock
) -> None:
    zoe = await add_zoe(services, world)
    await life.call("POST", PATH, token=ADA_TOKEN, json={"email": BOBS_ADDRESS})
    await life.call("POST", PATH, token=ADA_TOKEN, json={"email": zoe.email})
    assert await offered(life) == []
    await life.call("PUT", PATH, token=BOB_TOKEN, status=403, json={"status": "ACCEPTED"})
    await life.call("POST", PATH, token=ADA_TOKEN, json={"email": BOBS_ADDRESS})
    fake_clock.now += 14 * 86_400_000
    assert await offered(life) == []
    await life.call("PUT", PATH, token=BOB_TOKEN, status=404, json={"status": "ACCEPTED"})


@each_row(
    ("body", "status"),
    [
        ({}, 400),
        ({"email": "nobody"}, 400),
        ({"uid": "f" * 32}, 404),
        ({"email": "ada@example.org"}, 409),
        ({"uid": ADA}, 409),
    ],
)
async def test_who_cannot_get_a_device(api: httpx.AsyncClient, life: Life, body: dict[str, str], status: int) -> None:
    error_of(await api.post(PATH, json=body, headers=bearer(ADA_TOKEN)), status)


async def test_only_the_owner_offers_and_only_the_other_answers(api: httpx.AsyncClient, life: Life) -> None:
    for token in (BOB_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN):
        error_of(await api.post(PATH, json={"email": BOBS_ADDRESS}, headers=bearer(token)), 403)
    await life.call("POST", PATH, token=ADA_TOKEN, json={"email": BOBS_ADDRESS})
    for token in (ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN):
        error_of(await api.put(PATH, json={"status": "ACCEPTED"}, headers=bearer(token)), 403)
        error_of(await api.get(f"/users/{BOB}/transfers", headers=bearer(token)), 403)
    error_of(await api.delete(PATH, headers=bearer(BOB_TOKEN)), 403)
    error_of(await api.put(PATH, json={"status": "MAYBE"}, headers=bearer(BOB_TOKEN)), 400)


@pytest.mark.both_engines
async def test_an_unproved_address_gets_nothing(life: Life, services: Services, world: World) -> None:
    def unprove(tx: Transaction) -> None:
        tx.connection.execute("UPDATE user SET email_verified_on = NULL WHERE key = :key", {"key": world.bob})

    await services.core.database.write(unprove)
    await life.call("POST", PATH, token=ADA_TOKEN, json={"email": BOBS_ADDRESS})
    assert await offered(life) == []
    await life.call("PUT", PATH, token=BOB_TOKEN, status=403, json={"status": "ACCEPTED"})


async def test_a_device_that_is_linked_with_a_third_party_stays(life: Life, services: Services, world: World) -> None:
    device = await services.devices.registry.find(HALL)
    await services.devices.inventory.set_cloud_authorization(device, "AUTHORIZED")
    path = f"/devices/{HALL}/transfer"
    refused = await life.call("POST", path, token=ADA_TOKEN, status=409, json={"email": BOBS_ADDRESS})
    assert "provider authorization" in refused["error"]["message"]


async def test_two_devices_of_one_external_id_cannot_meet(life: Life, services: Services, world: World) -> None:
    def same(tx: Transaction) -> None:
        for key in (world.kitchen, world.bobs):
            tx.devices.put_origin(key, eid="e1", vdid=None, cloud_authorization="NO_AUTHORIZATION", certificate=None)

    await services.core.database.write(same)
    await life.call("POST", PATH, token=ADA_TOKEN, json={"email": BOBS_ADDRESS})
    await life.call("PUT", PATH, token=BOB_TOKEN, status=409, json={"status": "ACCEPTED"})
    assert (await life.call("GET", f"/devices/{KITCHEN}", token=ADA_TOKEN))["data"]["uid"] == ADA


async def test_an_offer_goes_with_either_user(life: Life, services: Services, world: World) -> None:
    await life.call("POST", PATH, token=ADA_TOKEN, json={"email": BOBS_ADDRESS})
    await services.leaving.leaving.delete(await services.accounts.users.find(BOB))
    await life.call("GET", PATH, token=ADA_TOKEN, status=404)
