"""The member `transform` of a Manifest: its rules, and the data it makes of payloads."""

import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.device_types.catalog import ManifestVersion
from broker.device_types.manifest_parser import parse_manifest
from broker.device_types.transform import TransformFailedError
from broker.errors import ValidationFailed
from config.limits import MAX_DATA_BYTES
from tests.rows import each_row
from tests.wording import INVALID

FIELDS = [
    {"name": "t", "valueClass": "Double"},
    {"name": "on", "valueClass": "Boolean"},
    {"name": "text", "valueClass": "String"},
]
CSV = {"format": "csv", "columns": ["t", "on"]}
LAYOUT = [{"name": "t", "type": "int16", "scale": 0.1}, {"name": "flags", "type": "uint8"}]


def version(**transform: object) -> ManifestVersion:
    return ManifestVersion(1, parse_manifest({"fields": FIELDS, "transform": transform}))


@each_row(
    ("transform", "payload", "data"),
    [
        (CSV, b"21.5,true", {"t": 21.5, "on": True}),
        (CSV | {"expression": "{t: t, on: on == '1'}"}, b"21.5,1", {"t": 21.5, "on": True}),
        ({"format": "keyvalue"}, b"t=21;unknown=x", {"t": 21}),
        ({"format": "text"}, b"hello", {"text": "hello"}),
        (
            {"format": "text", "expression": "{t: to_number(split(text, ' ')[1])}"},
            b"T 21.5 C",
            {"t": 21.5},
        ),
        ({"format": "json", "expression": "{t: [0], on: [1]}"}, b"[1.5, false]", {"t": 1.5, "on": False}),
        (
            {"format": "json", "expression": "{t: sensors[?id == 't'].value | [0]}"},
            b'{"sensors":[{"id":"t","value":4}]}',
            {"t": 4},
        ),
        (
            {"format": "binary", "layout": LAYOUT, "expression": "{t: t, on: bit(flags, `7`)}"},
            struct.pack(">hB", 215, 0x80),
            {"t": 21.5, "on": True},
        ),
        ({"format": "binary", "layout": LAYOUT, "encoding": "base64"}, b"ANeA", {"t": 21.5}),
        ({"format": "binary", "layout": LAYOUT, "encoding": "hex", "byteOrder": "little"}, b"d70080", {"t": 21.5}),
        ({"format": "csv", "columns": ["t"], "encoding": "hex"}, b"3231", {"t": 21}),
        ({"format": "keyvalue", "pairSeparator": "&", "valueSeparator": ":"}, b"t:1&on:true", {"t": 1, "on": True}),
        (CSV, b"x,y", None),  # nothing remains
    ],
)
def test_a_payload_becomes_data(transform: dict[str, Any], payload: bytes, data: object) -> None:
    normalized = version(**transform).normalize(payload)
    assert (None if normalized is None else json.loads(normalized)) == data


@each_row(
    ("transform", "payload", "reason"),
    [
        (CSV, b"\xff", "payload: not UTF-8 text: byte 0"),
        (CSV, b"1,2,3", "payload: 3 cells for 2 columns"),
        (CSV | {"encoding": "hex"}, b"zz", "payload: not hex: "),
        (CSV | {"expression": "divide(`1`, `0`)"}, b"1", "expression: division by zero"),
        (CSV | {"expression": "t"}, b"1", "the result is no object"),
        (CSV | {"expression": '{t: "\\ud800"}'}, b"1", None),
        (CSV | {"expression": '{t: `"\\ud800"`}'}, b"1", "the result is no JSON: "),
        ({"format": "json"}, b"[1]", "the result is no object"),
        (
            {"format": "text", "expression": "{text: join(text, ['', '', ''])}"},
            b"x" * 600,
            "the result is larger than 1024",
        ),
    ],
)
def test_a_payload_that_cannot_be_transformed_says_why(
    transform: dict[str, Any], payload: bytes, reason: str | None
) -> None:
    if reason is None:
        assert version(**transform).normalize(payload) is None
        return
    with pytest.raises(TransformFailedError) as failed:
        version(**transform).normalize(payload)
    assert str(failed.value).startswith(reason)


REQUIRED, TEXT, NUMERIC = "Required parameter", "Text field only", "Numeric field only"


def binary(**entry: object) -> dict[str, object]:
    return {"format": "binary", "layout": [entry]}


@each_row(
    ("transform", "path", "text"),
    [
        ([], "transform", INVALID),
        ("csv", "transform", INVALID),
        ({}, "transform.format", REQUIRED),
        ({"format": ""}, "transform.format", INVALID),
        ({"format": "CSV"}, "transform.format", INVALID),
        ({"format": 1}, "transform.format", TEXT),
        ({"format": "text", "encoding": "rot13"}, "transform.encoding", INVALID),
        ({"format": "text", "encoding": 1}, "transform.encoding", TEXT),
        ({"format": "text", "expression": 1}, "transform.expression", TEXT),
        (
            {"format": "text", "expression": "a b"},
            "transform.expression",
            "Invalid value: unexpected 'b' at position 2",
        ),
        ({"format": "csv"}, "transform.columns", REQUIRED),
        ({"format": "csv", "columns": []}, "transform.columns", REQUIRED),
        ({"format": "csv", "columns": "t"}, "transform.columns", INVALID),
        ({"format": "csv", "columns": ["t"] * 257}, "transform.columns", "Maximum length 256"),
        ({"format": "csv", "columns": ["t", 1]}, "transform.columns.1", TEXT),
        ({"format": "csv", "columns": ["t", "t"]}, "transform.columns.1", INVALID),
        ({"format": "csv", "columns": [""]}, "transform.columns.0", "Minimum length 1"),
        ({"format": "csv", "columns": ["x" * 65]}, "transform.columns.0", "Maximum length 64"),
        (CSV | {"delimiter": ""}, "transform.delimiter", INVALID),
        (CSV | {"delimiter": ",,"}, "transform.delimiter", INVALID),
        (CSV | {"delimiter": '"'}, "transform.delimiter", INVALID),
        (CSV | {"delimiter": 1}, "transform.delimiter", TEXT),
        ({"format": "keyvalue", "pairSeparator": "="}, "transform.valueSeparator", INVALID),
        ({"format": "binary"}, "transform.layout", REQUIRED),
        ({"format": "binary", "layout": {}}, "transform.layout", INVALID),
        ({"format": "binary", "layout": ["t"]}, "transform.layout.0", INVALID),
        (binary(name="t"), "transform.layout.0.type", REQUIRED),
        (binary(name="t", type="int24"), "transform.layout.0.type", INVALID),
        (binary(name="t", type=""), "transform.layout.0.type", INVALID),
        (binary(type="int8"), "transform.layout.0.name", REQUIRED),
        (binary(name=1, type="int8"), "transform.layout.0.name", TEXT),
        (binary(name="t", type="text"), "transform.layout.0.length", REQUIRED),
        (binary(type="skip", length=0), "transform.layout.0.length", "Minimum value 1"),
        (binary(type="skip", length=1025), "transform.layout.0.length", "Maximum value 1024"),
        (binary(type="skip", length="2"), "transform.layout.0.length", NUMERIC),
        (binary(type="skip", length=True), "transform.layout.0.length", NUMERIC),
        (binary(name="t", type="int8", scale="2"), "transform.layout.0.scale", NUMERIC),
        (binary(name="t", type="int8", scale=10**400), "transform.layout.0.scale", NUMERIC),
        (binary(name="t", type="int8", offset=float("nan")), "transform.layout.0.offset", NUMERIC),
        (binary(name="t", type="int8", offset=float("inf")), "transform.layout.0.offset", NUMERIC),
        (
            {"format": "binary", "layout": [{"type": "skip", "length": 1024}] * 2},
            "transform.layout",
            "Maximum length 1024",
        ),
        ({"format": "binary", "layout": LAYOUT, "byteOrder": "middle"}, "transform.byteOrder", INVALID),
    ],
)
def test_a_wrong_transform_is_refused_with_its_path(transform: object, path: str, text: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        parse_manifest({"fields": FIELDS, "transform": transform})
    assert [(finding.field, finding.messages) for finding in refused.value.findings] == [(path, (text,))]


@pytest.mark.parametrize(
    "transform",
    [
        {"format": "text", "unknown": 1, "columns": 5},
        {"format": "text", "encoding": None, "expression": None},
        CSV | {"delimiter": None},
        {"format": "binary", "layout": [{"type": "skip", "length": 1024}]},
        None,
    ],
)
def test_valid_transforms(transform: object) -> None:
    parse_manifest({"fields": FIELDS, "transform": transform})


def test_a_manifest_without_transform_is_a_simple_one() -> None:
    simple = ManifestVersion(1, parse_manifest({"fields": FIELDS, "transform": None}))
    assert not simple.takes_any_payload
    assert simple.normalize(b'{"t":1}') == b'{"t":1}'


VERSIONS = [
    version(**CSV),
    version(**CSV, expression="{t: t, text: join('', [t, on])}"),
    version(format="keyvalue", expression="{t: t, text: to_string(@)}"),
    version(format="text"),
    version(format="text", expression="{text: text, t: length(split(text, ','))}"),
    version(format="json"),
    version(format="json", expression="{text: to_string(@), t: add(a, b)}"),
    version(format="binary", layout=LAYOUT),
    version(format="binary", layout=[{"name": "text", "type": "text", "length": 3}, {"name": "t", "type": "float64"}]),
    version(format="binary", layout=LAYOUT, encoding="base64"),
]


@pytest.mark.parametrize("advanced", VERSIONS, ids=lambda advanced: str(advanced.manifest.transform)[:60])
@given(payload=st.binary(max_size=MAX_DATA_BYTES) | st.text(max_size=300).map(str.encode))
def test_any_bytes_become_data_or_a_reason(advanced: ManifestVersion, payload: bytes) -> None:
    with suppress(TransformFailedError):
        if (normalized := advanced.normalize(payload)) is not None:
            data = json.loads(normalized)
            assert data
            assert set(data) <= {"t", "on", "text"}
