"""/devices: the record, and how it comes, changes and goes (reference 6.1)."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from broker.accounts.tokens import Caller
from broker.errors import Unauthorized
from broker.facts import DeviceCreated, DeviceDeleted, DeviceDisabled, DeviceEnabled, DeviceFact, DeviceUpdated
from broker.services import Services
from storage.records import GrantRecord, ManifestRecord
from storage.transaction import Transaction
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    DASHBOARD,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_MANIFEST,
    LIGHT_TYPE,
    NOW_MS,
    World,
    allow,
)
from tests.protocols.http.conftest import bearer
from tests.rows import each_row
from tests.wording import INVALID

pytestmark = pytest.mark.slow


DEVICE = f"/devices/{KITCHEN}"
RECORD = {
    "id": KITCHEN,
    "uid": ADA,
    "dtid": LIGHT_TYPE,
    "name": "Kitchen light",
    "manifestVersion": 1,
    "manifestVersionPolicy": "LATEST",
    "needProviderAuth": False,
    "cloudAuthorization": "NO_AUTHORIZATION",
    "eid": None,
    "certificateSignature": None,
    "certificateInfo": None,
    "createdOn": 1,
    "connected": True,
    "sharedWithOthers": False,
}
KINDS = (DeviceCreated, DeviceUpdated, DeviceEnabled, DeviceDisabled, DeviceDeleted)


@pytest.fixture
def facts(services: Services) -> list[DeviceFact]:
    heard: list[DeviceFact] = []
    for kind in KINDS:
        services.core.router.subscribe(kind, heard.append)
    return heard


async def call(
    api: httpx.AsyncClient, method: str, path: str, token: str, body: Mapping[str, Any] | None = None
) -> tuple[int, Any]:
    content = None if body is None else json.dumps(body)
    answer = await api.request(method, path, headers=bearer(token), content=content)
    return answer.status_code, answer.json()


async def add_manifest(services: Services, world: World, version: int) -> None:
    document = json.dumps(LIGHT_MANIFEST)
    record = ManifestRecord(world.light_type, version, document, True, 1)
    await services.core.database.write(lambda tx: tx.device_types.add_manifest(record))
    await services.device_types.catalog.reload()


def give_type_away(tx: Transaction, **flags: int) -> None:
    """The lights belong to an organization with which the Dashboard has nothing to do."""
    other = tx.accounts.add_organization("0b" * 16, "Other", -1).key
    tx.connection.execute(
        "UPDATE device_type SET organization = :other, published = :published, protected = :protected",
        {"other": other, "published": 1, "protected": 0, **flags},
    )


# The record


async def test_the_device_record(api: httpx.AsyncClient) -> None:
    assert await call(api, "GET", DEVICE, ADA_TOKEN) == (200, {"data": RECORD})


@each_row(
    ("query", "shown"),
    [
        ("includeProperties=true", True),
        ("properties=1", True),
        ("includeProperties=TRUE", True),
        ("includeProperties=false", False),
        ("includeProperties=", False),
        ("includeproperties=true", False),
    ],
)
async def test_properties_are_shown_when_asked_for(api: httpx.AsyncClient, query: str, shown: bool) -> None:
    _, answer = await call(api, "GET", f"{DEVICE}?{query}", ADA_TOKEN)
    assert answer["data"] == RECORD | ({"properties": {}} if shown else {})


async def test_a_query_that_is_no_boolean_is_refused(api: httpx.AsyncClient) -> None:
    _, answer = await call(api, "GET", f"{DEVICE}?includeProperties=maybe", ADA_TOKEN)
    assert answer["error"]["errors"] == [[{"field": "includeProperties", "messages": ["Boolean field only"]}]]


@each_row(
    ("stored", "shown"),
    [("NO_AUTHORIZATION", False), ("AUTHORIZED", False), ("UNAUTHORIZED", True)],
)
async def test_provider_authentication_is_needed_exactly_when_it_is_missing(
    services: Services, api: httpx.AsyncClient, stored: Any, shown: bool
) -> None:
    await services.devices.inventory.set_cloud_authorization(await services.devices.registry.find(KITCHEN), stored)
    _, answer = await call(api, "GET", DEVICE, ADA_TOKEN)
    assert (answer["data"]["cloudAuthorization"], answer["data"]["needProviderAuth"]) == (stored, shown)


# Permissions of every call about one device


CALLS = [
    ("GET", ""),
    ("PUT", ""),
    ("DELETE", ""),
    ("GET", "/tokens"),
    ("PUT", "/tokens"),
    ("DELETE", "/tokens"),
    ("GET", "/status"),
    ("PUT", "/status"),
    ("GET", "/presence"),
    ("GET", "/shares"),
    ("POST", "/shares"),
]
DEVICE_TOKEN_CALLS = {("GET", ""), ("GET", "/status"), ("PUT", "/status"), ("GET", "/presence")}


@each_row(("method", "path"), CALLS)
async def test_the_order_of_checks_is_token_device_permission_syntax(
    api: httpx.AsyncClient, method: str, path: str
) -> None:
    broken = b"{" if method in {"PUT", "POST"} else None
    for token, device, status in (
        ("ff" * 16, "ff" * 16, 401),
        (ADA_TOKEN, "ff" * 16, 404),
        (ADA_TOKEN, KITCHEN.upper() + "x", 404),
        (BOB_TOKEN, KITCHEN, 403),
    ):
        answer = await api.request(method, f"/devices/{device}{path}", headers=bearer(token), content=broken)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)


@each_row(("method", "path"), CALLS)
async def test_a_device_token_is_for_the_device_itself_and_for_few_calls(
    api: httpx.AsyncClient, method: str, path: str
) -> None:
    body = {"availability": "online"} if path == "/status" else None
    status, _ = await call(api, method, f"{DEVICE}{path}", KITCHEN_TOKEN, body)
    assert status == (200 if (method, path) in DEVICE_TOKEN_CALLS else 403)
    status, _ = await call(api, method, f"/devices/{HALL}{path}", KITCHEN_TOKEN, body)
    assert status == 403


@pytest.mark.parametrize(
    ("method", "path", "needs_write"),
    [(method, path, method != "GET" or path == "/tokens") for method, path in CALLS if path != "/shares"],
)
async def test_an_application_needs_read_or_write_of_the_owner(
    services: Services, world: World, api: httpx.AsyncClient, method: str, path: str, needs_write: bool
) -> None:
    await services.core.database.write(give_type_away)
    await services.device_types.catalog.reload()
    for read, write in ((True, False), (False, False), (False, True)):
        await allow(services, GrantRecord(world.ada, world.application, world.light_type, read, write))
        body = {"availability": "online"} if path == "/status" else {}
        status, _ = await call(api, method, f"{DEVICE}{path}", APPLICATION_TOKEN, body)
        assert status == (200 if (write if needs_write else read) else 403)


@each_row(("method", "path"), [("PUT", ""), ("PUT", "/status"), ("POST", "/shares"), ("POST", None)])
@each_row("body", [b"{", b"[]", b'"x"', b"\xff"])
async def test_a_body_that_is_no_object_is_a_bad_request(
    api: httpx.AsyncClient, method: str, path: str | None, body: bytes
) -> None:
    url = "/devices" if path is None else f"{DEVICE}{path}"
    answer = await api.request(method, url, headers=bearer(ADA_TOKEN), content=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Bad Request")


# Creation


@pytest.mark.parametrize("dtid", [LIGHT_TYPE, "example.smart_light"])
async def test_a_new_device_has_the_defaults(api: httpx.AsyncClient, facts: list[DeviceFact], dtid: str) -> None:
    status, answer = await call(api, "POST", "/devices", ADA_TOKEN, {"dtid": dtid})
    data = answer["data"]
    assert status == 200
    assert data == RECORD | {"id": data["id"], "name": LIGHT_TYPE, "createdOn": NOW_MS}
    assert await call(api, "GET", f"/devices/{data['id']}", ADA_TOKEN) == (200, answer)
    assert [type(fact) for fact in facts] == [DeviceCreated, DeviceEnabled]
    assert {(one.device_id, one.owner_id, one.device_type_id, one.application_id, one.at_ms) for one in facts} == {
        (data["id"], ADA, LIGHT_TYPE, DASHBOARD, NOW_MS)
    }
    assert (await call(api, "GET", f"/devices/{data['id']}/tokens", ADA_TOKEN))[0] == 404


async def test_what_a_new_device_is_given(services: Services, world: World, api: httpx.AsyncClient) -> None:
    await add_manifest(services, world, 2)
    body = {"uid": ADA, "dtid": LIGHT_TYPE, "name": "Ä" * 64, "manifestVersion": 1, "manifestVersionPolicy": "device"}
    _, answer = await call(api, "POST", "/devices", APPLICATION_TOKEN, body)
    data = answer["data"]
    assert (data["uid"], data["name"], data["manifestVersion"], data["manifestVersionPolicy"]) == (
        ADA,
        "Ä" * 64,
        1,
        "DEVICE",
    )
    body["manifestVersionPolicy"] = "LATEST"
    _, answer = await call(api, "POST", "/devices", APPLICATION_TOKEN, body)
    assert answer["data"]["manifestVersion"] == 2  # with LATEST the record always shows the latest


async def test_names_need_not_be_unique(api: httpx.AsyncClient) -> None:
    body = {"dtid": LIGHT_TYPE, "name": "Kitchen light"}
    assert (await call(api, "POST", "/devices", ADA_TOKEN, body))[0] == 200


NAME_REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"name": ""}, "name", "Minimum length 1"),
    ({"name": "x" * 65}, "name", "Maximum length 64"),
    ({"name": 7}, "name", "Text field only"),
    *[
        ({"name": f"a{character}b"}, "name", "Invalid value: must not contain any of \" & ' < >")
        for character in "<>&'\""
    ],
    ({"name": "a\nb"}, "name", "Invalid value: must not contain control characters"),
    ({"name": "\u200d "}, "name", "Invalid value: must not be blank"),
    ({"manifestVersion": 0}, "manifestVersion", "Minimum value 1"),
    ({"manifestVersion": -1}, "manifestVersion", "Minimum value 1"),
    ({"manifestVersion": 2}, "manifestVersion", INVALID),
    ({"manifestVersion": "x"}, "manifestVersion", "Numeric field only"),
    ({"manifestVersionPolicy": "NEWEST"}, "manifestVersionPolicy", INVALID),
]


@each_row(
    ("body", "field", "text"),
    [
        *[({"dtid": LIGHT_TYPE} | body, field, text) for body, field, text in NAME_REFUSALS],
        ({}, "dtid", "Required parameter"),
        ({"dtid": None}, "dtid", "Required parameter"),
        ({"dtid": ""}, "dtid", "Required parameter"),
        *[({"dtid": f"a{character}b"}, "dtid", INVALID) for character in "<>&'\""],
        ({"dtid": 5}, "dtid", "Text field only"),
    ],
)
async def test_a_device_that_cannot_be_created(
    api: httpx.AsyncClient, facts: list[DeviceFact], body: dict[str, Any], field: str, text: str
) -> None:
    status, answer = await call(api, "POST", "/devices", ADA_TOKEN, body)
    assert (status, answer["error"]["code"]) == (400, 4001)
    assert answer["error"]["errors"] == [[{"field": field, "messages": [text]}]]
    assert not facts
    assert (await call(api, "GET", "/users/self/devices", ADA_TOKEN))[1]["total"] == 2


async def test_all_findings_come_at_once(api: httpx.AsyncClient) -> None:
    body = {"name": "<", "manifestVersionPolicy": "x"}
    _, answer = await call(api, "POST", "/devices", APPLICATION_TOKEN, body)
    fields = [finding["field"] for finding in answer["error"]["errors"][0]]
    assert fields == ["uid", "dtid", "name", "manifestVersionPolicy"]


@each_row(
    ("token", "body", "status", "code"),
    [
        (ADA_TOKEN, {"dtid": "no.such"}, 404, 1101),
        (ADA_TOKEN, {"dtid": LIGHT_TYPE, "uid": "ff" * 16}, 404, 1201),
        (ADA_TOKEN, {"dtid": LIGHT_TYPE, "uid": BOB}, 403, 403),
        (APPLICATION_TOKEN, {"dtid": LIGHT_TYPE, "uid": BOB}, 403, 403),
        (KITCHEN_TOKEN, {"dtid": LIGHT_TYPE}, 403, 403),
        ("ff" * 16, {"dtid": LIGHT_TYPE}, 401, 401),
    ],
)
async def test_who_may_not_create(
    api: httpx.AsyncClient, facts: list[DeviceFact], token: str, body: dict[str, Any], status: int, code: int
) -> None:
    given, answer = await call(api, "POST", "/devices", token, body)
    assert (given, answer["error"]["code"], facts) == (status, code, [])


@pytest.mark.parametrize(
    ("flags", "role", "status"),
    [
        ({"published": 0}, None, 403),
        ({"published": 0}, "viewer", 200),
        ({"protected": 1}, None, 403),
        ({"protected": 1}, "viewer", 403),  # the token's application is of another organization
    ],
)
async def test_types_that_are_unpublished_or_protected_are_for_the_organization(
    services: Services, world: World, api: httpx.AsyncClient, flags: dict[str, int], role: str | None, status: int
) -> None:
    def work(tx: Transaction) -> None:
        give_type_away(tx, **flags)
        other = tx.accounts.organization_named("Other")
        assert other is not None
        if role is not None:
            tx.accounts.set_role(other.key, world.ada, role)

    await services.core.database.write(work)
    await services.device_types.catalog.reload()
    assert (await call(api, "POST", "/devices", ADA_TOKEN, {"dtid": LIGHT_TYPE}))[0] == status


# Change


@pytest.mark.parametrize(
    ("body", "changed", "told"),
    [
        ({"name": "New"}, {"name": "New"}, [DeviceUpdated]),
        ({"connected": False}, {"connected": False}, [DeviceDisabled]),
        ({"connected": False, "name": "New"}, {"connected": False, "name": "New"}, [DeviceUpdated, DeviceDisabled]),
        (
            {"manifestVersionPolicy": "DEVICE"},
            {"manifestVersionPolicy": "DEVICE", "manifestVersion": 2},
            [DeviceUpdated],
        ),
        (
            {"manifestVersionPolicy": "DEVICE", "manifestVersion": 1},
            {"manifestVersionPolicy": "DEVICE", "manifestVersion": 1},
            [DeviceUpdated],
        ),
        # The policy stays what it is, so the latest version is what the record shows.
        ({"manifestVersion": "2.0"}, {}, [DeviceUpdated]),
        ({"name": None}, {}, []),
        ({"name": "Kitchen light", "connected": True, "anything": 1}, {}, []),
        ({}, {}, []),
    ],
)
async def test_only_what_is_sent_changes(
    services: Services,
    world: World,
    api: httpx.AsyncClient,
    facts: list[DeviceFact],
    body: dict[str, Any],
    changed: dict[str, Any],
    told: list[type[DeviceFact]],
) -> None:
    await add_manifest(services, world, 2)
    expected = {"data": RECORD | {"manifestVersion": 2} | changed}
    assert await call(api, "PUT", DEVICE, ADA_TOKEN, body) == (200, expected)
    assert await call(api, "GET", DEVICE, ADA_TOKEN) == (200, expected)
    assert [type(fact) for fact in facts] == told


async def test_a_device_that_stays_on_its_version_stays_when_a_newer_one_comes(
    services: Services, world: World, api: httpx.AsyncClient
) -> None:
    await call(api, "PUT", DEVICE, ADA_TOKEN, {"manifestVersionPolicy": "DEVICE"})
    await add_manifest(services, world, 2)
    _, answer = await call(api, "PUT", DEVICE, ADA_TOKEN, {"name": "New"})
    assert (answer["data"]["manifestVersion"], answer["data"]["manifestVersionPolicy"]) == (1, "DEVICE")


@each_row(("body", "field", "text"), [*NAME_REFUSALS, ({"connected": "no"}, "connected", "Boolean field only")])
async def test_a_change_that_is_refused_changes_nothing(
    api: httpx.AsyncClient, facts: list[DeviceFact], body: dict[str, Any], field: str, text: str
) -> None:
    status, answer = await call(api, "PUT", DEVICE, ADA_TOKEN, {"connected": False} | body)
    assert (status, answer["error"]["errors"]) == (400, [[{"field": field, "messages": [text]}]])
    assert await call(api, "GET", DEVICE, ADA_TOKEN) == (200, {"data": RECORD})
    assert not facts


async def test_a_disabled_device_neither_sends_nor_receives_and_can_be_read(api: httpx.AsyncClient) -> None:
    message, action = {"data": {"state": True}}, {"data": {"actions": [{"name": "setOn"}]}}
    for enabled, status in ((False, 403), (True, 200)):
        await call(api, "PUT", DEVICE, ADA_TOKEN, {"connected": enabled})
        assert (await call(api, "POST", "/messages", KITCHEN_TOKEN, message))[0] == status
        sent, answer = await call(api, "POST", "/actions", ADA_TOKEN, {"ddid": KITCHEN, **action})
        assert sent == status
        if not enabled:
            assert answer["error"]["message"] == "Destination device is disconnected"
        assert (await call(api, "GET", f"/messages/last?sdids={KITCHEN}", ADA_TOKEN))[0] == 200


# Deletion


async def test_deletion_answers_the_record_and_is_told_in_order(
    api: httpx.AsyncClient, facts: list[DeviceFact]
) -> None:
    assert await call(api, "DELETE", DEVICE, ADA_TOKEN) == (200, {"data": RECORD})
    assert [(type(fact), fact.device_id, fact.application_id) for fact in facts] == [
        (DeviceDisabled, KITCHEN, DASHBOARD),
        (DeviceDeleted, KITCHEN, DASHBOARD),
    ]
    assert (await call(api, "DELETE", DEVICE, ADA_TOKEN))[0] == 404


async def test_a_deleted_device_and_its_messages_leave_every_query_at_once(
    services: Services, api: httpx.AsyncClient
) -> None:
    kitchen = (await services.devices.registry.find(KITCHEN)).key
    _, sent = await call(api, "POST", "/messages", KITCHEN_TOKEN, {"data": {"state": True}})
    action = {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
    _, acted = await call(api, "POST", "/actions", ADA_TOKEN, action)
    _, answer = await call(api, "POST", "/actions", ADA_TOKEN, action | {"ddid": HALL, "sdid": KITCHEN})
    await call(api, "DELETE", DEVICE, ADA_TOKEN)
    times = f"startDate=0&endDate={NOW_MS}"
    for path in (
        DEVICE,
        f"{DEVICE}/status",
        f"{DEVICE}/tokens",
        f"/messages?sdid={KITCHEN}&{times}",
        f"/messages/last?sdids={KITCHEN}",
        f"/messages/snapshots?sdids={KITCHEN}",
    ):
        assert (await call(api, "GET", path, ADA_TOKEN))[0] == 404
    assert (await call(api, "GET", f"/messages?mid={sent['data']['mid']}", ADA_TOKEN))[1]["data"] == []
    assert (await call(api, "GET", f"/actions?mid={acted['data']['mid']}", ADA_TOKEN))[1]["data"] == []
    assert (await call(api, "GET", f"/messages?uid={ADA}&{times}", ADA_TOKEN))[1]["data"] == []
    assert (await call(api, "GET", "/users/self/devices", ADA_TOKEN))[1]["total"] == 1
    # An Action that the device sent to another device stays, with its sender's id.
    _, kept = await call(api, "GET", f"/actions?mid={answer['data']['mid']}", ADA_TOKEN)
    assert [one["sdid"] for one in kept["data"]] == [KITCHEN]
    assert services.devices.registry.get_nowait(kitchen) is None


async def test_the_token_of_a_deleted_device_is_dead(services: Services, api: httpx.AsyncClient) -> None:
    caller = await services.accounts.tokens.caller(KITCHEN_TOKEN)
    assert isinstance(caller, Caller)
    await call(api, "DELETE", DEVICE, ADA_TOKEN)
    assert (await call(api, "POST", "/messages", KITCHEN_TOKEN, {"data": {"state": True}}))[0] == 401
    with pytest.raises(Unauthorized):
        await services.accounts.tokens.caller(KITCHEN_TOKEN)
