"""The table of operations and casts, and operands (reference 12.10)."""

from typing import Any

from broker.rules.language.actions import NotSent, SendAction
from broker.rules.language.values import is_finite
from tests.broker.rules.language.rule_world import FakeView, body, condition, findings, rule, selector
from tests.rows import each_row
from tests.wording import INVALID

_TRIGGER = condition("s1", "temp", "is in message")


def sent(parameter: dict[str, Any], data: dict[str, Any]) -> Any:
    """The value of a parameter after a message of s1; the reason when it is not sent."""
    made = rule(_TRIGGER, then={"ddid": "l1", "action": "setText", "parameters": {"text": parameter}})
    view = FakeView().sends("s1", {"temp": 0, **data})
    match = made.on_message(view).match
    assert match is not None
    (one,) = made.outgoing(view, match)
    if isinstance(one, NotSent):
        return one
    assert isinstance(one, SendAction)
    return one.parameters["text"]


def of(field: str) -> dict[str, Any]:
    return {"valueFrom": {"sdid": "s1", "field": field}}


#: Operation, operands as constants, and the result.
_CASTS: list[tuple[str, list[Any], Any]] = [
    ("concat", ["a", "b"], "ab"),
    ("concat", ["it is ", 21.5], "it is 21.5"),
    ("concat", [500, " ", 850.745, " ", 2.0, " ", -1], "500 850.745 2.0 -1"),
    ("concat", [True, False], "truefalse"),
    ("concat", [1], "1"),
    ("add", [1, 2, 3], 6),
    ("add", [1.5, 1], 2.5),
    ("add", ["4", 1], 5),
    ("add", [" 4.5 ", 1], 5.5),
    ("add", ["1e3", "-.5", "+2"], 1001.5),
    ("add", ["four", 1], 1),
    ("add", ["", "0x10", "1_000", "1 2", "nan", "inf", "1e999", "٣"], 0),
    ("add", [True, False, True], 2),
    ("add", ["true", 1], 1),
    ("add", ["123456789012345678", 1], 123456789012345679),
    ("add", [7], 7),
    ("sub", [5, 2, 1], 2),
    ("sub", ["5", True], 4),
    ("sub", ["x", 3], -3),
    ("sub", [7], 7),
]


def test_casts_and_results_of_constants_and_of_last_values() -> None:
    fields = {bool: "on", int: "level", float: "temp", str: "mode"}
    for name, operands, expected in _CASTS:
        constants = sent({name: [{"value": value} for value in operands]}, {})
        assert constants == expected, (name, operands)
        assert type(constants) is type(expected), (name, operands)
        if len(operands) == 1:
            field = fields[type(operands[0])]
            assert sent({name: [of(field)]}, {field: operands[0]}) == expected


def test_operations_may_be_nested() -> None:
    text = {"concat": [{"value": "sum "}, {"add": [of("level"), {"sub": [{"value": 10}, of("temp")]}]}]}
    assert sent(text, {"level": 1, "temp": 2.5}) == "sum 8.5"


def test_an_action_is_not_sent_while_a_value_is_unknown() -> None:
    assert sent({"concat": [{"value": "mode "}, of("mode")]}, {}) == NotSent(0, 'device s1 has not sent "mode"')


def test_a_result_without_bounds_is_no_value() -> None:
    huge = {"add": [of("temp"), of("temp")]}
    assert sent(huge, {"temp": 1.7e308}) == NotSent(0, "the number is too large")
    assert [is_finite(number) for number in (float("inf"), float("nan"), 2**64, -(2**64), 2**64 - 1)] == [False] * 4 + [
        True
    ]


def test_a_collection_has_no_cast() -> None:
    assert sent({"concat": [of("mode")]}, {"mode": ["a"]}) == NotSent(0, "a collection cannot be made a text")
    assert sent({"add": [of("level")]}, {"level": [1]}) == NotSent(0, "a collection cannot be made a number")


def test_an_operand_may_be_the_value_of_another_device_or_an_operation() -> None:
    warmer = {"sdid": "s1", "field": "temp", "operator": ">"}
    made = rule({**warmer, "operand": {"add": [{"valueFrom": {"sdid": "s2", "field": "temp"}}, {"value": 2}]}})
    view = FakeView().sends("s2", {"temp": 20})
    assert made.on_message(view).match is None
    assert made.on_message(view.sends("s1", {"temp": 22})).match is None
    assert made.on_message(view.sends("s1", {"temp": 22.5})).match is not None
    assert made.on_message(view.sends("s2", {"temp": 20.5})).match is None
    assert made.on_message(view.sends("s2", {"temp": 20.4})).match is not None
    assert {(watch.device, tuple(watch.fields)) for watch in made.watches} == {(11, ("temp",)), (12, ("temp",))}


_PATH = "rule.if.and.0.operand"


@each_row(
    ("operand", "expected"),
    [
        (None, [(_PATH, "Required parameter")]),
        ({}, [(_PATH, "Required parameter")]),
        ({"value": None}, [(_PATH, "Required parameter")]),
        ("80", [(_PATH, INVALID)]),
        ({"value": 1, "add": [{"value": 1}]}, [(_PATH, INVALID)]),
        ({"value": {"value": 1}}, [(f"{_PATH}.value", INVALID)]),
        ({"value": [[1]]}, [(f"{_PATH}.value", INVALID)]),
        ({"value": 2**70}, [(f"{_PATH}.value", INVALID)]),
        ({"valueFrom": "s1"}, [(f"{_PATH}.valueFrom", INVALID)]),
        (
            {"valueFrom": {}},
            [(f"{_PATH}.valueFrom.sdid", "Required parameter"), (f"{_PATH}.valueFrom.field", "Required parameter")],
        ),
        (
            {"valueFrom": {"sdid": "nope", "field": "temp"}},
            [(f"{_PATH}.valueFrom.sdid", 'Device "nope" does not exist')],
        ),
        ({"valueFrom": {"sdid": "s1", "field": "wind"}}, [(f"{_PATH}.valueFrom.field", 'Field "wind" does not exist')]),
        ({"valueFrom": {"sdid": "s1", "field": "mode"}}, [(f"{_PATH}.valueFrom.field", "Numeric field only")]),
        (
            {"valueFrom": {"sdid": selector("any"), "field": "temp"}},
            [(f"{_PATH}.valueFrom.sdid.selector", INVALID)],
        ),
        ({"valueFrom": {"sdid": selector("matched"), "field": "temp"}}, [(f"{_PATH}.valueFrom.sdid", "Invalid rule")]),
        ({"concat": [{"value": 1}]}, [(f"{_PATH}.concat", "Numeric field only")]),
        ({"add": []}, [(f"{_PATH}.add", "Required parameter")]),
        ({"add": {"value": 1}}, [(f"{_PATH}.add", INVALID)]),
        ({"add": [1]}, [(f"{_PATH}.add.0", INVALID)]),
        ({"add": [{"value": 1}, {"value": [1]}]}, [(f"{_PATH}.add.1.value", INVALID)]),
        (
            {"sub": [{"valueFrom": {"sdid": "s1", "field": "tags"}}, {"concat": [{"value": None}]}]},
            [
                (f"{_PATH}.sub.0.valueFrom.field", INVALID),
                (f"{_PATH}.sub.1.concat.0", "Required parameter"),
            ],
        ),
        ({"add": [{"value": 1e308}] * 20}, [(f"{_PATH}.add", INVALID)]),
    ],
)
def test_findings_about_operands(operand: Any, expected: list[tuple[str, str]]) -> None:
    assert findings(body({"sdid": "s1", "field": "temp", "operator": ">", "operand": operand})) == expected


def test_operations_are_nested_to_ten_levels() -> None:
    operand: dict[str, Any] = {"value": 1}
    for _ in range(10):
        operand = {"add": [operand]}
    comparison = {"sdid": "s1", "field": "temp", "operator": ">", "operand": operand}
    assert findings(body(comparison)) == []
    path = f"{_PATH}{'.add.0' * 10}.add"
    assert findings(body({**comparison, "operand": {"add": [operand]}})) == [(path, INVALID)]
