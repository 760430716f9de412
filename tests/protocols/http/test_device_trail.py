"""/devices/…/failures, …/refusals, …/dropped and …/quota: what became of messages (reference 9.6)."""

from typing import Any

import httpx
import pytest
import trio
from msgspec.structs import replace

from broker.errors import BadRequest, Unauthorized
from broker.facts import Router
from broker.messages.refused import RefusedMessages
from broker.services import Services
from config.settings import Limits, Settings
from tests.broker.device_management.devices import FakeSession
from tests.factories import ADA_TOKEN, APPLICATION_TOKEN, BOB_TOKEN, HALL, KITCHEN, KITCHEN_TOKEN, World
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.protocols.http.test_device_shares import accept

FAILURES, REFUSALS, DROPPED, QUOTA = (
    f"/devices/{KITCHEN}/{what}" for what in ("failures", "refusals", "dropped", "quota")
)


async def send(api: httpx.AsyncClient, data: Any, token: str = KITCHEN_TOKEN, **more: Any) -> httpx.Response:
    return await api.post("/messages", headers=bearer(token), json={"sdid": KITCHEN, "data": data, **more})


async def shown(api: httpx.AsyncClient, path: str, token: str = ADA_TOKEN) -> Any:
    answer = await api.get(path, headers=bearer(token))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_failed_messages_are_listed_newest_first(api: httpx.AsyncClient, fake_clock: FakeClock) -> None:
    assert await shown(api, FAILURES) == {"data": {"failures": []}, "total": 0, "offset": 0, "count": 0}
    sent = []
    for number in range(3):
        fake_clock.advance(1)
        sent.append((await send(api, {"opne": number})).json()["data"]["mid"])
    await send(api, {"state": True})
    answer = await shown(api, f"{FAILURES}?count=2")
    assert (answer["total"], answer["count"]) == (3, 2)
    first, second = answer["data"]["failures"]
    assert first == {
        "mid": sent[2],
        "cts": fake_clock.now,
        "reason": "nothing remained after normalization",
        "payload": '{"opne":2}',
    }
    assert second["mid"] == sent[1]
    (last,) = (await shown(api, f"{FAILURES}?offset=2"))["data"]["failures"]
    assert last["mid"] == sent[0]
    assert (await shown(api, f"/devices/{HALL}/failures"))["total"] == 0


async def test_refused_messages_are_listed_with_who_sent_them(api: httpx.AsyncClient, fake_clock: FakeClock) -> None:
    future = fake_clock.now + 10**9
    assert (await send(api, {"state": True}, ts=future)).status_code == 400
    fake_clock.advance(5)
    assert (await send(api, {"text": "x" * 2000}, token=ADA_TOKEN)).status_code == 413
    newest, oldest = (await shown(api, REFUSALS))["data"]["refusals"]
    assert newest["code"] == 413
    assert "Max payload size limit" in newest["message"]
    assert newest["actor"].startswith("user ")
    assert newest["ts"] == oldest["ts"] + 5
    assert oldest | {"ts": 0} == {
        "ts": 0,
        "code": 400,
        "message": "Invalid ts value (in future)",
        "actor": f"device {KITCHEN}",
        "address": "127.0.0.1",
    }


async def test_bodies_that_cannot_be_read_are_listed(api: httpx.AsyncClient, fake_clock: FakeClock) -> None:
    headers = bearer(KITCHEN_TOKEN)
    for number, (path, content) in enumerate(
        [
            ("/messages", b'{"data":'),
            ("/messages", b"[1]"),
            ("/messages", b'{"data":7}'),
            ("/messages", b'{"data":{"a":1}}' + b" " * 20_000),
            ("/actions", b"{"),
            ("/actions", b'{"data":{}}'),
        ]
    ):
        fake_clock.advance(1)
        answer = await api.post(path, headers=headers, content=content)
        found = (await shown(api, REFUSALS))["data"]["refusals"]
        assert len(found) == number + 1, content
        assert (found[0]["code"], found[0]["actor"]) == (answer.status_code, f"device {KITCHEN}")
    fake_clock.advance(1)
    user = await api.post("/messages", headers=bearer(ADA_TOKEN), json={"sdid": KITCHEN, "data": 7})
    assert user.status_code == 400
    assert (await shown(api, REFUSALS))["data"]["refusals"][0]["actor"].startswith("user ")


async def test_claims_are_bounded_and_displace_nothing_else(
    services: Services, world: World, fake_clock: FakeClock
) -> None:
    kitchen = await services.devices.registry.find(KITCHEN)
    refused = services.messages.ingest.refused
    refused.note(kitchen, BadRequest())
    for number in range(30):
        fake_clock.advance(1)
        refused.note_claim(kitchen, "MQTT: wrong credentials for this device", f"192.0.2.{number}")
    assert [one.address for one in refused.of(kitchen)] == [f"192.0.2.{29 - before}" for before in range(5)] + [""]
    for _ in range(1_000):  # nothing waits for them, however many come
        services.messages.claims.note(KITCHEN, "MQTT", Unauthorized())
        services.messages.claims.note("no id", "MQTT", Unauthorized())
    with trio.fail_after(20):
        while refused.of(kitchen)[0].address:
            await trio.lowlevel.checkpoint()
    assert len([one for one in refused.of(kitchen) if not one.actor and one.status == 401]) == 5


async def test_a_disabled_device_is_told_in_the_list(api: httpx.AsyncClient) -> None:
    await api.put(f"/devices/{KITCHEN}", headers=bearer(ADA_TOKEN), json={"connected": False})
    assert (await send(api, {"state": True})).status_code == 403
    action = {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
    assert (await api.post("/actions", headers=bearer(ADA_TOKEN), json=action)).status_code == 403
    messages = [one["message"] for one in (await shown(api, REFUSALS))["data"]["refusals"]]
    assert messages == ["Destination device is disconnected", "Source device is disconnected"]


async def test_failures_and_refusals_are_the_owners(api: httpx.AsyncClient, world: World) -> None:
    """A user with a share of the device sees how much is left, and no more."""
    await accept(api)
    for path, status in ((FAILURES, 403), (REFUSALS, 403), (DROPPED, 403), (QUOTA, 200)):
        assert (await api.get(path, headers=bearer(BOB_TOKEN))).status_code == status, path
        assert (await api.get(path, headers=bearer(APPLICATION_TOKEN))).status_code == 200
        error_of(await api.get(path, headers=bearer(KITCHEN_TOKEN)), 403)


async def test_fields_that_were_not_kept_are_listed_once_with_the_last_message(
    api: httpx.AsyncClient, fake_clock: FakeClock
) -> None:
    assert (await shown(api, DROPPED))["data"] == {"fields": []}
    await send(api, {"state": True, "opne": 1, "intensity": "bright"})
    fake_clock.advance(5)
    await send(api, {"state": True, "opne": 2})
    assert (await shown(api, DROPPED))["data"]["fields"] == [
        {"ts": fake_clock.now, "field": "opne", "message": "not in the Manifest"},
        {"ts": fake_clock.now - 5, "field": "intensity", "message": "is not an Integer"},
    ]


async def test_a_sender_that_does_not_ask_is_looked_at_once_in_ten_seconds(
    services: Services, world: World, fake_clock: FakeClock
) -> None:
    kitchen, ingest = await services.devices.registry.find(KITCHEN), services.messages.ingest
    found = []
    for field in ("first", "within", "later"):
        ingest.submit(kitchen, b'{"state":true,"%b":1}' % field.encode())
        found.append([one.field for one in ingest.lost_fields.of(kitchen)])
        fake_clock.advance(5_000)
    assert found == [["first"], ["first"], ["later", "first"]]
    fake_clock.now -= 86_400_000  # a clock that is set back
    ingest.submit(kitchen, b'{"state":true,"back":1}')
    assert ingest.lost_fields.of(kitchen)[0].field == "back"
    for number in range(30):
        fake_clock.advance(10_000)
        ingest.submit(kitchen, b'{"state":true,"f%d":1}' % number)
    assert [one.field for one in ingest.lost_fields.of(kitchen)] == [f"f{29 - before}" for before in range(20)]


async def test_only_the_last_of_each_device_are_kept(services: Services, world: World, fake_clock: FakeClock) -> None:
    kitchen = await services.devices.registry.find(KITCHEN)
    refused = RefusedMessages(fake_clock.clock, Router())
    for _ in range(100):
        fake_clock.advance(1)
        refused.note(kitchen, BadRequest())
        refused.note(kitchen, BadRequest())  # an error that passes several places is one refusal
    assert [one.at_ms for one in refused.of(kitchen)] == [fake_clock.now - before for before in range(20)]


async def test_without_quotas_there_is_no_number(api: httpx.AsyncClient) -> None:
    assert await shown(api, QUOTA) == {"data": {"organization": None, "device": None}}


class TestWithQuotas:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return replace(settings, limits=Limits(rate_limits="off"))

    async def test_the_quota_counts_messages(self, api: httpx.AsyncClient) -> None:
        await send(api, {"state": True})
        data = (await shown(api, QUOTA))["data"]
        assert data["device"] is None
        assert (data["organization"]["used"], data["organization"]["limit"]) == (1, 100_000)
        assert data["organization"]["since"] < data["organization"]["until"]


async def test_the_resources_of_lwm2m(api: httpx.AsyncClient, services: Services) -> None:
    """Reference 18.8: which fields are observed, why not, and what became of Actions."""
    path = f"/devices/{KITCHEN}/lwm2m"
    nothing = {"sentence": "", "fields": [], "actions": []}
    assert (await shown(api, path))["data"] == {"fields": [], "actions": [], "offers": nothing}
    document = {
        "fields": [
            {"name": "temperature", "valueClass": "Double", "lwm2m": "/3303/0/5700"},
            {"name": "humidity", "valueClass": "Double", "lwm2m": "/3304/0/5700"},
        ],
        "actions": [{"name": "setOn", "lwm2m": {"write": "/3311/0/5850", "value": True}}],
    }
    await services.device_types.manifests.upload("example.smart_light", document)
    away = "The device is not registered, or its properties are being read."
    assert [one["message"] for one in (await shown(api, path))["data"]["fields"]] == [away, away]
    session = FakeSession(await services.devices.registry.find(KITCHEN))
    session.unobserved[(3304, 0, 5700)] = "The device does not list /3304/0."
    session.refuses[(3311, 0, 5850)] = "4.05"
    await services.device_management.registrations.registered(session)
    body = {"ddid": KITCHEN, "data": {"actions": [{"name": "setOn"}]}}
    sent = await api.post("/actions", headers=bearer(ADA_TOKEN), json=body)
    with trio.fail_after(10):
        while (found := (await shown(api, path))["data"])["actions"][0]["state"] == "waiting":
            pass
    assert found["fields"] == [
        {"field": "temperature", "path": "/3303/0/5700", "state": "observed", "message": ""},
        {
            "field": "humidity",
            "path": "/3304/0/5700",
            "state": "notObserved",
            "message": "The device does not list /3304/0.",
        },
    ]
    (action,) = found["actions"]
    assert (action["mid"], action["name"], action["state"]) == (sent.json()["data"]["mid"], "setOn", "failed")
    assert action["message"] == "The device refused the operation on /3311/0/5850: 4.05."
    assert (await api.get(path, headers=bearer(BOB_TOKEN))).status_code == 403
