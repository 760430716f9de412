"""Rules and scenes want values of devices (reference 12.5, 12.11)."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.devices.inventory import DeviceChanges
from broker.errors import ValidationFailed
from broker.scenes.actions import read_actions
from broker.services import Services
from broker.wanted.wanted import WantedField
from config.limits import WANTED_SECONDS_MAX
from storage.wanted import WantedRecord, WantedStore
from tests.broker.rules.home import Home, body, when
from tests.factories import BOBS, HALL, KITCHEN, LIGHT_TYPE, World
from tests.rows import each_row

FIELDS: Final[list[dict[str, Any]]] = [
    {"name": "state", "valueClass": "Boolean"},
    {"name": "intensity", "valueClass": "Integer", "settable": True},
    {"name": "fan", "children": [{"name": "speed", "valueClass": "Integer", "settable": True}]},
    {"name": "battery", "valueClass": "Integer"},
]
WANT: Final[Mapping[str, Any]] = {"ddid": HALL, "want": {"intensity": {"value": 40}}, "expiresAfter": 60}


@pytest.fixture
async def home(services: Services, world: World) -> Home:
    assert world.hall
    await services.device_types.manifests.upload(LIGHT_TYPE, {"fields": FIELDS}, approve=True)
    await wait_all_tasks_blocked()
    return Home(services)


async def wanted(home: Home, device: str = HALL) -> dict[str, WantedField]:
    view = await home.services.wanted.show(await home.services.devices.registry.find(device))
    return {one.field: one for one in view.fields}


async def test_a_rule_wants_values_and_each_change_of_them(home: Home) -> None:
    fan = {"fan": {"value": {"speed": {"valueFrom": {"sdid": KITCHEN, "field": "intensity"}}}}}
    rule = await home.rule(body(when("state", "=", True), WANT, {"ddid": HALL, "want": fan}))
    await home.says({"intensity": 3})
    await home.says({"state": True})
    found = await wanted(home)
    assert {path: one.wanted for path, one in found.items()} == {"intensity": 40, "fan.speed": 3}
    assert {one.by for one in found.values()} == {f"rule {rule.id}"}
    assert found["intensity"].expires_on == found["intensity"].since + 60_000
    assert await home.count() == 0, "no Action is sent"
    await home.says({"intensity": 40, "fan": {"speed": 4}}, HALL)
    assert {path: one.state for path, one in (await wanted(home)).items()} == {
        "intensity": "reached",
        "fan.speed": "waiting",
    }


async def test_a_rule_that_wants_the_same_again_writes_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[int]()
    put = WantedStore.put

    def noting(store: WantedStore, records: Iterable[WantedRecord]) -> None:
        some = list(records)
        written.append(len(some))
        put(store, some)

    monkeypatch.setattr(WantedStore, "put", noting)
    await home.rule(body(when("state", "=", True), {**WANT, "expiresAfter": 600}))
    for _ in range(3):
        await home.says({"state": True})
        await home.says({"state": False})
    assert written == [1]
    await home.says({"intensity": 40}, HALL)  # reached
    await home.services.wanted.step()
    await home.says({"state": True})
    await home.says({"state": False})
    assert written == [1]
    await home.says({"intensity": 41}, HALL)  # somebody turned it
    await home.says({"state": True})
    assert written == [1, 1]
    assert {one.state for one in (await wanted(home)).values()} == {"waiting"}


async def test_a_rule_notes_why_it_could_not(home: Home) -> None:
    rule = await home.rule(body(when("state", "=", True), WANT))
    hall = await home.services.devices.registry.find(HALL)
    await home.services.devices.inventory.change(hall, DeviceChanges(enabled=False))
    await home.says({"state": True})
    assert await wanted(home) == {}
    (problem,) = (await home.status(rule)).problems
    assert (problem.field, problem.text) == ("rule.then.0", "Destination device is disconnected")


@each_row(
    ("entry", "field"),
    [
        ({**WANT, "action": "setOn"}, "rule.then.0.action"),
        ({**WANT, "want": {}}, "rule.then.0.want"),
        ({**WANT, "want": 7}, "rule.then.0.want"),
        ({**WANT, "want": {"battery": {"value": 1}}}, "rule.then.0.want.battery"),
        ({**WANT, "want": {"nothing": {"value": 1}}}, "rule.then.0.want.nothing"),
        ({**WANT, "want": {"intensity": {"value": "bright"}}}, "rule.then.0.want.intensity.value"),
        ({**WANT, "want": {"fan": {"value": {"x": {"value": 1}}}}}, "rule.then.0.want.fan.value.x"),
        ({**WANT, "expiresAfter": 0}, "rule.then.0.expiresAfter"),
        ({**WANT, "expiresAfter": WANTED_SECONDS_MAX + 1}, "rule.then.0.expiresAfter"),
        ({**WANT, "ddid": None}, "rule.then.0.ddid"),
    ],
)
async def test_a_rule_whose_wish_the_manifest_refuses_is_refused(home: Home, entry: Any, field: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await home.rule(body(when("state", "=", True), entry))
    assert [finding.field for finding in refused.value.findings] == [field]


async def activate(home: Home, *actions: Mapping[str, Any]) -> None:
    scenes, caller = home.services.scenes.scenes, await home.ada()
    made = await scenes.create(caller, {"name": "Evening", "actions": list(actions)})
    await scenes.activate(made)


@pytest.mark.both_engines
async def test_a_scene_wants_values_of_one_device_and_of_all(home: Home) -> None:
    every = {"ddid": {"selector": "every", "dtid": LIGHT_TYPE}, "want": {"fan": {"value": {"speed": {"value": 2}}}}}
    await activate(home, WANT, every)
    assert {path: one.wanted for path, one in (await wanted(home)).items()} == {"intensity": 40, "fan.speed": 2}
    assert {path: one.wanted for path, one in (await wanted(home, KITCHEN)).items()} == {"fan.speed": 2}
    assert await wanted(home, BOBS) == {}
    assert (await wanted(home))["intensity"].by.startswith("scene ")


@each_row(
    ("entry", "field"),
    [
        ({**WANT, "action": "setOn"}, "actions.0.action"),
        ({**WANT, "want": []}, "actions.0.want"),
        ({**WANT, "want": {"battery": {"value": 1}}}, "actions.0.want.battery"),
        ({**WANT, "want": {"intensity": {"value": "bright"}}}, "actions.0.want.intensity.value"),
        ({**WANT, "want": {"intensity": 40}}, "actions.0.want.intensity"),
        ({**WANT, "expiresAfter": "soon"}, "actions.0.expiresAfter"),
    ],
)
async def test_a_scene_whose_wish_is_wrong_is_refused(home: Home, entry: Any, field: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        await activate(home, entry)
    assert [finding.field for finding in refused.value.findings] == [field]
    assert await wanted(home) == {}


def test_a_stored_scene_reads_as_it_was_sent() -> None:
    (read,) = read_actions(json.loads(json.dumps([WANT])), [])
    assert (read.wanted_seconds, json.loads(read.data)) == (60, {"intensity": 40})
