"""The Actions of rules: what is sent, and the findings about them (reference 12.11)."""

from typing import Any

from broker.rules.language.actions import CallHttp, NotSent, Outgoing, SendAction, SendMail
from tests.broker.rules.language.rule_world import KEYS, FakeView, body, condition, findings, rule, selector
from tests.rows import each_row
from tests.wording import INVALID

_TRIGGER = condition("s1", "temp", "is in message")
_TEMP = {"valueFrom": {"sdid": "s1", "field": "temp"}}
_MODE = {"valueFrom": {"sdid": "s1", "field": "mode"}}


def sent(*then: dict[str, Any], **data: Any) -> list[Outgoing]:
    made = rule(_TRIGGER, then=list(then))
    view = FakeView().sends("s1", {"temp": 21.5, **data})
    match = made.on_message(view).match
    assert match is not None
    return made.outgoing(view, match)


def found(then: Any) -> list[tuple[str, str]]:
    return findings(body(_TRIGGER, then=then))


def to_light(name: str, **parameters: Any) -> dict[str, Any]:
    return {"ddid": "l1", "action": name, "parameters": parameters}


def http(**parameters: Any) -> dict[str, Any]:
    given = {"method": {"value": "POST"}, "url": {"value": "https://example.com/hook"}, **parameters}
    return {"action": "httpRequest", "parameters": {name: value for name, value in given.items() if value is not None}}


def mail(**parameters: Any) -> dict[str, Any]:
    return {"action": "sendEmail", "parameters": parameters}


def test_values_are_sent_as_they_are_in_the_order_of_then() -> None:
    assert sent(
        {"ddid": "l1", "action": "setOn"},
        {"ddid": "l2", "action": "setOff", "parameters": None},
        to_light("setIntensity", intensity={"value": 50}),
        to_light("setIntensity", intensity=_TEMP),
        to_light("setText", text={"value": 5}),
        to_light("setScenes", scenes={"value": [1, 2]}),
        to_light("setText", text=None),
    ) == [
        SendAction(0, KEYS["l1"], "setOn", {}),
        SendAction(1, KEYS["l2"], "setOff", {}),
        SendAction(2, KEYS["l1"], "setIntensity", {"intensity": 50}),
        SendAction(3, KEYS["l1"], "setIntensity", {"intensity": 21.5}),
        SendAction(4, KEYS["l1"], "setText", {"text": 5}),
        SendAction(5, KEYS["l1"], "setScenes", {"scenes": [1, 2]}),
        SendAction(6, KEYS["l1"], "setText", {}),
    ]


def test_a_group_nests_value_objects_which_may_change() -> None:
    colour = {"value": {"r": {"value": 255}, "g": {"add": [_TEMP, {"value": 1}]}, "b": None}}
    (one,) = sent(to_light("setColorRGB", colorRGB=colour))
    assert one == SendAction(0, KEYS["l1"], "setColorRGB", {"colorRGB": {"r": 255, "g": 22.5}})


def test_every_sends_to_each_device_of_the_type() -> None:
    every = {"ddid": selector("every", "dt2"), "action": "setOn"}
    assert [one.device for one in sent(every) if isinstance(one, SendAction)] == [KEYS["l1"], KEYS["l2"]]


def test_an_action_that_cannot_be_made_does_not_stop_the_others() -> None:
    first, second = sent(to_light("setText", text=_MODE), {"ddid": "l1", "action": "setOn"})
    assert first == NotSent(0, 'device s1 has not sent "mode"')
    assert second == SendAction(1, KEYS["l1"], "setOn", {})


def test_an_http_request() -> None:
    headers = {"value": [{"key": "X-Temp", "value": _TEMP}, {"key": {"value": "X-Kind"}, "value": "rule"}]}
    assert sent(http(headers=headers, body={"concat": [{"value": "it is "}, _TEMP]})) == [
        CallHttp(0, "POST", "https://example.com/hook", (("X-Temp", "21.5"), ("X-Kind", "rule")), "it is 21.5")
    ]
    assert sent(http()) == [CallHttp(0, "POST", "https://example.com/hook", (), None)]
    url = {"concat": [{"value": "https://example.com/?temp="}, _TEMP]}
    compound = {"value": {"temp": _TEMP, "where": {"value": {"room": {"value": "hall"}}}}}
    assert sent(http(url=url, body=compound, method={"value": "PUT"})) == [
        CallHttp(0, "PUT", "https://example.com/?temp=21.5", (), '{"temp":21.5,"where":{"room":"hall"}}')
    ]


def test_the_destination_of_a_special_action_is_ignored() -> None:
    assert sent({**mail(body={"value": "hot"}), "ddid": "nope"}) == [SendMail(0, None, "", "hot")]


def test_a_mail() -> None:
    for name in ("sendEmail", "email", "sendMail"):
        (one,) = sent({**mail(to={"value": "ann@example.com"}, subject={"value": "hot"}, body=_TEMP), "action": name})
        assert one == SendMail(0, "ann@example.com", "hot", "21.5")
    assert sent(mail(to={"value": ""}, body={"value": "hot"})) == [SendMail(0, None, "", "hot")]
    lines = mail(subject=_MODE, to={"concat": [{"value": ""}]})
    assert sent(lines, mode=" one\r\nBcc: two ") == [SendMail(0, None, "one Bcc: two", "")]


@each_row(
    ("action", "mode"),
    [
        (http(url=_MODE), "http://"),
        (http(url=_MODE), "file:///etc/passwd"),
        (http(url=_MODE), "https://user@example.com"),
        (http(url=_MODE), "https://example.com/a b"),
        (http(url=_MODE), "https://example.com/\r\nHost: x"),
        (http(url=_MODE), "https://example.com:99999999"),
        (http(url=_MODE), "https://[::1"),
        (http(url=_MODE), "https://example.com/" + "x" * 2048),
        (http(method=_MODE), "CONNECT"),
        (http(headers={"value": [{"key": "X", "value": _MODE}]}), "a\r\nb: c"),
        (http(headers={"value": [{"key": _MODE, "value": "1"}]}), "Content-Length"),
        (http(headers={"value": [{"key": _MODE, "value": "1"}]}), "a:b"),
        (mail(to=_MODE), "nobody"),
        (mail(to=_MODE), "a@example.com\r\nBcc: b@example.com"),
    ],
)
def test_a_value_that_an_action_cannot_take_is_not_sent(action: dict[str, Any], mode: str) -> None:
    (one,) = sent(action, mode=mode)
    assert isinstance(one, NotSent)
    assert one.reason


_AT = "rule.then.parameters"


@each_row(
    ("action", "expected"),
    [
        (to_light("setText", tekst={"value": 5}), [(f"{_AT}.tekst", 'Field "tekst" does not exist')]),
        (to_light("setText", text=5), [(f"{_AT}.text", INVALID)]),
        (to_light("setText", text={}), [(f"{_AT}.text", "Required parameter")]),
        (to_light("setText", text={"value": {"a": {"value": 1}}}), [(f"{_AT}.text.value", INVALID)]),
        (to_light("setText", text={"value": ["a"]}), [(f"{_AT}.text.value", "Text field only")]),
        (to_light("setIntensity", intensity={"value": "much"}), [(f"{_AT}.intensity.value", "Numeric field only")]),
        (to_light("setIntensity", intensity={"value": True}), [(f"{_AT}.intensity.value", "Numeric field only")]),
        (to_light("setIntensity", intensity={"value": "50"}), []),
        (to_light("setScenes", scenes={"value": 1}), []),
        (to_light("setScenes", scenes={"value": ["one"]}), [(f"{_AT}.scenes.value", "Numeric field only")]),
        (to_light("setColorRGB", colorRGB={"value": 5}), [(f"{_AT}.colorRGB.value", INVALID)]),
        (to_light("setColorRGB", colorRGB=_TEMP), [(f"{_AT}.colorRGB.valueFrom.field", INVALID)]),
        (
            to_light("setColorRGB", colorRGB={"value": {"r": {"value": "red"}, "x": {"value": 1}, "g": 5}}),
            [
                (f"{_AT}.colorRGB.value.r.value", "Numeric field only"),
                (f"{_AT}.colorRGB.value.x", 'Field "x" does not exist'),
                (f"{_AT}.colorRGB.value.g", INVALID),
            ],
        ),
        ({"ddid": "l1", "action": "setOn", "parameters": []}, [(_AT, INVALID)]),
        ({"ddid": "s1", "action": "setOn"}, [("rule.then.action", 'Action "setOn" does not exist')]),
        ({"ddid": selector("any", "dt2"), "action": "setOn"}, [("rule.then.ddid.selector", INVALID)]),
        (http(method={"value": "PATCH"}), [(f"{_AT}.method", INVALID)]),
        (http(method=None, url=None), [(f"{_AT}.method", "Required parameter"), (f"{_AT}.url", "Required parameter")]),
        (http(url={"value": "gopher://example.com"}), [(f"{_AT}.url", INVALID)]),
        (http(url={"value": ["https://example.com"]}), [(f"{_AT}.url.value", INVALID)]),
        (http(headers=[{"key": "X", "value": "1"}]), [(f"{_AT}.headers", INVALID)]),
        (http(headers={}), [(f"{_AT}.headers.value", "Required parameter")]),
        (http(headers={"value": "X: y"}), [(f"{_AT}.headers.value", INVALID)]),
        (http(headers={"value": ["X: y"]}), [(f"{_AT}.headers.value.0", INVALID)]),
        (http(headers={"value": [{"key": "X"}]}), [(f"{_AT}.headers.value.0.value", "Required parameter")]),
        (
            http(headers={"value": [{"key": "Host", "value": "x"}, {"key": "X", "value": "a\nb"}]}),
            [(f"{_AT}.headers.value.0", INVALID), (f"{_AT}.headers.value.1", INVALID)],
        ),
        (http(headers={"value": [{"key": "X", "value": "1"}] * 21}), [(f"{_AT}.headers.value", "Maximum length 20")]),
        (
            http(body={"valueFrom": {"sdid": "s1", "field": "tags"}}),
            [(f"{_AT}.body.valueFrom.field", INVALID)],
        ),
        (http(timeout={"value": 5}), [(f"{_AT}.timeout", INVALID)]),
        (http(body={"value": [1]}), [(f"{_AT}.body.value", INVALID)]),
        (mail(to={"value": "nobody"}), [(f"{_AT}.to", "Invalid email")]),
        (mail(cc={"value": "a@example.com"}), [(f"{_AT}.cc", INVALID)]),
    ],
)
def test_findings_about_actions(action: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert found(action) == expected


def test_what_is_static_and_testable() -> None:
    fixed = {"ddid": selector("every", "dt2"), "action": "setOn"}
    computed = to_light("setText", text={"concat": [{"value": "a"}, {"value": 1}]})
    from_field = to_light("setText", text={"concat": [{"value": "a"}, _TEMP]})
    in_group = to_light("setColorRGB", colorRGB={"value": {"r": _TEMP}})
    any_ = condition(selector("any", "dt2"), "state", "=", True)
    matched = {"ddid": selector("matched", "dt2"), "action": "setOn"}
    table = [
        ([fixed, computed, http(), mail()], True, True),
        ([fixed, from_field], True, False),
        ([in_group], False, False),
        ([http(body=_TEMP)], False, False),
        ([http(headers={"value": [{"key": "X", "value": _TEMP}]})], False, False),
        ([matched], False, False),
    ]
    for then, testable, static in table:
        made = rule(any_, then=then)
        assert (made.is_testable, made.is_static) == (testable, static), then
