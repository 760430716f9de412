from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Raw

from broker.errors import BadRequest, Finding, ValidationFailed
from config.limits import JSON_NESTING_MAX
from protocols.http.reading import Given, Query, Rule, Valid, integer_of, json_object, members
from protocols.http.schema import Count, Offset
from tests.rows import each_row
from tests.wording import INVALID


class Listed(msgspec.Struct):
    order: Literal["asc", "desc"] = "asc"
    count: Count = 100
    offset: Offset = 0


def listed(name: str) -> Callable[[Query], Any]:
    return lambda query: query.members(Listed, None)[name]


class Example(msgspec.Struct):
    name: str | None = None
    size: int | None = None
    is_on: bool | None = msgspec.field(default=None, name="isOn")
    data: Raw = Raw()
    items: list[str] | None = None


def findings(error: ValidationFailed) -> dict[str, str]:
    return {finding.field: finding.messages[0] for finding in error.findings}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", Example()),
        (b" \r\n", Example()),
        (b"{}", Example()),
        (b'{"name":null,"unknown":[1]}', Example()),
        (b'{"name":"a","size":3,"isOn":true}', Example("a", 3, True)),
        (b'{"size":3.9}', Example(size=3)),
        (b'{"size":"3.9"}', Example(size=3)),
        (b'{"size":" 12 ","name":null}', Example(size=12)),
        (b'{"data": {"a" : 1}}', Example(data=Raw(b'{"a" : 1}'))),
        ('{"name":"ä"}'.encode(), Example("ä")),
    ],
)
def test_members_are_read_leniently(body: bytes, expected: Example) -> None:
    assert members(body, Example) == expected


@pytest.mark.parametrize(
    "body",
    [b"{", b"nonsense", b"[]", b'"text"', b"5", b"null", b"{}{}", b'{"x":"\xff"}', b'{"x":' + b"[" * 8000],
)
def test_what_is_not_a_json_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        members(body, Example)


@pytest.mark.parametrize("wrong", [b"", b'"size":[],'], ids=["members that fit", "a member of the wrong type"])
def test_a_body_nests_as_deep_as_the_limit_and_no_deeper(wrong: bytes) -> None:
    inner = JSON_NESTING_MAX - 1

    def body(levels: int) -> bytes:
        return b"{" + wrong + b'"unknown":' + b"[" * levels + b"]" * levels + b"}"

    with pytest.raises(ValidationFailed) if wrong else nullcontext():
        assert members(body(inner), Example) == Example()
    with pytest.raises(BadRequest):
        members(body(inner + 1), Example)


def test_every_wrong_member_is_named() -> None:
    with pytest.raises(ValidationFailed) as caught:
        members(b'{"name":5,"size":"many","isOn":"yes","items":[1]}', Example)
    assert findings(caught.value) == {
        "name": "Text field only",
        "size": "Numeric field only",
        "isOn": "Boolean field only",
        "items": INVALID,
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, 5), (5.9, 5), (-5.9, -5), ("5", 5), ("5.", 5), ("+5.9", 5), ("-1", -1), (" 7 ", 7), (10**30, 10**30)],
)
def test_an_integer_may_have_a_fraction_or_be_a_text(value: object, expected: int) -> None:
    assert integer_of(value) == expected


@pytest.mark.parametrize("value", [True, "", "a", "1e3", "0x1", "٣", "5,0", float("inf"), float("nan"), None, []])
def test_anything_else_is_no_integer(value: object) -> None:
    assert integer_of(value) is None


@each_row(
    ("query", "read", "expected"),
    [
        (b"", lambda q: q.text("sdid"), None),
        (b"sdid=a", lambda q: q.text("sdid"), "a"),
        (b"?sdid=a", lambda q: q.text("sdid"), "a"),
        (b"%3Fsdid=a", lambda q: q.text("sdid"), "a"),
        (b"SDID=a", lambda q: q.text("sdid"), None),
        (b"sdid=a&sdid=b", lambda q: q.text("sdid"), "b"),
        (b"sdid=a&sdid=", lambda q: q.text("sdid"), "a"),
        (b"sdid&&=&%zz&sdid=a+b%20c", lambda q: q.text("sdid"), "a b c"),
        (b"sdids=a,b,", lambda q: q.ids("sdids"), ["a", "b"]),
        (b"sdids=a,%20b&sdids=,c", lambda q: q.ids("sdids"), ["a", "b", "c"]),
        (b"order=DESC", listed("order"), "desc"),
        (b"order=", listed("order"), "asc"),
        (b"count=5.7", listed("count"), 5),
        (b"", listed("count"), 100),
        (b"count=", listed("count"), 100),
        (b"offset=10", listed("offset"), 10),
        (b"on=TRUE", lambda q: q.boolean("on", default=False), True),
        (b"on=1", lambda q: q.boolean("on", default=False), True),
        (b"on=False", lambda q: q.boolean("on", default=True), False),
        (b"on=0", lambda q: q.boolean("on", default=True), False),
        (b"on", lambda q: q.boolean("on", default=True), True),
        (b"sdid=%ff", lambda q: q.text("sdid"), "\ufffd"),
    ],
)
def test_a_query_is_read_leniently(query: bytes, read: Callable[[Query], Any], expected: object) -> None:
    parsed = Query(query)
    assert read(parsed) == expected
    parsed.check()


@each_row(
    ("query", "read", "refused"),
    [
        (b"count=0", listed("count"), {"count": "Minimum value 1"}),
        (b"count=101", listed("count"), {"count": "Maximum value 100"}),
        (b"count=ten", listed("count"), {"count": "Numeric field only"}),
        (b"count=" + b"9" * 40, listed("count"), {"count": INVALID}),
        (b"offset=-1", listed("offset"), {"offset": "Minimum value 0"}),
        (b"offset=x", listed("offset"), {"offset": "Numeric field only"}),
        (b"on=maybe", lambda q: q.boolean("on", default=True), {"on": "Boolean field only"}),
        (b"order=up", listed("order"), {"order": INVALID}),
        (b"sdid=", lambda q: q.text("sdid", required=True), {"sdid": "Required parameter"}),
        (b"sdids=,", lambda q: q.ids("sdids", required=True), {"sdids": "Required parameter"}),
        (b"sdids=" + b"a," * 101, lambda q: q.ids("sdids"), {"sdids": "Maximum length 100"}),
        (b"startDate=x", lambda q: q.number("startDate"), {"startDate": "Numeric field only"}),
        (
            b"count=0&on=x",
            lambda q: (q.members(Listed, None), q.boolean("on", default=True)),
            {"count": "Minimum value 1"},
        ),
    ],
)
def test_findings_name_the_parameter(query: bytes, read: Callable[[Query], Any], refused: dict[str, str]) -> None:
    parsed = Query(query)
    read(parsed)
    with pytest.raises(ValidationFailed) as caught:
        parsed.check()
    assert refused.items() <= findings(caught.value).items()


def _too_early(given: Given) -> list[Finding]:
    until, size = given.values["until"], given.values["size"]
    return [Finding("size", (INVALID,))] if until is not None and until < size else []


class Asked(msgspec.Struct, kw_only=True):
    """Members with everything that is checked."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=3), Valid(str.isalpha, "must be letters")]
    size: Annotated[int, msgspec.Meta(ge=1, le=5)] = 2
    order: Literal["asc", "desc"] = "asc"
    until: Annotated[int, Rule(_too_early)] | None = None


class Checked(Asked, kw_only=True):
    data: Raw


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"name":"abc","data":1}', ("abc", 2, "asc", None)),
        (b'{"name":"abc","data":1,"order":"DESC","size":"5","until":null}', ("abc", 5, "desc", None)),
        (b'{"name":"a","data":{},"size":null,"order":null,"until":"9"}', ("a", 2, "asc", 9)),
    ],
)
def test_what_is_right_passes_all_checks(body: bytes, expected: tuple[object, ...]) -> None:
    read = members(body, Checked)
    assert (read.name, read.size, read.order, read.until) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", [("name", "Required parameter"), ("data", "Required parameter")]),
        (
            b'{"name":"","data":null}',
            [("name", "Required parameter"), ("name", INVALID), ("data", "Required parameter")],
        ),
        (b'{"name":"ab1d","data":1}', [("name", "Maximum length 3"), ("name", INVALID)]),
        (b'{"name":"a","size":0,"order":"up","data":1}', [("size", "Minimum value 1"), ("order", INVALID)]),
        (b'{"name":"a","size":6,"data":1,"until":5}', [("size", "Maximum value 5"), ("size", INVALID)]),
        (b'{"name":"a","size":5,"data":1,"until":4}', [("size", INVALID)]),
        (b'{"name":"a","data":null}', [("data", "Required parameter")]),
        (
            b'{"name":1,"size":[],"order":2,"data":null}',
            [("name", "Text field only"), ("size", "Numeric field only"), ("order", "Text field only")],
        ),
    ],
)
def test_everything_that_is_wrong_is_found_in_the_order_of_the_members(
    body: bytes, expected: list[tuple[str, str]]
) -> None:
    """Members of the wrong type are told first, and alone."""
    with pytest.raises(ValidationFailed) as caught:
        members(body, Checked)
    assert [(finding.field, *finding.messages) for finding in caught.value.findings] == expected


class Lengths(msgspec.Struct):
    text: Annotated[str, msgspec.Meta(min_length=2)] = "ab"
    items: Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)] = msgspec.field(default_factory=list)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"text":"","items":[]}', [("text", "Required parameter"), ("items", "Required parameter")]),
        (b'{"text":"a","items":[1,2,3]}', [("text", "Minimum length 2"), ("items", "Maximum length 2")]),
    ],
)
def test_lengths_are_checked_of_texts_and_lists(body: bytes, expected: list[tuple[str, str]]) -> None:
    with pytest.raises(ValidationFailed) as caught:
        members(body, Lengths)
    assert [(finding.field, *finding.messages) for finding in caught.value.findings] == expected


def test_a_bound_that_no_finding_has_a_text_for_is_refused() -> None:
    class Odd(msgspec.Struct):
        number: Annotated[int, msgspec.Meta(multiple_of=2)] = 2

    with pytest.raises(TypeError, match="number"):
        members(b'{"number":3}', Odd)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            b"size=0&order=up&until=x",
            [
                ("name", "Required parameter"),
                ("size", "Minimum value 1"),
                ("order", INVALID),
                ("until", "Numeric field only"),
            ],
        ),
        (b"name=a&size=5&until=4", [("size", INVALID)]),
    ],
)
def test_a_query_is_checked_by_the_same_declaration(query: bytes, expected: list[tuple[str, str]]) -> None:
    parsed = Query(query)
    parsed.members(Asked, None)
    with pytest.raises(ValidationFailed) as caught:
        parsed.check()
    assert [(finding.field, *finding.messages) for finding in caught.value.findings] == expected


def test_a_json_object_is_left_as_it_is() -> None:
    assert json_object(b'{"a":[1]}') == {"a": [1]}
    assert json_object(b"") == {}


@pytest.mark.parametrize("body", [b"[]", b"{", b" ", b'{"x":"\xff"}'])
def test_what_is_no_json_object_is_a_bad_request_to_callers_that_read_the_members_themselves(body: bytes) -> None:
    with pytest.raises(BadRequest):
        json_object(body)
