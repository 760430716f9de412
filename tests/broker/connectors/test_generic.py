"""The plug-in `generic`: the meaning of its parameters, and which ones are refused."""

from typing import Any

import msgspec
import pytest

from broker.connectors.generic import GenericConnector
from broker.connectors.plugin import (
    AccessToken,
    Account,
    ActionDefinition,
    Event,
    IncomingRequest,
    LinkedDevice,
    Notified,
    Request,
    Response,
    Setting,
    Unreadable,
)
from broker.connectors.reading import time_in_ms
from broker.connectors.templates import check_template, fill_template, fill_url
from config.limits import JSON_NESTING_MAX
from tests.rows import each_row

CALLBACK = "https://we.example/hook"
DEVICE = LinkedDevice("d" * 32, AccessToken(value="t"), account="ada/1", sub_device="lamp 1")
FETCH = {"url": "https://cloud.example/r?since={since}", "items": "data.list", "payload": "{t: temp}", "ts": "at"}
PROOF = {"secret_parameter": {"name": "key", "value": "k"}}


def plugin(**parameters: Any) -> GenericConnector:
    return GenericConnector(Setting("dt1", parameters, lambda: CALLBACK))


def answer(payload: object, status: int = 200) -> Response:
    return Response(status, {}, msgspec.json.encode(payload))


@each_row(
    "parameters",
    [
        {"unknown": 1},
        {"fetch": FETCH},
        {"fetch": [FETCH | {"unknown": 1}]},
        {"fetch": [{"url": "https://cloud.example/"}]},
        {"fetch": [FETCH | {"payload": "{"}]},
        {"fetch": [FETCH | {"payload": "exec('x')"}]},
        {"fetch": [FETCH | {"url": "file:///etc/passwd"}]},
        {"fetch": [FETCH | {"url": "https://cloud.example/{token}"}]},
        {"fetch": [FETCH | {"method": "TRACE"}]},
        {"fetch": [FETCH | {"json": {}, "form": {}}]},
        {"fetch": [FETCH | {"ts_unit": "h"}]},
        {"subscribe": [{"url": "https://cloud.example/{since}"}]},
        {"subscribe": [{"url": "https://cloud.example/", "json": {"a": [{"b": "{nobody}"}]}}]},
        {"subscribe": [{"url": "https://cloud.example/", "account": "]"}]},
        {"actions": {"setOn": {"url": "https://cloud.example/", "form": {"a": "{since}"}}}},
        {"notification": {"device": "did"}},
        {"notification": PROOF},
        {"notification": PROOF | {"device": "a", "account": "b"}},
        {"notification": PROOF | {"signature": {"header": "X", "secret": "y"}, "device": "a"}},
    ],
)
def test_invalid_parameters(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        plugin(**parameters)


def test_readings_become_events() -> None:
    made = plugin(fetch=[FETCH])
    (request,) = made.fetch(DEVICE)
    assert request == Request("GET", "https://cloud.example/r?since=0", {}, b"", "0")
    found = made.fetch_response(
        DEVICE, request, answer({"data": {"list": [{"temp": 1, "at": 5}, {"temp": 2, "at": "1970-01-01T00:00:07Z"}]}})
    )
    assert found == [Event({"t": 1}, 5, series="0"), Event({"t": 2}, 7000, series="0")]


def test_the_next_fetch_begins_after_the_newest_reading() -> None:
    made = plugin(fetch=[FETCH, FETCH])
    first, second = made.fetch(LinkedDevice("d", AccessToken(value="t"), since={"0": 9}))
    assert first.url.endswith("since=9")
    assert second.url.endswith("since=0")


def test_readings_without_time_become_events_each_time() -> None:
    made = plugin(fetch=[{"url": "https://cloud.example/now", "payload": "{t: temp}"}])
    found = made.fetch_response(DEVICE, made.fetch(DEVICE)[0], answer({"temp": 1}))
    assert found == [Event({"t": 1}, series="0")]


def test_an_item_that_cannot_be_read_harms_no_other() -> None:
    made = plugin(fetch=[FETCH | {"sub_device": "who"}])
    bad = [
        {"temp": 1, "at": "noon"},
        {"temp": 1, "at": {}},
        {"temp": 1, "at": 1, "who": []},
    ]
    items = [one for each in bad for one in (each, {"temp": 2, "at": 5})]
    found = made.fetch_response(DEVICE, made.fetch(DEVICE)[0], answer({"data": {"list": items}}))
    assert [one for one in found if isinstance(one, Event)] == [Event({"t": 2}, 5, series="0")] * len(bad)
    unreadable = [one for one in found if isinstance(one, Unreadable)]
    assert [one.item for one in unreadable] == bad
    assert all(one.reason and one.series == "0" for one in unreadable)


@each_row(
    ("value", "unit", "expected"),
    [
        (None, "ms", None),
        (1500, "ms", 1500),
        (1500.9, "ms", 1500),
        (1.5, "s", 1500),
        ("1970-01-01T00:00:01", "ms", 1000),
        ("1970-01-01T01:00:01.5+01:00", "s", 1500),
    ],
)
def test_times(value: Any, unit: Any, expected: int | None) -> None:
    assert time_in_ms(value, unit) == expected


@pytest.mark.parametrize("value", [True, [], {}, "", "noon"])
def test_invalid_times(value: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        time_in_ms(value, "ms")


def test_subscribing() -> None:
    call = {"method": "POST", "url": "https://cloud.example/{did}", "form": {"cb": "{callback}"}, "account": "user.id"}
    made = plugin(subscribe=[call], unsubscribe=[{"method": "DELETE", "url": "https://cloud.example/{account}"}])
    (request,) = made.subscribe(DEVICE)
    assert request.headers == {"Content-Type": "application/x-www-form-urlencoded"}
    assert request.body == b"cb=https%3A%2F%2Fwe.example%2Fhook"
    assert made.subscribe_response(DEVICE, request, answer({"user": {"id": 42}})) == (Account("42"),)
    assert made.subscribe_response(DEVICE, request, answer({}, 409)) == ()
    with pytest.raises(ValueError, match="500"):
        made.subscribe_response(DEVICE, request, answer({}, 500))
    assert [one.url for one in made.unsubscribe(DEVICE)] == ["https://cloud.example/ada%2F1"]


def test_actions() -> None:
    actions = {
        "setLevel": {
            "method": "PUT",
            "url": "https://cloud.example/{sub_device}",
            "headers": {"X-Level": "l{parameters.level}"},
            "json": {"level": "{parameters.level}", "text": "to {parameters.level}", "all": ["{parameters}"]},
        },
        "*": {"method": "POST", "url": "https://cloud.example/do/{action}"},
    }
    made = plugin(actions=actions)
    (request,) = made.action(DEVICE, ActionDefinition("setLevel", {"level": 5}))
    assert (request.method, request.url) == ("PUT", "https://cloud.example/lamp%201")
    assert request.headers == {"X-Level": "l5", "Content-Type": "application/json"}
    assert msgspec.json.decode(request.body) == {"level": 5, "text": "to 5", "all": [{"level": 5}]}
    (other,) = made.action(DEVICE, ActionDefinition("../admin?x"))
    assert other.url == "https://cloud.example/do/..%2Fadmin%3Fx"
    with pytest.raises(ValueError, match=r"parameters\.level"):
        made.action(DEVICE, ActionDefinition("setLevel"))
    assert plugin().action(DEVICE, ActionDefinition("setLevel")) == ()


@pytest.mark.parametrize("signature", ["", "00", "5fb3bc67", "\u00e9"])
def test_a_wrong_signature(signature: str) -> None:
    made = plugin(notification={"signature": {"header": "X-Sig", "secret": "k"}, "device": "did"})
    heard = made.notification(IncomingRequest("POST", {}, {"x-sig": signature}, b"[]"))
    assert (heard.status, heard.devices) == (403, ())


@pytest.mark.parametrize(
    ("about", "signature"),
    [
        # RFC 4231, test case 2; RFC 2202, HMAC-SHA-1 test case 2.
        ({}, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        ({"prefix": "sha256="}, "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        ({"algorithm": "sha1"}, "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
        ({"algorithm": "sha1", "encoding": "base64"}, "7/zfauXrL6LSdBbV8YTfnCWafHk="),
    ],
)
def test_signatures_of_the_test_vectors(about: dict[str, str], signature: str) -> None:
    body = b"what do ya want for nothing?"
    made = plugin(notification={"signature": {"header": "X-Sig", "secret": "Jefe"} | about, "device": "did"})
    heard = made.notification(IncomingRequest("POST", {}, {"x-sig": signature}, body))
    assert heard.status == 400  # the signature is right, but the body is not JSON


@pytest.mark.parametrize(("levels", "status"), [(JSON_NESTING_MAX, 200), (JSON_NESTING_MAX + 1, 400)])
def test_a_notification_nests_as_deep_as_the_limit_and_no_deeper(levels: int, status: int) -> None:
    made = plugin(notification=PROOF | {"items": "changes", "device": "did"})
    inner = levels - 1
    body = b'{"changes":{"did":"d1"},"more":' + b"[" * inner + b"]" * inner + b"}"
    assert made.notification(IncomingRequest("POST", {"key": "k"}, {}, body)).status == status


def test_notifications() -> None:
    made = plugin(notification=PROOF | {"items": "changes", "device": "did", "payload": "{on: state}", "ts": "at"})
    body = msgspec.json.encode({"changes": [{"did": "d1", "state": True, "at": 3}]})
    heard = made.notification(IncomingRequest("POST", {"key": "k"}, {}, body))
    assert heard.devices == [Notified("d1", None, [Event({"on": True}, 3)])]
    assert made.notification(IncomingRequest("POST", {"key": "K"}, {}, body)).status == 403
    assert made.notification(IncomingRequest("GET", {"challenge": "1"}, {}, b"")).status == 403
    assert plugin().notification(IncomingRequest("POST", {"key": "k"}, {}, body)).status == 404


def test_templates_replace_placeholders() -> None:
    values = {"a": "x/y", "n": 5, "deep": {"b": [1]}}
    assert fill_template("{a}-{n}", values) == "x/y-5"
    assert fill_template("{n}", values) == 5
    assert fill_template({"k": ["{deep.b}", 7, None]}, values) == {"k": [[1], 7, None]}
    assert fill_template("{not a place} {0}", values) == "{not a place} {0}"
    assert fill_url("https://h/{a}?q={deep.b}", values) == "https://h/x%2Fy?q=%5B1%5D"
    for missing in ("{b}", "{a.b}", "{deep.c}", "{__class__}"):
        with pytest.raises(ValueError, match="there is no"):
            fill_template(missing, values)
    with pytest.raises(ValueError, match=r"\{b\.c\} \(allowed: a\)"):
        check_template(["{a}", {"x": "{b.c}"}], frozenset({"a"}))
