"""Deleting applications, and subscriptions that developers make for them (reference 27.21).

What an application has ends with it, and what is others' stays.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from broker.accounts.application_ends import LAST_MANAGER, OF_FILE
from broker.facts import ApplicationGrantsChanged, FactPhase, TokenRevoked
from broker.rules.running.engine import EngineStatistics
from broker.secrets import token_hash
from broker.services import Services
from storage.application_ends import BY_ID, KEPT, OBJECTS, OWN_ROWS
from storage.keys import OrganizationKey
from storage.sql import sure
from tests.builders import ServicesOpener
from tests.callbacks import FakeCallbacks
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    DASHBOARD,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    PANEL,
    World,
)
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_developer import ask, console_token, set_role
from tests.protocols.http.test_order_of_checks import a_model, a_rule, a_scene, a_subscription, exported
from tests.stored_files import stored_files
from tests.stores import columns_of

pytestmark = pytest.mark.slow


ONE: Final = f"/developer/applications/{DASHBOARD}"
#: Objects that `a_life` makes through the dashboard.
LIFE: Final = {"users": 1, "tokens": 2, "rules": 1, "scenes": 1, "models": 1, "subscriptions": 1, "exports": 1}


@pytest.fixture
async def services(opener: ServicesOpener) -> AsyncIterator[Services]:
    async with opener(callbacks=FakeCallbacks()) as opened:
        yield opened


@pytest.fixture
async def admin(services: Services, world: World) -> str:
    """A token of the console: Bob administrates Acme, whose application Panel manages it, too."""
    await services.core.database.write(lambda tx: tx.accounts.set_role(OrganizationKey(1), world.bob, "administrator"))
    return await console_token(services, BOB)


async def organization(api: httpx.AsyncClient, token: str) -> str:
    (found,) = (await ask(api, "GET", "/developer/organizations", token))["organizations"]
    return str(found["id"])


async def a_life(services: Services) -> None:
    """Of everything that an application can have, one."""
    caller = await services.accounts.tokens.caller(ADA_TOKEN)
    await a_rule(services, caller, ADA, KITCHEN)
    await a_scene(services, caller, KITCHEN)
    await a_model(services, caller, KITCHEN)
    await a_subscription(services, caller)
    await exported(services, caller, KITCHEN)
    await services.accounts.properties.put(caller, (await services.accounts.users.find(ADA)).key, "dark")


async def test_every_table_that_refers_to_an_application_is_known(services: Services) -> None:
    """A new table with an application says what becomes of its rows."""
    tables = await services.core.database.read(lambda tx: columns_of(tx.connection))
    found = {table for table, columns in tables.items() if {"application", "made_through"} & {*columns}}
    assert found == {*OWN_ROWS, *OBJECTS, *KEPT, *BY_ID}


async def rows_of(services: Services, table: str) -> int:
    sql = f"SELECT count(*) AS count FROM {table} WHERE application = 1"  # noqa: S608 - a constant
    return await services.core.database.read(lambda tx: int(sure(tx.connection.execute(sql).one())["count"]))


async def test_every_capability_ends_what_it_has(services: Services) -> None:
    assert sorted(services.accounts.application_ends.tables) == sorted(OBJECTS)


@pytest.mark.both_engines
async def test_everything_of_an_application_ends_at_once(
    api: httpx.AsyncClient, services: Services, world: World, admin: str, tmp_path: Path
) -> None:
    await a_life(services)
    told: list[Any] = []
    for fact in (TokenRevoked, ApplicationGrantsChanged):
        services.core.router.subscribe(fact, told.append, FactPhase.EFFECT)
    assert await ask(api, "GET", f"{ONE}/deletion", admin) == LIFE
    shown = await ask(api, "GET", ONE, admin)
    assert [name.partition("/")[0] for name in await stored_files(services)] == ["exports"]
    assert await ask(api, "DELETE", ONE, admin) == shown
    for token in (ADA_TOKEN, APPLICATION_TOKEN):
        assert (await api.get("/users/self", headers=bearer(token))).status_code == 401
        assert TokenRevoked(token_hash(token)) in told
    assert [fact.grants for fact in told if isinstance(fact, ApplicationGrantsChanged)] == [{world.ada: ()}]
    for method, path in (("GET", ONE), ("PUT", ONE), ("DELETE", ONE), ("GET", f"{ONE}/deletion")):
        assert (await api.request(method, path, json={}, headers=bearer(admin))).status_code == 404, (method, path)
    path = f"/developer/organizations/{await organization(api, admin)}/applications"
    listed = (await api.get(path, headers=bearer(admin))).json()
    assert [one["name"] for one in listed["data"]] == ["Panel"]
    # Nothing works for it any more, in memory and in the store.
    assert services.subscriptions.subscriptions.all() == []
    rules = services.core.life.statistics()["rules"]
    assert isinstance(rules, EngineStatistics)
    assert rules.rules == 0
    await services.core.files.sweep()
    assert await stored_files(services) == {}
    left = {table: await rows_of(services, table) for table in (*OWN_ROWS, *OBJECTS)}
    assert {table: count for table, count in left.items() if count} == {"subscription": 1}  # its log of 30 days
    # Others' objects: the device, its token, the other application.
    message = {"sdid": KITCHEN, "data": {"state": True}}
    assert (await api.post("/messages", json=message, headers=bearer(KITCHEN_TOKEN))).status_code == 200
    assert (await api.get("/users/self", headers=bearer(BOB_TOKEN))).status_code == 200
    (entry,) = [
        one
        for one in await services.core.database.read(lambda tx: tx.leaving.audit_after(0, limit=1000))
        if one["object"] == f"application {DASHBOARD}" and '"exports"' in one["details"]
    ]
    assert '"users": "1"' in entry["details"]


async def test_nobody_gets_tokens_of_an_application_that_is_gone(
    api: httpx.AsyncClient, services: Services, world: World, admin: str
) -> None:
    secret = (await ask(api, "POST", f"{ONE}/secret", admin))["clientSecret"]
    await ask(api, "PUT", ONE, admin, json={"methods": ["client_credentials"], "redirectUris": ["https://a.example/"]})
    form = {"grant_type": "client_credentials", "client_id": DASHBOARD, "client_secret": secret}
    root = str(api.base_url).removesuffix("/").removesuffix("/v1.1")
    async with httpx.AsyncClient(base_url=f"{root}/accounts") as accounts:
        assert (await accounts.post("/token", data=form)).status_code == 200
        await ask(api, "DELETE", ONE, admin)
        assert (await accounts.post("/token", data=form)).status_code == 401
        asked = {"client_id": DASHBOARD, "response_type": "code", "redirect_uri": "https://a.example/"}
        assert (await accounts.get("/authorize", params=asked)).status_code == 400
    # A provision file that names its id makes it again, with none of what it had.
    await services.provisioning.apply(
        {"applications": [{"id": DASHBOARD, "name": "Dashboard", "organization": "Acme"}]}
    )
    assert (await ask(api, "GET", f"{ONE}/deletion", admin))["users"] == 0
    assert (await api.get("/users/self", headers=bearer(ADA_TOKEN))).status_code == 401


async def test_what_cannot_be_deleted_says_why(api: httpx.AsyncClient, services: Services, admin: str) -> None:
    async def refusal(one: str, reason: str) -> None:
        assert (await ask(api, "GET", f"{one}/deletion", admin))["refusal"] == reason
        answer = await api.delete(one, headers=bearer(admin))
        assert (answer.status_code, answer.json()["error"]["message"]) == (409, reason)

    board = {"id": "bd" * 16, "name": "Board", "organization": "Acme"}
    await services.provisioning.apply({"applications": [board]})
    made = f"/developer/applications/{board['id']}"
    await refusal(made, OF_FILE)
    await services.provisioning.apply({"users": [{"email": "eve@example.org"}]})  # a file about something else
    await refusal(made, OF_FILE)
    await services.provisioning.apply({"applications": []})
    await ask(api, "DELETE", made, admin)
    await ask(api, "DELETE", ONE, admin)
    await refusal(f"/developer/applications/{PANEL}", LAST_MANAGER)
    await ask(api, "PUT", f"/developer/applications/{PANEL}", admin, json={"managesOrganization": False})
    await ask(api, "DELETE", f"/developer/applications/{PANEL}", admin)


@pytest.mark.both_engines
async def test_a_developer_deletes_what_has_no_rights_of_its_own(
    api: httpx.AsyncClient, services: Services, world: World, admin: str
) -> None:
    path = f"/developer/organizations/{await organization(api, admin)}/applications"
    made = {}
    for name, wanted in (
        ("Plain", {"methods": ["pkce"], "managesOrganization": False}),
        ("Clock", {"methods": ["client_credentials"], "managesOrganization": False}),
        ("Robot", {"methods": ["pkce"], "managesOrganization": True}),
    ):
        made[name] = (
            f"/developer/applications/{(await ask(api, 'POST', path, admin, json={'name': name, **wanted}))['id']}"
        )
    await set_role(services, world, "developer")
    ada = await console_token(services, ADA)
    seen = {name: (await api.delete(one, headers=bearer(ada))).status_code for name, one in made.items()}
    assert seen == {"Plain": 200, "Clock": 403, "Robot": 403}


async def test_a_developer_makes_a_subscription_of_an_application(
    api: httpx.AsyncClient, services: Services, world: World, admin: str
) -> None:
    """It covers the developer's devices that the application may read, and as an administrator those of others."""
    await set_role(services, world, "developer")
    ada = await console_token(services, ADA)
    stream = {"subscriptionType": "cloudStream", "cloudKey": "k", "cloudSecret": "secret", "cloudStreamName": "s"}
    body = {**stream, "cloudRegion": "eu-west-1", "messageType": "message"}
    for token, application, wanted, status in (
        (ada, DASHBOARD, {"uid": "self", "sdtid": LIGHT_TYPE}, 200),
        (ada, DASHBOARD, {"uid": ADA}, 200),
        (ada, DASHBOARD, {"uid": ADA, "sdid": KITCHEN}, 200),
        (ada, DASHBOARD, {"uid": ADA, "sdid": BOBS}, 403),
        (admin, DASHBOARD, {"uid": ADA, "sdid": BOBS}, 403),  # Bob did not let the dashboard in
        (ada, PANEL, {"uid": "self"}, 403),  # she never signed in to it
        (ada, PANEL, {"uid": BOB}, 403),
        (admin, PANEL, {"uid": "self"}, 200),
        (admin, DASHBOARD, {"uid": ADA}, 200),
        (admin, PANEL, {"uid": ADA}, 403),
    ):
        path = f"/developer/applications/{application}/subscriptions"
        answer = await api.post(path, json={**body, **wanted}, headers=bearer(token))
        assert answer.status_code == status, (application, wanted, answer.text)
        if status == 200:
            made = answer.json()["data"]
            assert (made["aid"], made["uid"]) == (application, BOB if (token, application) == (admin, PANEL) else ADA)
