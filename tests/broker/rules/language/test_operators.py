"""The tables of operators: which fields allow which (specification's table), and when they hold (reference 12.7)."""

from typing import Any

from tests.broker.rules.language.rule_world import FakeView, body, condition, findings, rule
from tests.rows import each_row
from tests.wording import INVALID

_EVERY = {"is in message", "is not in message", "=", "!="}
_ORDER = {"<", "<=", ">", ">="}
_CONTAIN = {"contains", "does not contain"}

#: Field, an operand of its type, an operand for `contains`, and the operators that its type allows.
_FIELDS: list[tuple[str, Any, Any, set[str]]] = [
    ("temp", 20.5, None, _EVERY | _ORDER),
    ("level", 20, None, _EVERY | _ORDER),
    ("on", True, None, _EVERY),
    ("mode", "eco", "e", _EVERY | _ORDER | _CONTAIN),
    ("tags", ["a"], "a", _EVERY | _CONTAIN),
    ("counts", [1, 2], 1, _EVERY | _CONTAIN),
    ("wind.speed", 3, None, _EVERY | _ORDER),
    ("wind.gusty", False, None, _EVERY),
]


@each_row(("field", "operand", "part", "allowed"), _FIELDS)
def test_a_field_allows_the_operators_of_its_type(field: str, operand: Any, part: Any, allowed: set[str]) -> None:
    for operator in sorted(_EVERY | _ORDER | _CONTAIN):
        value = part if operator in _CONTAIN else operand
        found = findings(body(condition("s1", field, operator, operand if value is None else value)))
        expected = [] if operator in allowed else [("rule.if.and.0.operator", f'Operator "{operator}" is not allowed')]
        assert found == expected, operator


@each_row("operator", ["==", "", "is", "IS IN MESSAGE", "not", "> "])
def test_other_operators_are_refused(operator: str) -> None:
    text = f'Operator "{operator}" is not allowed' if operator else "Required parameter"
    assert findings(body(condition("s1", "temp", operator, 1))) == [("rule.if.and.0.operator", text)]


#: Field, its last value, operator, operand, and whether the condition holds.
_HELD: list[tuple[str, Any, str, Any, bool]] = [
    ("temp", 20, "<", 21, True),
    ("temp", 21, "<", 21, False),
    ("temp", 21, "<=", 21.0, True),
    ("temp", 21.1, "<=", 21, False),
    ("temp", 21, "=", 21.0, True),
    ("temp", 21, "=", 21.5, False),
    ("temp", 21, "!=", 22, True),
    ("temp", 21, "!=", 21.0, False),
    ("temp", 21.5, ">", 21, True),
    ("temp", -1, ">", 0, False),
    ("temp", 21, ">=", 21, True),
    ("temp", 9_007_199_254_740_993, ">", 9_007_199_254_740_992.0, True),
    ("on", True, "=", True, True),
    ("on", False, "=", True, False),
    ("on", False, "!=", True, True),
    ("mode", "eco", "=", "eco", True),
    ("mode", "eco", "=", "Eco", False),
    ("mode", "eco", "<", "heat", True),
    ("mode", "Z", "<", "a", True),
    ("mode", "10", "<", "9", True),
    ("mode", "é", ">", "z", True),
    ("mode", "\U0001f600", ">", "￿", True),
    ("mode", "eco heat", "contains", "o h", True),
    ("mode", "eco", "contains", "heat", False),
    ("mode", "eco", "does not contain", "heat", True),
    ("tags", ["a", "b"], "contains", "b", True),
    ("tags", ["ab"], "contains", "b", False),
    ("tags", [], "does not contain", "b", True),
    ("tags", ["b"], "does not contain", "b", False),
    ("tags", ["a", "b"], "=", ["a", "b"], True),
    ("tags", ["b", "a"], "=", ["a", "b"], False),
    ("tags", ["a"], "!=", ["a", "b"], True),
    ("counts", [1, 2], "contains", 2.0, True),
    ("counts", [1, 2], "=", [1.0, 2.0], True),
]


def test_when_each_operator_holds() -> None:
    for field, value, operator, operand, held in _HELD:
        made = rule(condition("s1", field, operator, operand))
        outcome = made.on_message(FakeView().sends("s1", {field: value}))
        assert (outcome.match is not None) is held, (field, value, operator, operand)


#: Values of a kind that the field no longer has: its Manifest changed after the value was sent.
_OTHER_KINDS: list[tuple[str, Any, str, Any, bool]] = [
    ("temp", True, "=", 1, False),
    ("temp", True, "!=", 1, True),
    ("temp", "20", "=", 20, False),
    ("temp", "20", "<", 21, False),
    ("temp", True, "<", 21, False),
    ("temp", [20], "<", 21, False),
    ("on", 1, "=", True, False),
    ("on", 1, "!=", True, True),
    ("mode", 5, "=", "5", False),
    ("mode", 5, "contains", "5", False),
    ("mode", 5, "does not contain", "5", True),
    ("mode", ["e"], "contains", "e", True),
    ("tags", "ab", "contains", "b", True),
    ("tags", "ab", "=", ["ab"], False),
    ("counts", [True], "contains", 1, False),
]


def test_values_of_different_kinds_are_never_equal_and_have_no_order() -> None:
    for field, value, operator, operand, held in _OTHER_KINDS:
        made = rule(condition("s1", field, operator, operand))
        outcome = made.on_message(FakeView().sends("s1", {field: value}))
        assert (outcome.match is not None) is held, (field, value, operator, operand)


#: Field, operator, an operand of another type, and the finding's text.
_MISFITS: list[tuple[str, str, Any, str]] = [
    ("temp", ">", "80", "Numeric field only"),
    ("temp", "=", True, "Numeric field only"),
    ("temp", "=", [1], "Numeric field only"),
    ("on", "=", "true", "Boolean field only"),
    ("on", "=", 1, "Boolean field only"),
    ("mode", "=", 5, "Text field only"),
    ("mode", "contains", 5, "Text field only"),
    ("tags", "contains", 5, "Text field only"),
    ("tags", "contains", ["a"], "Text field only"),
    ("tags", "=", "a", INVALID),
    ("tags", "=", [1], INVALID),
    ("counts", "contains", "1", "Numeric field only"),
    ("counts", "=", [True], INVALID),
]


def test_an_operand_of_another_type_is_refused() -> None:
    for field, operator, operand, text in _MISFITS:
        found = findings(body(condition("s1", field, operator, operand)))
        assert found == [("rule.if.and.0.operand.value", text)], (field, operator, operand)


def test_is_in_message_looks_at_the_current_message_only() -> None:
    is_in = rule(condition("s1", "wind.speed", "is in message"), condition("l1", "state", "=", True))
    is_not_in = rule(condition("s1", "wind.speed", "is not in message"), condition("l1", "state", "=", True))
    view = FakeView().sends("l1", {"state": True})
    assert is_in.on_message(view).match is is_not_in.on_message(view).match is None
    view.sends("s1", {"wind": {"speed": 3}})
    assert is_in.on_message(view).match is not None
    assert is_not_in.on_message(view).match is None
    view.sends("s1", {"wind": {"gusty": True}})
    assert is_in.on_message(view).match is None
    assert is_not_in.on_message(view).match is not None
    view.sends("s2", {"wind": {"speed": 3}})
    assert is_in.on_message(view).match is is_not_in.on_message(view).match is None


def test_the_operand_of_is_in_message_is_ignored() -> None:
    made = rule({**condition("s1", "temp", "is in message"), "operand": {"value": {"any": "thing"}}})
    assert made.on_message(FakeView().sends("s1", {"temp": 1})).match is not None


def test_an_unknown_value_does_not_hold() -> None:
    view = FakeView().sends("s1", {"level": 5})
    for operator in ("!=", "<", "="):
        assert rule(condition("s1", "temp", operator, 5)).on_message(view).match is None
    compared = {
        "sdid": "s1",
        "field": "level",
        "operator": "!=",
        "operand": {"valueFrom": {"sdid": "s1", "field": "temp"}},
    }
    assert rule(compared).on_message(view).match is None
    assert rule(compared).on_message(view.sends("s1", {"temp": 4})).match is not None
