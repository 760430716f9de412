"""DELETE /users/{uid}: nothing of a deleted user is left (reference 5.7)."""

import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.accounts.applications import Method
from broker.accounts.sessions import WrongPassword
from broker.errors import PermissionDenied, SourceDeviceDisabled, UserNotFound
from broker.services import Services
from broker.trials.roles import TrialRole
from storage.keys import ApplicationKey
from storage.leaving import LeavingRecord
from storage.records import UserRecord
from tests.builders import ServicesOpener
from tests.callbacks import FakeCallbacks
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.fakes import FakeClock
from tests.leaving_world import (
    EMAIL,
    FULL_NAME,
    HER_LIGHT,
    HER_TOKEN,
    ZOE,
    ZOE_TOKEN,
    Life,
    add_zoe,
    references,
    rows_with,
    traces,
)
from tests.mail_queue import waiting_mails
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row
from tests.stored_files import stored_files

pytestmark = pytest.mark.slow


SETTABLE = [{"name": "warmth", "valueClass": "Integer", "settable": True}]


@pytest.fixture
async def services(opener: ServicesOpener) -> AsyncIterator[Services]:
    async with opener(callbacks=FakeCallbacks()) as opened:
        yield opened


@pytest.fixture
async def zoe(services: Services, world: World) -> UserRecord:
    return await add_zoe(services, world)


@pytest.fixture
def life(services: Services, api: httpx.AsyncClient) -> Life:
    return Life(services, api)


async def gone(services: Services) -> None:
    with trio.fail_after(30):
        while await services.core.database.read(lambda tx: tx.leaving.count()):
            await trio.lowlevel.checkpoint()


async def left(services: Services, folder: Path) -> list[str]:
    """Where words of the user are: in files, or in rows of the store."""
    return traces(folder) + await services.core.database.read(lambda tx: rows_with(tx.connection))


async def referring(services: Services, user: UserRecord) -> list[str]:
    return await services.core.database.read(lambda tx: references(tx.connection, user.key))


async def test_nothing_of_a_deleted_user_is_in_the_store_or_beside_it(
    api: httpx.AsyncClient, services: Services, zoe: UserRecord, life: Life, tmp_path: Path
) -> None:
    await life.live(zoe)
    assert len(await left(services, tmp_path)) > 10  # the search finds what is there
    assert len(await referring(services, zoe)) > 10
    answer = await api.delete(f"/users/{ZOE}", headers=bearer(ZOE_TOKEN))
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"]["email"] == EMAIL
    await gone(services)
    await services.messages.projector.flush()
    assert await left(services, tmp_path) == []
    assert await referring(services, zoe) == []
    caused = await services.core.database.read(lambda tx: rows_with(tx.connection, [ZOE]))
    assert [one for one in caused if not one.startswith("audit_entry.")] == []
    (entry,) = await services.core.database.read(
        lambda tx: [one for one in tx.leaving.audit_after(0, limit=1000) if one["object"] == f"account {ZOE}"][-1:]
    )
    assert entry["actor"] == f"user {ZOE}"


async def test_the_file_of_an_import_goes_with_the_user(
    services: Services, zoe: UserRecord, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def later(_record: object) -> None:
        """The import goes on for ever."""

    monkeypatch.setattr(services.my_data.imports, "_some", later)
    content = b"time,text\n2020-01-01T00:00Z,Quillfeather\n"
    answer = await life.raw(
        "POST", "/messages/import", params={"sdid": HER_LIGHT}, content=content, extra={"Content-Type": "text/csv"}
    )
    assert answer.status_code == 200, answer.text
    await life.call("DELETE", f"/users/{ZOE}")
    await gone(services)
    await services.core.files.sweep()
    assert await stored_files(services) == {}


async def test_reads_that_are_held_are_not_written_of_a_user_who_has_left(
    services: Services, zoe: UserRecord, life: Life
) -> None:
    held = services.devices.readers._held
    await life.call("GET", "/messages/snapshots", params={"sdids": HER_LIGHT})
    late = dict(held)
    assert late
    await life.call("DELETE", f"/users/{ZOE}")
    await gone(services)
    services.devices.readers._held = late  # as another node may hold them
    await services.devices.readers.flush()
    assert await referring(services, zoe) == []


async def test_what_others_see_is_gone_with_the_answer(
    api: httpx.AsyncClient, services: Services, zoe: UserRecord, life: Life
) -> None:
    await life.live(zoe)
    await life.call("DELETE", f"/users/{ZOE}")
    await life.call("GET", "/users/self", status=401)
    await life.call("GET", "/users/self", status=401, token=HER_TOKEN)
    await life.call("GET", f"/devices/{HER_LIGHT}", status=404, token=ADA_TOKEN)
    await life.call("GET", f"/users/{ZOE}/devices", status=404, token=APPLICATION_TOKEN)
    # Her share of Bob's light ended, and those that were offered to her.
    bobs = await services.devices.registry.find(BOBS)
    assert bobs.shared_with == frozenset()
    for did, token in ((BOBS, BOB_TOKEN), (KITCHEN, ADA_TOKEN)):
        shares = await services.devices.shares.of_device(await services.devices.registry.find(did), offset=0, count=10)
        assert shares == ([], 0), token
    offered = (await life.call("GET", f"/users/{BOB}/shares", token=BOB_TOKEN))["data"]["shares"]
    assert offered == []
    trials = await services.core.database.read(lambda tx: tx.leaving.keys_of("trial", zoe.key, column="owner"))
    assert trials == []
    assert services.subscriptions.subscriptions.all() == []


async def test_the_address_is_free_for_somebody_else(
    services: Services, api: httpx.AsyncClient, zoe: UserRecord, life: Life
) -> None:
    await life.call("DELETE", f"/users/{ZOE}")
    await services.provisioning.apply({"users": [{"email": EMAIL, "full_name": "Another Quillfeather"}]})
    other = await services.accounts.users.named(EMAIL)
    assert other.id != ZOE
    await gone(services)
    assert (await services.accounts.users.named(EMAIL)).id == other.id
    assert other.key > zoe.key  # what is remembered of a key does not change hands


@each_row("token", [BOB_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN, HER_TOKEN])
async def test_nobody_else_deletes(api: httpx.AsyncClient, zoe: UserRecord, token: str) -> None:
    error_of(await api.delete(f"/users/{ZOE}", headers=bearer(token)), 403)


async def test_an_application_needs_write_on_the_profile(api: httpx.AsyncClient, world: World) -> None:
    error_of(await api.delete(f"/users/{ADA}", headers=bearer(ADA_TOKEN)), 403)


async def test_the_last_administrator_of_an_organization_stays(
    services: Services, world: World, zoe: UserRecord, life: Life
) -> None:
    acme = await services.core.database.read(lambda tx: tx.accounts.organization_named("Acme"))
    assert acme is not None
    await services.core.database.write(lambda tx: tx.accounts.set_role(acme.key, zoe.key, "administrator"))
    refused = await life.call("DELETE", f"/users/{ZOE}", status=409)
    assert "Acme" in refused["error"]["message"]
    await life.call("GET", "/users/self")  # nothing has changed
    await services.core.database.write(lambda tx: tx.accounts.set_role(acme.key, world.bob, "administrator"))
    await life.call("DELETE", f"/users/{ZOE}")


async def test_a_trial_goes_on_with_its_other_administrator(
    services: Services, world: World, zoe: UserRecord, life: Life
) -> None:
    await life.live(zoe)
    (key,) = await services.core.database.read(lambda tx: tx.leaving.keys_of("trial", zoe.key, column="owner"))
    await services.core.database.write(
        lambda tx: tx.trials.add_member(key, world.bob, TrialRole.ADMINISTRATOR, now_ms=NOW_MS)
    )
    await life.call("DELETE", f"/users/{ZOE}")
    trial = await services.core.database.read(lambda tx: tx.trials.trial(key))
    assert trial is not None
    assert trial.owner == world.bob


async def test_a_deletion_that_was_interrupted_is_finished_at_the_next_start(
    opener: ServicesOpener, services: Services, zoe: UserRecord, life: Life, tmp_path: Path
) -> None:
    await life.live(zoe)
    await services.core.database.write(lambda tx: tx.leaving.begin(zoe, now_ms=NOW_MS))  # and then the power fails
    async with opener() as again:
        await gone(again)
    assert await left(services, tmp_path) == []


async def test_whoever_signs_in_meanwhile_has_no_session(services: Services, zoe: UserRecord, life: Life) -> None:
    await life.call("DELETE", f"/users/{ZOE}")
    with pytest.raises(WrongPassword):  # the password was right before
        await services.accounts.sessions.begin(zoe)
    with pytest.raises(PermissionDenied):
        await services.accounts.tokens.change(
            lambda issuance: issuance.for_user(ApplicationKey(1), zoe.key, Method.AUTHORIZATION_CODE)
        )


async def test_a_message_under_way_is_refused_or_removed_too(
    services: Services, zoe: UserRecord, life: Life, tmp_path: Path
) -> None:
    device = await services.devices.registry.find(HER_LIGHT)
    ingest = services.messages.ingest

    async def send() -> None:
        sent = 0
        with suppress(SourceDeviceDisabled):
            while True:
                ingest.submit(device, b'{"text":"Quillfeather"}')
                sent += 1
                await ingest.wait_committed()
        assert sent > 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await life.call("DELETE", f"/users/{ZOE}")
    await gone(services)
    await services.messages.projector.flush()
    assert await left(services, tmp_path) == []


async def test_a_second_deletion_finds_nobody(services: Services, zoe: UserRecord, life: Life) -> None:
    answers: list[str] = []

    async def delete() -> None:
        try:
            await services.leaving.leaving.delete(zoe)
        except UserNotFound:
            answers.append("not found")
        else:
            answers.append("deleted")

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(delete)
    assert sorted(answers) == ["deleted", "not found", "not found"]


@pytest.mark.both_engines
async def test_what_is_under_way_for_the_user_ends_without_a_trace(
    services: Services, zoe: UserRecord, life: Life, tmp_path: Path
) -> None:
    """An export and an archive that are being written, an Action, and mails that wait."""
    span = {"startDate": NOW_MS - 1000, "endDate": NOW_MS + 1000}

    begun = trio.Event()

    async def act() -> None:
        action = {"ddid": HER_LIGHT, "data": {"actions": [{"name": "setOn"}]}}
        while (await life.raw("POST", "/actions", json=action)).status_code == 200:
            begun.set()

    for _ in range(3):
        await life.call("POST", "/messages", json={"sdid": HER_LIGHT, "data": {"text": "Quillfeather"}})
        await life.call("POST", "/messages/export", json={"sdids": HER_LIGHT, **span})
    await life.call("POST", f"/devices/{HER_LIGHT}/shares", json={"email": "bob@example.org"})
    assert (await life.at_console("POST", f"/users/{ZOE}/archive")).status_code == 200
    async with trio.open_nursery() as nursery:
        nursery.start_soon(act)
        await begun.wait()
        await life.call("DELETE", f"/users/{ZOE}")
    await gone(services)
    await wait_all_tasks_blocked()
    await services.messages.projector.flush()
    assert await stored_files(services) == {}
    assert await services.core.database.read(waiting_mails) == []
    assert await left(services, tmp_path) == []
    assert await referring(services, zoe) == []


# The archive


async def latest(life: Life) -> dict[str, Any]:
    (found,) = (await life.at_console("GET", f"/users/{ZOE}/archive")).json()["data"]["archives"]
    assert isinstance(found, dict)
    return found


async def archived(life: Life, tmp_path: Path) -> dict[str, Any]:
    """The entries of the archive by name."""
    assert (await life.at_console("POST", f"/users/{ZOE}/archive")).status_code == 200
    with trio.fail_after(30):
        while (found := await latest(life))["status"] != "Success":
            await trio.lowlevel.checkpoint()
    answer = await life.at_console("GET", f"/users/{ZOE}/archive/result")
    assert answer.status_code == 200, answer.text
    assert hashlib.md5(answer.content, usedforsecurity=False).hexdigest() == found["md5"]
    assert (len(answer.content), found["isWhole"]) == (found["fileSize"], True)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name: json.loads(file.read()) for name, file in files.items() if file is not None}


async def test_the_archive_has_what_the_service_knows(
    zoe: UserRecord, life: Life, tmp_path: Path, services: Services
) -> None:
    await life.live(zoe)
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": SETTABLE}, approve=True)
    wanted = await life.call("PUT", f"/devices/{HER_LIGHT}/wanted", json={"data": {"warmth": 40}})
    await services.devices.readers.flush()
    found = await archived(life, tmp_path)
    (account,) = found["account.json"]
    assert (account["id"], account["email"], account["full_name"]) == (ZOE, EMAIL, FULL_NAME)
    assert account["language"] == "fr"
    (device,) = found["devices.json"]
    assert (device["id"], device["device_type"]) == (HER_LIGHT, "example.smart_light")
    (waiting,) = found["wanted.json"]
    shown = wanted["data"]["fields"]["warmth"]
    assert (waiting["device"], waiting["field"], waiting["value"]) == (HER_LIGHT, "warmth", 40)
    assert (waiting["since"], waiting["author"], waiting["state"]) == (shown["since"], f"user {ZOE}", "waiting")
    assert [one["count"] for one in found["readers.json"]] == [1]  # the export
    (deletion,) = found["deletions.json"]
    assert (deletion["device"], deletion["start_ms"], deletion["end_ms"]) == (HER_LIGHT, 0, 1)
    assert found["imports.json"][0]["stored"] == 0
    assert found["alarms.json"][0]["cause"][0]["seen"]
    parts = ("alarms", "boards", "edges", "imports", "rules", "scenes", "subscriptions", "trials", "exports")
    assert {part: len(found[f"{part}.json"]) for part in parts} == {
        "alarms": 1,
        "boards": 1,
        "edges": 1,
        "imports": 1,
        "rules": 2,
        "scenes": 1,
        "subscriptions": 1,
        "trials": 1,
        "exports": 1,
    }
    assert [one["email"] for one in found["shares.json"]] == ["bob@example.org"]
    assert {one["device"] for one in found["shared_with_me.json"]} == {BOBS, KITCHEN}
    assert found["rules.json"][0]["body"]["then"][0]["ddid"] == HER_LIGHT
    assert "Quillfeather" in json.dumps(found["application_properties.json"])
    assert {one["event"] for one in found["audit.json"]} >= {"profile_changed", "sign_in"}
    assert len(found[f"actions-{HER_LIGHT}.json"]) == 2
    (messages,) = (content for name, content in found.items() if name.startswith(f"{HER_LIGHT}-"))
    assert [one["data"] for one in messages["data"]] == [
        {"temperature": 30.0},
        {"text": "1"},
        {"text": "Quillfeather"},
    ]
    assert found["about.json"]["shortened"] == []
    assert "hash" not in json.dumps(list(found))
    secrets = (HER_TOKEN, ZOE_TOKEN, "token_hash", "password_hash", "sealed")
    assert [word for word in secrets if word in json.dumps(found)] == []


async def test_an_archive_has_no_address_that_a_user_id_stands_for(zoe: UserRecord, life: Life, tmp_path: Path) -> None:
    """She named one person by an id, and took over another one's device."""
    for path in ("shares", "transfer"):
        await life.call("POST", f"/devices/{HER_LIGHT}/{path}", json={"uid": BOB})
    await life.call("POST", f"/devices/{KITCHEN}/transfer", token=ADA_TOKEN, json={"uid": ZOE})
    await life.call("PUT", f"/devices/{KITCHEN}/transfer", json={"status": "ACCEPTED"})
    found = await archived(life, tmp_path)
    assert len(found["mails.json"]) == 4
    assert [one["recipient"] for one in found["mails.json"] if one["recipient"]] == [EMAIL]
    assert [who for who in ("bob@example.org", "ada@example.org") if who in json.dumps(found)] == []


async def test_an_archive_of_somebody_without_anything_is_whole(
    zoe: UserRecord, life: Life, tmp_path: Path, services: Services
) -> None:
    await services.devices.inventory.delete(await services.devices.registry.find(HER_LIGHT))
    found = await archived(life, tmp_path)
    assert found["rules.json"] == []


async def test_one_archive_at_a_time_and_one_an_hour(
    zoe: UserRecord, life: Life, tmp_path: Path, fake_clock: FakeClock, services: Services
) -> None:
    assert (await life.at_console("GET", f"/users/{ZOE}/archive")).json()["data"] == {"archives": []}
    await archived(life, tmp_path)
    refused = await life.at_console("POST", f"/users/{ZOE}/archive")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3600")
    fake_clock.now += 3_600_000
    first = list(await stored_files(services))
    await archived(life, tmp_path)
    await services.core.files.sweep()
    second = list(await stored_files(services))
    assert (len(first), len(second), first == second) == (1, 1, False)
    fake_clock.now += 24 * 3_600_000
    assert (await life.at_console("GET", f"/users/{ZOE}/archive")).json()["data"] == {"archives": []}
    assert (await life.at_console("GET", f"/users/{ZOE}/archive/result")).status_code == 404


async def test_nobody_else_has_the_archive(zoe: UserRecord, life: Life, tmp_path: Path, api: httpx.AsyncClient) -> None:
    """An application of the user does not get it either, whatever was granted to it."""
    await archived(life, tmp_path)
    for token in (ZOE_TOKEN, BOB_TOKEN, ADA_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN, HER_TOKEN):
        for method, path in (("POST", "archive"), ("GET", "archive"), ("GET", "archive/result")):
            error_of(await api.request(method, f"/users/{ZOE}/{path}", headers=bearer(token)), 403)


@pytest.mark.both_engines
async def test_the_archive_goes_with_the_user(zoe: UserRecord, life: Life, tmp_path: Path, services: Services) -> None:
    await life.live(zoe)
    await archived(life, tmp_path)
    assert await stored_files(services) != {}
    await life.call("DELETE", f"/users/{ZOE}")
    await gone(services)
    assert await stored_files(services) == {}
    assert await left(services, tmp_path) == []


@pytest.mark.both_engines
async def test_an_archive_that_is_too_large_lacks_the_oldest_messages_and_says_so(
    zoe: UserRecord, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.leaving.archives.ARCHIVE_MAX_BYTES", 0)
    await life.live(zoe)
    assert (await life.at_console("POST", f"/users/{ZOE}/archive")).status_code == 200
    with trio.fail_after(30):
        while (found := await latest(life))["status"] != "Success":
            await trio.lowlevel.checkpoint()
    assert (found["isWhole"], found["totalMessages"]) == (False, 0)


async def test_a_failure_while_one_leaves_holds_up_nobody_else(
    services: Services, world: World, zoe: UserRecord, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await services.accounts.users.find(BOB)
    monkeypatch.setattr("broker.leaving.leaving._PATIENCE_SECONDS", 0)
    hide = services.leaving.leaving._erasing.hide

    async def fail_once(one: LeavingRecord) -> None:
        if one.user == zoe.key and not failed:
            failed.append(one)
            raise RuntimeError("a bug")
        await hide(one)

    failed: list[LeavingRecord] = []
    monkeypatch.setattr(services.leaving.leaving._erasing, "hide", fail_once)
    await services.leaving.leaving.delete(zoe)
    while not failed:
        await trio.lowlevel.checkpoint()
    await services.leaving.leaving.delete(bob)  # wakes the worker, too
    await gone(services)
