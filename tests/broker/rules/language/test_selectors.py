"""Which devices `any`, `matched` and `every` mean (reference 12.7)."""

from typing import Any

from broker.rules.language.actions import SendAction
from broker.rules.language.rule import CompiledRule
from tests.broker.rules.language.rule_world import KEYS, LIGHTS, SENSORS, FakeView, condition, rule, selector

_ANY_IS_ON = condition(selector("any", "dt2"), "state", "=", True)
_MATCHED_OFF = {"ddid": selector("matched", "dt2"), "action": "setOff"}


def targets(made: CompiledRule, view: FakeView) -> list[str] | None:
    """The devices that Actions are sent to after the current message; None: the rule does not trigger."""
    match = made.on_message(view).match
    if match is None:
        return None
    ids = {key: id_ for id_, key in KEYS.items()}
    return [ids[one.device] for one in made.outgoing(view, match) if isinstance(one, SendAction)]


def test_any_is_the_device_of_the_message_and_matched_is_the_same() -> None:
    made = rule(_ANY_IS_ON, condition(selector("matched", "dt2"), "intensity", ">", 50), then=_MATCHED_OFF)
    view = FakeView()
    assert targets(made, view.sends("l1", {"state": True})) is None
    assert targets(made, view.sends("l2", {"intensity": 80})) is None  # one device has to meet both
    assert targets(made, view.sends("l1", {"intensity": 60})) == ["l1"]
    assert targets(made, view.sends("l2", {"state": True})) == ["l2"]


def test_another_device_that_is_met_does_not_count_when_the_messages_device_is_not() -> None:
    made = rule(_ANY_IS_ON, then=_MATCHED_OFF)
    view = FakeView()
    assert targets(made, view.sends("l1", {"state": True})) == ["l1"]
    assert targets(made, view.sends("l2", {"state": False})) is None


def test_a_rule_triggers_with_each_message_while_its_conditions_hold() -> None:
    made = rule(_ANY_IS_ON, then=_MATCHED_OFF)
    view = FakeView()
    assert targets(made, view.sends("l1", {"state": True})) == ["l1"]
    assert targets(made, view.sends("l1", {"label": "unrelated"})) == ["l1"]


def test_conditions_may_be_met_at_different_times_the_newest_device_matches() -> None:
    made = rule(_ANY_IS_ON, condition("s1", "temp", ">", 25), then=_MATCHED_OFF)
    view = FakeView()
    assert targets(made, view.sends("l2", {"state": True})) is None
    view.later(1)
    assert targets(made, view.sends("l1", {"state": True})) is None
    view.later(1)
    assert targets(made, view.sends("s1", {"temp": 30})) == ["l1"]
    view.later(1).sends("l2", {"state": True})
    view.later(1).sends("l1", {"state": False})
    assert targets(made, view.sends("s1", {"temp": 31})) == ["l2"]
    view.sends("l2", {"state": False})
    assert targets(made, view.sends("s1", {"temp": 32})) is None


def test_a_device_that_the_rule_also_names_may_leave_any_to_another() -> None:
    made = rule(_ANY_IS_ON, condition("l2", "intensity", ">", 50), then=_MATCHED_OFF)
    view = FakeView()
    assert targets(made, view.sends("l1", {"state": True})) is None
    assert targets(made, view.sends("l2", {"intensity": 80})) == ["l1"]
    assert targets(made, view.sends("l2", {"state": True})) == ["l2"]


def test_selectors_do_not_choose_a_strangers_device() -> None:
    made = rule(condition(selector("any"), "temp", ">", 20))
    view = FakeView()
    assert targets(made, view.sends("s9", {"temp": 30})) is None
    assert targets(made, view.sends("s2", {"temp": 30})) == ["l1"]


def test_a_strangers_device_may_be_named() -> None:
    assert targets(rule(condition("s9", "temp", ">", 20)), FakeView().sends("s9", {"temp": 30})) == ["l1"]


def test_matched_may_be_an_operand() -> None:
    hotter: dict[str, Any] = {
        **condition("s1", "temp", ">"),
        "operand": {"valueFrom": {"sdid": selector("matched"), "field": "temp"}},
    }
    made = rule(condition(selector("any"), "on", "=", True), hotter)
    view = FakeView().sends("s2", {"on": True, "temp": 20})
    assert targets(made, view.sends("s1", {"temp": 21})) == ["l1"]
    assert targets(made, view.sends("s1", {"temp": 19})) is None


def test_devices_that_two_any_choose_are_compared_with_each_other() -> None:
    brighter: dict[str, Any] = {
        **condition(selector("any", "dt2"), "intensity", ">"),
        "operand": {"valueFrom": {"sdid": selector("matched"), "field": "level"}},
    }
    made = rule(brighter, condition(selector("any"), "on", "=", True), then=_MATCHED_OFF)
    view = FakeView().sends("s1", {"on": True, "level": 50})
    assert targets(made, view.sends("l1", {"intensity": 60})) == ["l1"]
    assert targets(made, view.sends("l2", {"intensity": 40})) is None
    assert targets(made, view.later(1).sends("l1", {"intensity": 70})) == ["l1"]
    assert targets(made, view.sends("s1", {"level": 65})) == ["l1"]
    assert targets(made, view.sends("s1", {"level": 75})) is None


def test_every_needs_all_devices_by_their_last_values() -> None:
    made = rule(
        condition(selector("every"), "temp", ">", 20), then={"ddid": selector("every", "dt2"), "action": "setOn"}
    )
    view = FakeView()
    assert targets(made, view.sends("s1", {"temp": 30})) is None  # s2 has not sent anything
    assert targets(made, view.sends("s2", {"temp": 10})) is None
    assert targets(made, view.sends("s2", {"temp": 21})) == ["l1", "l2"]
    assert targets(made, view.sends("s1", {"level": 1})) == ["l1", "l2"]
    assert targets(made, view.sends("s1", {"temp": 20})) is None


def test_every_does_not_hold_when_there_are_no_devices() -> None:
    made = rule(condition("l1", "state", "=", True), condition(selector("every"), "temp", "!=", 0))
    view = FakeView(members={SENSORS.key: (), LIGHTS.key: (KEYS["l1"],)})
    assert targets(made, view.sends("l1", {"state": True})) is None


def test_a_rule_watches_what_its_conditions_name() -> None:
    made = rule(
        condition("s1", "temp", ">", 20),
        condition("s1", "on", "=", True),
        condition(selector("any"), "level", ">", 20),
        condition(selector("matched", "house.sensor"), "mode", "=", "eco"),
        then=[
            {"ddid": "l1", "action": "setText", "parameters": {"text": {"valueFrom": {"sdid": "s9", "field": "mode"}}}},
            {"ddid": selector("every", "dt2"), "action": "setOn"},
        ],
    )
    found = {(watch.device, watch.device_type): sorted(watch.fields) for watch in made.watches}
    assert found == {(KEYS["s1"], None): ["on", "temp"], (None, SENSORS.key): ["level", "mode"]}
    assert [set(made.reads), set(made.writes)] == [{KEYS["s1"], KEYS["s9"]}, {KEYS["l1"]}]
    assert [set(made.type_reads), set(made.type_writes)] == [{SENSORS.key}, {LIGHTS.key}]
