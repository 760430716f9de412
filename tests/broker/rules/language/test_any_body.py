"""Whatever is sent as a body is compiled or refused with findings; what is compiled can be asked everything."""

from typing import Any

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from broker.rules.language.body_reader import names_in
from broker.rules.language.compiler import compile_rule
from broker.rules.language.condition_parser import parse_schedule
from broker.rules.language.evaluation import RuleMatch
from broker.rules.language.schedule import InvalidScheduleError
from storage.keys import Milliseconds
from tests.broker.rules.language.rule_world import KEYS, LIGHTS, SENSORS, WORLD, FakeView, findings
from tests.properties import examples

_NOW = Milliseconds(1_700_000_000_000)
_MEMBERS = ["if", "and", "sdid", "dtid", "selector", "field", "operator", "operand", "value", "valueFrom", "add", "r"]
_WORDS = ["s1", "dt1", "any", "matched", "temp", "=", "httpRequest", "* * * * * *", "", "\x00", "😀"]
_scalars = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.sampled_from(_WORDS)
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_MEMBERS), inner, max_size=4),
    max_leaves=8,
)
_URL = {"concat": [{"value": "https://example.com/"}, {"valueFrom": {"sdid": "s1", "field": "level"}}]}
_FROM = {"valueFrom": {"sdid": "s1", "field": "level"}}
_SENSORS = ["s1", {"selector": "any", "dtid": "dt1"}, {"selector": "every", "dtid": "house.sensor"}]
_conditions = st.fixed_dictionaries(
    {
        "sdid": st.sampled_from(_SENSORS),
        "field": st.just("temp"),
        "operator": st.sampled_from(["=", "<", "is in message"]),
        "operand": st.sampled_from([{"value": 1}, _FROM, {"sub": [_FROM, {"value": "2"}]}]),
    },
    optional={
        "duration": st.sampled_from([{"value": 1}, {"value": 60, "acceptUpdate": False}]),
        "transformer": st.just({"type": "prediction", "parameters": {"predictIn": 5}}),
    },
) | st.just({"field": "datetime", "operator": "<=", "operand": {"value": "@sunset 1N 1E +00:00 TZ UTC"}})
_actions = st.sampled_from(
    [
        {"ddid": "l1", "action": "setText", "parameters": {"text": _FROM}},
        {"ddid": {"selector": "every", "dtid": "dt2"}, "action": "setColorRGB"},
        {"action": "httpRequest", "parameters": {"method": {"value": "PUT"}, "url": _URL}},
        {"action": "sendEmail", "parameters": {"body": _FROM}},
    ]
)  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> Any:
    """A body, which may have something else at one place."""
    found = {
        "if": {"and": draw(st.lists(_conditions, min_size=1, max_size=2))},
        "then": draw(st.lists(_actions, min_size=1, max_size=2)),
    }
    place: Any = found
    while draw(st.booleans()) and isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        if draw(st.booleans()):
            place[key] = draw(_anything)
            return found
        copied = place[key].copy() if isinstance(place[key], dict | list) else place[key]
        place[key] = place = copied
    return found


@given(bodies() | _anything)
@settings(max_examples=examples(150))
@example({"if": {"sdid": "s1", "field": "temp", "operator": "=", "operand": {"value": 10**400}}, "then": {}})
@example(
    {"if": {"and": [{"sdid": "s1", "field": "temp", "operator": "=", "operand": {"value": float("nan")}}]}, "then": []}
)
def test_a_body_is_compiled_or_refused_and_a_rule_can_be_asked_everything(body: Any) -> None:
    names_in(body)
    found = findings(body)
    event("refused" if found else "compiled")
    assert all(path.split(".")[0] == "rule" and text for path, text in found)
    if not found:
        _ask_everything(body)


def _ask_everything(body: Any) -> None:
    made = compile_rule(body, WORLD, key=1)
    assert {watch.device for watch in made.watches} <= {*KEYS.values(), None}
    assert made.is_testable or not made.is_static
    for view in (FakeView(now_ms=_NOW), FakeView(now_ms=_NOW).sends("s1", {"temp": 1, "level": 3})):
        outcome = made.on_message(view)
        assert made.explain_message(view).outcome == outcome
        assert made.explain_minute(view).outcome == made.on_minute(view)
        match = outcome.match or RuleMatch({SENSORS.key: KEYS["s1"], LIGHTS.key: KEYS["l1"]})
        assert len(made.outgoing(view, match)) >= len(made.actions.actions)
    following = made.next_minute(_NOW)
    assert (following is not None) is bool(made.conditions.times)


_positions = st.lists(st.sampled_from([*"*,-/@:. 0123456789TZ", "UTC", "mon", " * "]), max_size=30).map("".join)


@given(st.text(max_size=60) | _positions)
@settings(max_examples=examples(100))
def test_a_text_is_an_expression_of_times_or_refused(text: str) -> None:
    try:
        schedule = parse_schedule(text)
    except InvalidScheduleError:
        return
    for operator in ("<", "<=", "=", ">", ">="):
        assert schedule.holds(operator, _NOW) in (True, False)
    following = schedule.next_after(_NOW)
    assert following is None or following > _NOW
