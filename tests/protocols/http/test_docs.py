"""How the pages at /docs tell of shapes, and how they read the little Markdown of the document."""

import json
import re
import subprocess
from functools import cache
from itertools import islice, pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest

from protocols.http.docs.chapters import DocumentedCall, chapters
from protocols.http.docs.objects import objects_guide
from protocols.http.docs.prose import ProseBlock, ProseSection, sections, with_code
from protocols.http.docs.rows import MemberRows
from protocols.http.openapi.document import openapi_document
from protocols.http.openapi.serving import ALL_NOUNS
from tests.rows import each_row

SHAPES = MemberRows(
    {
        "components": {
            "schemas": {
                "Light": {"type": "object", "required": ["on"], "properties": {"on": {"type": "boolean"}}},
                "Group": {"type": "object", "properties": {"inner": {"$ref": "#/components/schemas/Group"}}},
            }
        }
    }
)
LIGHT = {"$ref": "#/components/schemas/Light"}


@each_row(
    ("schema", "type_", "bounds"),
    [
        ({"type": "string", "pattern": "^[0-9a-f]{32}$"}, "id", ()),
        ({"type": ["string", "null"]}, "string or null", ()),
        ({"type": "integer", "minimum": 1, "maximum": 100, "default": 100}, "integer", ("1 to 100", "default 100")),
        ({"type": "integer", "minimum": 0}, "integer", ()),
        ({"type": "integer", "minimum": 1}, "integer", ("at least 1",)),
        ({"type": "integer", "minimum": -1}, "integer", ("at least -1",)),
        ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, "integer", ()),
        ({"type": "string", "minLength": 1, "maxLength": 64}, "string", ("1 to 64 characters",)),
        ({"type": "string", "maxLength": 64}, "string", ("at most 64 characters",)),
        ({"type": "string", "enum": ["asc", "desc"], "default": "asc"}, "string", ("asc · desc", "default asc")),
        ({"type": "boolean", "default": False}, "boolean", ("default false",)),
        ({"type": "array", "items": LIGHT}, "array of objects", ()),
        ({"type": "array", "items": {"type": "array", "items": LIGHT}}, "array of array of objects", ()),
        ({"type": "array", "items": LIGHT, "minItems": 1, "maxItems": 2}, "array of objects", ("1 to 2 items",)),
        ({}, "anything", ()),
        ({"anyOf": [LIGHT]}, "object", ()),
    ],
)
def test_a_member_is_told_by_its_type_and_its_bounds(
    schema: dict[str, Any], type_: str, bounds: tuple[str, ...]
) -> None:
    row = SHAPES.of_one("member", schema, required=True)
    assert (row.type, row.bounds) == (type_, bounds)


def test_members_of_inner_objects_stand_below_them() -> None:
    lights = {"type": "object", "properties": {"lights": {"type": "array", "items": LIGHT}}}
    rows = [(row.name, row.depth, row.required) for row in SHAPES.of_members(lights)]
    assert rows == [("lights", 0, False), ("on", 1, True)]


def test_a_shape_within_itself_ends() -> None:
    assert [row.depth for row in SHAPES.of_members({"$ref": "#/components/schemas/Group"})] == [0, 1, 2, 3, 4]


def test_markdown_is_headings_paragraphs_and_lists() -> None:
    text = "## One\n\nA line\nand another.\n\n- first\n  item\n- second\n\n## Two\n\nEnd."
    assert sections(text) == (
        ProseSection("One", (ProseBlock(False, ("A line and another.",)), ProseBlock(True, ("first item", "second")))),
        ProseSection("Two", (ProseBlock(False, ("End.",)),)),
    )


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", "plain"),
        ("a `<b>` c", "a <code>&lt;b&gt;</code> c"),
        ("`GET` and `PUT`", "<code>GET</code> and <code>PUT</code>"),
        ("`/.well-known/openid`", "<code>/.well-known/<wbr>openid</code>"),
        ("`(+_exists_:a +_exists_:b)`", "<code>(+_exists_:<wbr>a +_exists_:<wbr>b)</code>"),
        ("`storage.retention_days`", "<code>storage.<wbr>retention_<wbr>days</code>"),
        ("`192.168.101.102:8080`", "<code>192.168.101.102:8080</code>"),
        ("`./install.sh --uninstall`", '<code>./install.sh <span class="whole">--uninstall</span></code>'),
    ],
)
def test_code_stands_between_backticks(text: str, html: str) -> None:
    assert with_code(text) == html


@cache
def described() -> dict[str, Any]:
    return openapi_document("http://here/v1.1", ALL_NOUNS)


@cache
def calls() -> list[DocumentedCall]:
    return [one for chapter in chapters(described()) for one in chapter.calls]


def call(operation_id: str) -> DocumentedCall:
    (named,) = (one for one in calls() if one.anchor == operation_id)
    return named


@each_row(
    ("operation_id", "curl"),
    [
        ("getUsersSelf", 'curl http://here/v1.1/users/self \\\n  -H "Authorization: bearer $TOKEN"'),
        (
            "putDevicesRegistrationsPin",
            (
                'curl -X PUT http://here/v1.1/devices/registrations/pin \\\n  -H "Authorization: bearer $TOKEN" \\\n'
                '  -d \'{"pin":"K7QW3MXA","deviceName":"Front door"}\''
            ),
        ),
        (
            "getTagsSuggestions",
            'curl http://here/v1.1/tags/suggestions \\\n  -H "Authorization: bearer $TOKEN"',
        ),
        (
            "getCertDevicesRegistrationsByRidStatus",
            (
                'curl "$SECURE_URL/cert/devices/registrations/c1d2e3f405162738495a6b7c8d9eafb0/status" \\\n'
                "  --cert device.pem --key device.key"
            ),
        ),
        ("getOpenapiJson", "curl http://here/v1.1/openapi.json"),
    ],
)
def test_every_call_comes_with_a_command_to_paste(operation_id: str, curl: str) -> None:
    assert call(operation_id).curl == curl


def test_the_shell_hands_curl_the_example_of_each_call() -> None:
    """The examples' requests are right: tests/e2e/test_schemathesis.py makes each of them."""
    script = "curl() { printf '%s\\0' $# \"$@\"; }\n" + "\n".join(one.curl for one in calls())
    variables = {"TOKEN": "its token", "SECURE_URL": "https://secure"}
    done = subprocess.run(["bash", "-euc", script], capture_output=True, env=variables, check=True)
    words = iter(done.stdout.decode().split("\0")[:-1])
    for one in calls():
        operation = described()["paths"][one.path][one.method.lower()]
        given = list(islice(words, int(next(words))))
        options = list(pairwise(given))
        assert ("-X", one.method) in options or one.method == "GET", one.anchor
        assert (("-H", "Authorization: bearer its token") in options) == bool(one.tokens), one.anchor
        (address,) = [word for word in given if word.startswith(("http://here/v1.1/", "https://secure/"))]
        assert re.fullmatch(
            re.sub(r"\\{\w+\\}", "[^/]+", re.escape(one.path)), urlsplit(address).path.removeprefix("/v1.1")
        )
        content = operation.get("requestBody", {}).get("content", {})
        for kind, media in list(content.items())[:1]:
            sent = [value for option, value in options if option in {"-d", "--data-binary"}]
            if kind == "application/x-www-form-urlencoded":
                assert dict(pair.split("=", 1) for pair in sent) == media["example"], one.anchor
            else:
                assert [as_example(value, media["example"]) for value in sent] == [media["example"]], one.anchor
    assert next(words, None) is None


def as_example(sent: str, example: object) -> object:
    return sent if isinstance(example, str) else json.loads(sent)


def test_a_refusal_of_many_calls_is_told_like_one_of_its_own() -> None:
    reasons = {refusal.status: refusal.reason for refusal in call("postDevices").refusals}
    assert reasons["409"] == "Vendor device id already registered for this device type"
    assert reasons["401"] == "Please provide a valid authorization header"


def test_the_objects_of_the_registry_have_a_page() -> None:
    """Issue 44, 5: names, types and units of LWM2M objects."""
    found = {section.title: section.text.splitlines() for section in objects_guide().sections()}
    assert "5700 sensorValue R Float" in found["3303 temperature"]
    assert "9 batteryLevel R Integer /100" in found["3 device"]
    assert '<h2 id="3303-temperature">' in objects_guide().html
