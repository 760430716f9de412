"""The fields that a Manifest does not keep are named, and looking for them changes nothing (reference 9.7)."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.device_types.dropped import NAMED_MAX, DroppedField
from broker.device_types.manifest_parser import parse_manifest
from broker.device_types.normalize import Normalizer
from broker.errors import BadRequest
from tests.properties import examples

pytestmark = pytest.mark.slow


_MANIFEST = parse_manifest(
    {
        "fields": [
            {"name": "on", "valueClass": "Boolean"},
            {"name": "level", "valueClass": "Integer"},
            {"name": "color", "children": [{"name": "r", "valueClass": "Integer"}]},
            {"name": "history", "valueClass": "Double", "isCollection": True},
            {"name": "label", "valueClass": "String"},
        ]
    }
)
_NORMALIZER = Normalizer(_MANIFEST)


def dropped(data: object) -> list[tuple[str, str]]:
    noted: list[DroppedField] = []
    _NORMALIZER.normalize_noting(json.dumps(data).encode(), noted)
    return [(one.field, one.message) for one in noted]


def test_what_is_dropped_is_named_with_its_path_and_reason() -> None:
    assert dropped({"on": True, "level": "5", "color": {"r": 1}, "history": 1.5, "label": 7}) == []
    assert dropped({"on": None, "color": {"r": None}, "history": []}) == []
    assert dropped({"level": 2**40}) == [("level", "is not an Integer")]
    assert dropped({"on": True, "color": 5}) == [("color", "is not a group of fields")]
    assert dropped({"on": True, "color": {"g": 1}}) == [("color.g", "not in the Manifest")]
    assert dropped({"on": True, "color": {"r": "red", "b": {"x": 1}}}) == [
        ("color.r", "is not an Integer"),
        ("color.b", "not in the Manifest"),
    ]
    assert dropped({"history": [1, "x", None]}) == [("history", "2 of 3 items are not a Double")]
    assert dropped({"history": "x"}) == [("history", "is not a Double")]
    assert dropped({"on": True, "label": "ü", "öpne": 1}) == [("öpne", "not in the Manifest")]


def test_the_list_and_its_names_are_bounded() -> None:
    found = dropped({f"x{number}": 1 for number in range(NAMED_MAX + 5)})
    assert len(found) == NAMED_MAX + 1
    assert found[-1] == ("data", "5 more fields were dropped")
    assert len(dropped({"x" * 5_000: 1})[0][0]) < 200


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["r", "on", "x"]), inner, max_size=3),
    max_leaves=5,
)
_DATA = st.dictionaries(st.sampled_from(["on", "level", "color", "history", "label", "opne"]), _VALUES, max_size=6)


@given(_DATA)
@settings(max_examples=examples(100))
def test_noting_what_is_dropped_keeps_what_is_kept_without(data: dict[str, Any]) -> None:
    payload = json.dumps(data).encode()
    noted: list[DroppedField] = []
    try:
        kept = _NORMALIZER.normalize(payload)
    except BadRequest:
        return
    assert _NORMALIZER.normalize_noting(payload, noted) == kept
    unknown = {name for name, value in data.items() if name == "opne" and value is not None}
    assert unknown <= {one.field for one in noted}
