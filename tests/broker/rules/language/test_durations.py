"""Durations: when their periods begin and end, and that a rule triggers once for each (reference 12.7)."""

from typing import Any

from broker.rules.language.evaluation import RuleMatch, Timer, TimerKey
from broker.rules.language.rule import CompiledRule
from tests.broker.rules.language.rule_world import (
    KEYS,
    LIGHTS,
    SENSORS,
    FakeView,
    body,
    condition,
    findings,
    rule,
    selector,
)
from tests.wording import INVALID

_WARM = condition("s1", "temp", ">", 20)


def lasting(made: dict[str, Any], seconds: float = 60, **others: Any) -> dict[str, Any]:
    return {**made, "duration": {"value": seconds, **others}}


class Run:
    """A rule with its timers, as a caller keeps them."""

    def __init__(self, made: CompiledRule) -> None:
        self.rule = made
        self.timers: dict[TimerKey, Timer] = {}
        self.view = FakeView()

    def sends(self, device: str, data: dict[str, Any]) -> RuleMatch | None:
        outcome = self.rule.on_message(self.view.sends(device, data), self.timers)
        self._keep(outcome.timers)
        return outcome.match

    def later(self, seconds: float) -> list[RuleMatch]:
        """The matches while time passes."""
        until = self.view.now_ms + round(seconds * 1000)
        found = []
        while due := sorted((one.due_ms, key) for key, one in self.timers.items() if not one.elapsed):
            at_ms, key = due[0]
            if at_ms > until:
                break
            self.view.later((at_ms - self.view.now_ms) / 1000)
            outcome = self.rule.on_elapsed(self.view, self.timers, key)
            self._keep(outcome.timers)
            found += [outcome.match] if outcome.match is not None else []
        self.view.later((until - self.view.now_ms) / 1000)
        return found

    def _keep(self, changes: Any) -> None:
        for key, timer in changes.items():
            self.timers.pop(key, None)
            if timer is not None:
                self.timers[key] = timer


def test_a_rule_triggers_once_when_the_condition_held_for_the_whole_period() -> None:
    run = Run(rule(lasting(_WARM)))
    assert run.sends("s1", {"temp": 25}) is None
    assert run.later(59.999) == []
    assert len(run.later(0.001)) == 1
    assert run.sends("s1", {"temp": 26}) is None
    assert run.later(1000) == []


def test_the_period_ends_when_the_condition_becomes_false() -> None:
    run = Run(rule(lasting(_WARM)))
    run.sends("s1", {"temp": 25})
    run.later(30)
    run.sends("s1", {"temp": 20})
    assert run.timers == {}
    run.later(10)
    run.sends("s1", {"temp": 21})
    assert run.later(59) == []
    assert len(run.later(1)) == 1


def test_updates_do_not_end_the_period_when_they_are_accepted() -> None:
    for accepted in ({}, {"acceptUpdate": True}, {"acceptUpdate": None}):
        run = Run(rule(lasting(_WARM, **accepted)))
        run.sends("s1", {"temp": 25})
        run.later(40)
        run.sends("s1", {"temp": 26})
        assert len(run.later(20)) == 1


def test_an_update_begins_the_period_anew_when_it_is_not_accepted() -> None:
    run = Run(rule(lasting(_WARM, acceptUpdate=False)))
    run.sends("s1", {"temp": 25})
    run.later(40)
    run.sends("s1", {"level": 1})  # another field
    run.later(10)
    run.sends("s1", {"temp": 25})  # the same value is an update, too
    assert run.later(59) == []
    assert len(run.later(1)) == 1
    run.sends("s1", {"temp": 25})
    assert len(run.later(60)) == 1


def test_a_rule_waits_for_its_other_conditions_and_then_triggers_once() -> None:
    run = Run(rule(lasting(_WARM), condition("l1", "state", "=", False)))
    run.sends("s1", {"temp": 25})
    assert run.later(60) == []
    assert run.sends("l1", {"state": True}) is None
    assert run.sends("l1", {"state": False}) is not None
    assert run.sends("l1", {"state": False}) is None
    run.sends("s1", {"temp": 10})
    run.sends("s1", {"temp": 25})
    assert len(run.later(60)) == 1


def test_a_rule_with_two_durations_triggers_when_the_last_has_elapsed_and_again_with_each() -> None:
    run = Run(rule(lasting(_WARM, 30), lasting(condition("l1", "state", "=", False), 60)))
    run.sends("s1", {"temp": 25})
    run.sends("l1", {"state": False})
    assert run.later(30) == []
    assert len(run.later(30)) == 1
    run.sends("s1", {"temp": 10})
    run.sends("s1", {"temp": 25})
    assert len(run.later(30)) == 1


def test_each_device_of_any_has_a_period_of_its_own() -> None:
    off = {"ddid": selector("matched", "dt2"), "action": "setOff"}
    run = Run(rule(lasting(condition(selector("any", "dt2"), "state", "=", True)), then=off))
    run.sends("l1", {"state": True})
    run.later(30)
    run.sends("l2", {"state": True})
    assert [match.devices for match in run.later(30)] == [{LIGHTS.key: KEYS["l1"]}]
    assert [match.devices for match in run.later(30)] == [{LIGHTS.key: KEYS["l2"]}]
    assert run.later(1000) == []


def test_every_device_must_have_held_for_the_period() -> None:
    run = Run(rule(lasting(condition(selector("every"), "temp", ">", 20))))
    run.sends("s1", {"temp": 25})
    assert run.later(100) == []
    run.sends("s2", {"temp": 25})
    assert len(run.later(60)) == 1
    run.sends("s2", {"temp": 10})
    run.sends("s2", {"temp": 25})
    assert len(run.later(60)) == 1


def test_a_device_that_is_gone_when_its_period_is_over_loses_its_timer() -> None:
    run = Run(rule(lasting(condition(selector("any"), "temp", ">", 20))))
    run.sends("s1", {"temp": 25})
    run.view.members[SENSORS.key] = (KEYS["s2"],)
    assert run.later(60) == []
    assert run.timers == {}


def test_the_operands_device_ends_and_begins_periods_too() -> None:
    warmer = {**condition("s1", "temp", ">"), "operand": {"valueFrom": {"sdid": "s2", "field": "temp"}}}
    run = Run(rule(lasting(warmer)))
    run.sends("s1", {"temp": 25})
    assert run.timers == {}
    run.sends("s2", {"temp": 20})
    run.later(30)
    run.sends("s2", {"temp": 30})
    assert run.timers == {}
    run.sends("s2", {"temp": 20})
    assert len(run.later(60)) == 1
    every = Run(rule(lasting({**warmer, "sdid": selector("every")})))
    every.sends("s1", {"temp": 25})
    every.sends("s2", {"temp": 25})
    assert every.timers == {}  # s2 is not warmer than itself
    every.sends("s2", {"temp": 20})
    assert set(every.timers) == {(0, KEYS["s1"])}


def test_a_missing_field_can_last() -> None:
    run = Run(rule(lasting(condition("s1", "temp", "is not in message"))))
    run.sends("s1", {"level": 1})
    run.later(30)
    run.sends("s1", {"level": 2})
    assert len(run.later(30)) == 1
    run.sends("s1", {"temp": 2})
    assert run.timers == {}


def test_a_timer_that_is_gone_or_not_due_changes_nothing() -> None:
    run = Run(rule(lasting(_WARM)))
    key = (0, KEYS["s1"])
    assert run.rule.on_elapsed(run.view, run.timers, key).timers == {}
    run.sends("s1", {"temp": 25})
    before = dict(run.timers)
    assert run.rule.on_elapsed(run.view, run.timers, key).timers == {}
    assert len(run.later(60)) == 1
    assert run.rule.on_elapsed(run.view, run.timers, key).timers == {}
    assert before[key].due_ms == before[key].since_ms + 60_000


_DURATION = "rule.if.and.0.duration"


def test_findings_about_durations() -> None:
    def found(duration: Any) -> list[tuple[str, str]]:
        return findings(body({**_WARM, "duration": duration}))

    assert found(60) == [(_DURATION, INVALID)]
    assert found({}) == [(f"{_DURATION}.value", "Required parameter")]
    assert found({"value": "60"}) == [(f"{_DURATION}.value", "Numeric field only")]
    assert found({"value": True}) == [(f"{_DURATION}.value", "Numeric field only")]
    assert found({"value": 0}) == [(f"{_DURATION}.value", "Minimum value 1")]
    assert found({"value": 31_536_001}) == [(f"{_DURATION}.value", "Maximum value 31536000")]
    assert found({"value": 60, "acceptUpdate": "no"}) == [(f"{_DURATION}.acceptUpdate", "Boolean field only")]


def test_a_duration_follows_no_device_that_any_may_choose_anew() -> None:
    matched = {"valueFrom": {"sdid": selector("matched"), "field": "temp"}}
    any_ = condition(selector("any"), "on", "=", True)
    own = lasting({**condition(selector("matched"), "temp", "!="), "operand": matched})
    assert findings(body(any_, own)) == []
    for sdid in ("s1", selector("every")):
        other = lasting({**condition(sdid, "temp", "!="), "operand": matched})
        assert findings(body(any_, other)) == [("rule.if.and.1.duration", "Invalid rule")]
