"""/devicemgmt and /updates: properties, tasks and firmware images (reference 2.10, 15 and 18.5)."""

import hashlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest
import trio

from broker.device_management import images
from broker.device_management.objects import RESULT, STATE
from broker.device_management.sessions import Reading, ResourcePath, ResourceValue
from broker.device_management.states import DeviceTaskStatus, move
from broker.device_management.waiting import TaskWait
from broker.services import Services
from config.limits import DOWNLOAD_KEPT_HOURS
from config.settings import Address, DeviceManagement, Limits, Settings
from storage.keys import OrganizationKey
from storage.tasks import DeviceTaskRecord, TaskRecord
from storage.transaction import Transaction
from tests.broker.device_management.devices import FakeSession, register
from tests.factories import (
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    BOBS_TOKEN,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row
from tests.stored_files import stored_files
from tests.wording import INVALID

pytestmark = pytest.mark.slow


IMAGE = bytes(range(256)) * 1000
IMAGES = f"/devicemgmt/devicetypes/{LIGHT_TYPE}/images"
TYPE = f"/devicemgmt/devicetypes/{LIGHT_TYPE}"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return Settings(
        state_dir=settings.state_dir,
        limits=Limits(rate_limits="off", quotas="off"),
        device_management=DeviceManagement(image_max_bytes=2 * 1024 * 1024),
    )


@pytest.fixture
async def administrator(services: Services, world: World) -> None:
    """Ada administrates the organization of the light type."""
    await services.core.database.write(lambda tx: tx.accounts.set_role(OrganizationKey(1), world.ada, "administrator"))


@pytest.fixture
async def ada(api: httpx.AsyncClient, administrator: None) -> "Client":
    return Client(api, ADA_TOKEN)


class Client:
    """Calls with one token."""

    def __init__(self, api: httpx.AsyncClient, token: str) -> None:
        self._api = api
        self._token = token

    async def __call__(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        headers = bearer(self._token) | more.pop("headers", {})
        answer = await self._api.request(method, path, headers=headers, **more)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def task(self, property_: str, kind: str = "R", **more: Any) -> dict[str, Any]:
        body = {"dtid": LIGHT_TYPE, "taskType": kind, "property": property_} | more
        found: dict[str, Any] = (await self("POST", "/devicemgmt/tasks", json=body))["data"]
        return found

    async def task_in(self, status: str, task_id: str) -> dict[str, Any]:
        with trio.fail_after(10):
            while True:
                found: dict[str, Any] = (await self("GET", f"/devicemgmt/tasks/{task_id}"))["data"]
                if found["status"] == status:
                    return found


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.lowlevel.checkpoint()


# Properties


async def test_the_properties_of_a_device_that_never_connected(api: httpx.AsyncClient, world: World) -> None:
    answer = await Client(api, KITCHEN_TOKEN)("GET", f"/devicemgmt/devices/{KITCHEN}/properties")
    assert answer == {
        "data": {
            "serverProperties": {},
            "systemProperties": {"did": KITCHEN, "createdOn": 1, "connection": None},
            "deviceProperties": {},
        }
    }


async def test_the_connection_is_that_of_a_session(api: httpx.AsyncClient, services: Services, world: World) -> None:
    kitchen = await services.devices.registry.find(KITCHEN)
    with services.routing.connections.connect(
        kitchen, protocol="LWM2M", token=b"", exclusive=False, deliver=lambda _: True, close=lambda _: None
    ):
        system = (await Client(api, KITCHEN_TOKEN)("GET", f"/devicemgmt/devices/{KITCHEN}/properties"))["data"]
    assert system["systemProperties"]["connection"] == {"connected": True, "protocol": "LWM2M", "lastSeenOn": NOW_MS}
    system = (await Client(api, KITCHEN_TOKEN)("GET", f"/devicemgmt/devices/{KITCHEN}/properties"))["data"]
    assert system["systemProperties"]["connection"] == {"connected": False, "protocol": "LWM2M", "lastSeenOn": NOW_MS}


async def test_server_properties_are_merged_leaf_by_leaf_and_null_removes(api: httpx.AsyncClient, world: World) -> None:
    device = Client(api, KITCHEN_TOKEN)
    path = f"/devicemgmt/devices/{KITCHEN}/serverproperties"
    bodies = (
        {"site": {"floor": "3", "room-2": 7}, "tags": ["a"]},
        {"site": {"floor": "4"}},
        {"site": {"room-2": None}, "tags": None},
    )
    for body in bodies:
        assert await device("POST", path, json=body) == {"data": {"did": KITCHEN}}
    shown = await device("GET", f"/devicemgmt/devices/{KITCHEN}/properties?includeTimestamp=true")
    assert shown["data"]["serverProperties"] == {"site": {"floor": {"value": "4", "ts": NOW_MS}}}
    await device("POST", path, json={"site": None})
    shown = await device("GET", f"/devicemgmt/devices/{KITCHEN}/properties")
    assert shown["data"]["serverProperties"] == {}


@each_row(
    "body",
    [
        {"a b": 1},
        {"1a": 1},
        {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}},
        {"a": "x" * 16_384},
        {"a.b": 1},
        {'a"': 1},
    ],
)
async def test_server_properties_out_of_bounds_are_refused(api: httpx.AsyncClient, world: World, body: object) -> None:
    device = Client(api, KITCHEN_TOKEN)
    answer = await device("POST", f"/devicemgmt/devices/{KITCHEN}/serverproperties", 400, json=body)
    assert answer["error"]["code"] == 4001


async def test_removing_server_properties_leaves_the_others(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    device, kitchen = Client(api, KITCHEN_TOKEN), await services.devices.registry.find(KITCHEN)
    await device("POST", f"/devicemgmt/devices/{KITCHEN}/serverproperties", json={"site": 1})
    await services.device_management.properties.report(kitchen, [Reading(None, {(3, 0, 0): "Acme"})])
    assert await device("DELETE", f"/devicemgmt/devices/{KITCHEN}/serverproperties") == {"data": {"did": KITCHEN}}
    shown = (await device("GET", f"/devicemgmt/devices/{KITCHEN}/properties"))["data"]
    assert (shown["serverProperties"], shown["deviceProperties"]) == ({}, {"device": {"manufacturer": "Acme"}})


@each_row(
    ("token", "path", "status"),
    [
        (KITCHEN_TOKEN, f"/devicemgmt/devices/{BOBS}/properties", 403),
        (BOBS_TOKEN, f"/devicemgmt/devices/{BOBS}/properties", 200),
        (BOB_TOKEN, f"/devicemgmt/devices/{BOBS}/properties", 200),
        (BOB_TOKEN, f"/devicemgmt/devices/{KITCHEN}/properties", 403),
        (APPLICATION_TOKEN, f"/devicemgmt/devices/{KITCHEN}/properties", 200),
        (BOB_TOKEN, f"/devicemgmt/devices/properties?dtid={LIGHT_TYPE}", 403),
        (KITCHEN_TOKEN, f"/devicemgmt/devices/properties?dtid={LIGHT_TYPE}", 403),
        (APPLICATION_TOKEN, f"/devicemgmt/devices/properties?dtid={LIGHT_TYPE}", 200),
        (BOB_TOKEN, TYPE, 403),
        (KITCHEN_TOKEN, f"{TYPE}/manifest/properties", 200),
        (BOB_TOKEN, f"/devicemgmt/tasks?dtid={LIGHT_TYPE}", 403),
        (APPLICATION_TOKEN, f"/devicemgmt/tasks?dtid={LIGHT_TYPE}", 200),
        (KITCHEN_TOKEN, f"/devicemgmt/devices/{KITCHEN}/tasks", 200),
        (KITCHEN_TOKEN, f"/devicemgmt/devices/{BOBS}/pendingtasks", 403),
        (BOB_TOKEN, IMAGES, 403),
    ],
)
async def test_who_may(api: httpx.AsyncClient, world: World, token: str, path: str, status: int) -> None:
    await Client(api, token)("GET", path, status)


async def test_a_share_gives_no_properties(api: httpx.AsyncClient, services: Services, world: World) -> None:
    kitchen = await services.devices.registry.find(KITCHEN)
    share = await services.devices.shares.offer(kitchen, uid=BOB)
    await Client(api, BOB_TOKEN)("PUT", f"/devices/{KITCHEN}/shares/{share.id}", json={"status": "ACCEPTED"})
    await Client(api, BOB_TOKEN)("GET", f"/devices/{KITCHEN}/status")
    await Client(api, BOB_TOKEN)("GET", f"/devicemgmt/devices/{KITCHEN}/properties", 403)


async def test_a_developer_configures_and_uploads_and_makes_no_tasks(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    await services.core.database.write(lambda tx: tx.accounts.set_role(OrganizationKey(1), world.bob, "developer"))
    bob = Client(api, BOB_TOKEN)
    await bob("PUT", TYPE, json={"pmin": 60})
    await bob("POST", f"{IMAGES}?version=1", content=b"x")
    await bob("POST", "/devicemgmt/tasks", 403, json={"dtid": LIGHT_TYPE, "taskType": "R", "property": "akc.update"})


@pytest.mark.both_engines
@each_row(
    ("filter_", "dids"),
    [
        ("", [KITCHEN, HALL, BOBS]),
        ("serverProperties.site.floor=3", [KITCHEN, HALL]),
        ("serverProperties.site.floor=13", [HALL]),
        ("serverProperties.site.room=7", [KITCHEN]),
        ("serverProperties.site.on=true", [KITCHEN]),
        ("serverProperties.site.floor=3, serverProperties.site.room=8", [HALL]),
        ("deviceProperties.device.manufacturer=cm", [BOBS]),
        ("deviceProperties.device.batteryLevel=50", [BOBS]),
        ("deviceProperties.device.batteryLevel=5", []),
        (f"systemProperties.did={HALL}", [HALL]),
        (f"systemProperties.did={HALL[:8]}", []),
        ("systemProperties.createdOn=1", [KITCHEN, HALL, BOBS]),
        ("systemProperties.connection.connected=true", [HALL]),
        ("systemProperties.connection.protocol=MQTT", [HALL]),
        ("systemProperties.nothing=1", []),
        ("serverProperties.nothing=1", []),
        ("serverProperties.site.floor=*", []),
    ],
)
async def test_filters(ada: Client, services: Services, filter_: str, dids: list[str]) -> None:
    properties = services.device_management.properties
    kitchen, hall, bobs = [await services.devices.registry.find(one) for one in (KITCHEN, HALL, BOBS)]
    await properties.merge(kitchen, {"site": {"floor": "3", "room": 7, "on": True}})
    await properties.merge(hall, {"site": {"floor": "13", "room": 8}})
    await properties.report(bobs, [Reading(None, {(3, 0, 0): "Acme", (3, 0, 9): 50})])
    with services.routing.connections.connect(
        hall, protocol="MQTT", token=b"", exclusive=False, deliver=lambda _: True, close=lambda _: None
    ):
        found = await ada("GET", "/devicemgmt/devices/properties", params={"dtid": LIGHT_TYPE, "filter": filter_})
    assert [one["systemProperties"]["did"] for one in found["data"]["properties"]] == dids
    assert (found["total"], found["data"]["total"], found["count"]) == (len(dids), len(dids), len(dids))


async def test_a_filter_without_a_known_beginning_is_refused(ada: Client) -> None:
    for filter_ in ("did=x", "serverProperties", "serverProperties.a", "serverProperties.=1", "x.y=1"):
        answer = await ada("GET", "/devicemgmt/devices/properties", 400, params={"dtid": LIGHT_TYPE, "filter": filter_})
        assert answer["error"]["errors"][0][0]["field"] == "filter"


async def test_the_configuration_has_defaults_and_bounds(ada: Client) -> None:
    defaults = (await ada("GET", TYPE))["data"]
    assert defaults == {
        "dtid": LIGHT_TYPE,
        "devicePropertiesEnabled": False,
        "pmin": 300,
        "pmax": 21600,
        "taskExpiresAfter": 604800,
        "createdOn": 1,
        "modifiedOn": 1,
    }
    changed = (await ada("PUT", TYPE, json={"devicePropertiesEnabled": True, "pmin": 3600}))["data"]
    assert (changed["devicePropertiesEnabled"], changed["pmin"], changed["pmax"]) == (True, 3600, 21600)
    for wrong in ({"pmin": 59}, {"pmin": 3601}, {"pmax": 3599}, {"pmax": 86401}, {"taskExpiresAfter": 59}):
        assert (await ada("PUT", TYPE, 400, json=wrong))["error"]["code"] == 4001
    assert (await ada("GET", TYPE))["data"] == changed


async def test_the_management_manifest_has_the_object_map(ada: Client) -> None:
    fields = (await ada("GET", f"{TYPE}/manifest/properties"))["data"]["properties"]["fields"]
    assert fields["deviceProperties"]["device"]["utcOffset"] == {
        "type": "String",
        "isCollection": False,
        "description": "",
        "metadata": {"operations": "RW"},
    }
    assert fields["systemProperties"]["connection"]["connected"]["type"] == "Boolean"
    assert fields["deviceProperties"]["device"]["batteryLevel"]["metadata"] == {"operations": "R", "unit": "/100"}


@each_row("asked", ["nothing,humidity", "object3304", "3304,", "*"])
async def test_the_management_manifest_has_objects_of_the_registry_when_it_is_asked(ada: Client, asked: str) -> None:
    path = f"{TYPE}/manifest/properties"
    usual = (await ada("GET", path))["data"]["properties"]["fields"]["deviceProperties"]
    named = (await ada("GET", f"{path}?objects={asked}"))["data"]["properties"]["fields"]["deviceProperties"]
    assert ("humidity" in usual, "humidity" in named) == (False, True)
    assert (len(named) == len(usual) + 1) is (asked != "*")
    assert named["humidity"]["sensorValue"]["metadata"]["operations"] == "R"


# Tasks


async def test_a_type_has_a_bounded_number_of_tasks_that_have_not_ended(
    ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.device_management.tasks.TASKS_OPEN_MAX", 1)
    later: dict[str, Any] = {"dids": [KITCHEN], "scheduledOn": NOW_MS + 86_400_000}
    task = await ada.task("serverProperties.site", **later)
    body = {"dtid": LIGHT_TYPE, "taskType": "R", "property": "serverProperties.site", **later}
    await ada("POST", "/devicemgmt/tasks", 409, json=body)
    await ada("PUT", f"/devicemgmt/tasks/{task['id']}", json={"status": "CANCELLED"})
    await ada("POST", "/devicemgmt/tasks", 200, json=body)


@pytest.mark.both_engines
async def test_a_task_as_it_is_created_and_as_it_ends(ada: Client) -> None:
    task = await ada.task("serverProperties.site", "write", dids=[KITCHEN], taskParameters={"value": 7})
    assert task == {
        "id": task["id"],
        "dtid": LIGHT_TYPE,
        "dids": [KITCHEN],
        "filter": None,
        "taskType": "write",
        "property": "serverProperties.site",
        "taskParameters": {"value": "7", "expiresAfter": 604800},
        "status": "REQUESTED",
        "createdOn": NOW_MS,
        "modifiedOn": NOW_MS,
        "needsAcceptance": False,
        "statusCounts": {
            "totalDevices": 0,
            "numCompleted": 0,
            "numSucceeded": 0,
            "numFailed": 0,
            "numCancelled": 0,
        },
    }
    done = await ada.task_in("COMPLETE", task["id"])
    assert done["statusCounts"]["numSucceeded"] == done["statusCounts"]["totalDevices"] == 1
    listed = await ada("GET", f"/devicemgmt/tasks?dtid={LIGHT_TYPE}&status=complete")
    assert (listed["total"], listed["offset"], listed["count"]) == (1, 0, 1)
    assert listed["statusCounts"] == listed["data"]["statusCounts"]
    assert listed["statusCounts"] == {
        "SCHEDULED": 0,
        "REQUESTED": 0,
        "QUEUING": 0,
        "PROCESSING": 0,
        "COMPLETE": 1,
        "CANCELLED": 0,
    }
    statuses = await ada("GET", f"/devicemgmt/tasks/{task['id']}/statuses?status=succeeded")
    assert statuses["data"]["statuses"] == [
        {"did": KITCHEN, "status": "SUCCEEDED", "ts": NOW_MS, "numAttempts": 0, "acceptanceStatus": "NOT_REQUIRED"}
    ]
    history = (await ada("GET", f"/devicemgmt/tasks/{task['id']}/statuses/history?did={KITCHEN}"))["data"]
    assert [one["status"] for one in history["history"]] == ["REQUESTED", "QUEUED", "PROCESSING", "SUCCEEDED"]
    error_of_conflict = await ada("PUT", f"/devicemgmt/tasks/{task['id']}", 409, json={"status": "CANCELLED"})
    assert error_of_conflict["error"]["message"] == "Task has ended"


async def test_a_scheduled_task_is_shown_and_cancelled(ada: Client) -> None:
    at = NOW_MS + 60_000
    for body in ({"scheduledOn": at}, {"taskParameters": {"scheduledOn": at}}):
        task = await ada.task("serverProperties.site", **body)
        assert (task["status"], task["scheduledOn"]) == ("SCHEDULED", at)
    cancelled = await ada("PUT", f"/devicemgmt/tasks/{task['id']}", json={"status": "cancelled"})
    assert cancelled["data"]["status"] == "CANCELLED"


@each_row(
    ("body", "field"),
    [
        ({"taskType": "X"}, "taskType"),
        ({"dids": [KITCHEN], "filter": "serverProperties.a=1"}, "filter"),
        ({"filter": "a=1"}, "filter"),
        ({"taskParameters": {"expiresAfter": 0}}, "taskParameters.expiresAfter"),
        ({"taskParameters": {"expiresAfter": 604801}}, "taskParameters.expiresAfter"),
        ({"taskParameters": {"value": {}}}, "taskParameters.value"),
        ({"taskParameters": []}, "taskParameters"),
        ({"taskParameters": {"expiresAfter": "soon"}}, "taskParameters.expiresAfter"),
        ({"scheduledOn": NOW_MS}, "scheduledOn"),
        ({"property": "deviceProperties.device.manufacturer"}, "property"),
        ({"property": ""}, "property"),
        ({"property": "akc.update"}, "taskParameters.update.updateId"),
    ],
)
async def test_what_is_wrong_with_a_task_is_named(ada: Client, body: dict[str, Any], field: str) -> None:
    sent = {"dtid": LIGHT_TYPE, "taskType": "R", "property": "serverProperties.site"} | body
    answer = await ada("POST", "/devicemgmt/tasks", 400, json=sent)
    assert [one["field"] for one in answer["error"]["errors"][0]] == [field]


@each_row("value", ["1e400", "[1e999]", "9" * 5_000, "9223372036854775808"])
async def test_a_value_that_is_no_number_of_64_bits_or_a_double_is_refused(ada: Client, value: str) -> None:
    sent = {"dtid": LIGHT_TYPE, "taskType": "W", "property": "serverProperties.site", "taskParameters": {"value": 0}}
    content = msgspec.json.encode(sent).replace(b":0}", b":" + value.encode() + b"}")
    answer = await ada("POST", "/devicemgmt/tasks", 400, content=content)
    field = "taskParameters.value.0" if value.startswith("[") else "taskParameters.value"
    assert answer["error"]["code"] == 4001
    assert answer["error"]["errors"] == [[{"field": field, "messages": [INVALID]}]]


async def test_images_of_an_organization_are_bounded(ada: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await ada("POST", f"{IMAGES}?version=1", content=IMAGE)
    monkeypatch.setattr(images, "IMAGE_BYTES_OF_ORGANIZATION", 2 * len(IMAGE) - 1)
    answer = await ada("POST", f"{IMAGES}?version=2", 409, content=IMAGE)
    assert answer["error"]["message"] == images.TOO_MANY_OF_ORGANIZATION
    monkeypatch.setattr(images, "IMAGES_OF_ORGANIZATION", 1)
    await ada("POST", f"{IMAGES}?version=2", 409, content=b"x")


async def test_an_image_leaves_the_reserve_on_the_disk(
    ada: Client, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "room_in", lambda _folder: 1024)
    await ada("POST", f"{IMAGES}?version=1", 503, content=IMAGE)
    await services.core.files.sweep()
    assert await stored_files(services) == {}


async def test_the_protocol_of_an_update_has_a_listener(ada: Client, services: Services) -> None:
    image = (await ada("POST", f"{IMAGES}?version=2.0", content=IMAGE))["data"]
    body = {"dtid": LIGHT_TYPE, "taskType": "W", "property": "akc.update", "dids": [KITCHEN]}

    def update(protocol: str) -> dict[str, Any]:
        return body | {"taskParameters": {"update": {"updateId": image["updateId"], "protocol": protocol}}}

    for protocol in ("coap", "coaps", "ftp", ""):
        refused = await ada("POST", "/devicemgmt/tasks", 400, json=update(protocol))
        assert "taskParameters.update.protocol" in str(refused["error"])
    services.core.site.listens_on({**services.core.site.addresses, "coaps": Address("::1", 5684)})
    made = (await ada("POST", "/devicemgmt/tasks", json=update("coaps")))["data"]
    assert made["taskParameters"]["update"] == {"updateId": image["updateId"], "protocol": "coaps"}
    assert (await ada("GET", f"/devicemgmt/tasks/{made['id']}"))["data"]["taskParameters"] == made["taskParameters"]
    await ada("POST", "/devicemgmt/tasks", json=update("https"))
    wrong = {"property": "serverProperties.x", "taskParameters": {"value": "1", "update": {"protocol": "coap"}}}
    await ada("POST", "/devicemgmt/tasks", 400, json=body | wrong)


async def test_unknown_things_in_a_task_are_404(ada: Client) -> None:
    body = {"dtid": LIGHT_TYPE, "taskType": "R", "property": "serverProperties.site"}
    await ada("POST", "/devicemgmt/tasks", 404, json=body | {"dtid": "dt" + "0" * 32})
    await ada("POST", "/devicemgmt/tasks", 404, json=body | {"dids": ["0" * 32]})
    update = {"property": "akc.update", "taskParameters": {"update": {"updateId": "0" * 32}}}
    await ada("POST", "/devicemgmt/tasks", 404, json=body | update)


async def test_cancelling_on_one_device_answers_flat_and_under_data(ada: Client, services: Services) -> None:
    await services.device_management.properties.note_registration((await services.devices.registry.find(KITCHEN)).key)
    await ada("PUT", TYPE, json={"devicePropertiesEnabled": True})
    task = await ada.task("deviceProperties.device.manufacturer", dids=[BOBS, KITCHEN])
    await ada.task_in("PROCESSING", task["id"])
    path = f"/devicemgmt/tasks/{task['id']}/devices/{KITCHEN}"
    cancelled = await ada("PUT", path, json={"status": "CANCELLED"})
    entry = {"did": KITCHEN, "status": "CANCELLED", "ts": NOW_MS, "numAttempts": 0}
    assert cancelled == {"data": entry, **entry}
    await ada("PUT", path, 409, json={"status": "CANCELLED"})
    await ada("PUT", f"/devicemgmt/tasks/{task['id']}/devices/{HALL}", 404, json={"status": "CANCELLED"})
    listed = (await ada("GET", f"/devicemgmt/devices/{KITCHEN}/tasks?status=cancelled"))["data"]["tasks"]
    assert [(one["id"], one["dids"], one["status"]) for one in listed] == [(task["id"], [KITCHEN], "CANCELLED")]


# Firmware


@pytest.fixture
async def update(ada: Client, services: Services) -> tuple[dict[str, Any], FakeSession]:
    """An update of the kitchen's light, which has the address of the image."""
    image = (await ada("POST", f"{IMAGES}?version=2.0", content=IMAGE))["data"]
    session = FakeSession(await services.devices.registry.find(KITCHEN))
    await register(services, session)
    parameters = {"update": {"updateId": image["updateId"]}}
    task = await ada.task("akc.update", "W", dids=[KITCHEN], taskParameters=parameters)
    await until(lambda: any(done.startswith("W /5/0/1") for done in session.done))
    return task, session


def address_of(session: FakeSession) -> str:
    written: ResourceValue = session.values[(5, 0, 1)]
    assert isinstance(written, str)
    return "/updates" + written.split("/updates", 1)[1]


async def test_an_image_is_uploaded_listed_and_deleted(ada: Client, services: Services, fake_clock: FakeClock) -> None:
    image = (await ada("POST", f"{IMAGES}?version=2.0&type=Modem", content=IMAGE))["data"]
    assert image == {
        "updateId": image["updateId"],
        "dtid": LIGHT_TYPE,
        "version": "2.0",
        "type": "Modem",
        "size": len(IMAGE),
        "sha256": hashlib.sha256(IMAGE).hexdigest(),
        "createdOn": NOW_MS,
    }
    listed = await ada("GET", IMAGES)
    assert (listed["data"]["images"], listed["total"]) == ([image], 1)
    assert await stored_files(services) == {f"images/{image['updateId']}": IMAGE}
    assert await ada("DELETE", f"{IMAGES}/{image['updateId']}") == {"data": image}
    fake_clock.advance(3_600_000)
    await services.core.files.sweep()
    assert await stored_files(services) == {}
    await ada("DELETE", f"{IMAGES}/{image['updateId']}", 404)


@each_row(
    ("query", "content", "status"),
    [
        ("", b"x", 400),
        ("?version=1", b"", 400),
        ("?version=" + "1" * 65, b"x", 400),
        ("?version=1&sha256=" + "0" * 64, b"x", 400),
        ("?version=1", bytes(2 * 1024 * 1024 + 1), 413),
        ("?version=1", bytes(2 * 1024 * 1024), 200),
    ],
)
async def test_uploads_are_checked_and_leave_no_file(
    ada: Client, services: Services, query: str, content: bytes, status: int
) -> None:
    await ada("POST", IMAGES + query, status, content=content)
    await services.core.files.sweep()
    assert len(await stored_files(services)) == (status == 200)


async def test_an_upload_without_a_length_ends_at_the_limit(ada: Client, services: Services) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield bytes(64 * 1024)

    await ada("POST", f"{IMAGES}?version=1", 413, content=endless())
    await services.core.files.sweep()
    assert await stored_files(services) == {}


async def test_other_bodies_keep_their_limit(ada: Client) -> None:
    await ada("POST", "/devicemgmt/tasks", 413, content=b" " * (1024 * 1024 + 1))


async def test_a_device_fetches_its_image_without_a_token(
    api: httpx.AsyncClient, ada: Client, update: tuple[dict[str, Any], FakeSession]
) -> None:
    task, session = update
    answer = await api.get(address_of(session))
    assert (answer.status_code, answer.content) == (200, IMAGE)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Length"] == str(len(IMAGE))
    (entry,) = (await ada("GET", f"/devicemgmt/tasks/{task['id']}/statuses"))["data"]["statuses"]
    assert (entry["status"], entry["progress"]) == ("PROCESSING", 100)
    head = await api.head(address_of(session))
    assert (head.status_code, head.headers["Content-Length"], head.content) == (200, str(len(IMAGE)), b"")
    error_of(await api.get("/updates/urls/000000000"), 404)


def _succeed(entry: int, tx: Transaction) -> None:
    assert move(tx, entry, DeviceTaskStatus.SUCCEEDED, NOW_MS)


async def test_the_counts_of_a_task_are_of_the_moment_of_its_statuses(
    ada: Client, services: Services, update: tuple[dict[str, Any], FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries and counts were read one after the other: PROCESSING next to a count of ended ones."""
    task, _ = update
    explain = services.device_management.waiting.explain

    async def ends_meanwhile(_: object, record: TaskRecord, entries: list[DeviceTaskRecord]) -> list[TaskWait]:
        explained = await explain(record, entries)
        for entry in entries:
            await services.core.database.write(partial(_succeed, entry.key))
        return explained

    monkeypatch.setattr(type(services.device_management.waiting), "explain", ends_meanwhile)
    shown = (await ada("GET", f"/devicemgmt/tasks/{task['id']}/statuses"))["data"]
    assert [one["status"] for one in shown["statuses"]] == ["PROCESSING"]
    assert (shown["status"], shown["statusCounts"]["numCompleted"]) == ("PROCESSING", 0)


@each_row(
    ("wanted", "status", "part"),
    [
        ("bytes=0-0", 206, IMAGE[:1]),
        ("bytes=100-199", 206, IMAGE[100:200]),
        ("bytes=255999-", 206, IMAGE[-1:]),
        ("bytes=255990-999999", 206, IMAGE[-10:]),
        ("bytes=-10", 206, IMAGE[-10:]),
        ("bytes=-999999", 200, IMAGE),
        ("bytes=0-", 200, IMAGE),
        ("bytes=256000-", 416, b""),
        ("bytes=-0", 416, b""),
        ("bytes=5-1", 200, IMAGE),
        ("bytes=0-1,5-6", 200, IMAGE),
        ("lines=0-1", 200, IMAGE),
        ("bytes=x", 200, IMAGE),
    ],
)
async def test_ranges(
    api: httpx.AsyncClient, update: tuple[dict[str, Any], FakeSession], wanted: str, status: int, part: bytes
) -> None:
    answer = await api.get(address_of(update[1]), headers={"Range": wanted})
    assert (answer.status_code, answer.content) == (status, part)
    if status == 206:
        first = IMAGE.index(part) if len(part) == 100 else {b"\x00": 0}.get(part, len(IMAGE) - len(part))
        assert answer.headers["Content-Range"] == f"bytes {first}-{first + len(part) - 1}/{len(IMAGE)}"
    elif status == 416:
        assert answer.headers["Content-Range"] == f"bytes */{len(IMAGE)}"


async def test_a_download_resumes_where_it_broke_off_unless_the_image_is_another(
    api: httpx.AsyncClient, update: tuple[dict[str, Any], FakeSession]
) -> None:
    address = address_of(update[1])
    etag = (await api.get(address)).headers["ETag"]
    resumed = await api.get(address, headers={"Range": "bytes=1000-", "If-Range": etag})
    assert (resumed.status_code, resumed.content) == (206, IMAGE[1000:])
    other = await api.get(address, headers={"Range": "bytes=1000-", "If-Range": '"other"'})
    assert (other.status_code, other.content) == (200, IMAGE)


async def test_an_interrupted_download_fetches_at_most_one_block_again(
    api: httpx.AsyncClient, services: Services, update: tuple[dict[str, Any], FakeSession]
) -> None:
    """A device that keeps whole blocks: one breaks off, and the device registers again and goes on."""
    _, session = update
    address, block = address_of(session), 4096
    etag = (await api.head(address)).headers["ETag"]
    kept, fetched, breaks_off_at = b"", 0, 10 * block
    while len(kept) < len(IMAGE):
        wanted = f"bytes={len(kept)}-{len(kept) + block - 1}"
        part = (await api.get(address, headers={"Range": wanted, "If-Range": etag})).content
        fetched += len(part)
        if len(kept) == breaks_off_at:
            breaks_off_at = -1
            session.is_over = True
            services.device_management.registrations.ended(session)
            session = FakeSession(session.device, {STATE: 1})
            await register(services, session)
            await until(partial(session.done.__contains__, "R /5/0/5"))
        else:
            kept += part
    assert kept == IMAGE
    assert fetched == len(IMAGE) + block
    assert not any(done.startswith("W") for done in session.done), "the address is not given again"


async def test_the_address_is_gone_a_day_after_the_end(
    api: httpx.AsyncClient,
    ada: Client,
    services: Services,
    update: tuple[dict[str, Any], FakeSession],
    fake_clock: FakeClock,
) -> None:
    task, session = update
    values: dict[ResourcePath, ResourceValue] = {STATE: 0, RESULT: 5}
    session.values |= values
    await services.device_management.registrations.receive_values(session.device, [Reading(None, values)])
    await ada.task_in("COMPLETE", task["id"])
    fake_clock.advance(DOWNLOAD_KEPT_HOURS * 3_600_000 - 1)
    assert (await api.get(address_of(session))).status_code == 200
    fake_clock.advance(1)
    error_of(await api.get(address_of(session)), 404)


async def test_how_much_was_fetched_survives_a_flush(
    api: httpx.AsyncClient, services: Services, update: tuple[dict[str, Any], FakeSession]
) -> None:
    await api.get(address_of(update[1]), headers={"Range": "bytes=0-25599"})
    await services.device_management.downloads.flush()

    def fetched(tx: Transaction) -> int:
        entry = tx.tasks.entry_of_download(address_of(update[1]).rsplit("/", 1)[1])
        return -1 if entry is None else entry.fetched

    assert await services.core.database.read(fetched) == 25_600


async def test_the_owner_accepts_an_update(ada: Client, api: httpx.AsyncClient, services: Services) -> None:
    image = (await ada("POST", f"{IMAGES}?version=2.0", content=IMAGE))["data"]
    session = FakeSession(await services.devices.registry.find(BOBS))
    await register(services, session)
    parameters = {"update": {"updateId": image["updateId"], "rollout": {"devicesPerMinute": 5}}}
    task = await ada.task("akc.update", "W", dids=[BOBS], taskParameters=parameters, needsAcceptance=True)
    assert task["taskParameters"] == {"expiresAfter": 604800, **parameters}
    await ada.task_in("PROCESSING", task["id"])
    bob, path = Client(api, BOB_TOKEN), f"/devicemgmt/tasks/{task['id']}/devices/{BOBS}/acceptance"
    assert await bob("GET", f"/devicemgmt/devices/{BOBS}/pendingtasks") == {"data": [task["id"]]}
    await ada("POST", path, 403, json={"acceptanceStatus": "ACCEPTED"})
    await bob("POST", path, 400, json={"acceptanceStatus": "WAITING"})
    assert await bob("POST", path, json={"acceptanceStatus": "accepted"}) == {"acceptanceStatus": "ACCEPTED"}
    await bob("POST", path, 409, json={"acceptanceStatus": "REJECTED"})
    await until(lambda: any(done.startswith("W /5/0/1") for done in session.done))
