"""/rules and /users/{uid}/rules (reference 2.8, 12.1 to 12.4 and 12.9)."""

import json
import tomllib
from typing import Any

import httpx
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from config.limits import RULE_ACTIONS_MAX, RULE_CONDITIONS_MAX
from storage.records import GrantRecord
from tests.factories import (
    ADA,
    ADA_TOKEN,
    APPLICATION_TOKEN,
    BOB,
    BOB_TOKEN,
    BOBS,
    DASHBOARD,
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
from tests.tickets import at
from tests.wording import INVALID

pytestmark = pytest.mark.slow


WARM = {"sdid": KITCHEN, "field": "temperature", "operator": ">", "operand": {"value": 25}}
ON = {"ddid": HALL, "action": "setOn", "parameters": {}}
BODY = {"if": {"and": [WARM]}, "then": [ON]}


class Client:
    """Calls with one token."""

    def __init__(self, api: httpx.AsyncClient, token: str) -> None:
        self._api = api
        self._token = token

    async def raw(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self._api.request(method, path, headers=bearer(self._token), **more)

    async def __call__(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = await self.raw(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def rule(self, body: Any = BODY, status: int = 200, **more: Any) -> Any:
        answer = await self("POST", "/rules", status, json={"name": "Warm", "rule": body} | more)
        return answer.get("data") or answer["error"]


@pytest.fixture
def ada(api: httpx.AsyncClient) -> Client:
    return Client(api, ADA_TOKEN)


@pytest.fixture
def application(api: httpx.AsyncClient) -> Client:
    return Client(api, APPLICATION_TOKEN)


def findings(error: Any) -> dict[str, list[str]]:
    (group,) = error["errors"]
    return {one["field"]: one["messages"] for one in group}


async def says(services: Services, data: dict[str, Any], device: str = KITCHEN) -> str:
    ingest = services.messages.ingest
    position = ingest.submit(await services.devices.registry.find(device), json.dumps(data).encode())
    await ingest.wait_committed()
    await wait_all_tasks_blocked()
    return ingest.mid(at(position))


async def test_the_record(ada: Client) -> None:
    made = await ada.rule()
    assert made == {
        "uid": ADA,
        "id": made["id"],
        "aid": DASHBOARD,
        "scope": "thisApplication",
        "name": "Warm",
        "description": "",
        "languageVersion": 1,
        "rule": BODY,
        "enabled": True,
        "index": 0,
        "isTestable": True,
        "createdOn": NOW_MS,
        "modifiedOn": NOW_MS,
        "state": "running",
    }
    shown = (await ada("GET", f"/rules/{made['id']}"))["data"]
    assert shown.pop("waitsFor") == [
        "rule.if.and.0: temperature > 25 is not known: " + f"temperature of {KITCHEN} is not known"
    ]
    assert shown == made
    second = await ada.rule(scope="allApplications", description="Two")
    assert (second["index"], "aid" in second) == (1, False)


async def test_who_makes_a_rule_for_whom(ada: Client, application: Client, api: httpx.AsyncClient) -> None:
    assert findings(await application.rule(status=400)) == {"uid": ["Required parameter"]}
    assert (await application.rule(uid=ADA))["uid"] == ADA
    by_query = await application("POST", f"/rules?userId={ADA}", json={"name": "Warm", "rule": BODY})
    assert by_query["data"]["aid"] == DASHBOARD
    body_wins = await application("POST", f"/rules?userId={BOB}", json={"name": "Warm", "rule": BODY, "uid": ADA})
    assert body_wins["data"]["uid"] == ADA
    assert (await ada.rule(status=403, uid=BOB))["code"] == 403
    assert (await ada.rule(status=404, uid="f" * 32))["code"] == 1201
    assert (await Client(api, KITCHEN_TOKEN).rule(status=403))["code"] == 403


async def test_bodies_that_are_refused(ada: Client) -> None:
    """All findings come at once. The texts of the language are tested in tests/broker/rules."""
    wrong = {
        "if": {"and": [WARM | {"sdid": "f" * 32}, WARM | {"field": "no"}, WARM | {"operator": "~"}]},
        "then": [ON | {"action": "explode"}],
    }
    error = await ada.rule(wrong, 400)
    assert (error["code"], error["message"]) == (4001, "Validation Error")
    assert findings(error) == {
        "rule.if.and.0.sdid": [f'Device "{"f" * 32}" does not exist'],
        "rule.if.and.1.field": ['Field "no" does not exist'],
        "rule.if.and.2.operator": ['Operator "~" is not allowed'],
        "rule.then.0.action": ['Action "explode" does not exist'],
    }
    together = await ada("POST", "/rules", 400, json={"name": "x" * 65, "rule": {"if": WARM, "then": []}})
    assert findings(together["error"]) == {"name": ["Maximum length 64"], "rule.then": ["Required parameter"]}
    for body, expected in (
        ({"rule": BODY}, {"name": ["Required parameter"]}),
        ({"name": "Warm"}, {"rule": ["Required parameter"]}),
        ({"name": "x" * 65, "rule": BODY}, {"name": ["Maximum length 64"]}),
        ({"name": "Warm", "rule": BODY, "description": "x" * 1401}, {"description": ["Maximum length 1400"]}),
        ({"name": "Warm", "rule": BODY, "scope": "mine"}, {"scope": [INVALID]}),
        ({"name": "Warm", "rule": BODY, "enabled": "yes"}, {"enabled": ["Boolean field only"]}),
        ({"name": "Warm", "rule": BODY, "uid": 7}, {"uid": ["Text field only"]}),
        ({"name": "Warm", "rule": "text"}, {"rule": ["Invalid rule"]}),
        ({"name": "Warm", "rule": {**BODY, "x": "y" * 17_000}}, {"rule": ["Maximum length 16384"]}),
    ):
        answer = await ada("POST", "/rules", 400, json=body)
        assert findings(answer["error"]) == expected, body


async def test_devices_of_others_are_refused_before_anything_is_told_of_them(ada: Client) -> None:
    body = {"if": WARM | {"sdid": BOBS, "field": "no"}, "then": ON}
    error = await ada.rule(body, 403)
    assert error["message"] == f"You don't have the right permissions: READ on device {BOBS}"


async def test_a_rule_needs_write_on_its_destination(ada: Client, services: Services, world: World) -> None:
    application = world.application
    await services.core.database.write(lambda tx: tx.accounts.remove_grants(world.ada, application))
    foreign = {"id": "dt-beta", "unique_name": "example.beta", "organization": "Beta", "published": True}
    manifest = {"fields": [{"name": "temperature", "valueClass": "Double"}], "actions": [{"name": "setOn"}]}
    device = {"id": "be" * 16, "owner": "ada@example.org", "type": "example.beta", "name": "Foreign"}
    await services.provisioning.apply(
        {
            "organizations": [{"name": "Beta"}],
            "device_types": [foreign | {"manifest": manifest}],
            "devices": [device],
        }
    )
    key = (await services.device_types.catalog.find("dt-beta")).key
    await allow(services, GrantRecord(world.ada, application, key, read=True, write=False))
    body = {"if": WARM | {"sdid": "be" * 16}, "then": {"ddid": "be" * 16, "action": "setOn"}}
    error = await ada.rule(body, 403)
    assert error["message"] == f"You don't have the right permissions: WRITE on device {'be' * 16}"


async def test_a_change_has_every_member_but_the_user(ada: Client, fake_clock: FakeClock) -> None:
    made = await ada.rule()
    path = f"/rules/{made['id']}"
    fake_clock.advance(1000)
    changed = (await ada("PUT", path, json={"name": "Hot", "description": "Now", "enabled": False, "uid": BOB}))["data"]
    assert {key: changed[key] for key in ("name", "description", "enabled", "uid", "state", "modifiedOn", "rule")} == {
        "name": "Hot",
        "description": "Now",
        "enabled": False,
        "uid": ADA,
        "state": "disabled",
        "modifiedOn": NOW_MS + 1000,
        "rule": BODY,
    }
    bare = {"if": WARM, "then": ON}
    assert (await ada("PUT", path, json={"rule": bare, "scope": "allApplications"}))["data"]["rule"] == bare
    both = (await ada("PUT", path, 400, json={"enabled": 7, "rule": {"if": WARM, "then": []}}))["error"]
    assert findings(both) == {"enabled": ["Boolean field only"], "rule.then": ["Required parameter"]}
    error = (await ada("PUT", path, 400, json={"id": "f" * 32}))["error"]
    assert findings(error) == {"id": ["rule id mismatch"]}
    error = (await ada("PUT", path, 400, json={"rule": {"if": WARM, "then": []}}))["error"]
    assert findings(error) == {"rule.then": ["Required parameter"]}
    assert (await ada("DELETE", path))["data"]["id"] == made["id"]
    await ada("GET", path, 404)
    await ada("DELETE", path, 404)


@pytest.mark.both_engines
async def test_lists(ada: Client, application: Client, api: httpx.AsyncClient) -> None:
    first = await ada.rule()
    second = await ada.rule(scope="allApplications", enabled=False)
    assert (await ada("GET", "/rules"))["total"] == 2
    page = await application("GET", f"/rules?uid={ADA}&count=1&offset=1")
    assert (page["total"], page["offset"], page["count"], page["data"][0]["id"]) == (2, 1, 1, second["id"])
    assert findings((await application("GET", "/rules", 400))["error"]) == {"uid": ["Required parameter"]}
    for query, expected in (
        ("", [first, second]),
        ("?scope=allApplications", [second]),
        ("?scope=thisApplication", [first]),
        ("?scope=allApplications,thisApplication&owner=nobody", [first, second]),
        ("?excludeDisabled=true", [first]),
    ):
        found = await ada("GET", f"/users/self/rules{query}")
        assert [one["id"] for one in found["data"]] == [one["id"] for one in expected], query
    assert findings((await ada("GET", "/users/self/rules?scope=mine", 400))["error"]) == {"scope": [INVALID]}
    assert (await Client(api, BOB_TOKEN).raw("GET", f"/users/{ADA}/rules")).status_code == 403


async def test_what_another_application_sees(
    ada: Client, api: httpx.AsyncClient, services: Services, world: World
) -> None:
    """Ada has signed in to an application of Beta, which gets nothing on lights at first, and READ and WRITE later."""
    own, shared = await ada.rule(), await ada.rule(scope="allApplications")
    token, application = "4a" * 16, {"id": "be" * 16, "name": "Beta", "organization": "Beta"}
    given = {"value": token, "application": "Beta", "user": "ada@example.org"}
    await services.provisioning.apply(
        {"organizations": [{"name": "Beta"}], "applications": [application], "tokens": [given]}
    )
    beta = Client(api, token)
    hidden = {"uid": ADA, "id": own["id"], "aid": DASHBOARD, "scope": "thisApplication"}
    assert (await beta("GET", f"/rules/{own['id']}"))["data"] == hidden
    # Nor by a tag, which would confirm a guess at what the rule says.
    tags = [
        (await api.get(f"/rules/{own['id']}", headers=bearer(one))).headers.get("ETag") for one in (token, ADA_TOKEN)
    ]
    assert (tags[0], tags[1] is None) == (None, False)
    shown = (await beta("GET", "/users/self/rules"))["data"]
    assert shown == [{"uid": ADA, "id": shared["id"], "scope": "allApplications"}]
    for path in ("explain?mid=" + "0" * 32, "executions", "provision", "actions"):
        await beta("GET", f"/rules/{shared['id']}/{path}", 403)
    await beta("PUT", f"/rules/{shared['id']}", 403, json={"name": "Mine"})

    key = (await services.core.database.read(lambda tx: tx.accounts.applications_named("Beta")))[0].key
    await allow(services, GrantRecord(world.ada, key, world.light_type, read=True, write=True))
    assert (await beta("GET", f"/rules/{own['id']}"))["data"]["name"] == "Warm"
    assert (await beta("PUT", f"/rules/{shared['id']}", json={"name": "Ours"}))["data"]["name"] == "Ours"
    await beta("PUT", f"/rules/{own['id']}", 403, json={"name": "Mine"})
    await beta("DELETE", f"/rules/{own['id']}", 403)


@pytest.mark.both_engines
async def test_rules_of_other_applications_are_listed_as_they_are_shown(
    ada: Client, api: httpx.AsyncClient, services: Services, world: World
) -> None:
    beta = await beta_of(api, services)
    lights = [await ada.rule(), await ada.rule(scope="allApplications")]
    mine = await beta.rule()
    path = "/users/self/rules?scope="
    listed = (await beta("GET", f"{path}otherApplications"))["data"]
    assert [one["id"] for one in listed] == [one["id"] for one in lights]
    for one in listed:
        shown = (await beta("GET", f"/rules/{one['id']}"))["data"]
        shown.pop("waitsFor", None)  # of one rule only
        assert one == shown
        assert one["name"] == "Warm"
    key = (await services.core.database.read(lambda tx: tx.accounts.applications_named("Beta")))[0].key
    await allow(services, GrantRecord(world.ada, key, world.light_type, read=False, write=False))
    for one in (await beta("GET", f"{path}OTHERAPPLICATIONS"))["data"]:
        assert one == (await beta("GET", f"/rules/{one['id']}"))["data"]
        assert set(one) <= {"uid", "id", "aid", "scope"}
    both = (await beta("GET", f"{path}thisApplication,otherApplications"))["data"]
    assert [one["id"] for one in both] == [lights[0]["id"], lights[1]["id"], mine["id"]]
    assert len((await beta("GET", "/users/self/rules"))["data"]) == 2, "not by default"
    others = (await ada("GET", f"{path}otherApplications"))["data"]
    assert [(one["id"], one["aid"]) for one in others] == [(mine["id"], "be" * 16)]


async def test_a_rule_whose_device_is_shared_no_more_says_so_and_hides_what_it_must(
    ada: Client, api: httpx.AsyncClient, services: Services, world: World
) -> None:
    await services.provisioning.apply({"shares": [{"device": BOBS, "with": ADA}]})
    body = {"if": {"and": [WARM | {"sdid": BOBS}]}, "then": [ON]}
    own, for_all = await ada.rule(body), await ada.rule(body, scope="allApplications")
    device = await services.devices.registry.find(BOBS)
    (record,), _ = await services.devices.shares.of_device(device, offset=0, count=1)
    await services.devices.shares.remove(record.id)
    await wait_all_tasks_blocked()
    shown = (await ada("GET", f"/rules/{own['id']}"))["data"]
    assert findings(shown["error"]) == {"rule.if.and.0.sdid": [f'Device "{BOBS}" is no longer shared']}
    hidden = (await ada("GET", f"/rules/{for_all['id']}"))["data"]
    assert hidden == {"uid": ADA, "id": for_all["id"], "scope": "allApplications"}


async def test_a_rule_is_answered_compact(ada: Client) -> None:
    text = json.dumps({"name": "Warm", "rule": BODY}, indent=2)
    answer = await ada.raw("POST", "/rules", content=text)
    assert answer.status_code == 200, answer.text
    again = await ada.raw("GET", f"/rules/{answer.json()['data']['id']}")
    for one in (answer, again):
        shown = json.dumps(one.json()["data"]["rule"], separators=(",", ":"))
        assert shown in one.text


async def test_blanks_do_not_count_for_the_bound_of_a_rule(ada: Client) -> None:
    """Its text is bounded as compact JSON: the largest one may be written with each member in a line of its own."""
    any_of = [WARM | {"operand": {"value": number}} for number in range(RULE_CONDITIONS_MAX)]
    body = {"if": {"and": any_of}, "then": [ON] * RULE_ACTIONS_MAX}
    text = json.dumps({"name": "Warm", "rule": body}, indent=20)
    assert len(text) > 64 * 1024
    answer = await ada.raw("POST", "/rules", content=text)
    assert answer.status_code == 200, answer.text
    answer = await ada.raw("PUT", f"/rules/{answer.json()['data']['id']}", content=text)
    assert answer.status_code == 200, answer.text


BETA_TOKEN = "4a" * 16


async def beta_of(api: httpx.AsyncClient, services: Services) -> Client:
    """Ada has signed in to an application of another organization, which may read and use her lights and no others."""
    grant = {"device_type": LIGHT_TYPE, "permissions": ["READ", "WRITE"]}
    await services.provisioning.apply(
        {
            "organizations": [{"name": "Beta"}],
            "applications": [{"id": "be" * 16, "name": "Beta", "organization": "Beta"}],
            "tokens": [{"value": BETA_TOKEN, "application": "Beta", "user": "ada@example.org"}],
            "grants": [{"user": "ada@example.org", "application": "Beta"} | grant],
        }
    )
    return Client(api, BETA_TOKEN)


async def test_an_application_gains_nothing_by_changing_a_rule_that_runs_with_anothers_grants(
    ada: Client, api: httpx.AsyncClient, services: Services
) -> None:
    beta = await beta_of(api, services)
    await services.provisioning.apply(
        {
            "device_types": [
                {
                    "id": "dt" + "5" * 32,
                    "unique_name": "example.lock",
                    "name": "Lock",
                    "organization": "Acme",
                    "published": True,
                    "manifest": {"fields": [], "actions": [{"name": "unlock", "parameters": []}]},
                }
            ],
            "devices": [{"id": "5" * 32, "owner": "ada@example.org", "type": "example.lock", "name": "Door"}],
        }
    )
    shared = await ada.rule(scope="allApplications")
    unlocking = {"if": WARM, "then": {"ddid": "5" * 32, "action": "unlock"}}
    await beta("PUT", f"/rules/{shared['id']}", json={"name": "Mine"})
    await beta("PUT", f"/rules/{shared['id']}", 403, json={"rule": unlocking})
    assert (await ada("GET", f"/rules/{shared['id']}"))["data"]["rule"] == BODY
    await ada("PUT", f"/rules/{shared['id']}", json={"rule": unlocking})
    await beta("PUT", f"/rules/{shared['id']}", 403, json={"enabled": False})


async def test_values_are_told_to_those_who_may_read_the_sources(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    """An application sees all members of its own rule (reference 12.1), but no value that it may not read."""
    beta = await beta_of(api, services)
    rule = await beta.rule()
    mid = await says(services, {"temperature": 20})
    path, times = f"/rules/{rule['id']}", {"startDate": NOW_MS, "endDate": NOW_MS}
    assert (await beta("GET", path))["data"]["waitsFor"]
    await beta("GET", f"{path}/explain?mid={mid}")
    key = (await services.core.database.read(lambda tx: tx.accounts.applications_named("Beta")))[0].key
    await allow(services, GrantRecord(world.ada, key, world.light_type, read=False, write=True))
    shown = (await beta("GET", path))["data"]
    assert (shown["rule"], "waitsFor" in shown) == (BODY, False)
    await beta("GET", f"{path}/explain?mid={mid}", 403)
    await beta("GET", f"{path}/explain?startDate={NOW_MS}&endDate={NOW_MS}", 403)
    await beta("POST", f"{path}/replay", 403, json=times)


async def test_a_rule_sends_nothing_after_its_application_was_revoked(
    ada: Client, services: Services, world: World
) -> None:
    rule = await ada.rule()
    await services.accounts.granted.revoke(world.ada, world.application)
    await says(services, {"temperature": 30})
    record = await services.rules.rulebook.find(rule["id"])
    shown = await services.rules.statuses.status(record)
    assert [one.text for one in shown.problems] == [f"You don't have the right permissions: READ on device {KITCHEN}"]
    assert await services.core.database.read(lambda tx: tx.messages.head()) == 1


async def test_a_test_run_sends_all_actions(ada: Client, services: Services) -> None:
    rule = await ada.rule({"if": WARM, "then": [ON, ON | {"ddid": KITCHEN}]})
    path = f"/rules/{rule['id']}"
    assert (await ada("GET", f"{path}/actions"))["data"] == {"testable": True}
    assert (await ada("POST", f"{path}/actions"))["data"] == {"testable": True}
    head = await services.core.database.read(lambda tx: tx.messages.head())
    assert head == 2
    assert (await ada("GET", f"{path}/executions"))["data"] == {"countApply": 0}


async def test_a_rule_with_values_from_messages_is_not_tested(ada: Client, services: Services) -> None:
    selector = {"selector": "any", "dtid": LIGHT_TYPE}
    matched = {"ddid": {"selector": "matched", "dtid": LIGHT_TYPE}, "action": "setOn"}
    rule = await ada.rule({"if": WARM | {"sdid": selector}, "then": [matched, ON]})
    path = f"/rules/{rule['id']}/actions"
    assert (await ada("GET", path))["data"] == {"testable": False}
    assert (await ada("GET", f"/rules/{rule['id']}"))["data"]["isTestable"] is True  # one of its Actions is static
    error = (await ada("POST", path, 400))["error"]
    assert error["message"] == "Rule is not testable"
    assert await services.core.database.read(lambda tx: tx.messages.head()) == 0


async def test_executions(ada: Client, services: Services) -> None:
    rule = await ada.rule()
    await says(services, {"temperature": 30})
    await says(services, {"temperature": 30})
    answer = (await ada("GET", f"/rules/{rule['id']}/executions"))["data"]
    assert answer == {"countApply": 2, "lastApply": NOW_MS}
    shown = (await ada("GET", f"/rules/{rule['id']}"))["data"]
    assert (shown["lastTriggeredOn"], shown["waitsFor"]) == (NOW_MS, [])


async def test_an_invalid_rule_answers_its_error_in_the_place_of_the_body(ada: Client, services: Services) -> None:
    rule = await ada.rule()
    await services.devices.inventory.delete(await services.devices.registry.find(HALL))
    await wait_all_tasks_blocked()
    path = f"/rules/{rule['id']}"
    shown = (await ada("GET", path))["data"]
    assert "rule" not in shown
    assert (shown["state"], shown["invalidatedOn"]) == ("invalid", NOW_MS)
    assert shown["error"] == {
        "code": 4001,
        "message": "Validation Error",
        "errors": [[{"field": "rule.then.0.ddid", "messages": [f'Device "{HALL}" does not exist']}]],
    }
    assert (await ada("GET", f"{path}?includeBody=true"))["data"]["rule"] == BODY
    assert findings((await ada("PUT", path, 400, json={"name": "Still wrong"}))["error"]) == {
        "rule.then.0.ddid": [f'Device "{HALL}" does not exist']
    }
    for method, call in (("GET", "explain?mid=" + "0" * 32), ("POST", "replay"), ("POST", "actions")):
        answer = await ada(method, f"{path}/{call}", 400, json={"startDate": 1, "endDate": 2})
        assert answer["error"]["code"] == 4001
    mended = (await ada("PUT", path, json={"rule": {"if": WARM, "then": ON | {"ddid": KITCHEN}}}))["data"]
    assert (mended["state"], "error" in mended, "invalidatedOn" in mended) == ("running", False, False)


async def test_explanations(ada: Client, services: Services, fake_clock: FakeClock) -> None:
    before = await says(services, {"temperature": 40})
    rule = await ada.rule()
    path = f"/rules/{rule['id']}/explain"
    fake_clock.advance(1000)
    cold = await says(services, {"temperature": 20})
    fake_clock.advance(1000)
    hot = await says(services, {"temperature": 30})
    (why,) = (await ada("GET", f"{path}?mid={cold}"))["data"]["explanations"]
    assert why == {
        "ts": NOW_MS + 1000,
        "mid": cold,
        "triggers": False,
        "counts": True,
        "conditions": [
            {
                "field": "rule.if.and.0",
                "held": False,
                "text": f"temperature > 25 does not hold: temperature of {KITCHEN} is 20",
                "seen": [{"sdid": KITCHEN, "field": "temperature", "value": 20, "cts": NOW_MS + 1000}],
                "operand": 25,
            }
        ],
    }
    (why,) = (await ada("GET", f"{path}?mid={before}"))["data"]["explanations"]
    assert (why["triggers"], why["counts"]) == (True, False)
    found = (await ada("GET", f"{path}?startDate={NOW_MS + 1}&endDate={NOW_MS + 5000}"))["data"]
    assert [(one["mid"], one["triggers"]) for one in found["explanations"]] == [(cold, False), (hot, True)]
    assert found["isComplete"] is True
    elsewhere = await says(services, {"temperature": 1}, HALL)
    assert findings((await ada("GET", f"{path}?mid={elsewhere}", 400))["error"]) == {"mid": [INVALID]}
    await ada("GET", f"{path}?mid={'0' * 32}", 404)
    error = (await ada("GET", f"{path}?startDate=1&endDate={32 * 86_400_000}", 400))["error"]
    assert findings(error) == {"endDate": [INVALID]}


async def test_replays_send_nothing(ada: Client, services: Services) -> None:
    for temperature in (20, 30, 40):
        mid = await says(services, {"temperature": temperature})
    rule = await ada.rule(enabled=False)
    head = await services.core.database.read(lambda tx: tx.messages.head())
    times = {"startDate": NOW_MS - 1000, "endDate": NOW_MS + 1000}
    answer = (await ada("POST", f"/rules/{rule['id']}/replay", json=times))["data"]
    last = answer["triggers"].pop()
    assert (answer["messages"], answer["evaluations"], answer["triggered"], answer["isComplete"]) == (3, 3, 2, True)
    sent = {"field": "rule.then.0", "action": "setOn", "ddid": HALL, "parameters": {}}
    assert last == {"ts": NOW_MS, "mid": mid, "actions": [sent]}
    assert await services.core.database.read(lambda tx: tx.messages.head()) == head


async def test_a_rule_is_tried_before_it_is_made(ada: Client, services: Services) -> None:
    mids = [await says(services, {"temperature": temperature}) for temperature in (20, 30)]
    tried = {"rule": {"if": WARM, "then": ON}, "startDate": NOW_MS - 1000, "endDate": NOW_MS + 1000}
    answer = (await ada("POST", "/rules/try", json=tried))["data"]
    assert (answer["messages"], answer["triggered"], answer["triggers"][0]["mid"]) == (2, 1, mids[1])
    assert (await ada("GET", "/rules"))["total"] == 0
    wrong = tried | {"rule": {"if": WARM | {"field": "unknown"}, "then": ON}}
    assert findings((await ada("POST", "/rules/try", 400, json=wrong))["error"]).keys() == {"rule.if.field"}
    foreign = tried | {"rule": {"if": WARM | {"sdid": BOBS}, "then": ON}}
    await ada("POST", "/rules/try", 403, json=foreign)
    assert await services.core.database.read(lambda tx: tx.messages.head()) == 2


async def test_a_rule_goes_out_as_a_provision_file_and_comes_back(ada: Client, services: Services) -> None:
    rule = await ada.rule({"if": WARM, "then": ON | {"parameters": None}}, description='Say "hi"\\n')
    answer = await ada.raw("GET", f"/rules/{rule['id']}/provision")
    assert answer.headers["Content-Type"] == "application/toml; charset=utf-8"
    document = tomllib.loads(answer.text)
    report = await services.provisioning.apply(document)
    assert report.tables["rules"].unchanged == 1
    await ada("DELETE", f"/rules/{rule['id']}")
    report = await services.provisioning.apply(document)
    assert report.tables["rules"].created == 1
    again = (await ada("GET", f"/rules/{rule['id']}"))["data"]
    assert (again["description"], again["rule"]["if"]) == (rule["description"], rule["rule"]["if"])
    await says(services, {"temperature": 30})
    assert (await ada("GET", f"/rules/{rule['id']}/executions"))["data"]["countApply"] == 1


async def test_a_user_has_at_most_1000_rules(ada: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.rules.rulebook.RULES_OF_USER", 1)
    await ada.rule()
    assert (await ada.rule(status=409))["message"] == "At most 1000 rules for each user"
