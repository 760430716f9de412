"""/devices/{did}/wanted: a value waits until a stored message reports it (reference 9.10)."""

from typing import Any, Final

import httpx
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.devices.inventory import DeviceChanges
from broker.errors import DestinationDeviceDisabled
from broker.facts import DeviceWanted
from broker.services import Services
from config.limits import WANTED_FIELDS_MAX
from storage.records import GrantRecord
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB_TOKEN,
    BOBS_TOKEN,
    HALL,
    KITCHEN,
    KITCHEN_TOKEN,
    LIGHT_TYPE,
    NOW_MS,
    World,
    allow,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_device_shares import SHARES, accept
from tests.protocols.http.test_devices import give_type_away
from tests.rows import each_row

pytestmark = pytest.mark.slow


FIELDS: Final[list[dict[str, Any]]] = [
    {"name": "intensity", "valueClass": "Integer", "settable": True},
    {"name": "target", "valueClass": "Double", "settable": True, "tolerance": 0.5},
    {"name": "state", "valueClass": "Boolean", "settable": True},
    {"name": "list", "valueClass": "Integer", "isCollection": True, "settable": True},
    {"name": "fan", "children": [{"name": "speed", "valueClass": "Long", "settable": True}]},
    {"name": "label", "valueClass": "String", "settable": True},
    {"name": "battery", "valueClass": "Integer"},
]


NESTED: Final[dict[str, Any]] = {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}


@pytest.fixture
async def api(services: Services, api: httpx.AsyncClient) -> httpx.AsyncClient:
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": FIELDS}, approve=True)
    await wait_all_tasks_blocked()
    return api


@pytest.fixture
def told(services: Services) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    services.core.router.subscribe(DeviceWanted, lambda fact: found.append((fact.change, fact.fields)))
    return found


async def want(api: httpx.AsyncClient, data: object, *, token: str = ADA_TOKEN, **more: object) -> httpx.Response:
    return await api.put(f"/devices/{KITCHEN}/wanted", headers=bearer(token), json={"data": data, **more})


async def wanted(api: httpx.AsyncClient, token: str = ADA_TOKEN) -> dict[str, Any]:
    answer = await api.get(f"/devices/{KITCHEN}/wanted", headers=bearer(token))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["data"]
    return found


async def report(api: httpx.AsyncClient, data: object, **more: object) -> dict[str, Any]:
    answer = await api.post("/messages", headers=bearer(KITCHEN_TOKEN), json={"data": data, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def states(api: httpx.AsyncClient) -> dict[str, str]:
    return {path: one["state"] for path, one in (await wanted(api))["fields"].items()}


async def test_a_value_waits_until_a_message_reports_it(
    api: httpx.AsyncClient, told: list[tuple[str, str]], fake_clock: FakeClock
) -> None:
    await report(api, {"intensity": 80})
    answer = await want(api, {"intensity": "40", "fan": {"speed": 2}}, expiresAfter=86_400)
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"]["data"] == {"fan": {"speed": 2}, "intensity": 40}
    shown = (await wanted(api))["fields"]["intensity"]
    assert shown.pop("message").startswith("The device has not been given it yet. It reports 80. It is wanted until")
    assert shown == {
        "wanted": 40,
        "since": NOW_MS,
        "by": f"user {ADA}",
        "expiresOn": NOW_MS + 86_400_000,
        "reported": 80,
        "reportedTs": NOW_MS,
        "state": "waiting",
    }
    assert (await wanted(api, KITCHEN_TOKEN))["data"] == {"fan": {"speed": 2}, "intensity": 40}
    await wait_all_tasks_blocked()
    assert await states(api) == {"fan.speed": "sent", "intensity": "sent"}
    fake_clock.advance(1_000)
    await report(api, {"intensity": 41})
    await report(api, {"intensity": 40, "fan": {"speed": 3}})
    now = await wanted(api)
    assert now["data"] == {"fan": {"speed": 2}}
    assert (now["fields"]["intensity"]["state"], now["fields"]["intensity"]["message"]) == (
        "reached",
        "The device has reported 40.",
    )
    await report(api, {"intensity": 90})
    await wait_all_tasks_blocked()
    assert (await states(api))["intensity"] == "reached", "it was reached, whatever is reported later"
    assert told == [("changed", "fan.speed,intensity"), ("reached", "intensity")]


async def test_a_number_within_the_tolerance_is_the_wanted_one(api: httpx.AsyncClient) -> None:
    await want(api, {"target": 21, "label": "a", "list": [1, 2], "state": True})
    await report(api, {"target": 21.6, "label": "A", "list": [2, 1], "state": False})
    assert set((await states(api)).values()) == {"waiting"}
    await report(api, {"target": 20.5, "label": "a", "list": [1, 2], "state": True})
    assert set((await states(api)).values()) == {"reached"}


async def test_what_was_reported_last_is_reached_at_once(api: httpx.AsyncClient, told: list[tuple[str, str]]) -> None:
    await report(api, {"intensity": 40})
    answer = await want(api, {"intensity": 40})
    assert answer.json()["data"]["fields"]["intensity"]["state"] == "reached"
    assert answer.json()["data"]["data"] == {}
    assert told == [("changed", "intensity"), ("reached", "intensity")]


async def test_what_the_device_kept_from_before_does_not_count(api: httpx.AsyncClient) -> None:
    await report(api, {"intensity": 80})
    await want(api, {"intensity": 40})
    await report(api, {"intensity": 40}, ts=NOW_MS - 3_600_000)
    assert await states(api) == {"intensity": "waiting"}
    await report(api, {"intensity": 40}, ts=NOW_MS - 30_000)
    assert await states(api) == {"intensity": "reached"}


async def test_a_value_expires_by_the_clock_of_the_daemon(
    api: httpx.AsyncClient, told: list[tuple[str, str]], fake_clock: FakeClock, services: Services
) -> None:
    await want(api, {"intensity": 40, "state": True}, expiresAfter=60)
    await want(api, {"state": True}, expiresAfter=3_600)
    fake_clock.advance(60_000)
    await services.wanted.step()
    assert await states(api) == {"intensity": "expired", "state": "waiting"}
    assert (await wanted(api))["data"] == {"state": True}
    assert told[1:] == [("expired", "intensity")]
    await report(api, {"intensity": 40})
    assert (await states(api))["intensity"] == "expired"


async def test_null_withdraws_one_and_delete_all(api: httpx.AsyncClient, told: list[tuple[str, str]]) -> None:
    await want(api, {"intensity": 40, "state": True, "fan": {"speed": 1}})
    answer = await want(api, {"fan": {"speed": None}, "intensity": None})
    assert answer.json()["data"]["data"] == {"state": True}
    answer = await api.delete(f"/devices/{KITCHEN}/wanted", headers=bearer(ADA_TOKEN))
    assert answer.json()["data"] == {"did": KITCHEN, "data": {}, "fields": {}}
    assert [fields for _, fields in told] == ["fan.speed,intensity,state", "fan.speed,intensity", "state"]


@each_row(
    ("data", "field", "reason"),
    [
        (7, "data", "Invalid value: must be an object"),
        ({}, "data", "Invalid value: names no field"),
        ({"intensity": 1.5e10}, "data.intensity", "Invalid value: must be Integer"),
        ({"intensity": "bright"}, "data.intensity", "Invalid value: must be Integer"),
        ({"intensity": [1]}, "data.intensity", "Invalid value: must be Integer"),
        ({"list": 1}, "data.list", "Invalid value: must be a list of Integer"),
        ({"list": [1, "x"]}, "data.list", "Invalid value: must be a list of Integer"),
        ({"battery": 1}, "data.battery", "Invalid value: the field is not settable by its Manifest"),
        ({"fan": 1}, "data.fan", "Invalid value: is no field of the Manifest"),
        ({"fan": {}}, "data.fan", "Invalid value: is no field of the Manifest"),
        ({"fan": {"x": 1}}, "data.fan.x", "Invalid value: is no field of the Manifest"),
        (
            {"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}},
            "data.a.b.c.d.e.f",
            "Invalid value: is no field of the Manifest",
        ),
        ({"label": "x" * 1_100}, "data", "Maximum length 1024"),
        ({f"f{number}": 1 for number in range(10_000)}, "data", f"Maximum length {WANTED_FIELDS_MAX}"),
    ],
)
async def test_what_the_manifest_refuses_is_not_wanted(
    api: httpx.AsyncClient, data: object, field: str, reason: str
) -> None:
    """And nothing of the rest is, either."""
    body = {"state": True, **data} if isinstance(data, dict) and data else data
    answer = await want(api, body)
    finding = answer.json()["error"]["errors"][0][0]
    assert (answer.status_code, finding["field"], finding["messages"]) == (400, field, [reason])
    assert await states(api) == {}


async def test_it_is_refused_like_an_action(api: httpx.AsyncClient, services: Services) -> None:
    assert (await want(api, {"intensity": 1}, token=BOBS_TOKEN)).status_code == 403
    for wrong in (0, 366 * 86_400 + 1, "soon"):
        assert (await want(api, {"intensity": 1}, expiresAfter=wrong)).status_code == 400
    device = await services.devices.registry.find(KITCHEN)
    await services.devices.inventory.change(device, DeviceChanges(enabled=False))
    answer = await want(api, {"intensity": 1})
    assert (answer.status_code, answer.json()["error"]["message"]) == (403, str(DestinationDeviceDisabled()))


async def test_a_deleted_device_and_another_owner_drop_it(api: httpx.AsyncClient, services: Services) -> None:
    await want(api, {"intensity": 40})
    hall = await api.put(f"/devices/{HALL}/wanted", headers=bearer(ADA_TOKEN), json={"data": {"intensity": 1}})
    assert hall.status_code == 200
    device = await services.devices.registry.find(KITCHEN)
    await services.devices.inventory.delete(device)
    assert services.wanted.document(device.key) is None
    assert await services.core.database.read(lambda tx: tx.wanted.of_device(device.key)) == []
    other = await services.devices.registry.find(HALL)
    assert services.wanted.document(other.key) == b'{"data":{"intensity":1}}'


async def test_who_may_write_only_reads_nothing(api: httpx.AsyncClient, services: Services, world: World) -> None:
    """Neither what the device has reported nor what others want of it."""
    await services.core.database.write(give_type_away)
    await services.device_types.catalog.reload()
    await allow(services, GrantRecord(world.ada, world.application, world.light_type, read=False, write=True))
    token = APPLICATION_TOKEN
    await report(api, {"intensity": 80, "target": 21.2, "label": "secret"})
    answer = await api.put(
        f"/devices/{KITCHEN}/wanted", headers=bearer(KITCHEN_TOKEN), json={"data": {"label": "hidden"}}
    )
    assert answer.status_code == 200
    answer = await want(api, {"intensity": 40, "target": 21}, token=token)
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"]["data"] == {"intensity": 40}
    fields = answer.json()["data"]["fields"]
    assert {path: one["message"].partition(" It is wanted")[0] for path, one in fields.items()} == {
        "intensity": "The device has not been given it yet.",
        "target": "The device has reported it.",
    }
    assert not any("reported" in one or "reportedTs" in one for one in fields.values())
    before = services.messages.ingest.statistics().messages
    body = {"sdid": KITCHEN, "data": {"state": True}}
    answer = await api.post("/messages?wanted", headers=bearer(token), json=body)
    assert (answer.status_code, "hidden" in answer.text) == (403, False)
    assert services.messages.ingest.statistics().messages == before, "nothing of it is stored"
    assert (await api.post("/messages", headers=bearer(token), json=body)).status_code == 200


async def test_only_the_device_is_given_it_with_a_message(api: httpx.AsyncClient) -> None:
    """Somebody else who sends for the device is shown it, as with GET."""
    await want(api, {"intensity": 40})
    body = {"sdid": KITCHEN, "data": {"state": True}}
    for token, state in ((ADA_TOKEN, "waiting"), (KITCHEN_TOKEN, "sent")):
        answer = await api.post("/messages?wanted", headers=bearer(token), json=body)
        assert answer.json()["wanted"] == {"intensity": 40}
        await wait_all_tasks_blocked()
        assert await states(api) == {"intensity": state}


async def test_a_permission_that_ends_meanwhile_is_none(
    api: httpx.AsyncClient, services: Services, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value waits for up to a year, long after whoever wanted it had a right to."""
    await services.core.database.write(give_type_away)
    await services.device_types.catalog.reload()
    await allow(services, GrantRecord(world.ada, world.application, world.light_type, read=True, write=True))
    before = type(services.wanted).before

    async def and_then(wanted_: Any, device: Any) -> Any:
        found = await before(wanted_, device)
        await allow(services, GrantRecord(world.ada, world.application, world.light_type, read=True, write=False))
        return found

    monkeypatch.setattr(type(services.wanted), "before", and_then)
    assert (await want(api, {"intensity": 40}, token=APPLICATION_TOKEN)).status_code == 403
    assert (await wanted(api, KITCHEN_TOKEN))["data"] == {}


async def test_the_end_of_a_share_withdraws_what_its_user_wanted(api: httpx.AsyncClient) -> None:
    """A lock that was away would open for a former guest."""
    share = await accept(api)
    assert (await want(api, {"intensity": 40}, token=BOB_TOKEN)).status_code == 200
    assert (await want(api, {"state": True})).status_code == 200
    assert (await wanted(api, KITCHEN_TOKEN))["data"] == {"intensity": 40, "state": True}
    assert (await api.delete(f"{SHARES}/{share}", headers=bearer(ADA_TOKEN))).status_code == 200
    assert (await wanted(api, KITCHEN_TOKEN))["data"] == {"state": True}
    assert "intensity" not in (await wanted(api))["fields"]
