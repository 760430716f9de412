"""The device type record and its lists: reference 2.5 and 8.1."""

from typing import Any

import httpx
import pytest

from broker.services import Services
from storage.records import GrantRecord
from tests.factories import (
    ACME,
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    DASHBOARD,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    PANEL,
    World,
    allow,
    build_world,
)
from tests.protocols.http.conftest import bearer
from tests.rows import each_row
from tests.type_world import BETA, BETA_APPLICATION, BETA_TOKEN, CAROL, CAROL_TOKEN, SENSOR_TOKEN, add_types

LIGHT, SENSOR, GUARD, PRIVATE, LAMP = LIGHT_TYPE, "dt-sensor", "dt-sensor_guard", "dt-sensor_private", "dt-lamp_private"


@pytest.fixture
async def world(services: Services) -> World:
    world = await build_world(services.core.database, services.core.vault)
    await add_types(services.core.database, world)
    return world


async def get(api: httpx.AsyncClient, path: str, token: str = ADA_TOKEN) -> Any:
    answer = await api.get(path, headers=bearer(token))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def listed(api: httpx.AsyncClient, path: str, token: str = ADA_TOKEN) -> list[str]:
    return [type_["id"] for type_ in (await get(api, path, token))["data"]["deviceTypes"]]


RECORD = {
    "id": SENSOR,
    "oid": BETA,
    "uid": CAROL,
    "name": "Sensor",
    "published": True,
    "approved": False,
    "protected": False,
    "latestVersion": 2,
    "uniqueName": "example.sensor",
    "vid": "0",
    "rsp": False,
    "issuerDn": None,
    "description": None,
    "tags": [{"name": "home", "isCategory": True}, {"name": "battery", "isCategory": False}],
    "inStore": True,
    "hasCloudConnector": False,
    "lastUpdated": 8,
}


@each_row("name", [SENSOR, "example.sensor"])
@each_row(("token", "more"), [(ADA_TOKEN, {"ownedByCurrentUser": False}), (APPLICATION_TOKEN, {})])
async def test_the_record(api: httpx.AsyncClient, name: str, token: str, more: dict[str, object]) -> None:
    assert await get(api, f"/devicetypes/{name}", token) == {"data": RECORD | more}


async def test_members_that_say_nothing_are_left_out(api: httpx.AsyncClient) -> None:
    light = (await get(api, f"/devicetypes/{LIGHT}"))["data"]
    assert light["oid"] == ACME
    assert light["ownedByCurrentUser"] is True
    assert light.keys().isdisjoint({"tags", "billingSubscriptionId", "uid"})  # Acme has no administrator


async def test_a_type_without_manifest_has_version_0_and_is_not_approved(api: httpx.AsyncClient) -> None:
    guard = (await get(api, f"/devicetypes/{GUARD}"))["data"]
    assert (guard["latestVersion"], guard["approved"], guard["lastUpdated"]) == (0, False, 5)


async def test_what_is_not_published_is_not_in_the_store_unless_it_is_said(
    api: httpx.AsyncClient, services: Services
) -> None:
    assert (await get(api, f"/devicetypes/{PRIVATE}", CAROL_TOKEN))["data"]["inStore"] is False
    await services.core.database.write(
        lambda tx: tx.connection.execute("UPDATE device_type SET in_store = 1 - published")
    )
    await services.device_types.catalog.reload()
    assert (await get(api, f"/devicetypes/{SENSOR}"))["data"]["inStore"] is False
    assert (await get(api, f"/devicetypes/{PRIVATE}", CAROL_TOKEN))["data"]["inStore"] is True


@each_row(
    ("type_", "token", "status"),
    [
        (LIGHT, BETA_TOKEN, 200),
        (GUARD, ADA_TOKEN, 200),
        (PRIVATE, CAROL_TOKEN, 200),
        (PRIVATE, BETA_TOKEN, 200),
        (PRIVATE, ADA_TOKEN, 403),  # she has a device of it, and did not grant it
        (PRIVATE, SENSOR_TOKEN, 200),
        (PRIVATE, BOB_TOKEN, 403),
        (PRIVATE, APPLICATION_TOKEN, 403),
        (LAMP, BOB_TOKEN, 200),  # it is his
        (LAMP, ADA_TOKEN, 200),  # a user of an application of Acme
        (LAMP, CAROL_TOKEN, 403),
        (LIGHT, KITCHEN_TOKEN, 200),
        (SENSOR, KITCHEN_TOKEN, 403),
        ("dt-nothing", ADA_TOKEN, 404),
        ("dt-nothing", KITCHEN_TOKEN, 404),
        (LIGHT, "f" * 32, 401),
    ],
)
@each_row("path", ["", "/availablemanifestversions"])
async def test_who_may_see_a_type(api: httpx.AsyncClient, type_: str, token: str, status: int, path: str) -> None:
    assert (await api.get(f"/devicetypes/{type_}{path}", headers=bearer(token))).status_code == status


@pytest.mark.both_engines
async def test_a_type_is_seen_by_whom_one_of_its_devices_is_shared_with(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    await services.core.database.write(
        lambda tx: tx.connection.execute(
            "INSERT INTO device_share (id, device, email, user, status, shared_on)"
            " SELECT 'x', d.key, 'bob@example.org', :bob, 'ACCEPTED', 1 FROM device AS d WHERE d.name = 'Sensor'",
            {"bob": world.bob},
        )
    )
    assert await listed(api, "/users/self/devicetypes?includeShared=1", BOB_TOKEN) == [LAMP]
    entry = {"user": "bob@example.org", "application": PANEL, "device_type": "*", "permissions": ["READ"]}
    await services.provisioning.apply({"grants": [entry]})
    assert (await get(api, f"/devicetypes/{PRIVATE}", BOB_TOKEN))["data"]["ownedByCurrentUser"] is False
    await services.core.database.write(lambda tx: tx.connection.execute("UPDATE device_type SET published = 1"))
    await services.core.database.write(
        lambda tx: tx.connection.execute("DELETE FROM access_grant WHERE device_type IS NULL")
    )
    assert await listed(api, "/users/self/devicetypes?includeShared=1", BOB_TOKEN) == [LAMP], "a share tells nothing"
    await services.provisioning.apply({"grants": [entry]})
    assert await listed(api, "/users/self/devicetypes?includeShared=1", BOB_TOKEN) == [LAMP, PRIVATE]


@pytest.mark.parametrize(
    ("permissions", "seen", "creatable"),
    [
        ((), 403, [LAMP, LIGHT]),
        (("READ",), 200, [LAMP, LIGHT]),
        (("WRITE",), 403, [LAMP, SENSOR, LIGHT]),
        (("READ", "WRITE"), 200, [LAMP, SENSOR, LIGHT]),
    ],
)
@pytest.mark.parametrize("target", [PRIVATE, "*"])
async def test_a_user_token_sees_the_types_of_its_users_devices_as_far_as_granted(
    api: httpx.AsyncClient,
    services: Services,
    target: str,
    permissions: tuple[str, ...],
    seen: int,
    creatable: list[str],
) -> None:
    if permissions:
        entry = {"user": ADA, "application": DASHBOARD, "device_type": target, "permissions": list(permissions)}
        await services.provisioning.apply({"grants": [entry]})
    if target == PRIVATE:  # unpublished, and Ada is no member
        creatable = [LAMP, LIGHT]
    answer = await api.get(f"/devicetypes/{PRIVATE}", headers=bearer(ADA_TOKEN))
    assert answer.status_code == seen
    assert answer.json().get("data", {"ownedByCurrentUser": True})["ownedByCurrentUser"] is True
    assert await listed(api, "/devicetypes?createDevice=true", ADA_TOKEN) == creatable


async def test_a_member_sees_private_types_through_applications_of_the_organization_only(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    """Other applications need READ on them, like on every type of another organization."""
    token = "3a" * 16
    await services.provisioning.apply(
        {
            "users": [{"email": "carol@example.org", "organization": "Beta", "role": "administrator"}],
            "tokens": [{"value": token, "application": DASHBOARD, "user": "carol@example.org"}],
        }
    )
    ways = ("/devicetypes", "/users/self/devicetypes?includeOrganization=1")
    for way in ways:
        assert PRIVATE not in await listed(api, way, token)
        assert PRIVATE in await listed(api, way, CAROL_TOKEN)
    assert (await api.get(f"/devicetypes/{PRIVATE}", headers=bearer(token))).status_code == 403
    # Nor may they administrate it.
    assert (await api.get(f"/devicetypes/{PRIVATE}/whitelist", headers=bearer(token))).status_code == 403
    assert (await api.get(f"/devicetypes/{PRIVATE}/whitelist", headers=bearer(CAROL_TOKEN))).status_code == 200
    entry = {"user": CAROL, "application": DASHBOARD, "device_type": PRIVATE, "permissions": ["READ", "WRITE"]}
    await services.provisioning.apply({"grants": [entry]})
    for way in ways:
        assert PRIVATE in await listed(api, way, token)
    assert (await api.get(f"/devicetypes/{PRIVATE}/whitelist", headers=bearer(token))).status_code == 200


async def test_an_unknown_type_has_a_code_of_its_own(api: httpx.AsyncClient) -> None:
    error = (await api.get("/devicetypes/nothing", headers=bearer(ADA_TOKEN))).json()["error"]
    assert (error["code"], error["message"]) == (1101, "Device type does not exist.")


@pytest.mark.both_engines
@each_row(
    ("query", "token", "found"),
    [
        ("", ADA_TOKEN, [LAMP, SENSOR, GUARD, LIGHT]),
        ("", CAROL_TOKEN, [SENSOR, GUARD, PRIVATE, LIGHT]),
        ("", BETA_TOKEN, [SENSOR, GUARD, PRIVATE, LIGHT]),
        ("name=SENSOR", ADA_TOKEN, [SENSOR, GUARD]),
        ("nameSearch=guard", ADA_TOKEN, [GUARD]),
        ("name=sensor&nameSearch=guard", ADA_TOKEN, [GUARD]),
        ("name=example.sensor_guard", ADA_TOKEN, [GUARD]),
        ("name=_", ADA_TOKEN, [LAMP, GUARD, LIGHT]),  # a character like any other
        ("name=%25", ADA_TOKEN, []),
        ("name=!", ADA_TOKEN, []),
        ("name=", ADA_TOKEN, [LAMP, SENSOR, GUARD, LIGHT]),
        ("tags=home", ADA_TOKEN, [LAMP, SENSOR, GUARD]),
        ("tags=home,battery", ADA_TOKEN, [SENSOR, GUARD]),
        ("tags=home,,%20wired,", ADA_TOKEN, [GUARD]),
        ("tags=Home", ADA_TOKEN, []),
        ("tags=home&tags=wired", ADA_TOKEN, [GUARD]),
        ("createDevice=true", ADA_TOKEN, [LAMP, LIGHT]),
        ("createDevice=true", CAROL_TOKEN, [SENSOR, GUARD, PRIVATE]),
        ("createDevice=true", APPLICATION_TOKEN, [LAMP, SENSOR, LIGHT]),
        ("createDevice=0", ADA_TOKEN, [LAMP, SENSOR, GUARD, LIGHT]),
        ("unknown=1&?name=guard", ADA_TOKEN, [GUARD]),
    ],
)
async def test_searching(api: httpx.AsyncClient, query: str, token: str, found: list[str]) -> None:
    assert await listed(api, f"/devicetypes?{query}", token) == found


async def test_an_exact_match_comes_first_and_case_does_not_matter(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    for name, unique_name in (("A Bär", "example.a"), ("BÄR", "example.b")):
        await services.provisioning.apply(
            {"device_types": [{"unique_name": unique_name, "name": name, "organization": "Acme", "published": True}]}
        )
    names = [one["name"] for one in (await get(api, "/devicetypes?name=bär"))["data"]["deviceTypes"]]
    assert names == ["BÄR", "A Bär"]


async def test_paging(api: httpx.AsyncClient) -> None:
    page = await get(api, "/devicetypes?count=2&offset=3")
    assert [type_["id"] for type_ in page["data"]["deviceTypes"]] == [LIGHT]
    assert {name: page[name] for name in ("total", "offset", "count")} == {"total": 4, "offset": 3, "count": 1}


@each_row(
    "path",
    [
        "/devicetypes",
        "/devicetypes/cloudconnectors",
        f"/users/{ADA}/devicetypes",
        f"/applications/{DASHBOARD}/devicetypes",
    ],
)
@each_row(
    ("query", "field", "text"),
    [
        ("count=0", "count", "Minimum value 1"),
        ("count=101", "count", "Maximum value 100"),
        ("count=x", "count", "Numeric field only"),
        ("offset=-1", "offset", "Minimum value 0"),
        ("offset=x", "offset", "Numeric field only"),
    ],
)
async def test_a_wrong_page_is_refused(api: httpx.AsyncClient, path: str, query: str, field: str, text: str) -> None:
    answer = await api.get(f"{path}?{query}", headers=bearer(ADA_TOKEN))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 4001)
    assert answer.json()["error"]["errors"] == [[{"field": field, "messages": [text]}]]


@pytest.mark.both_engines
async def test_types_with_a_cloud_connector(api: httpx.AsyncClient, services: Services) -> None:
    assert await listed(api, "/devicetypes/cloudconnectors") == []
    await services.core.database.write(
        lambda tx: tx.connection.execute(
            "UPDATE device_type SET has_cloud_connector = 1 WHERE id IN ('dt-sensor', 'dt-sensor_private')"
        )
    )
    assert await listed(api, "/devicetypes/cloudconnectors") == [SENSOR]
    assert await listed(api, "/devicetypes/cloudconnectors", CAROL_TOKEN) == [SENSOR, PRIVATE]


@each_row(
    ("user", "query", "token", "found"),
    [
        (ADA, "", ADA_TOKEN, []),
        (BOB, "", BOB_TOKEN, [LAMP]),
        ("self", "", BOB_TOKEN, [LAMP]),
        (CAROL, "", CAROL_TOKEN, [SENSOR, GUARD, PRIVATE]),  # no owner was named: her organization's types
        (CAROL, "includeOrganization=true", CAROL_TOKEN, [SENSOR, GUARD, PRIVATE]),
        (ADA, "", APPLICATION_TOKEN, []),
    ],
)
async def test_types_of_a_user(api: httpx.AsyncClient, user: str, query: str, token: str, found: list[str]) -> None:
    assert await listed(api, f"/users/{user}/devicetypes?{query}", token) == found


@pytest.mark.both_engines
async def test_types_of_the_organizations_of_a_user_are_there_when_asked_for(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    acme = await services.core.database.read(lambda tx: tx.accounts.organization_by_id(ACME))
    assert acme is not None
    await services.core.database.write(lambda tx: tx.accounts.set_role(acme.key, world.bob, "viewer"))
    assert await listed(api, "/users/self/devicetypes", BOB_TOKEN) == [LAMP]
    assert await listed(api, "/users/self/devicetypes?includeOrganization=true", BOB_TOKEN) == [LAMP, LIGHT]


@each_row(
    ("path", "token", "status", "code"),
    [
        (f"/users/{'f' * 32}/devicetypes", ADA_TOKEN, 404, 1201),
        (f"/users/{BOB}/devicetypes", ADA_TOKEN, 403, 403),
        (f"/users/{BOB}/devicetypes", APPLICATION_TOKEN, 403, 403),
        ("/users/self/devicetypes", APPLICATION_TOKEN, 404, 1201),
        (f"/users/{ADA}/devicetypes", KITCHEN_TOKEN, 403, 403),
        (f"/applications/{'f' * 32}/devicetypes", ADA_TOKEN, 404, 404),
        (f"/applications/{BETA_APPLICATION}/devicetypes", ADA_TOKEN, 403, 403),
        (f"/applications/{DASHBOARD}/devicetypes", KITCHEN_TOKEN, 403, 403),
        ("/devicetypes", KITCHEN_TOKEN, 403, 403),
        ("/devicetypes/cloudconnectors", KITCHEN_TOKEN, 403, 403),
        ("/tags", KITCHEN_TOKEN, 403, 403),
        ("/tags/categories", KITCHEN_TOKEN, 403, 403),
        ("/tags/suggestions", KITCHEN_TOKEN, 403, 403),
        ("/tags", "f" * 32, 401, 401),
        ("/devicetypes", "f" * 32, 401, 401),
        ("/users/self/devicetypes?includeShared=maybe", ADA_TOKEN, 400, 4001),
        ("/devicetypes?createDevice=maybe", ADA_TOKEN, 400, 4001),
    ],
)
async def test_refusals(api: httpx.AsyncClient, path: str, token: str, status: int, code: int) -> None:
    answer = await api.get(path, headers=bearer(token))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@each_row(
    ("application", "token", "found"),
    [
        (BETA_APPLICATION, BETA_TOKEN, [PRIVATE, LIGHT]),
        (BETA_APPLICATION, CAROL_TOKEN, [PRIVATE, LIGHT]),
        (DASHBOARD, ADA_TOKEN, []),
    ],
)
async def test_types_of_an_application_are_those_it_asks_for(
    api: httpx.AsyncClient, application: str, token: str, found: list[str]
) -> None:
    assert await listed(api, f"/applications/{application}/devicetypes?productInfo=x", token) == found


async def test_an_application_that_asks_for_every_type_has_all_it_can_see(
    api: httpx.AsyncClient, services: Services
) -> None:
    request = [{"device_type": "*", "permissions": ["READ"]}]
    await services.provisioning.apply(
        {"applications": [{"id": DASHBOARD, "name": "Dashboard", "organization": "Acme", "permissions": request}]}
    )
    assert await listed(api, f"/applications/{DASHBOARD}/devicetypes") == [LAMP, SENSOR, GUARD, LIGHT]


async def test_what_another_user_granted_the_application_is_not_the_callers_to_see(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    private = (await services.device_types.catalog.find(PRIVATE)).key
    await allow(services, GrantRecord(world.ada, world.application, private, True, False))
    assert (await api.get(f"/devicetypes/{PRIVATE}", headers=bearer(APPLICATION_TOKEN))).status_code == 200
    for path in (f"/devicetypes/{PRIVATE}", f"/devicetypes/{PRIVATE}/availablemanifestversions"):
        assert (await api.get(path, headers=bearer(BOB_TOKEN))).status_code == 403


@each_row("query", ["name", "nameSearch"])
async def test_what_is_too_long_for_a_name_finds_nothing(
    api: httpx.AsyncClient, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search may be longer than a head may be."""
    monkeypatch.setattr("protocols.http.heads.HEAD_BYTES", 64 * 1024)
    assert await listed(api, f"/devicetypes?{query}={'_' * 26_000}") == []
