"""/scenes: made, read, changed, activated and invalid (reference 12.5)."""

import json
import tomllib
from typing import Any, Final

import httpx
import pytest
import trio

from broker.envelope import Action
from broker.facts import ActionStored
from broker.services import Services
from config.limits import SCENE_ACTIONS_MAX, SCENE_BODY_BYTES
from storage.records import AuditFilter
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
    LIGHT_TYPE,
    NOW_MS,
    World,
)
from tests.fakes import FakeClock
from tests.protocols.http.conftest import bearer
from tests.protocols.http.test_conventions import error_of
from tests.rows import each_row
from tests.wording import INVALID

LAMP: Final = "5a" * 16
UNKNOWN: Final = "f" * 32
COLOR: Final = [{"name": name, "valueClass": "Integer"} for name in ("r", "g")]
LAMP_MANIFEST: Final = {
    "fields": [{"name": "state", "valueClass": "Boolean"}],
    "actions": [
        {
            "name": "set",
            "parameters": [
                {"name": "level", "valueClass": "Integer"},
                {"name": "warmth", "valueClass": "Double"},
                {"name": "label", "valueClass": "String"},
                {"name": "smooth", "valueClass": "Boolean"},
                {"name": "steps", "valueClass": "Long", "isCollection": True},
                {"name": "color", "children": COLOR},
            ],
        }
    ],
}
ON: Final = {"ddid": KITCHEN, "action": "setOn", "parameters": {}}
EVERY: Final = {"ddid": {"selector": "every", "dtid": LIGHT_TYPE}, "action": "setOn"}
ALL_PARAMETERS: Final = {
    "level": {"value": 7},
    "warmth": {"value": 0.5},
    "label": {"value": "évening"},
    "smooth": {"value": True},
    "steps": {"value": [1, 2]},
    "color": {"value": {"r": {"value": 255}}},
}


@pytest.fixture
async def lamp(services: Services, world: World) -> str:
    """A device of Ada's whose Action has parameters."""
    type_ = {"id": "dt-lamp", "unique_name": "example.lamp", "organization": "Acme", "manifest": LAMP_MANIFEST}
    await services.provisioning.apply(
        {
            "device_types": [{**type_, "published": True}],
            "devices": [{"id": LAMP, "owner": "ada@example.org", "type": "dt-lamp", "name": "Lamp"}],
        }
    )
    return LAMP


@pytest.fixture
def sent(services: Services) -> list[Action]:
    """The Actions that became durable."""
    found: list[Action] = []
    services.core.router.subscribe(ActionStored, lambda fact: found.append(fact.action))
    return found


async def made(api: httpx.AsyncClient, *actions: Any, token: str = ADA_TOKEN, **members: Any) -> dict[str, Any]:
    body = {"name": "Evening", "actions": list(actions) or [ON], **members}
    answer = await api.post("/scenes", json=body, headers=bearer(token))
    assert answer.status_code == 200, answer.text
    scene: dict[str, Any] = answer.json()["data"]
    return scene


def findings(answer: httpx.Response) -> list[tuple[str, str]]:
    error = error_of(answer, 400)
    assert (error["code"], error["errorType"]) == (4001, "ValidationError")
    (found,) = answer.json()["error"]["errors"]
    listed = [(one["field"], text) for one in found for text in one["messages"]]
    assert error["errorMessage"] == "; ".join(f"{field}: {text}" for field, text in listed)
    return listed


async def test_every_call_answers_the_scene_as_it_was_sent(
    api: httpx.AsyncClient, services: Services, lamp: str, fake_clock: FakeClock
) -> None:
    ada = bearer(ADA_TOKEN)
    action = {"ddid": lamp, "action": "set", "parameters": ALL_PARAMETERS, "more": [1.0]}
    scene = await made(api, action, EVERY, description="x" * 1_400)
    assert scene == {
        "id": scene["id"],
        "uid": ADA,
        "aid": DASHBOARD,
        "name": "Evening",
        "description": "x" * 1_400,
        "actions": [action, EVERY],
        "createdOn": NOW_MS,
        "modifiedOn": NOW_MS,
    }
    path = f"/scenes/{scene['id']}"
    fake_clock.advance(1)
    others: tuple[object, ...] = (BOB, [], {})
    for uid in others:
        assert findings(await api.put(path, json={"uid": uid}, headers=ada)) == [("uid", INVALID)]
    changed = (await api.put(path, json={"name": "Night", "description": "", "uid": ADA}, headers=ada)).json()["data"]
    assert changed == scene | {"name": "Night", "description": "", "modifiedOn": NOW_MS + 1}
    for answer in (
        await api.get(path, headers=ada),
        await api.post(path, headers=ada),
        await api.delete(path, headers=ada),
    ):
        assert answer.json() == {"data": changed}
    assert error_of(await api.get(path, headers=ada), 404)["errorType"] == "NotFound"
    about = AuditFilter(0, NOW_MS * 2, 9, object=f"scene {scene['id']}")
    entries = await services.core.database.read(lambda tx: tx.audit.find(about))
    assert [(one.event, one.details["owner"]) for one in entries] == [
        ("scene_created", ADA),
        ("scene_changed", ADA),
        ("scene_removed", ADA),
    ]


async def test_a_scene_is_answered_compact(api: httpx.AsyncClient, lamp: str) -> None:
    scene = {"name": "Evening", "actions": [{"ddid": lamp, "action": "set", "parameters": ALL_PARAMETERS}]}
    answer = await api.post("/scenes", content=json.dumps(scene, indent=2), headers=bearer(ADA_TOKEN))
    assert answer.status_code == 200, answer.text
    assert json.dumps(answer.json()["data"]["actions"], separators=(",", ":"), ensure_ascii=False) in answer.text


async def test_a_scene_of_all_its_actions_may_be_written_in_lines(api: httpx.AsyncClient, lamp: str) -> None:
    action = {"ddid": lamp, "action": "set", "parameters": ALL_PARAMETERS}
    scene = json.dumps({"name": "Evening", "actions": [action] * SCENE_ACTIONS_MAX}, indent=1)
    answer = await api.post("/scenes", content=scene, headers=bearer(ADA_TOKEN))
    assert answer.status_code == 200, answer.text
    again = await api.put(f"/scenes/{answer.json()['data']['id']}", content=scene, headers=bearer(ADA_TOKEN))
    assert again.status_code == 200, again.text


async def test_lists_have_pages_and_the_user_is_that_of_the_token(api: httpx.AsyncClient, world: World) -> None:
    scenes = [await made(api, name=f"Scene {number}") for number in range(3)]
    for path, token in (("/scenes", ADA_TOKEN), (f"/users/{ADA}/scenes", APPLICATION_TOKEN)):
        answer = await api.get(f"{path}?count=2&offset=1", headers=bearer(token))
        assert answer.json() == {"data": {"scenes": scenes[1:]}, "total": 3, "offset": 1, "count": 2}
    assert (await api.get("/scenes", headers=bearer(BOB_TOKEN))).json()["total"] == 0
    assert error_of(await api.get("/scenes", headers=bearer(APPLICATION_TOKEN)), 403)["errorType"] == "PermissionDenied"


async def test_an_application_says_whose_scene_it_makes(api: httpx.AsyncClient, world: World) -> None:
    scene = await made(api, token=APPLICATION_TOKEN, uid=ADA)
    assert (scene["uid"], scene["aid"]) == (ADA, DASHBOARD)
    for token, uid, expected in (
        (APPLICATION_TOKEN, None, [("uid", "Required parameter")]),
        (APPLICATION_TOKEN, UNKNOWN, [("uid", "User does not exist.")]),
        (ADA_TOKEN, 7, [("uid", INVALID)]),
        (APPLICATION_TOKEN, {"a": []}, [("uid", INVALID)]),
    ):
        body: dict[str, Any] = {"name": "", "actions": [ON], "uid": uid}
        answer = await api.post("/scenes", json=body, headers=bearer(token))
        assert findings(answer) == [("name", "Required parameter"), *expected]
    for token in (APPLICATION_TOKEN, ADA_TOKEN):  # Bob granted the application nothing
        body = {"name": "Evening", "actions": [ON], "uid": BOB}
        error_of(await api.post("/scenes", json=body, headers=bearer(token)), 403)


async def test_all_findings_come_at_once(api: httpx.AsyncClient, lamp: str) -> None:
    wrong_values = {
        "level": {"value": 2**31},
        "warmth": {"value": "0.5"},
        "label": {"value": 5},
        "smooth": {"value": 1},
        "steps": {"value": 5},
        "color": {"value": {"r": {"value": 1.5}, "x": {"value": 1}}},
        "other": {"value": 1},
    }
    actions = [
        "setOn",
        {},
        {"ddid": 5, "action": 5, "parameters": []},
        {"ddid": {"selector": "any"}, "action": "setOn"},
        {"ddid": KITCHEN, "action": "setOn", "parameters": {"a": 5, "b": {}, "c": {"valueFrom": {}}}},
        {"ddid": UNKNOWN, "action": "setOn"},
        {"ddid": {"selector": "every", "dtid": "dt-unknown"}, "action": "setOn"},
        {"ddid": KITCHEN, "action": "httpRequest"},
        {"ddid": {"selector": "every", "dtid": "example.lamp"}, "action": "off"},
        {"ddid": lamp, "action": "set", "parameters": wrong_values},
        {"ddid": lamp, "action": "set", "parameters": {"label": {"value": "x" * 1_100}}},
    ]
    body = {"name": "x" * 65, "description": 5, "actions": actions}
    for method, path in (("POST", "/scenes"), ("PUT", f"/scenes/{(await made(api))['id']}")):
        answer = await api.request(method, path, json=body, headers=bearer(ADA_TOKEN))
        assert findings(answer) == [
            *[("actions.0", INVALID), ("actions.1.action", "Required parameter")],
            *[("actions.1.ddid", "Required parameter"), ("actions.2.action", "Text field only")],
            *[("actions.2.ddid", "Text field only"), ("actions.2.parameters", INVALID)],
            *[("actions.3.ddid.dtid", "Required parameter"), ("actions.3.ddid.selector", INVALID)],
            *[("actions.4.parameters.a", INVALID), ("actions.4.parameters.b.value", "Required parameter")],
            *[
                ("actions.4.parameters.c.value", "Required parameter"),
                ("actions.4.parameters.c.valueFrom", INVALID),
            ],
            ("actions.5.ddid", f'Device "{UNKNOWN}" does not exist'),
            ("actions.6.ddid.dtid", 'Device type "dt-unknown" does not exist'),
            ("actions.7.action", 'Action "httpRequest" does not exist'),
            ("actions.8.action", 'Action "off" does not exist'),
            ("actions.9.parameters.color.value.r.value", INVALID),
            ("actions.9.parameters.color.value.x", 'Field "x" does not exist'),
            ("actions.9.parameters.label.value", "Text field only"),
            ("actions.9.parameters.level.value", INVALID),
            ("actions.9.parameters.other", 'Field "other" does not exist'),
            ("actions.9.parameters.smooth.value", "Boolean field only"),
            ("actions.9.parameters.steps.value", INVALID),
            ("actions.9.parameters.warmth.value", "Numeric field only"),
            ("actions.10.parameters", "Maximum length 1024"),
            ("description", "Text field only"),
            ("name", "Maximum length 64"),
        ]


@each_row(
    ("members", "expected"),
    [
        ({"actions": None}, [("actions", "Required parameter")]),
        ({"actions": []}, [("actions", "Required parameter")]),
        ({"actions": ON}, [("actions", INVALID)]),
        ({"actions": [ON] * 101}, [("actions", "Maximum length 100")]),
        ({"name": None}, [("name", "Required parameter")]),
        ({"description": "x" * 1_401}, [("description", "Maximum length 1400")]),
        ({"actions": [{"ddid": BOBS, "action": "no"}, {"ddid": KITCHEN, "action": "no"}]},
         [("actions.1.action", 'Action "no" does not exist')]),
    ],
)  # fmt: skip
async def test_members_have_bounds(
    api: httpx.AsyncClient, world: World, members: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    body = {"name": "Evening", "actions": [ON]} | members
    assert findings(await api.post("/scenes", json=body, headers=bearer(ADA_TOKEN))) == expected


async def test_parameters_nest_at_most_20_levels(api: httpx.AsyncClient, world: World) -> None:
    deep, odd = b'{"value":{"a":' * 300 + b"1" + b"}}" * 300, b'{"a":' * 700 + b"1" + b"}" * 700
    body = b'{"name":"x","actions":[{"ddid":"%s","action":"setOn","parameters":{"p":%s}}]}' % (KITCHEN.encode(), deep)
    (finding,) = findings(await api.post("/scenes", content=body, headers=bearer(ADA_TOKEN)))
    assert finding == ("actions.0.parameters.p" + ".value.a" * 20, INVALID)
    every = b'{"selector":"every","dtid":"%s","x":%s}' % (LIGHT_TYPE.encode(), odd)
    body = b'{"name":"x","actions":[{"ddid":%s,"action":"setOn","x":%s}]}' % (every, odd)
    answer = await api.post("/scenes", content=body, headers=bearer(ADA_TOKEN))
    assert answer.status_code == 200
    path = f"/scenes/{answer.json()['data']['id']}/provision"
    written = tomllib.loads((await api.get(path, headers=bearer(ADA_TOKEN))).text)["scenes"][0]
    assert written["actions"] == [EVERY]


async def test_parameters_may_have_any_name(api: httpx.AsyncClient, world: World) -> None:
    """A name may be a digit that stands for no number by itself. Findings have the order of the numbers."""
    names = ["10", "9", "\u00b2"]
    body = {"name": "x", "actions": [{**ON, "parameters": {name: {"value": 1} for name in names}}]}
    found = [place for place, _ in findings(await api.post("/scenes", json=body, headers=bearer(ADA_TOKEN)))]
    assert found == [f"actions.0.parameters.{name}" for name in ("9", "\u00b2", "10")]


async def test_a_number_beyond_a_double_is_invalid(api: httpx.AsyncClient, lamp: str) -> None:
    """JSON has integers of any length; a message cannot hold such a value."""
    for name in ("level", "warmth"):
        action = {"ddid": lamp, "action": "set", "parameters": {name: {"value": 10**400}}}
        answer = await api.post("/scenes", json={"name": "x", "actions": [action]}, headers=bearer(ADA_TOKEN))
        assert findings(answer) == [(f"actions.0.parameters.{name}.value", INVALID)]


async def test_a_list_of_scenes_leaves_other_tasks_their_turn(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    """Judging a scene takes up to a millisecond, and a user has up to 200 of them."""
    for _ in range(20):
        await made(api)
    caller, turns = await services.accounts.tokens.caller(ADA_TOKEN), _Turns(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(turns)
    await services.scenes.scenes.page(caller, world.ada, offset=0, count=1)
    trio.lowlevel.remove_instrument(turns)
    assert turns.taken >= 20


class _Turns(trio.abc.Instrument):
    """Counts how often a task gets its turn."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self._task = task
        self.taken = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += task is self._task


async def test_a_body_that_is_no_object_is_refused(api: httpx.AsyncClient, world: World) -> None:
    for body in (b"[]", b"{", b"5"):
        error = error_of(await api.post("/scenes", content=body, headers=bearer(ADA_TOKEN)), 400)
        assert (error["code"], error["errorType"], error["errorMessage"]) == (400, "ValidationError", "Bad Request")
    long = b'{"name":"' + b"x" * SCENE_BODY_BYTES + b'"}'
    assert "errorType" not in error_of(await api.post("/scenes", content=long, headers=bearer(ADA_TOKEN)), 413)


async def test_activation_sends_every_action_in_order(
    api: httpx.AsyncClient, services: Services, lamp: str, sent: list[Action]
) -> None:
    scene = await made(api, {"ddid": lamp, "action": "set", "parameters": ALL_PARAMETERS}, EVERY, ON)
    hall = await services.devices.registry.find(HALL)
    await api.put(f"/devices/{HALL}", json={"connected": False}, headers=bearer(ADA_TOKEN))
    assert not hall.enabled
    body: dict[str, Any] | None
    for body in (None, {}):
        answer = (
            await api.post(f"/scenes/{scene['id']}", json=body, headers=bearer(ADA_TOKEN))
            if body is not None
            else (await api.post(f"/scenes/{scene['id']}", headers=bearer(APPLICATION_TOKEN)))
        )
        assert answer.json() == {"data": scene}
    plain = (
        '{"actions":[{"name":"set","parameters":{"level":7,"warmth":0.5,"label":"évening","smooth":true,'
        '"steps":[1,2],"color":{"r":255}}}]}'
    )
    on = '{"actions":[{"name":"setOn","parameters":{}}]}'
    once = [(lamp, lamp, plain), (KITCHEN, KITCHEN, on), (KITCHEN, KITCHEN, on)]
    assert [(one.sdid, one.ddid, one.data) for one in sent] == once * 2
    assert findings(await api.post(f"/scenes/{scene['id']}", json={"a": 1}, headers=bearer(ADA_TOKEN))) == [
        ("a", INVALID)
    ]


async def test_nothing_is_sent_while_a_named_device_is_disabled(
    api: httpx.AsyncClient, world: World, sent: list[Action]
) -> None:
    scene = await made(api, ON, ON | {"ddid": HALL})
    await api.put(f"/devices/{HALL}", json={"connected": False}, headers=bearer(ADA_TOKEN))
    error = error_of(await api.post(f"/scenes/{scene['id']}", headers=bearer(ADA_TOKEN)), 403)
    assert error["errorMessage"] == "Destination device is disconnected"
    assert sent == []


async def test_a_deleted_device_makes_a_scene_invalid_until_new_actions_are_given(
    api: httpx.AsyncClient, world: World, sent: list[Action], fake_clock: FakeClock
) -> None:
    ada, scene = bearer(ADA_TOKEN), await made(api, ON | {"ddid": HALL}, ON)
    path = f"/scenes/{scene['id']}"
    await api.delete(f"/devices/{KITCHEN}", headers=ada)
    error = {
        "code": 4001,
        "message": "Validation Error",
        "errors": [[{"field": "actions.1.ddid", "messages": [f'Device "{KITCHEN}" does not exist']}]],
    }
    invalid = scene | {"invalidatedOn": NOW_MS, "error": error}
    assert (await api.get(path, headers=ada)).json() == {"data": invalid}
    assert (await api.get("/scenes", headers=ada)).json()["data"]["scenes"] == [invalid]
    refused = error_of(await api.post(path, headers=ada), 400)
    assert (refused["code"], refused["errorType"]) == (400, "SceneInvalid")
    assert sent == []
    fake_clock.advance(5)
    renamed = (await api.put(path, json={"name": "Broken"}, headers=ada)).json()["data"]
    assert renamed == invalid | {"name": "Broken", "modifiedOn": NOW_MS + 5}
    assert findings(await api.put(path, json={"actions": [ON]}, headers=ada)) == [
        ("actions.0.ddid", f'Device "{KITCHEN}" does not exist')
    ]
    mended = (await api.put(path, json={"actions": [EVERY]}, headers=ada)).json()["data"]
    assert mended == scene | {"name": "Broken", "actions": [EVERY], "modifiedOn": NOW_MS + 5}
    assert (await api.post(path, headers=ada)).status_code == 200
    assert [one.ddid for one in sent] == [HALL]


async def test_a_scene_uses_only_what_its_caller_may_use(
    api: httpx.AsyncClient, services: Services, world: World, sent: list[Action]
) -> None:
    bobs = ON | {"ddid": BOBS}
    body = {"name": "Evening", "actions": [ON, bobs]}
    error = error_of(await api.post("/scenes", json=body, headers=bearer(ADA_TOKEN)), 403)
    assert error["message"] == f"You don't have the right permissions: WRITE on device {BOBS}"
    device = await services.devices.registry.find(BOBS)
    share = await services.devices.shares.offer(device, uid=ADA)
    ada = bearer(ADA_TOKEN)
    await api.put(f"/devices/{BOBS}/shares/{share.id}", json={"status": "ACCEPTED"}, headers=ada)
    scene = await made(api, bobs)
    path = f"/scenes/{scene['id']}"
    assert (await api.post(path, headers=ada)).status_code == 200
    assert [one.ddid for one in sent] == [BOBS]
    for method in ("GET", "PUT", "POST", "DELETE"):  # Bob owns the device, but it is Ada's scene
        error_of(await api.request(method, path, headers=bearer(BOB_TOKEN)), 403)
    await api.delete(f"/devices/{BOBS}/shares/{share.id}", headers=ada)
    (finding,) = (await api.get(path, headers=ada)).json()["data"]["error"]["errors"][0]
    assert finding == {"field": "actions.0.ddid", "messages": [f'Device "{BOBS}" is no longer shared']}
    assert error_of(await api.post(path, headers=ada), 400)["errorType"] == "SceneInvalid"


async def test_a_scene_of_a_type_that_is_not_granted_is_left_out_of_lists(
    api: httpx.AsyncClient, services: Services, world: World
) -> None:
    await services.provisioning.apply(
        {
            "organizations": [{"name": "Beta"}],
            "device_types": [
                {
                    "id": "dt-b",
                    "unique_name": "b.light",
                    "organization": "Beta",
                    "published": True,
                    "manifest": LAMP_MANIFEST,
                }
            ],
            "scenes": [
                {
                    "owner": ADA,
                    "application": DASHBOARD,
                    "name": "Foreign",
                    "actions": [{"ddid": {"selector": "every", "dtid": "dt-b"}, "action": "set"}],
                }
            ],
        }
    )
    scene = (await services.core.database.read(lambda tx: tx.scenes.of_user(world.ada)))[0]
    assert (await api.get("/scenes", headers=bearer(ADA_TOKEN))).json()["total"] == 0
    error_of(await api.post(f"/scenes/{scene.id}", headers=bearer(ADA_TOKEN)), 403)
    body = {"name": "Mine", "actions": [{"ddid": {"selector": "every", "dtid": "b.light"}, "action": "guess"}]}
    error = error_of(await api.post("/scenes", json=body, headers=bearer(ADA_TOKEN)), 403)
    assert error["message"] == "You don't have the right permissions: WRITE on device type dt-b"


async def test_a_user_has_at_most_200_scenes(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.scenes.scenes.SCENES_OF_USER", 1)
    await made(api)
    answer = await api.post("/scenes", json={"name": "Second", "actions": [ON]}, headers=bearer(ADA_TOKEN))
    assert "errorType" not in error_of(answer, 409)


async def test_a_scene_goes_out_and_in_as_one_text(api: httpx.AsyncClient, services: Services, lamp: str) -> None:
    ada = bearer(ADA_TOKEN)
    action = {"ddid": lamp, "action": "set", "parameters": ALL_PARAMETERS}
    scene = await made(api, action, ON | {"parameters": None}, name='Say "é"', description="#\t")
    answer = await api.get(f"/scenes/{scene['id']}/provision", headers=ada)
    assert answer.headers["content-type"] == "application/toml; charset=utf-8"
    kinds = {"text/plain": "text/plain", "*/*": "application/toml", "image/png": "application/toml"}
    for accepted, kind in kinds.items():
        plain = await api.get(f"/scenes/{scene['id']}/provision", headers={**ada, "Accept": accepted})
        assert (plain.headers["content-type"], plain.text) == (f"{kind}; charset=utf-8", answer.text)
    document = tomllib.loads(answer.text)
    report = await services.provisioning.apply(document)
    assert report.tables["scenes"].unchanged == 1
    assert (await api.get(f"/scenes/{scene['id']}", headers=ada)).json()["data"] == scene
    await api.delete(f"/scenes/{scene['id']}", headers=ada)
    report = await services.provisioning.apply(document)
    assert report.tables["scenes"].created == 1
    back = (await api.get(f"/scenes/{scene['id']}", headers=ada)).json()["data"]
    assert back == scene | {"actions": [action, {"ddid": KITCHEN, "action": "setOn"}]}
