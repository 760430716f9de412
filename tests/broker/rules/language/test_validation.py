"""The forms of a body, and every finding about it (reference 12.2 and 12.3)."""

from typing import Any

from broker.rules.language.body_reader import names_in
from config.limits import RULE_BODY_BYTES, RULE_CONDITIONS_MAX
from tests.broker.rules.language.rule_world import (
    DEVICES,
    SWITCH_ON,
    TYPES,
    FakeView,
    body,
    condition,
    findings,
    rule,
    selector,
)
from tests.rows import each_row
from tests.wording import INVALID

_WARM = condition("s1", "temp", ">", 20)


def test_a_condition_and_an_action_may_stand_alone() -> None:
    alone = {"if": _WARM, "then": SWITCH_ON}
    assert findings(alone) == []
    wrong = {"if": {**_WARM, "field": "heat"}, "then": {**SWITCH_ON, "action": "fly"}}
    assert findings(wrong) == [
        ("rule.if.field", 'Field "heat" does not exist'),
        ("rule.then.action", 'Action "fly" does not exist'),
    ]


@each_row(
    ("refused", "expected"),
    [
        (None, [("rule", "Required parameter")]),
        ([], [("rule", "Invalid rule")]),
        ("if", [("rule", "Invalid rule")]),
        ({}, [("rule.if", "Required parameter"), ("rule.then", "Required parameter")]),
        ({"if": None, "then": None}, [("rule.if", "Required parameter"), ("rule.then", "Required parameter")]),
        ({"if": [_WARM], "then": SWITCH_ON}, [("rule.if", "Invalid rule")]),
        ({"if": {}, "then": SWITCH_ON}, [("rule.if.and", "Required parameter")]),
        ({"if": {"or": [_WARM]}, "then": SWITCH_ON}, [("rule.if.and", "Required parameter")]),
        ({"if": {"and": _WARM}, "then": SWITCH_ON}, [("rule.if.and", "Invalid rule")]),
        ({"if": {"and": []}, "then": []}, [("rule.if.and", "Required parameter"), ("rule.then", "Required parameter")]),
        ({"if": {"and": [5, None]}, "then": [5]}, [
            ("rule.if.and.0", INVALID), ("rule.if.and.1", INVALID), ("rule.then.0", INVALID),
        ]),
        ({"if": _WARM, "then": "setOn"}, [("rule.then", "Invalid rule")]),
        ({"if": {"and": [{}]}, "then": {}}, [
            ("rule.if.and.0.sdid", "Required parameter"),
            ("rule.if.and.0.field", "Required parameter"),
            ("rule.if.and.0.operator", "Required parameter"),
            ("rule.if.and.0.operand", "Required parameter"),
            ("rule.then.action", "Required parameter"),
            ("rule.then.ddid", "Required parameter"),
        ]),
        ({"if": {"and": [{"sdid": 5, "field": 5, "operator": 5, "operand": 5}]}, "then": {"ddid": 5, "action": 5}}, [
            ("rule.if.and.0.sdid", INVALID),
            ("rule.if.and.0.field", "Text field only"),
            ("rule.if.and.0.operator", "Text field only"),
            ("rule.if.and.0.operand", INVALID),
            ("rule.then.action", "Text field only"),
            ("rule.then.ddid", INVALID),
        ]),
    ],
)  # fmt: skip
def test_findings_about_the_form(refused: Any, expected: list[tuple[str, str]]) -> None:
    assert findings(refused) == expected


@each_row(
    ("sdid", "expected"),
    [
        ("nope", [("sdid", 'Device "nope" does not exist')]),
        ({}, [("sdid.selector", "Required parameter"), ("sdid.dtid", "Required parameter")]),
        (selector("some"), [("sdid.selector", INVALID)]),
        (selector("any", "dt9"), [("sdid.dtid", 'Device type "dt9" does not exist')]),
        (selector("matched"), [("sdid", "Invalid rule")]),
        (selector("any", "dt2"), [("field", 'Field "temp" does not exist')]),
        (selector("any", "house.sensor"), []),
    ],
)
def test_findings_about_the_source(sdid: Any, expected: list[tuple[str, str]]) -> None:
    found = findings(body(condition(sdid, "temp", ">", 20)))
    assert found == [(f"rule.if.and.0.{path}", text) for path, text in expected]


def test_a_type_has_one_any_whichever_name_is_used() -> None:
    any_ = condition(selector("any"), "temp", ">", 20)
    again = condition(selector("any", "house.sensor"), "level", ">", 20)
    assert findings(body(any_, again)) == [("rule.if.and.1.sdid", "Invalid rule")]
    other_type = condition(selector("any", "dt2"), "state", "=", True)
    assert findings(body(any_, other_type)) == []


def test_matched_needs_an_any_of_its_type_wherever_it_stands() -> None:
    matched = condition(selector("matched"), "temp", ">", 20)
    any_ = condition(selector("any"), "level", ">", 20)
    assert findings(body(matched, any_)) == []
    every = condition(selector("every"), "temp", ">", 20)
    text = {"valueFrom": {"sdid": selector("matched"), "field": "mode"}}
    then = [
        {"ddid": selector("matched", "dt2"), "action": "setOn"},
        {"ddid": "l1", "action": "setText", "parameters": {"text": {"concat": [text]}}},
    ]
    assert findings(body(every, then=then)) == [
        ("rule.then.0.ddid", "Invalid rule"),
        ("rule.then.1.parameters.text.concat.0.valueFrom.sdid", "Invalid rule"),
    ]


def test_all_findings_come_at_once() -> None:
    refused = {
        "if": {
            "and": [
                condition("nope", "temp", ">", 20),
                condition("s1", "heat", "~", 20),
                condition("s1", "on", "<", 20),
            ]
        },
        "then": [{"ddid": "nope", "action": "setOn"}, {"ddid": "l1", "action": "fly"}, {"action": "httpRequest"}],
    }
    assert findings(refused) == [
        ("rule.if.and.0.sdid", 'Device "nope" does not exist'),
        ("rule.if.and.1.field", 'Field "heat" does not exist'),
        ("rule.if.and.1.operator", 'Operator "~" is not allowed'),
        ("rule.if.and.2.operator", 'Operator "<" is not allowed'),
        ("rule.then.0.ddid", 'Device "nope" does not exist'),
        ("rule.then.1.action", 'Action "fly" does not exist'),
        ("rule.then.2.parameters.method", "Required parameter"),
        ("rule.then.2.parameters.url", "Required parameter"),
    ]


def test_a_group_is_no_field() -> None:
    assert findings(body(condition("s1", "wind", "is in message"))) == [
        ("rule.if.and.0.field", 'Field "wind" does not exist')
    ]


def test_the_bounds_of_a_body() -> None:
    most = [_WARM] * RULE_CONDITIONS_MAX
    assert findings(body(*most, then=[SWITCH_ON] * 50)) == []
    assert findings(body(*most, _WARM)) == [("rule.if.and", "Maximum length 50")]
    assert findings(body(_WARM, then=[SWITCH_ON] * 51)) == [("rule.then", "Maximum length 50")]
    too_large = {**body(_WARM), "note": "x" * RULE_BODY_BYTES}
    assert findings(too_large) == [("rule", "Maximum length 16384")]
    nested: Any = []
    for _ in range(900):
        nested = [nested]
    assert findings({**body(_WARM), "note": nested}) == [("rule", "Invalid rule")]


def test_unknown_members_are_ignored() -> None:
    assert findings({**body({**_WARM, "comment": 1}, then={**SWITCH_ON, "comment": 1}), "comment": 1}) == []


def prediction(seconds: Any) -> dict[str, Any]:
    return {"type": "prediction", "parameters": {"predictIn": seconds}}


@each_row(
    ("field", "transformer", "expected"),
    [
        ("temp", prediction(300), []),
        ("temp", "prediction", [("", INVALID)]),
        ("temp", {}, [(".type", "Required parameter")]),
        ("temp", {"type": "guess"}, [(".type", INVALID)]),
        ("temp", {"type": "prediction"}, [(".parameters.predictIn", "Required parameter")]),
        ("temp", {"type": "prediction", "parameters": 5}, [(".parameters", INVALID)]),
        ("temp", prediction(0), [(".parameters.predictIn", INVALID)]),
        ("temp", prediction(-1), [(".parameters.predictIn", "Minimum value 0")]),
        ("temp", prediction("5"), [(".parameters.predictIn", "Numeric field only")]),
        ("mode", prediction(300), [("", INVALID)]),
    ],
)  # fmt: skip
def test_findings_about_transformers(field: str, transformer: Any, expected: list[tuple[str, str]]) -> None:
    value = "eco" if field == "mode" else 20
    found = findings(body({**condition("s1", field, "=", value), "transformer": transformer}))
    assert found == [(f"rule.if.and.0.transformer{path}", text) for path, text in expected]


def test_an_anomaly_is_true_or_false() -> None:
    def found(operator: str, value: Any, sensitivity: Any = 50) -> list[tuple[str, str]]:
        parameters = {"anomalyDetectionSensitivity": sensitivity}
        transformer = {"type": "anomalyDetection", "parameters": parameters}
        return findings(body({**condition("s1", "temp", operator, value), "transformer": transformer}))

    assert found("=", True) == found("!=", False) == []
    assert found("=", 20) == [("rule.if.and.0.operand.value", "Boolean field only")]
    assert found(">", True) == [("rule.if.and.0.operator", 'Operator ">" is not allowed')]
    sensitivity = "rule.if.and.0.transformer.parameters.anomalyDetectionSensitivity"
    assert found("=", True, 101) == [(sensitivity, "Maximum value 100")]
    assert found("=", True, None) == [(sensitivity, "Required parameter")]


def test_a_transformer_compares_what_its_model_says_and_does_not_hold_without() -> None:
    transformer = prediction(300)
    made = rule({**condition("s1", "temp", ">", 20), "transformer": transformer})
    (model,) = made.transformers
    assert (model.condition, model.device, model.field, model.kind) == (0, DEVICES["s1"].key, "temp", "prediction")
    assert model.predict_in_seconds == 300
    view = FakeView().sends("s1", {"temp": 10})
    assert made.on_message(view).match is None
    assert made.explain_message(view).conditions[0].held is None
    view.outputs[0, DEVICES["s1"].key] = 25
    assert made.on_message(view).match is not None
    assert made.explain_message(view).conditions[0].output == 25
    view.outputs[0, DEVICES["s1"].key] = 19
    assert made.on_message(view).match is None


def test_every_name_in_a_body_is_found_before_it_is_compiled() -> None:
    text = {"add": [{"valueFrom": {"sdid": "s2", "field": "temp"}}]}
    made = body(
        {**condition("s1", "temp", ">"), "operand": text},
        condition(selector("any", "house.sensor"), "temp", ">", 1),
        then=[SWITCH_ON, {"ddid": selector("every", "dt2"), "action": "setOn", "parameters": {"x": [text, 5, None]}}],
    )
    names = names_in(made)
    assert names.devices == {"s1", "s2", "l1"}
    assert names.device_types == {"house.sensor", "dt2"}
    assert names.device_types <= TYPES.keys()
    too_many = body(*[condition(str(number), "temp", ">", 1) for number in range(2_000)])
    assert names_in(too_many).devices == frozenset()
    assert findings(too_many) == [("rule", "Maximum length 16384")]
    assert names_in("nothing").devices == names_in(None).device_types == frozenset()
