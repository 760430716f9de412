"""Reach of a token over REST: every call that names a device, and every list (reference 4.7).

Each table is compared with the declarations of the calls, so a new call needs a row.
"""

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

import httpx
import msgspec
import pytest
import trio

from broker.accounts.tokens import TokenKind
from broker.services import Services
from config.settings import Limits, Settings
from protocols.http.calls import RestCall
from protocols.http.rest.nouns import NOUNS
from tests.certificates import Authority
from tests.factories import ADA, ADA_TOKEN, APPLICATION_TOKEN, HALL, KITCHEN, NOW_MS, PANEL, World
from tests.fakes import FakeClock
from tests.properties import every_nth_outside_ci
from tests.protocols.http.conftest import bearer
from tests.reach_world import (
    GRANTS,
    HOLDERS,
    TOKENS,
    TYPE_IDS,
    TYPES,
    Need,
    ReachWorld,
    build_reach_world,
    is_granted,
)
from tests.rows import each_row
from tests.secure_types import NOW, SECURE_TYPE, provision_secure_type
from tests.tickets import at

pytestmark = pytest.mark.slow


#: Permissions that a call needs on the type of an own device, and of a shared one; None: it is refused.
Needs = tuple[Need | None, Need | None]
READ: Final[Needs] = ("READ", "READ")
WRITE: Final[Needs] = ("WRITE", "WRITE")
OWNER: Final[Needs] = ("WRITE", None)
MONEY: Final[Needs] = ("nothing", None)

IN_PATH: Final[Mapping[str, Needs]] = {
    "GET /devices/{did}": READ,
    "PUT /devices/{did}": OWNER,
    "DELETE /devices/{did}": OWNER,
    "GET /devices/{did}/tokens": OWNER,
    "PUT /devices/{did}/tokens": OWNER,
    "DELETE /devices/{did}/tokens": OWNER,
    "POST /devices/{did}/providerauth": OWNER,
    "DELETE /devices/{did}/providerauth": OWNER,
    "GET /devices/{did}/status": READ,
    "PUT /devices/{did}/status": WRITE,
    "GET /devices/{did}/presence": READ,
    "GET /devices/{did}/failures": OWNER,
    "GET /devices/{did}/refusals": OWNER,
    "GET /devices/{did}/dropped": OWNER,
    "GET /devices/{did}/lwm2m": OWNER,
    "GET /devices/{did}/wanted": READ,
    "PUT /devices/{did}/wanted": WRITE,
    "DELETE /devices/{did}/wanted": WRITE,
    "GET /devices/{did}/quota": READ,
    "POST /devices/{did}/shares": OWNER,
    "GET /devices/{did}/shares": OWNER,
    "GET /devices/{did}/shares/{shareId}": ("WRITE", "READ"),
    "PUT /devices/{did}/shares/{shareId}": (None, "WRITE"),
    "DELETE /devices/{did}/shares/{shareId}": WRITE,
    "POST /devices/{did}/transfer": OWNER,
    "GET /devices/{did}/transfer": OWNER,
    "PUT /devices/{did}/transfer": (None, "WRITE"),
    "DELETE /devices/{did}/transfer": OWNER,
    "DELETE /devices/{did}/registrations": OWNER,
    "GET /pricing/devices/{did}/revenueshare/upgradepath": MONEY,
    "GET /pricing/devices/{did}/pricingtiers": MONEY,
    "PUT /pricing/devices/{did}/pricingtiers": MONEY,
    "GET /devicemgmt/devices/{did}/properties": ("READ", None),
    "POST /devicemgmt/devices/{did}/serverproperties": OWNER,
    "DELETE /devicemgmt/devices/{did}/serverproperties": OWNER,
    "GET /devicemgmt/devices/{did}/tasks": OWNER,
    "GET /devicemgmt/devices/{did}/pendingtasks": OWNER,
}

_DATES: Final = {"startDate": NOW_MS - 60_000, "endDate": NOW_MS}
_CALLBACK: Final = "https://app.example.org/callback"
_ACTIONS: Final = {"actions": [{"name": "setOn"}]}
#: With a query or a body that is right but for the device "{did}".
IN_QUERY_OR_BODY: Final[Mapping[str, tuple[Needs, tuple[dict[str, Any], ...]]]] = {
    "POST /messages": (
        WRITE,
        (
            {"json": {"sdid": "{did}", "data": {"state": True}}},
            {"json": {"type": "action", "ddid": "{did}", "data": _ACTIONS}},
        ),
    ),
    "POST /actions": (
        WRITE,
        (
            {"json": {"ddid": "{did}", "data": _ACTIONS}},
            {"json": {"ddid": KITCHEN, "sdid": "{did}", "data": _ACTIONS}},
        ),
    ),
    "GET /messages": (READ, ({"params": {"sdid": "{did}", **_DATES}},)),
    "GET /actions": (READ, ({"params": {"ddid": "{did}", **_DATES}},)),
    "GET /messages/last": (READ, ({"params": {"sdids": f"{KITCHEN},{{did}}"}},)),
    "GET /messages/snapshots": (READ, ({"params": {"sdids": "{did}"}},)),
    "GET /values": (READ, ({"params": {"sdids": "{did}"}},)),
    "GET /messages/analytics/aggregates": (READ, ({"params": {"sdid": "{did}", "field": "intensity", **_DATES}},)),
    "GET /messages/analytics/histogram": (
        READ,
        ({"params": {"sdid": "{did}", "field": "intensity", "interval": "minute", **_DATES}},),
    ),
    "GET /messages/presence": (READ, ({"params": {"sdid": "{did}", "interval": "minute", **_DATES}},)),
    "GET /alarms": (READ, ({"params": {"uid": ADA, "did": "{did}"}},)),
    "POST /messages/import": (
        WRITE,
        ({"params": {"sdid": "{did}"}, "content": "time,text"},),
    ),
    "DELETE /messages": (OWNER, ({"params": {"sdid": "{did}", **_DATES}},)),
    "POST /messages/export": (READ, ({"json": {"sdids": "{did}", **_DATES}},)),
    "POST /subscriptions": (
        READ,
        (
            {"json": {"messageType": "message", "uid": ADA, "sdid": "{did}", "callbackUrl": _CALLBACK}},
            {"json": {"messageType": "action", "uid": ADA, "ddid": "{did}", "callbackUrl": _CALLBACK}},
        ),
    ),
    "PUT /devices/registrations/pin": (OWNER, ({"json": {"pin": "K7QW3MXA", "deviceId": "{did}"}},)),
}
#: Other calls that show devices or their data: lists leave out what is not granted. The tests below have each of them.
LISTS: Final = {
    "GET /devices/status",
    "GET /users/{uid}/devices",
    "GET /users/{uid}/shares",
    "GET /users/{uid}/transfers",  # test_device_transfers.py
    "GET /users/{uid}/found",  # test_found.py
    "PUT /found/{fid}",  # test_found.py
    "GET /messages/import/history",  # test_imports.py
    "GET /messages/import/{importId}/status",  # test_imports.py
    "GET /users/{uid}/readers",  # test_my_data.py
    "GET /messages/deletions",  # test_deletions.py
    "GET /messages/deletions/{deletionId}",  # test_deletions.py
    "GET /messages/export/history",
    "GET /messages/export/{exportId}/status",
    "GET /messages/export/{exportId}/result",
    "GET /devices/registrations/{rid}/status",
    "GET /subscriptions",
    "POST /devices",
}
#: Each entry has an outcome of its own: `test_entries_of_a_batch_…` below.
BATCHES: Final = {"POST /messages/batch"}
#: Scenes name devices in their Actions. `test_scenes_…` below has them.
SCENES: Final = {
    "POST /scenes",
    "GET /scenes",
    "GET /users/{uid}/scenes",
    "GET /scenes/{sceneId}",
    "GET /scenes/{sceneId}/provision",
    "PUT /scenes/{sceneId}",
    "DELETE /scenes/{sceneId}",
    "POST /scenes/{sceneId}",
}
#: Models name devices as their sources: test_models.py and `test_models_…` below.
MODELS: Final = {
    "POST /ml/models",
    "GET /ml/models",
    "GET /ml/models/{modelId}",
    "DELETE /ml/models/{modelId}",
    "POST /ml/models/{modelId}/predict",
}
#: Rules name devices in their conditions and Actions: test_rules.py and `test_rules_…` below.
RULES: Final = {
    "POST /rules",
    "GET /rules",
    "GET /users/{uid}/rules",
    "GET /rules/{ruleId}",
    "PUT /rules/{ruleId}",
    "DELETE /rules/{ruleId}",
    "GET /rules/{ruleId}/provision",
    "GET /rules/{ruleId}/actions",
    "POST /rules/{ruleId}/actions",
    "GET /rules/{ruleId}/executions",
    "GET /rules/{ruleId}/explain",
    "POST /rules/{ruleId}/replay",
    "POST /rules/try",
}
#: Device types: test_device_types.py, test_manifests.py and test_developer.py.
TYPES_ALONE: Final = {
    "GET /devicetypes",
    "GET /devicetypes/cloudconnectors",
    "GET /devicetypes/{dtid}",
    "GET /users/{uid}/devicetypes",
    "GET /applications/{aid}/devicetypes",
    "GET /devicetypes/{dtid}/availablemanifestversions",
    "GET /devicetypes/{dtid}/manifests/{version}/properties",
    "GET /devicetypes/{dtid}/sheet",
    "GET /devicetypes/{dtid}/manifests",
    "POST /devicetypes/{dtid}/manifests",
    "POST /devicetypes/{dtid}/manifests/try",
    "PUT /users/{uid}",
    "DELETE /users/{uid}",  # test_leaving.py
    "GET /tags",
    "GET /tags/categories",
    "GET /tags/suggestions",
}
#: Prefixes of calls for administrators (test_device_types.py), about users and tokens, and with other proofs.
NO_DEVICE: Final = (
    "/devicetypes/{dtid}/whitelist",
    "/pricing/devicetypes/{dtid}/",
    "/users/self",
    "/users/{uid}/properties",
    "/users/{uid}/applications",
    "/users/{uid}/sessions",
    "/users/{uid}/audit",
    "/users/{uid}/automations",  # test_automations.py
    "/users/{uid}/boards",  # test_boards.py
    "/boards/",
    "/users/{uid}/telling",  # test_alarms.py
    "/alarms/",
    "/names",
    "/users/{uid}/archive",  # test_leaving.py
    "/users/{uid}/trials",
    "/accounts/",
    "/cert/",
    "/cloudconnectors/",
    "/subscriptions/{subscriptionId}",  # test_subscriptions.py, with what they deliver
    "/notifications/",
    "/developer/",  # test_developer.py
    "/operator/",  # test_operator.py
)
#: Calls for administrators, of the owner on a task, and without a token (test_device_management.py); for members of a
#: trial (test_trials.py).
MANAGEMENT: Final = (
    "/trials",
    "/devicemgmt/devicetypes/",
    "/devicemgmt/tasks",
    "/devicemgmt/devices/properties",
    "/updates/",
)
#: How parameters and members are called that name devices.
DEVICES: Final = {"did", "dids", "sdid", "sdids", "ddid", "ddids", "device_id", "device_ids"}


def declared() -> Iterator[RestCall]:
    return (call for noun in NOUNS for call in noun.declared() if not call.path.startswith(MANAGEMENT))


#: With these grants each call is tried: they tell what a call needs. With each other one call of each kind is, because
#: what a grant gives does not depend on the call.
TELLING: Final = ("none", "READ", "WRITE")


def calls_with(grants: str, needs: Mapping[str, Needs]) -> Iterator[RestCall]:
    seen = set()
    for call in declared():
        if str(call) not in needs:
            continue
        kind = (needs[str(call)], frozenset(call.tokens), call.path.startswith("/devicemgmt/"))
        if grants in TELLING or kind not in seen:
            yield call
        seen.add(kind)


def fields_of(call: RestCall) -> set[str]:
    shapes = [*call.queries, *([call.body] if isinstance(call.body, type) else [])]
    return {
        one.name for shape in shapes if hasattr(shape, "__struct_fields__") for one in msgspec.structs.fields(shape)
    }


def test_the_tables_have_every_call() -> None:
    """A new call needs a row: what of a device it shows or does, and what it needs."""
    assert {str(call) for call in declared() if "did" in call.names} == set(IN_PATH)
    others = [call for call in declared() if "did" not in call.names]
    assert {str(call) for call in others if DEVICES & fields_of(call)} == set(IN_QUERY_OR_BODY) | {
        "GET /devices/status",
        "POST /developer/applications/{aid}/subscriptions",  # test_made_applications.py
    }
    left = {str(call) for call in others if not call.path.startswith(NO_DEVICE)}
    assert left == set(IN_QUERY_OR_BODY) | LISTS | BATCHES | SCENES | MODELS | RULES | TYPES_ALONE


@pytest.fixture
async def reach(services: Services, world: World) -> ReachWorld:
    return await build_reach_world(services, world)


def is_allowed(call: RestCall, needs: Needs, token: str, grants: str, holder: str, type_: str) -> bool:
    # Applications of the type's organization manage all its devices; others at most read the properties.
    is_managing = call.path.startswith("/devicemgmt/") and token == "application"
    if is_managing and (type_ == "ours" or not call.path.endswith("/properties")):
        return type_ == "ours"
    need = dict(zip(HOLDERS, (*needs, None), strict=True))[holder]
    takes = TokenKind.USER if token == "user" else TokenKind.APPLICATION
    return need is not None and takes in call.tokens and is_granted(grants, type_, need)


class TestWhatThePathNames:
    """The callers have no call left in this minute: what is allowed ends at the limit, and nothing happens."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        limits = Limits(rest_user="1/1000", rest_application="1/1000", quotas="off")
        return Settings(state_dir=settings.state_dir, limits=limits)

    @each_row("grants", every_nth_outside_ci(4, tuple(GRANTS)))
    @each_row("token", TOKENS)
    async def test_a_device_in_the_path_must_be_granted(
        self, api: httpx.AsyncClient, reach: ReachWorld, fake_clock: FakeClock, grants: str, token: str
    ) -> None:
        fake_clock.advance(60_000)
        await reach.grant(grants)
        headers = bearer(TOKENS[token])
        assert (await api.get("/devicetypes", headers=headers)).status_code == 200
        wrong = []
        for call in calls_with(grants, IN_PATH):
            for place in product(HOLDERS, TYPES):
                path = call.path.format(did=reach.devices[place], shareId=reach.shares[place])
                status = (await api.request(call.method, path, headers=headers)).status_code
                expected = 429 if is_allowed(call, IN_PATH[str(call)], token, grants, *place) else 403
                if status != expected:
                    wrong.append((str(call), place, status, expected))
        assert wrong == []


@each_row("grants", every_nth_outside_ci(4, tuple(GRANTS)))
@each_row("token", TOKENS)
async def test_a_device_in_a_query_or_a_body_must_be_granted(
    api: httpx.AsyncClient, reach: ReachWorld, fake_clock: FakeClock, grants: str, token: str
) -> None:
    fake_clock.advance(600_000)  # PINs may be tried again
    await reach.grant(grants)
    wrong = []
    for call in calls_with(grants, {name: needs for name, (needs, _) in IN_QUERY_OR_BODY.items()}):
        needs, ways = IN_QUERY_OR_BODY[str(call)]
        for way, place in product(ways, product(HOLDERS, TYPES)):
            given = json.loads(json.dumps(way).replace("{did}", reach.devices[place]))
            answer = await api.request(call.method, call.path, headers=bearer(TOKENS[token]), **given)
            # No registration waits for the PIN.
            passed = 404 if call.path.endswith("/pin") else 200
            expected = passed if is_allowed(call, needs, token, grants, *place) else 403
            if answer.status_code != expected:
                wrong.append((str(call), place, answer.status_code, expected))
    assert wrong == []


@each_row("grants", every_nth_outside_ci(4, tuple(GRANTS)))
@each_row("token", TOKENS)
async def test_entries_of_a_batch_need_what_a_message_needs(
    api: httpx.AsyncClient, reach: ReachWorld, grants: str, token: str
) -> None:
    await reach.grant(grants)
    (call,) = (call for call in declared() if str(call) in BATCHES)
    places = list(product(HOLDERS, TYPES))
    body = {"messages": [{"sdid": reach.devices[place], "data": {"state": True}} for place in places]}
    results = (await api.post(call.path, headers=bearer(TOKENS[token]), json=body)).json()["data"]["results"]
    outcomes = [200 if "mid" in one else one["error"]["code"] for one in results]
    assert outcomes == [200 if is_allowed(call, WRITE, token, grants, *place) else 403 for place in places]


@each_row("grants", every_nth_outside_ci(4, tuple(GRANTS)))
@each_row("token", TOKENS)
async def test_lists_leave_out_what_is_not_granted(
    api: httpx.AsyncClient, services: Services, reach: ReachWorld, grants: str, token: str
) -> None:
    await store_one_each(services, reach)
    await reach.grant(grants)
    headers = bearer(TOKENS[token])
    every = ",".join([*reach.devices.values(), KITCHEN])
    found = (await api.get(f"/devices/status?dids={every}", headers=headers)).json()["data"]
    at_home = {KITCHEN, HALL} if is_granted(grants, "ours", "READ") else set()
    own, reachable = reach.readable(grants, "own") | at_home, reach.readable(grants, "own", "shared") | at_home
    assert {one["did"] for one in found} == reachable - {HALL}
    if token == "application" and grants == "none":  # it does not act for Ada
        assert (await api.get(f"/users/{ADA}/devices", headers=headers)).status_code == 403
        return
    for query, expected in (("", reachable), ("owner=ME", own), ("owner=SHARED_WITH_ME", reachable - own)):
        page = (await api.get(f"/users/{ADA}/devices?{query}", headers=headers)).json()
        assert {one["id"] for one in page["data"]["devices"]} == expected
        assert page["total"] == len(expected)
    messages = (await api.get("/messages", params={"uid": ADA, **_DATES}, headers=headers)).json()["data"]
    assert {one["sdid"] for one in messages} == own - {KITCHEN, HALL}
    actions = (await api.get("/actions", params={"uid": ADA, **_DATES}, headers=headers)).json()["data"]
    assert {one["ddid"] for one in actions} == own - {KITCHEN, HALL}
    assert await exported(api, headers) == own - {KITCHEN, HALL}
    if token == "user":
        shares = (await api.get(f"/users/{ADA}/shares", headers=headers)).json()
        assert {one["did"] for one in shares["data"]["shares"]} == reachable - own
        assert shares["total"] == len(reachable - own)


@each_row("grants", every_nth_outside_ci(4, tuple(GRANTS)))
async def test_rules_need_read_on_their_source_and_write_on_their_destination(
    api: httpx.AsyncClient, services: Services, reach: ReachWorld, grants: str
) -> None:
    """Own and shared devices are source and destination of the rules of all applications.

    To the caller who lacks something, such a rule is hidden.
    """

    def body(id_: str) -> dict[str, Any]:
        condition = {"sdid": id_, "field": "state", "operator": "=", "operand": {"value": True}}
        return {"if": condition, "then": {"ddid": id_, "action": "setOn"}}

    of_ada = {"owner": ADA, "application": "Dashboard", "name": "Old", "scope": "allApplications"}
    rules = {
        place: {"id": f"{number:032x}", "rule": body(id_), **of_ada}
        for number, (place, id_) in enumerate(reach.devices.items())
        if place[0] != "foreign"
    }
    await services.provisioning.apply({"rules": list(rules.values())})
    await reach.grant(grants)
    wrong = []
    for token, (place, id_) in product(TOKENS.values(), reach.devices.items()):
        headers = bearer(token)
        may = place[0] != "foreign" and all(is_granted(grants, place[1], need) for need in ("READ", "WRITE"))
        ways: list[tuple[str, str, Any]] = [("POST", "/rules", {"uid": ADA, "name": "New", "rule": body(id_)})]
        ways += [("POST", "/rules/try", {"uid": ADA, "rule": body(id_), "startDate": 1, "endDate": 2})]
        if place in rules:
            path = f"/rules/{rules[place]['id']}"
            shown = await api.get(path, headers=headers)
            if ("rule" in shown.json().get("data", {})) is not may:
                wrong.append((token, place, "GET", path, shown.status_code))
            ways += [("GET", f"{path}/{one}", None) for one in ("provision", "actions", "executions")]
            ways += [("PUT", path, {"name": "Newer"}), ("POST", f"{path}/actions", None)]
            ways += [("POST", f"{path}/replay", {"startDate": 1, "endDate": 2})]
        if grants not in TELLING:
            del ways[1:]
        for method, path, content in ways:
            answer = await api.request(method, path, headers=headers, json=content)
            if answer.status_code != (200 if may else 403):
                wrong.append((token, place, method, path, answer.status_code))
    assert wrong == []


async def test_a_rule_of_the_application_alone_sends_only_with_write_on_its_destination(
    api: httpx.AsyncClient, services: Services, reach: ReachWorld
) -> None:
    """Such a rule is shown to its application also where that lacks a permission."""
    id_ = reach.devices["own", "theirs"]
    condition = {"sdid": id_, "field": "state", "operator": "=", "operand": {"value": True}}
    rule = {"if": condition, "then": {"ddid": id_, "action": "setOn"}}
    of_ada = {"owner": ADA, "application": "Dashboard", "name": "Own", "scope": "thisApplication"}
    await services.provisioning.apply({"rules": [{"id": f"{1:032x}", "rule": rule, **of_ada}]})
    path = f"/rules/{1:032x}/actions"
    for grants, token in product(("READ", "WRITE"), TOKENS.values()):
        await reach.grant(grants)
        may = is_granted(grants, "theirs", "WRITE")
        shown = await api.get(path, headers=bearer(token))
        assert shown.json()["data"] == {"testable": may}, (grants, token)
        assert (await api.post(path, headers=bearer(token))).status_code == (200 if may else 403), (grants, token)


@each_row("grants", every_nth_outside_ci(4, tuple(GRANTS)))
async def test_scenes_need_what_their_devices_need(
    api: httpx.AsyncClient, services: Services, reach: ReachWorld, grants: str
) -> None:
    """Own and shared devices need it. A scene of devices without a grant exists, and is neither shown nor sent."""
    scenes = {
        place: {"id": f"{number:032x}", "owner": ADA, "application": "Dashboard", "name": "Old", "actions": actions}
        for number, (place, id_) in enumerate(reach.devices.items())
        if (actions := [{"ddid": id_, "action": "setOn"}]) and place[0] != "foreign"
    }
    await services.provisioning.apply({"scenes": list(scenes.values())})
    await reach.grant(grants)
    wrong = []
    for token, (place, id_) in product(TOKENS.values(), reach.devices.items()):
        headers = bearer(token)
        may_write = place[0] != "foreign" and is_granted(grants, place[1], "WRITE")
        may_read = may_write and is_granted(grants, place[1], "READ")
        body = {"uid": ADA, "name": "New", "actions": [{"ddid": id_, "action": "setOn"}]}
        ways = [("POST", "/scenes", may_write, body)]
        if place in scenes:
            path = f"/scenes/{scenes[place]['id']}"
            ways += [("GET", path, may_read, {}), ("GET", f"{path}/provision", may_read, {})]
            ways += [("PUT", path, may_write, {}), ("POST", path, may_write, {})]
        for method, path, may, json_body in ways:
            answer = await api.request(method, path, headers=headers, json=json_body or None)
            if answer.status_code != (200 if may else 403):
                wrong.append((token, place, method, path, answer.status_code))
    assert wrong == []
    shown = {
        str(scene["id"])
        for place, scene in scenes.items()
        if is_granted(grants, place[1], "READ") and is_granted(grants, place[1], "WRITE")
    }
    for name, token in TOKENS.items():
        listed = await api.get(f"/users/{ADA}/scenes", headers=bearer(token))
        if name == "application" and grants == "none":  # it does not act for Ada
            assert listed.status_code == 403
        else:
            assert {one["id"] for one in listed.json()["data"]["scenes"] if one["name"] == "Old"} == shown


@each_row("grants", every_nth_outside_ci(4, tuple(GRANTS)))
async def test_models_need_read_on_their_sources(api: httpx.AsyncClient, reach: ReachWorld, grants: str) -> None:
    """Objects of own devices and of shared ones: made when all is granted, and shown as far as it still is."""
    wrong: list[tuple[object, ...]] = []
    for token in TOKENS.values():
        made, all_made = {}, []
        for way in ("*", grants):
            await reach.grant(way)
            for place, id_ in reach.devices.items():
                source = {"did": id_, "field": "temperature"}
                parameters = {"sourceToPredict": source, "predictIn": 60}
                body = {"uid": ADA, "data": {"sources": [source]}, "type": "prediction", "parameters": parameters}
                answer = await api.post("/ml/models", json=body, headers=bearer(token))
                may_read = place[0] != "foreign" and is_granted(way, place[1], "READ")
                if answer.status_code != (200 if may_read else 403):
                    wrong.append((token, way, place, answer.status_code))
                elif may_read:
                    all_made.append(answer.json()["data"]["id"])
                    if way == "*":
                        made[place] = all_made[-1]
        for place, id_ in made.items():
            statuses = [
                (await api.request(method, f"/ml/models/{id_}{way}", headers=bearer(token))).status_code
                for method, way in (("GET", ""), ("POST", "/predict"), ("DELETE", ""))
            ]
            may_read = is_granted(grants, place[1], "READ")
            if statuses != ([200, 400, 200] if may_read else [403, 403, 403]):
                wrong.append((token, grants, place, statuses))
        await reach.grant("*")
        for id_ in all_made:  # the next row makes its own, and their number is bounded
            await api.delete(f"/ml/models/{id_}", headers=bearer(token))
    assert wrong == []


@each_row("grants", GRANTS)
async def test_presence_of_all_devices_leaves_out_what_is_not_granted(
    api: httpx.AsyncClient, services: Services, reach: ReachWorld, grants: str
) -> None:
    """Each device sent in a minute of its own."""
    sent = {}
    for number, id_ in enumerate(reach.devices.values(), start=2):
        sent[id_] = (NOW_MS // 60_000 - number) * 60_000
        services.messages.ingest.submit(await services.devices.registry.find(id_), b'{"state":true}', sent[id_])
    await services.messages.ingest.wait_committed()
    await reach.grant(grants)
    query: dict[str, str | int] = {"interval": "minute", "startDate": NOW_MS - 1_200_000, "endDate": NOW_MS}
    found = (await api.get("/messages/presence", params=query, headers=bearer(ADA_TOKEN))).json()["data"]
    assert {one["startDate"] for one in found} == {sent[id_] for id_ in reach.readable(grants, "own")}


async def exported_by_trial(api: httpx.AsyncClient, token: str, trial_id: str) -> httpx.Response:
    """The answer to asking for an export of a trial."""
    return await api.post("/messages/export", json={"trialId": trial_id, **_DATES}, headers=bearer(token))


async def store_one_each(services: Services, reach: ReachWorld) -> None:
    """A message and an Action of every device, while everything is granted."""
    for id_ in reach.devices.values():
        device = await services.devices.registry.find(id_)
        services.messages.ingest.submit(device, b'{"state":true}')
        services.messages.ingest.submit_action(device, device, b'{"actions":[{"name":"setOn"}]}')
    await services.messages.ingest.wait_committed()


async def exported(api: httpx.AsyncClient, headers: dict[str, str]) -> set[str]:
    """The devices whose messages are in an archive of all that is Ada's."""
    made = await api.post("/messages/export", json={"uids": ADA, **_DATES}, headers=headers)
    path = f"/messages/export/{made.json()['data']['exportId']}"
    with trio.fail_after(10):
        while (await api.get(f"{path}/status", headers=headers)).json()["status"] != "Success":
            await trio.lowlevel.checkpoint()
    archive = (await api.get(f"{path}/result", headers=headers)).content
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = [tar.extractfile(member) for member in tar]
        entries = [json.loads(file.read())["data"] for file in files if file is not None]
    return {message["sdid"] for entry in entries for message in entry}


@each_row("grants", GRANTS)
@each_row("type_", TYPES)
async def test_adding_a_device_needs_write_on_its_type(
    api: httpx.AsyncClient, reach: ReachWorld, grants: str, type_: str
) -> None:
    await reach.grant(grants)
    for token in TOKENS.values():
        answer = await api.post("/devices", json={"uid": ADA, "dtid": TYPE_IDS[type_]}, headers=bearer(token))
        assert answer.status_code == (200 if is_granted(grants, type_, "WRITE") else 403)


@each_row("grants", GRANTS)
async def test_a_message_is_found_by_its_id_as_far_as_its_device_is_granted(
    api: httpx.AsyncClient, services: Services, reach: ReachWorld, grants: str
) -> None:
    await reach.grant(grants)
    for (holder, type_), id_ in reach.devices.items():
        device = await services.devices.registry.find(id_)
        position = services.messages.ingest.submit(device, b'{"state":true}')
        await services.messages.ingest.wait_committed()
        path = f"/messages?mid={services.messages.ingest.mid(at(position))}"
        is_theirs = holder != "foreign" and is_granted(grants, type_, "READ")
        for token in TOKENS.values():
            assert (await api.get(path, headers=bearer(token))).status_code == (200 if is_theirs else 403)


async def test_what_one_application_exported_is_not_another_applications(
    api: httpx.AsyncClient, services: Services, reach: ReachWorld
) -> None:
    """The other one may have less granted than is in the archive."""
    await store_one_each(services, reach)
    await reach.grant("*")
    panel_token, headers = "3e" * 16, bearer(ADA_TOKEN)
    await services.provisioning.apply({"tokens": [{"value": panel_token, "application": PANEL, "user": ADA}]})
    made = await api.post("/messages/export", json={"uids": ADA, **_DATES}, headers=headers)
    path = f"/messages/export/{made.json()['data']['exportId']}"
    for way in ("status", "result"):
        assert (await api.get(f"{path}/{way}", headers=bearer(panel_token))).status_code == 403
    for token, total in ((ADA_TOKEN, 1), (panel_token, 0), (APPLICATION_TOKEN, 0)):
        assert (await api.get("/messages/export/history", headers=bearer(token))).json()["total"] == total


async def test_a_registration_is_followed_as_far_as_its_type_is_granted(
    api: httpx.AsyncClient, services: Services, reach: ReachWorld
) -> None:
    authority = Authority(now=NOW)
    await provision_secure_type(services, authority)
    begun = await services.registration.registrations.begin(authority.issue().shown, SECURE_TYPE, "vendor-1")
    body = {"pin": begun.pin, "deviceName": "Board"}
    for grants, status in (("none", 403), ("own organization", 200)):
        await reach.grant(grants)
        answer = await api.put("/devices/registrations/pin", json=body, headers=bearer(ADA_TOKEN))
        assert answer.status_code == status
    path = f"/devices/registrations/{begun.id}/status"
    for grants, status in (("own organization", 200), ("none", 403)):
        await reach.grant(grants)
        assert (await api.get(path, headers=bearer(ADA_TOKEN))).status_code == status
