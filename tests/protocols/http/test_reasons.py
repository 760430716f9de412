"""Every refusal says which field is wrong, and why: `Invalid value` alone says nothing (reference 3.2)."""

import re
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from broker.device_types.manifest import ValueClass
from broker.device_types.manifest_parser import parse_manifest
from broker.errors import ValidationFailed, choice, invalid
from tests.factories import ADA, ADA_TOKEN, KITCHEN, LIGHT_TYPE, NOW_MS, PANEL, World
from tests.protocols.http.conftest import bearer
from tests.rows import each_row

ROOT: Final = Path(__file__).parents[3]
DAY_MS: Final = 86_400_000
_RANGE: Final = {"startDate": NOW_MS - DAY_MS, "endDate": NOW_MS}


def test_no_code_can_say_that_a_value_is_invalid_without_a_reason() -> None:
    """`invalid` makes the text, and wants the reason."""
    places = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("broker", "protocols", "storage")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"Invalid value[\"']", line)
    ]
    assert places == []
    assert invalid(choice(("a", "b"))) == "Invalid value: must be one of a, b"


async def findings(api: httpx.AsyncClient, method: str, path: str, **request: Any) -> dict[str, list[str]]:
    answer = await api.request(method, path, headers=bearer(ADA_TOKEN), **request)
    assert answer.status_code == 400, answer.text
    return {one["field"]: one["messages"] for group in answer.json()["error"]["errors"] for one in group}


@each_row(
    ("url", "reason"),
    [
        ("https://elsewhere.example.com/", "must be an address with https, on the domain example.org"),
        ("http://app.example.org/", "must be an address with https, on the domain example.org"),
        ("https://ada:secret@app.example.org/", "without user name, password and fragment"),
        ("https://app.example.org/#part", "without user name, password and fragment"),
    ],
)
async def test_a_callback_outside_the_domain_is_told_which_domain(
    api: httpx.AsyncClient, world: World, url: str, reason: str
) -> None:
    body = {"messageType": "message", "uid": ADA, "callbackUrl": url}
    (message,) = (await findings(api, "POST", "/subscriptions", json=body))["callbackUrl"]
    assert reason in message
    assert "secret" not in message


async def test_without_a_redirect_uri_no_callback_is_possible_and_the_finding_says_so(
    api: httpx.AsyncClient, world: World, services: Any
) -> None:
    token = "3e" * 16
    await services.provisioning.apply({"tokens": [{"value": token, "application": PANEL, "user": "ada@example.org"}]})
    body = {"messageType": "message", "uid": ADA, "callbackUrl": "https://app.example.org/"}
    answer = await api.post("/subscriptions", json=body, headers=bearer(token))
    assert "the application has no main redirect URI" in answer.text


@each_row(
    ("body", "field", "reason"),
    [
        ({"startDate": 2, "endDate": 1}, "startDate", "must not be after endDate, nor more than"),
        ({"startDate": 1, "endDate": 2}, "startDate", "days ago"),
        ({"startDate": NOW_MS, "endDate": NOW_MS + 32 * DAY_MS}, "endDate", "at most 31 days after startDate"),
        ({**_RANGE, "order": "up"}, "order", "must be one of asc, desc"),
        ({**_RANGE, "format": "xml"}, "format", "must be one of"),
        ({**_RANGE, "startDate": -1}, "startDate", "must be milliseconds since the epoch"),
    ],
)
async def test_the_range_of_an_export_says_its_bounds(
    api: httpx.AsyncClient, world: World, body: dict[str, Any], field: str, reason: str
) -> None:
    (message,) = (await findings(api, "POST", "/messages/export", json={"uids": ADA, **body}))[field]
    assert message.startswith("Invalid value: ")
    assert reason in message


def test_a_wrong_value_class_is_told_the_list() -> None:
    with pytest.raises(ValidationFailed) as refused:
        parse_manifest({"fields": [{"name": "t", "valueClass": "Duble"}]})
    (finding,) = refused.value.findings
    assert finding.field == "fields.0.valueClass"
    assert all(one.value in finding.messages[0] for one in ValueClass)


@each_row(
    ("method", "path", "request_", "field", "reason"),
    [
        ("GET", "/users/self/trials?role=owner", {}, "role", "must be one of administrator, participant"),
        ("GET", f"/messages?sdid={KITCHEN}&startDate=1&endDate=2&order=up", {}, "order", "must be one of asc, desc"),
        ("GET", f"/messages?sdid={KITCHEN}&startDate=2&endDate=1", {}, "startDate", "must not be after endDate"),
        ("GET", f"/messages?sdid={KITCHEN}&startDate=1&endDate={2**70}", {}, "endDate", "a whole number of 64 bits"),
        ("POST", "/devices", {"json": {"dtid": LIGHT_TYPE, "name": " "}}, "name", "must not be blank"),
        ("POST", "/devices", {"json": {"dtid": LIGHT_TYPE, "manifestVersion": 9}}, "manifestVersion", "no version"),
        (
            "POST",
            "/devices",
            {"json": {"dtid": LIGHT_TYPE, "manifestVersionPolicy": "x"}},
            "manifestVersionPolicy",
            "one of",
        ),
        ("POST", "/messages", {"json": {"sdid": KITCHEN, "data": 7}}, "data", "must be an object"),
        ("PUT", f"/devices/{KITCHEN}/status", {"json": {"availability": "on"}}, "availability", "must be one of"),
        ("POST", "/trials", {"json": {"name": "n", "deviceTypes": ["x"]}}, "deviceTypes.0", "must be an object"),
        ("POST", "/trials", {"json": {"name": "n", "deviceTypes": "x"}}, "deviceTypes", "must be a list"),
    ],
)
async def test_other_fields_say_what_they_take(
    api: httpx.AsyncClient, world: World, method: str, path: str, request_: dict[str, Any], field: str, reason: str
) -> None:
    (message,) = (await findings(api, method, path, **request_))[field]
    assert message.startswith("Invalid value: ")
    assert reason in message


async def test_a_redirect_uri_that_is_not_registered_says_so(api: httpx.AsyncClient, world: World) -> None:
    root = str(api.base_url).removesuffix("/v1.1/")
    query = "response_type=code&client_id=" + "aa" * 16 + "&redirect_uri=https://evil.example"
    answer = await api.get(f"{root}/accounts/authorize?{query}")
    assert answer.status_code == 400
    assert "redirect_uri: it is none of the addresses that the application registered" in answer.text
