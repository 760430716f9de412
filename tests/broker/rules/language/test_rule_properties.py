"""The compiled rule and the plainly written reference evaluator give the same answers."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from broker.rules.language.evaluation import Explanation, Outcome, Timer, TimerKey
from broker.rules.language.rule import CompiledRule
from storage.keys import DeviceKey, Milliseconds
from tests.broker.rules.language.reference_evaluator import Moment, ReferenceRule, Unknown, read, selector_of
from tests.broker.rules.language.rule_world import KEYS, LIGHTS, SENSORS, FakeView, body, findings, rule, selector
from tests.properties import examples

pytestmark = pytest.mark.slow


_IDS = {key: id_ for id_, key in KEYS.items()}
_TYPES = {"s1": "dt1", "s2": "dt1", "s9": "dt1", "l1": "dt2", "l2": "dt2"}
_TYPE_IDS = {SENSORS.key: "dt1", LIGHTS.key: "dt2"}
_OWN = ["s1", "s2", "l1", "l2"]
_FIELDS = {
    "dt1": {"temp": "number", "level": "number", "on": "boolean", "mode": "text", "tags": "collection"},
    "dt2": {"state": "boolean", "intensity": "number", "label": "text"},
}
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "number": st.sampled_from([1, 2, 2.0, 2.5]),
    "boolean": st.booleans(),
    "text": st.sampled_from(["a", "ab", "2"]),
    "collection": st.lists(st.sampled_from(["a", "ab"]), max_size=2),
}
_OPERATORS = {
    "number": ["=", "!=", "<", "<=", ">", ">="],
    "boolean": ["=", "!="],
    "text": ["=", "!=", "<", ">=", "contains", "does not contain"],
    "collection": ["=", "!=", "contains", "does not contain"],
}
_MINUTE_MS = 60_000
_START = Milliseconds(1_699_999_980_000)  # the beginning of a minute


@st.composite
def operands(draw: st.DrawFn, kind: str, matched: list[str], *, depth: int = 0) -> dict[str, Any]:
    forms = ["value", "value", "valueFrom"] + (["operation"] if kind in ("number", "text") and depth < 2 else [])
    form = draw(st.sampled_from(forms))
    if form == "value":
        return {"value": draw(_VALUES[kind])}
    if form == "valueFrom":
        sources: list[Any] = [*_TYPES, *(selector("matched", type_) for type_ in matched)]
        source = draw(st.sampled_from(sources))
        type_ = _TYPES[source] if isinstance(source, str) else source["dtid"]
        fields = [name for name, found in _FIELDS[type_].items() if found == kind]
        return (
            {"valueFrom": {"sdid": source, "field": draw(st.sampled_from(fields))}}
            if fields
            else {"value": draw(_VALUES[kind])}
        )
    name = draw(st.sampled_from(["add", "sub"])) if kind == "number" else "concat"
    kinds = draw(st.lists(st.sampled_from(["number", "boolean", "text"]), min_size=1, max_size=3))
    return {name: [draw(operands(found, matched, depth=depth + 1)) for found in kinds]}


@st.composite
def conditions(draw: st.DrawFn, source: Any, matched: list[str]) -> dict[str, Any]:
    type_ = _TYPES[source] if isinstance(source, str) else source["dtid"]
    field = draw(st.sampled_from(sorted(_FIELDS[type_])))
    kind = _FIELDS[type_][field]
    found: dict[str, Any] = {"sdid": source, "field": field}
    if draw(st.integers(0, 4)) == 0:
        found["operator"] = draw(st.sampled_from(["is in message", "is not in message"]))
    else:
        found["operator"] = draw(st.sampled_from(_OPERATORS[kind]))
        part = "text" if kind == "collection" and "contain" in found["operator"] else kind
        found["operand"] = draw(operands(part, matched))
    if draw(st.integers(0, 2)) == 0:
        found["duration"] = {"value": draw(st.sampled_from([1, 60])), "acceptUpdate": draw(st.booleans())}
    return found


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    choices: list[Any] = list(_TYPES)
    choices += [selector(choice, type_) for choice in ("any", "every") for type_ in ("dt1", "dt2")]
    sources = draw(
        st.lists(st.sampled_from(choices), min_size=1, max_size=2)
        | st.lists(st.sampled_from(choices), min_size=3, max_size=4)
    )
    matched: list[str] = []
    for index, source in enumerate(sources):
        if isinstance(source, dict) and source["selector"] == "any":
            if source["dtid"] in matched:
                sources[index] = selector("matched", source["dtid"])
            else:
                matched.append(source["dtid"])
    found = [draw(conditions(source, matched)) for source in sources]
    if draw(st.integers(0, 5)) == 0:
        times = ["* * * * * *", "13 * * * * *", "14 22 * * * *", "* * 14 11 * 2023", "* * * * 2 *"]
        operator = draw(st.sampled_from(["<", "<=", "=", ">", ">="]))
        found.append({"field": "datetime", "operator": operator, "operand": {"value": draw(st.sampled_from(times))}})
    text = draw(operands("text", matched))
    then = {"ddid": "l1", "action": "setText", "parameters": {"text": text}}
    return body(*found, then=then)


@st.composite
def happenings(draw: st.DrawFn) -> tuple[str, dict[str, Any], float]:
    """A message of a device after some seconds, or only the seconds."""
    device = draw(st.sampled_from(list(_TYPES)))
    fields = draw(st.lists(st.sampled_from(sorted(_FIELDS[_TYPES[device]])), min_size=1, max_size=4, unique=True))
    data = {name: draw(_VALUES[_FIELDS[_TYPES[device]][name]]) for name in fields}
    return device, data, draw(st.sampled_from([0, 0.5, 1, 30, 61]))


class Twins:
    """A rule in both forms, and the world that both see."""

    def __init__(self, text: dict[str, Any]) -> None:
        self.body = text
        self.rule: CompiledRule = rule(*text["if"]["and"], then=text["then"])
        self.timers: dict[TimerKey, Timer] = {}
        self.reference = ReferenceRule(text)
        self.view = FakeView(now_ms=_START)
        self.moment = Moment(_OWN, _TYPES, now=_START)
        self.triggered = 0

    def pass_time(self, seconds: float) -> None:
        """Let the timers that are due elapse, and minutes begin, in the order of their times."""
        until = self.view.now_ms + round(seconds * 1000)
        while True:
            due = self.reference.next_due()
            minute = self.rule.next_minute(self.view.now_ms) or until + 1
            if due is not None and due[0] <= min(until, minute):
                self._elapse(*due)
            elif minute <= until:
                self._at(minute)
                self._same(self.rule.on_minute, self.rule.explain_minute, self.reference.minute(self.moment))
            else:
                self._at(until)
                return

    def _elapse(self, at_ms: int, key: tuple[int, str]) -> None:
        self._at(at_ms)
        index, device = key
        due = (index, KEYS[device])
        self._same(
            lambda view, timers: self.rule.on_elapsed(view, timers, due),
            lambda view, timers: self.rule.explain_elapsed(view, timers, due),
            self.reference.elapse(self.moment, key),
        )

    def receive(self, device: str, data: dict[str, Any]) -> None:
        self.view.sends(device, data)
        self.moment.message = (device, data)
        self.moment.values |= {(device, name): (value, self.moment.now) for name, value in data.items()}
        if self._concerned(device):
            self._same(self.rule.on_message, self.rule.explain_message, self.reference.message(self.moment))

    def _concerned(self, device: str) -> bool:
        own_type = KEYS[device] in {DeviceKey(KEYS[own]) for own in _OWN} and _TYPES[device]
        return any(
            watch.device == KEYS[device] or (watch.device_type is not None and _TYPE_IDS[watch.device_type] == own_type)
            for watch in self.rule.watches
        )

    def _at(self, now: int) -> None:
        self.view.now_ms = Milliseconds(now)
        self.view.message = None
        self.moment.now, self.moment.message = now, None

    def _same(
        self,
        ask: Callable[[FakeView, dict[TimerKey, Timer]], Outcome],
        explain: Callable[[FakeView, dict[TimerKey, Timer]], Explanation],
        expected: dict[str, str] | None,
    ) -> None:
        outcome = ask(self.view, self.timers)
        explanation = explain(self.view, self.timers)
        assert explanation.outcome == outcome
        for key, timer in outcome.timers.items():
            self.timers.pop(key, None)
            if timer is not None:
                self.timers[key] = timer
        self._same_timers()
        match = outcome.match
        assert (match is not None) is (expected is not None)
        if match is not None and expected is not None:
            self.triggered += 1
            assert {_TYPE_IDS[type_]: _IDS[device] for type_, device in match.devices.items()} == expected
            self._same_parameter(outcome, expected)
        self._same_reports(explanation)

    def _same_timers(self) -> None:
        mine = {(index, _IDS[device]): timer for (index, device), timer in self.timers.items()}
        assert {key: (timer.due_ms, timer.elapsed, timer.spent) for key, timer in mine.items()} == {
            key: (running.due, running.elapsed, running.spent) for key, running in self.reference.running.items()
        }

    def _same_parameter(self, outcome: Outcome, devices: dict[str, str]) -> None:
        assert outcome.match is not None
        (sent,) = self.rule.outgoing(self.view, outcome.match)
        try:
            expected = read(self.body["then"]["parameters"]["text"], self.moment, devices)
        except Unknown:
            assert type(sent).__name__ == "NotSent"
        else:
            assert cast("Any", sent).parameters == {"text": expected}

    def _same_reports(self, explanation: Explanation) -> None:
        """With the devices that the explanation names, each condition came out as it says."""
        reports = explanation.conditions
        assert [report.path for report in reports] == [f"rule.if.and.{index}" for index in range(len(reports))]
        devices: dict[str, str] = {}
        for condition, report in zip(self.reference.conditions, reports, strict=True):
            choice, type_ = selector_of(condition)
            if choice in ("any", "matched") and report.device is not None:
                devices[type_] = _IDS[report.device]
        for index, report in enumerate(reports):
            assert self.reference.held(index, self.moment, devices) is report.held
        if explanation.outcome.match is not None:
            assert all(report.held for report in reports)


@given(bodies(), st.lists(happenings(), min_size=4, max_size=12))
@settings(max_examples=examples(100))
def test_a_compiled_rule_triggers_exactly_when_the_reference_says(
    text: dict[str, Any], happened: list[tuple[str, dict[str, Any], float]]
) -> None:
    assume(not findings(text))
    twins = Twins(text)
    for device, data, seconds in happened:
        twins.pass_time(seconds)
        twins.receive(device, data)
    twins.pass_time(2 * 61)
    event("triggered" if twins.triggered else "did not trigger")
