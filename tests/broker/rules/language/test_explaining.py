"""Explanations: how each condition came out, and what it looked at (reference 12.7)."""

import tracemalloc
from typing import Any

from broker.rules.language.compiler import compile_rule
from broker.rules.language.evaluation import SEEN_MAX
from broker.rules.language.values import Seen
from storage.keys import DeviceKey, Milliseconds
from tests.broker.rules.language.rule_world import (
    KEYS,
    LIGHTS,
    SENSORS,
    SWITCH_ON,
    WORLD,
    FakeView,
    body,
    condition,
    rule,
    selector,
)

_WARM = condition("s1", "temp", ">", 20)


def test_each_condition_says_held_did_not_hold_or_unknown_with_what_was_seen() -> None:
    made = rule(
        _WARM,
        condition("s1", "on", "=", True),
        {**condition("s1", "temp", "<"), "operand": {"valueFrom": {"sdid": "s2", "field": "temp"}}},
        condition("l1", "state", "is in message"),
    )
    view = FakeView().sends("s2", {"temp": 30}).later(5).sends("s1", {"temp": 19})
    now = view.now_ms
    first, second, third, fourth = made.explain_message(view).conditions
    assert first.path == "rule.if.and.0"
    assert (first.held, first.operand, first.seen) == (False, 20, (Seen(KEYS["s1"], "temp", 19, now),))
    assert (second.held, second.operand, second.seen) == (None, True, (Seen(KEYS["s1"], "on", None, None),))
    seen = (Seen(KEYS["s1"], "temp", 19, now), Seen(KEYS["s2"], "temp", 30, Milliseconds(now - 5000)))
    assert (third.held, third.operand, third.seen) == (True, 30, seen)
    assert (fourth.held, fourth.operand) == (False, None)


def test_an_explanation_names_the_device_that_any_chose() -> None:
    made = rule(condition(selector("any", "dt2"), "state", "=", True), condition("s1", "temp", ">", 20))
    view = FakeView().sends("l2", {"state": True})
    assert [report.device for report in made.explain_message(view).conditions] == [KEYS["l2"], None]
    explanation = made.explain_message(view.sends("s1", {"temp": 25}))
    assert explanation.outcome.match is not None
    assert explanation.conditions[0].device == KEYS["l2"]


def test_without_a_device_for_any_the_nearest_one_is_shown() -> None:
    made = rule(
        condition(selector("any", "dt2"), "state", "=", True),
        condition(selector("matched", "dt2"), "intensity", ">", 50),
        condition("s1", "temp", ">", 20),
    )
    view = FakeView().sends("l1", {"state": False, "intensity": 10})
    view.sends("l2", {"state": True, "intensity": 10}).sends("s1", {"temp": 25})
    state, intensity, temp = made.explain_message(view).conditions
    assert (state.device, state.held) == (KEYS["l2"], True)
    assert (intensity.device, intensity.held) == (KEYS["l2"], False)
    assert temp.held is True
    view.sends("l1", {"label": "hall"})  # a message of the type is about its own device
    assert [report.device for report in made.explain_message(view).conditions] == [KEYS["l1"], KEYS["l1"], None]


def test_without_devices_a_selector_does_not_hold() -> None:
    made = rule(
        condition(selector("any", "dt2"), "state", "=", True),
        condition(selector("every", "dt2"), "state", "=", True),
        condition("s1", "temp", ">", 20),
    )
    view = FakeView(members={LIGHTS.key: (), SENSORS.key: ()}).sends("s1", {"temp": 25})
    assert [report.held for report in made.explain_message(view).conditions] == [False, False, True]


def test_of_every_those_that_do_not_hold_are_shown_first_and_not_too_many() -> None:
    keys = [DeviceKey(100 + number) for number in range(30)]
    made = rule(condition(selector("every"), "temp", ">", 20))
    view = FakeView(members={SENSORS.key: tuple(keys)})
    view.values = {(key, "temp"): (30, 5) for key in keys}
    view.values[keys[20], "temp"] = (10, 5)
    del view.values[keys[25], "temp"]
    (report,) = made.explain_minute(view).conditions
    assert (report.held, report.device) == (False, None)
    assert len(report.seen) == SEEN_MAX
    assert [seen.device for seen in report.seen[:3]] == [keys[20], keys[25], keys[0]]
    view.values[keys[20], "temp"] = (30, 5)
    assert made.explain_minute(view).conditions[0].held is None


def test_a_duration_is_explained_by_its_timer() -> None:
    made = rule({**_WARM, "duration": {"value": 60}})
    view = FakeView().sends("s1", {"temp": 25})
    explanation = made.explain_message(view)
    (report,) = explanation.conditions
    assert report.held is False
    assert report.timer is not None
    assert report.timer.due_ms == view.now_ms + 60_000
    timers = {key: timer for key, timer in explanation.outcome.timers.items() if timer is not None}
    elapsed = made.explain_elapsed(view.later(60), timers, (0, KEYS["s1"]))
    assert elapsed.outcome.match is not None
    assert elapsed.conditions[0].held is True
    spent = {key: timer for key, timer in elapsed.outcome.timers.items() if timer is not None}
    again = made.explain_message(view.sends("s1", {"temp": 26}), spent)
    assert again.outcome.match is None
    assert again.conditions[0].timer is not None
    assert again.conditions[0].timer.spent


def test_explaining_changes_nothing() -> None:
    made = rule({**_WARM, "duration": {"value": 60}})
    view = FakeView().sends("s1", {"temp": 25})
    timers: dict[Any, Any] = {}
    assert made.explain_message(view, timers).outcome == made.on_message(view, timers)
    assert timers == {}


def test_a_rule_takes_little_memory() -> None:
    """8,000 rules must fit at 12 KiB each, with all that the engine keeps about them."""
    texts = [
        body(
            condition("s1", "temp", ">", 20.5 + number),
            {**condition("s2", "level", "<", number), "duration": {"value": 30}},
            {"field": "datetime", "operator": ">=", "operand": {"value": "0 8 * * 1-5 * TZ Europe/Paris"}},
            then=[SWITCH_ON, {"ddid": "l2", "action": "setIntensity", "parameters": {"intensity": {"value": number}}}],
        )
        for number in range(200)
    ]
    kept = [compile_rule(texts[0], WORLD, key=0)]
    tracemalloc.start()
    try:
        kept += [compile_rule(text, WORLD, key=1) for text in texts]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(texts) < 4 * 1024
    schedules = {id(made.conditions.times[0].schedule) for made in kept}
    assert len(schedules) == 1
