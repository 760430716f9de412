"""/developer: applications, device types and Manifests that members of an organization make (reference 27.21)."""

from typing import Any, Final

import httpx
import pytest
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from broker.device_management.requests import TaskRequest, encode_task_request
from broker.services import Services
from broker.subscriptions.creation import NewSubscription
from storage.keys import Milliseconds, OrganizationKey
from storage.records import NEW_KEY
from storage.tasks import TaskRecord
from storage.transaction import Transaction
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    DASHBOARD,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.protocols.http.conftest import bearer
from tests.type_world import BETA, BETA_APPLICATION, CAROL, add_types

pytestmark = pytest.mark.slow


ACME: Final = "ac" * 16
MANIFEST: Final[dict[str, Any]] = {
    "fields": [{"name": "t", "type": "CUSTOM", "valueClass": "Double", "isCollection": False, "description": ""}],
    "messageFormat": "json",
    "actions": [],
}
ADVANCED: Final = {**MANIFEST, "transform": {"format": "json", "expression": "{t: temperature}"}}


@pytest.fixture
async def ada(services: Services, world: World) -> str:
    """Her token; she is a developer of Acme, whose application the token is of."""
    await add_types(services.core.database, world)
    await set_role(services, world, "developer")
    return ADA_TOKEN


async def set_role(services: Services, world: World, role: str) -> None:
    await services.core.database.write(lambda tx: tx.accounts.set_role(OrganizationKey(1), world.ada, role))


async def acme(api: httpx.AsyncClient, token: str) -> str:
    (found,) = (await ask(api, "GET", "/developer/organizations", token))["organizations"]
    assert (found["name"], found["role"]) == ("Acme", "developer")
    assert found["usage"]["limit"] == 100_000
    return str(found["id"])


async def ask(api: httpx.AsyncClient, method: str, path: str, token: str, **options: Any) -> Any:
    answer = await api.request(method, path, headers=bearer(token), **options)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def findings(answer: httpx.Response) -> dict[str, list[str]]:
    assert answer.status_code == 400, answer.text
    return {one["field"]: one["messages"] for group in answer.json()["error"]["errors"] for one in group}


async def test_an_application_is_made_changed_and_gets_another_secret(
    api: httpx.AsyncClient, services: Services, world: World, ada: str
) -> None:
    oid = await acme(api, ada)
    await set_role(services, world, "administrator")  # for the method client_credentials
    wanted = {
        "name": "Board",
        "methods": ["pkce", "client_credentials"],
        "redirectUris": ["https://a.example/back", "app://done"],
        "permissions": [{"deviceType": LIGHT_TYPE, "permissions": ["READ"]}],
    }
    path = f"/developer/organizations/{oid}/applications"
    made = await ask(api, "POST", path, ada, json=wanted)
    assert made["methods"] == ["pkce", "client_credentials"]
    assert made["permissions"] == [{"deviceType": LIGHT_TYPE, "permissions": ["READ"]}]
    stored = await services.accounts.applications.named(made["id"])
    assert stored.has_secret(services.core.vault, [made["clientSecret"]])
    listed = await api.get(path, headers=bearer(ada))
    assert [one["name"] for one in listed.json()["data"]] == ["Board", "Dashboard", "Panel"]
    assert "Secret" not in listed.text
    one = f"/developer/applications/{made['id']}"
    changed = await ask(api, "PUT", one, ada, json={"methods": []})
    assert changed == {**{key: made[key] for key in changed}, "methods": []}
    renewed = (await ask(api, "POST", f"{one}/secret", ada))["clientSecret"]
    stored = await services.accounts.applications.named(made["id"])
    assert stored.has_secret(services.core.vault, [renewed])
    assert not stored.has_secret(services.core.vault, [made["clientSecret"]])
    assert await ask(api, "GET", one, ada) == changed


async def test_what_is_wrong_with_an_application_stands_at_its_field(api: httpx.AsyncClient, ada: str) -> None:
    path = f"/developer/organizations/{await acme(api, ada)}/applications"
    many = [f"https://a.example/{number}" for number in range(11)]
    for body, field in (
        ({"name": "<b>"}, "name"),
        ({"name": "Dashboard"}, "name"),
        ({"name": "B", "methods": ["password"]}, "methods.0"),
        ({"name": "B", "redirectUris": ["https://a.example", "no uri"]}, "redirectUris.1"),
        ({"name": "B", "redirectUris": ["JavaScript:alert(1)"]}, "redirectUris.0"),
        ({"name": "B", "redirectUris": many}, "redirectUris"),
        ({"name": "B", "redirectUris": [7]}, "redirectUris"),
        ({"name": "B", "permissions": [{"deviceType": "*", "permissions": ["DELETE"]}]}, "permissions.0.permissions"),
        ({"name": "B", "permissions": [7]}, "permissions.0.deviceType"),
        ({"name": "B", "permissions": [{"deviceType": "none", "permissions": ["READ"]}]}, "permissions.0.deviceType"),
    ):
        answer = await api.post(path, json=body, headers=bearer(ada))
        assert field in findings(answer), body


async def test_what_gives_an_application_rights_of_its_own_needs_an_administrator(
    api: httpx.AsyncClient, services: Services, world: World, ada: str
) -> None:
    """A developer's application does not become one of the organization's, however it is made, changed or renewed."""
    path = f"/developer/organizations/{await acme(api, ada)}/applications"
    made = await ask(api, "POST", path, ada, json={"name": "Board", "methods": ["pkce"]})
    assert made["managesOrganization"] is False
    of_developer = f"/developer/applications/{made['id']}"
    await set_role(services, world, "administrator")
    managing = await ask(api, "POST", path, ada, json={"name": "Robot", "methods": ["authorization_code"]})
    assert managing["managesOrganization"] is True
    of_administrator = f"/developer/applications/{managing['id']}"
    own_tokens = {"name": "Clock", "methods": ["client_credentials"], "managesOrganization": False}
    with_tokens = await ask(api, "POST", path, ada, json=own_tokens)
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("POST", path, {"name": "Second", "methods": ["client_credentials"]}),
        ("POST", path, {"name": "Third", "managesOrganization": True}),
        ("PUT", of_developer, {"methods": ["pkce", "client_credentials"]}),
        ("PUT", of_developer, {"managesOrganization": True}),
        ("PUT", of_administrator, {"managesOrganization": False}),
        ("POST", f"{of_administrator}/secret", {}),
        ("POST", f"/developer/applications/{with_tokens['id']}/secret", {}),
        # Callers with the rights of an application that manages the organization
        ("PUT", of_administrator, {"redirectUris": ["https://developer.example/"]}),
        ("PUT", of_administrator, {"methods": ["authorization_code", "pkce"]}),
        ("PUT", of_administrator, {"anyLoopbackPort": True}),
        ("PUT", of_administrator, {"name": "Robot 2"}),
        ("POST", f"{of_developer}/secret", {}),
        ("PUT", of_developer, {"redirectUris": ["https://developer.example/"], "methods": ["implicit"]}),
    )
    administrators = 10  # of these calls; the others are for developers, too
    unmarked = "3d" * 16  # of an application that manages nothing: what an administrator signs in to cannot mark itself
    await services.provisioning.apply(
        {
            "applications": [{"name": "Tool", "organization": "Acme", "manages_organization": False}],
            "tokens": [{"value": unmarked, "application": "Tool", "user": "ada@example.org"}],
        }
    )
    for role, token in (("developer", ada), ("administrator", unmarked)):
        await set_role(services, world, role)
        seen = [(await api.request(m, p, json=body, headers=bearer(token))).status_code for m, p, body in calls]
        assert seen == [403] * administrators + [200] * (len(calls) - administrators), role
    for method, one, body in calls:
        await ask(api, method, one, ada, json=body)
    assert (await ask(api, "GET", of_developer, ada))["managesOrganization"] is True


async def test_only_administrators_and_developers_of_the_organization_develop(
    api: httpx.AsyncClient, services: Services, world: World, ada: str
) -> None:
    """Neither viewers, others, applications, devices, nor a member through the application of another organization."""
    oid = await acme(api, ada)
    calls = (
        ("GET", f"/developer/organizations/{oid}/tasks"),
        ("GET", f"/developer/organizations/{oid}/boards"),
        ("GET", f"/developer/organizations/{oid}/connectors"),
        ("GET", f"/developer/devicetypes/{LIGHT_TYPE}/connector"),
        ("GET", f"/developer/organizations/{oid}/applications"),
        ("POST", f"/developer/organizations/{oid}/applications"),
        ("POST", f"/developer/applications/{DASHBOARD}/secret"),
        ("GET", f"/developer/organizations/{oid}/subscriptions"),
        ("POST", f"/developer/organizations/{oid}/devicetypes"),
        ("PUT", f"/developer/devicetypes/{LIGHT_TYPE}"),
        ("GET", f"/developer/devicetypes/{LIGHT_TYPE}/failures"),
    )
    for method, path in calls:
        for token in (BOB_TOKEN, APPLICATION_TOKEN, KITCHEN_TOKEN):
            assert (await api.request(method, path, json={}, headers=bearer(token))).status_code == 403, path
    for path in (f"/developer/organizations/{BETA}/applications", f"/developer/applications/{BETA_APPLICATION}"):
        assert (await api.get(path, headers=bearer(ada))).status_code == 403
    beta = await services.core.database.read(lambda tx: tx.accounts.organization_by_id(BETA))
    assert beta is not None
    await services.core.database.write(lambda tx: tx.accounts.set_role(beta.key, world.ada, "administrator"))
    assert (await api.get(f"/developer/organizations/{BETA}/applications", headers=bearer(ada))).status_code == 403
    await set_role(services, world, "viewer")
    for method, path in calls:
        assert (await api.request(method, path, json={}, headers=bearer(ada))).status_code == 403, path


async def test_a_device_type_is_made_changed_and_gets_its_manifest(
    api: httpx.AsyncClient, services: Services, ada: str
) -> None:
    path = f"/developer/organizations/{await acme(api, ada)}/devicetypes"
    made = await ask(api, "POST", path, ada, json={"uniqueName": "acme.heater", "name": "Heater", "tags": ["home"]})
    assert (made["published"], made["latestVersion"], made["tags"]) == (False, 0, ["home"])
    dtid = made["id"]
    for body, field in (
        ({"uniqueName": "acme.heater", "name": "B"}, "uniqueName"),
        ({"uniqueName": "Acme", "name": "B"}, "uniqueName"),
        ({"uniqueName": "acme.b"}, "name"),
        ({"uniqueName": "acme.b", "name": "B", "tags": ["a,b"]}, "tags.0"),
    ):
        assert field in findings(await api.post(path, json=body, headers=bearer(ada))), body
    changed = await ask(api, "PUT", f"/developer/devicetypes/{dtid}", ada, json={"published": True})
    assert changed == {**made, "published": True}
    manifests = f"/devicetypes/{dtid}/manifests"
    wrong = {**MANIFEST, "fields": [{**MANIFEST["fields"][0], "valueClass": "Duble"}]}
    assert findings(await api.post(manifests, json={"manifest": wrong}, headers=bearer(ada)))
    first = await ask(api, "POST", manifests, ada, json={"manifest": MANIFEST})
    assert first == {"version": 1, "approved": True, "isNew": True}
    again = await ask(api, "POST", manifests, ada, json={"manifest": MANIFEST})
    assert again == {"version": 1, "approved": True, "isNew": False}
    waits = await ask(api, "POST", manifests, ada, json={"manifest": ADVANCED})
    assert waits == {"version": 2, "approved": False, "isNew": True}
    shown = await ask(api, "GET", manifests, ada)
    assert [(one["version"], one["approved"], one["manifest"]) for one in shown] == [
        (2, False, ADVANCED),
        (1, True, MANIFEST),
    ]
    assert (await services.device_types.catalog.find(dtid)).versions == [1]


async def test_a_manifest_is_tried_and_nothing_is_stored(api: httpx.AsyncClient, services: Services, ada: str) -> None:
    path = f"/devicetypes/{LIGHT_TYPE}/manifests/try"
    key = (await services.device_types.catalog.find(LIGHT_TYPE)).key
    before = await services.device_types.manifests.documents(key)
    for body, expected in (
        ({"manifest": MANIFEST, "payload": '{"t":"21.5","x":1}'}, {"data": {"t": 21.5}}),
        ({"manifest": MANIFEST, "payload": '{"x":1}'}, {"reason": "no field of the Manifest is in the payload"}),
        ({"manifest": MANIFEST, "payload": "<b>"}, {"reason": "the payload is not the JSON text of an object"}),
        ({"manifest": ADVANCED, "payload": '{"temperature":3}'}, {"data": {"t": 3}}),
        ({"manifest": MANIFEST, "payload": "7b 22 74 22 3a 31 7d", "encoding": "hex"}, {"data": {"t": 1}}),
    ):
        assert await ask(api, "POST", path, ada, json=body) == expected, body
    failed = await ask(api, "POST", path, ada, json={"manifest": ADVANCED, "payload": "no JSON"})
    assert failed["reason"].startswith("payload: ")
    odd = {"manifest": MANIFEST, "payload": "zz", "encoding": "hex"}
    assert "payload" in findings(await api.post(path, json=odd, headers=bearer(ada)))
    assert await services.device_types.manifests.documents(key) == before


async def test_failures_of_a_type_are_shown_without_what_was_in_them(api: httpx.AsyncClient, ada: str) -> None:
    await api.post("/messages", json={"sdid": KITCHEN, "data": {"secret": 1}}, headers=bearer(KITCHEN_TOKEN))
    answer = await api.get(f"/developer/devicetypes/{LIGHT_TYPE}/failures", headers=bearer(ada))
    assert [one["did"] for one in answer.json()["data"]] == [KITCHEN]
    assert answer.json()["total"] == 1
    assert "secret" not in answer.text
    assert "readAgain" not in answer.json()


async def test_a_new_manifest_says_how_many_failed_messages_fit(api: httpx.AsyncClient, ada: str) -> None:
    for data in ({"t": 1}, {"t": 2}, {"secret": 1}):
        await api.post("/messages", json={"sdid": KITCHEN, "data": data}, headers=bearer(KITCHEN_TOKEN))
    await ask(api, "POST", f"/devicetypes/{LIGHT_TYPE}/manifests", ada, json={"manifest": MANIFEST})
    await wait_all_tasks_blocked()
    page = (await api.get(f"/developer/devicetypes/{LIGHT_TYPE}/failures", headers=bearer(ada))).json()
    assert page["total"] == 1
    assert page["readAgain"] == {"version": 2, "looked": 3, "fit": 2, "beganOn": NOW_MS, "endedOn": NOW_MS}


async def test_a_subscription_is_looked_after_at_the_console(
    api: httpx.AsyncClient, services: Services, world: World, ada: str
) -> None:
    """Administrators and developers of the organization see it, whosever messages it delivers; nobody else does."""
    caller = await services.accounts.tokens.caller(BOB_TOKEN)
    stream = NewSubscription(
        spelling="cloudStream",
        message_type="message",
        uid=BOB,
        stream_key="k",
        stream_secret="secret",
        stream_region="eu-west-1",
        stream_name="s",
    )
    made = await services.subscriptions.subscriptions.create(caller, stream)
    listed = await ask(api, "GET", f"/developer/organizations/{await acme(api, ada)}/subscriptions", ada)
    assert [one["id"] for one in listed] == [made.id]
    console = [await console_token(services, user) for user in (ADA, CAROL)]
    for token, status in ((console[0], 200), (console[1], 403), (ada, 403)):
        for path in (f"/subscriptions/{made.id}", f"/subscriptions/{made.id}/deliveries"):
            assert (await api.get(path, headers=bearer(token))).status_code == status
    await set_role(services, world, "viewer")
    assert (await api.get(f"/subscriptions/{made.id}", headers=bearer(console[0]))).status_code == 403


async def console_token(services: Services, user: str) -> str:
    session = await services.accounts.sessions.begin(await services.accounts.users.find(user))
    return (await services.accounts.console.token(session)).value


async def test_a_task_that_failed_is_found_among_those_of_many_types(
    api: httpx.AsyncClient, services: Services, world: World, ada: str
) -> None:
    """Whatever its type, and however many tasks came later; for administrators."""
    path = f"/developer/organizations/{await acme(api, ada)}/tasks"
    assert (await api.get(path, headers=bearer(ada))).status_code == 403
    await set_role(services, world, "administrator")
    keys = await services.core.database.write(
        lambda tx: _many_tasks(tx, world, Milliseconds(services.core.clock.now_ms()))
    )
    answer = (await api.get(path, params={"count": 2}, headers=bearer(ada))).json()
    assert (answer["total"], answer["count"]) == (3, 2)
    assert [one["id"] for one in answer["data"]] == ["running", "lately"]
    assert [one["statusCounts"]["numFailed"] for one in answer["data"]] == [1, 1]
    assert answer["data"][0]["dtid"] == "dt-many-0"
    rest = (await api.get(path, params={"count": 2, "offset": 2}, headers=bearer(ada))).json()
    assert [(one["id"], one["dtid"]) for one in rest["data"]] == [("the first", "dt-many-59")]
    assert keys["long ago"] < keys["of Beta"]


def _many_tasks(tx: Transaction, world: World, now_ms: Milliseconds) -> dict[str, int]:
    """Of 60 types of Acme and one of Beta; each of these tasks failed on a device, but for 30 that came later."""
    light = tx.device_types.device_type(world.light_type)
    assert light is not None
    types = [
        tx.device_types.put_device_type(
            replace(light, key=NEW_KEY, id=f"dt-many-{number}", unique_name=f"example.many{number}")
        )
        for number in range(60)
    ]
    beta = tx.accounts.organization_by_id(BETA)
    assert beta is not None
    foreign = tx.device_types.put_device_type(
        replace(light, key=NEW_KEY, id="dt-beta", unique_name="example.beta", organization=beta.key)
    )
    keys = {}
    week_ms = 7 * 86_400_000
    for name, type_, status, changed_on in (
        ("the first", types[59], "COMPLETE", now_ms - week_ms),
        ("long ago", types[58], "COMPLETE", now_ms - week_ms - 1),
        ("lately", types[1], "CANCELLED", now_ms - week_ms + 1),
        ("running", types[0], "PROCESSING", now_ms),
        ("of Beta", foreign, "COMPLETE", now_ms),
        *((f"fine {number}", types[59], "COMPLETE", now_ms) for number in range(30)),
    ):
        request = encode_task_request(TaskRequest(task_type="R", target="serverProperties.site", expires_after=60))
        made = TaskRecord(0, name, type_, request, status, now_ms, Milliseconds(changed_on), None, now_ms, None, "")
        keys[name] = task = tx.tasks.add(made).key
        tx.tasks.add_entries(task, [world.kitchen], acceptance="NOT_REQUIRED", now_ms=now_ms)
        entry = tx.tasks.entry_of(task, world.kitchen)
        assert entry is not None
        tx.tasks.put_entry(replace(entry, status="SUCCEEDED" if name.startswith("fine") else "FAILED"))
    return keys
