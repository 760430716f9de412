"""The conversion table (reference 8.4) cell by cell, and that fast and general conversion always agree."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.device_types.manifest import NO_MANIFEST, Manifest
from broker.device_types.manifest_parser import parse_manifest
from broker.device_types.normalize import Normalizer
from broker.errors import BadRequest
from config.limits import JSON_NESTING_MAX
from tests.rows import each_row

pytestmark = pytest.mark.slow


VALUE_CLASSES = ("Boolean", "Double", "Float", "Integer", "Long", "String")

SMART_LIGHT = parse_manifest(
    {
        "fields": [
            {"name": "state", "valueClass": "Boolean"},
            {"name": "intensity", "valueClass": "Integer"},
            {
                "name": "colorRGB",
                "children": [
                    {"name": "r", "valueClass": "Integer"},
                    {"name": "g", "valueClass": "Integer"},
                    {"name": "name", "children": [{"name": "text", "valueClass": "String"}]},
                ],
            },
            {"name": "history", "valueClass": "Double", "isCollection": True},
        ]
    }
)


def one_field(value_class: str, *, is_collection: bool = False) -> Normalizer:
    field = {"name": "v", "valueClass": value_class, "isCollection": is_collection}
    return Normalizer(parse_manifest({"fields": [field]}))


def normalized(normalizer: Normalizer, payload: bytes) -> str | None:
    """The result of both paths."""
    result = normalizer.normalize(payload)
    assert result == normalizer.normalize_leniently(payload)
    return None if result is None else result.decode()


def value_of(normalizer: Normalizer, text: str) -> str | None:
    """The normalised JSON text of a value; None when the field is dropped."""
    result = normalized(normalizer, f'{{"v":{text}}}'.encode())
    return None if result is None else result.removeprefix('{"v":').removesuffix("}")


DROPPED = None

# Value classes, the value as sent, the value as kept.
CONVERSIONS = [
    # Boolean: true, false, "true", "false" (any case), 1, 0
    ("Boolean", "true", "true"),
    ("Boolean", "false", "false"),
    ("Boolean", '"true"', "true"),
    ("Boolean", '"false"', "false"),
    ("Boolean", '"TRUE"', "true"),
    ("Boolean", '"False"', "false"),
    ("Boolean", "1", "true"),
    ("Boolean", "0", "false"),
    ("Boolean", "1.0", "true"),
    ("Boolean", "2", DROPPED),
    ("Boolean", "-1", DROPPED),
    ("Boolean", "0.5", DROPPED),
    ("Boolean", "1e400", DROPPED),
    ("Boolean", '"1"', DROPPED),
    ("Boolean", '"yes"', DROPPED),
    ("Boolean", '" true"', DROPPED),
    ("Boolean", '""', DROPPED),
    # Integer, Long: numbers (fraction truncated), numeric text
    ("Integer Long", "500", "500"),
    ("Integer Long", "0", "0"),
    ("Integer Long", "-0", "0"),
    ("Integer Long", "-7", "-7"),
    ("Integer Long", "21.9", "21"),
    ("Integer Long", "-21.9", "-21"),
    ("Integer Long", "500.0", "500"),
    ("Integer Long", "0.9", "0"),
    ("Integer Long", "-0.9", "0"),
    ("Integer Long", "1e3", "1000"),
    ("Integer Long", "1.5e1", "15"),
    ("Integer Long", "1e-999999", "0"),
    ("Integer Long", '"42"', "42"),
    ("Integer Long", '"-42"', "-42"),
    ("Integer Long", '"+42"', "42"),
    ("Integer Long", '" 42\\n"', "42"),
    ("Integer Long", '"007"', "7"),
    ("Integer Long", '"42.7"', "42"),
    ("Integer Long", '"1e3"', "1000"),
    ("Integer Long", '"\\u0034\\u0032"', "42"),
    ("Integer Long", '""', DROPPED),
    ("Integer Long", '"-"', DROPPED),
    ("Integer Long", '"."', DROPPED),
    ("Integer Long", '"4 2"', DROPPED),
    ("Integer Long", '"0x10"', DROPPED),
    ("Integer Long", '"1_000"', DROPPED),
    ("Integer Long", '"٤٢"', DROPPED),
    ("Integer Long", '"NaN"', DROPPED),
    ("Integer Long", '"Infinity"', DROPPED),
    ("Integer Long", "true", DROPPED),
    ("Integer Long", "1e400", DROPPED),
    ("Integer Long", "1e999999999999999999999", DROPPED),
    ("Integer Long", "-1e999999", DROPPED),
    ("Integer Long", "9" * 5_000, DROPPED),
    ("Integer Long", '"' + "9" * 5_000 + '"', DROPPED),
    # Integer: 32 bit range
    ("Integer", "2147483647", "2147483647"),
    ("Integer", "2147483647.9", "2147483647"),
    ("Integer", "2147483648", DROPPED),
    ("Integer", "-2147483648", "-2147483648"),
    ("Integer", "-2147483648.9", "-2147483648"),
    ("Integer", "-2147483649", DROPPED),
    ("Integer", '"2147483648"', DROPPED),
    # Long: 64 bit range
    ("Long", "2147483648", "2147483648"),
    ("Long", "9223372036854775807", "9223372036854775807"),
    ("Long", "9223372036854775807.0", "9223372036854775807"),
    ("Long", '"9223372036854775807.5"', "9223372036854775807"),
    ("Long", "9223372036854775808", DROPPED),
    ("Long", "-9223372036854775808", "-9223372036854775808"),
    ("Long", "-9223372036854775809", DROPPED),
    ("Long", "18446744073709551616", DROPPED),
    # Float, Double: finite numbers, numeric text
    ("Float Double", "500", "500"),
    ("Float Double", "850.745", "850.745"),
    ("Float Double", "500.0", "500.0"),
    ("Float Double", "-0", "0"),
    ("Float Double", "-0.0", "-0.0"),
    ("Float Double", "1e3", "1000.0"),
    ("Float Double", "1e39", "1e39"),
    ("Float Double", "1e-400", "0.0"),
    ("Float Double", '"23.5"', "23.5"),
    ("Float Double", '"23"', "23"),
    ("Float Double", '" +23.50 "', "23.5"),
    ("Float Double", '".5"', "0.5"),
    ("Float Double", '"5."', "5.0"),
    ("Float Double", "9223372036854775807", "9223372036854775807"),
    ("Float Double", "9223372036854775808", "9.223372036854776e18"),
    ("Float Double", "-9223372036854775809", "-9.223372036854776e18"),
    ("Float Double", "1e400", DROPPED),
    ("Float Double", "-1e400", DROPPED),
    ("Float Double", '"1e400"', DROPPED),
    ("Float Double", "9" * 400, DROPPED),
    ("Float Double", "9" * 5_000, DROPPED),
    ("Float Double", '"nan"', DROPPED),
    ("Float Double", '"inf"', DROPPED),
    ("Float Double", '"warm"', DROPPED),
    ("Float Double", '""', DROPPED),
    ("Float Double", "true", DROPPED),
    # String: text; numbers and Booleans as their JSON text
    ("String", '"warm"', '"warm"'),
    ("String", '""', '""'),
    ("String", '"{}"', '"{}"'),
    ("String", '"null"', '"null"'),
    ("String", '"früh ☀ 😀"', '"früh ☀ 😀"'),
    ("String", '"\\u00e9\\ud83d\\ude00\\n\\u0000\\/"', '"é😀\\n\\u0000/"'),
    ("String", "true", '"true"'),
    ("String", "false", '"false"'),
    ("String", "500", '"500"'),
    ("String", "1.50", '"1.50"'),
    ("String", "-1E+3", '"-1E+3"'),
    ("String", "9" * 5_000, '"' + "9" * 5_000 + '"'),
    ("String", '"\\ud800"', DROPPED),
    ("String", '"a\\udc00b"', DROPPED),
    # No class takes these; null counts as absent.
    ("Boolean Integer Long Float Double String", "null", DROPPED),
    ("Boolean Integer Long Float Double String", "{}", DROPPED),
    ("Boolean Integer Long Float Double String", '{"v":1}', DROPPED),
    ("Boolean Integer Long Float Double String", "[]", DROPPED),
    ("Boolean Integer Long Float Double String", "[1]", DROPPED),
]


@each_row(
    ("value_class", "sent", "kept"),
    [
        pytest.param(value_class, sent, kept, id=f"{value_class}-{sent[:24]}")
        for value_classes, sent, kept in CONVERSIONS
        for value_class in value_classes.split()
    ],
)
def test_conversion(value_class: str, sent: str, kept: str | None) -> None:
    assert value_of(one_field(value_class), sent) == kept


@each_row(
    ("value_class", "sent", "kept"),
    [
        ("Integer", "[1,2,3]", "[1,2,3]"),
        ("Integer", '[1,"2",3.9]', "[1,2,3]"),
        ("Integer", '[1,"x",null,{},[2],true,3]', "[1,3]"),
        ("Integer", "7", "[7]"),
        ("Integer", '"7"', "[7]"),
        ("Integer", "[]", "[]"),
        ("Integer", '["x"]', DROPPED),
        ("Integer", "[null]", DROPPED),
        ("Integer", '"x"', DROPPED),
        ("Integer", "null", DROPPED),
        ("Integer", "{}", DROPPED),
        ("Integer", "[2147483647,2147483648]", "[2147483647]"),
        ("Long", "[9223372036854775807,9223372036854775808]", "[9223372036854775807]"),
        ("Double", "[500,850.745,1e400]", "[500,850.745]"),
        ("Float", '["1.5",false]', "[1.5]"),
        ("Boolean", '[true,0,"FALSE",2]', "[true,false,false]"),
        ("String", '["a",1.50,true,null,"\\ud800"]', '["a","1.50","true"]'),
    ],
)
def test_collection(value_class: str, sent: str, kept: str | None) -> None:
    assert value_of(one_field(value_class, is_collection=True), sent) == kept


@each_row(
    ("payload", "kept"),
    [
        ('{"state":true,"intensity":55}', '{"state":true,"intensity":55}'),
        (' { "intensity" : 55 ,\n"state":true } ', '{"state":true,"intensity":55}'),
        # not declared
        ('{"state":true,"color":7,"more":{"state":[1]}}', '{"state":true}'),
        ('{"State":true,"intensity ":1,"state":false}', '{"state":false}'),
        ('{"state":true,"colorRGB":{"r":1,"b":2}}', '{"state":true,"colorRGB":{"r":1}}'),
        # groups keep their nesting, and go when they are empty
        ('{"colorRGB":{"name":{"text":"red"},"r":255}}', '{"colorRGB":{"r":255,"name":{"text":"red"}}}'),
        ('{"state":true,"colorRGB":{}}', '{"state":true}'),
        ('{"state":true,"colorRGB":{"x":1}}', '{"state":true}'),
        ('{"state":true,"colorRGB":{"r":null,"name":{"text":null}}}', '{"state":true}'),
        ('{"state":true,"colorRGB":{"r":"x","name":{"y":1}}}', '{"state":true}'),
        ('{"state":true,"colorRGB":null}', '{"state":true}'),
        ('{"state":true,"colorRGB":7}', '{"state":true}'),
        ('{"state":true,"colorRGB":[{"r":1}]}', '{"state":true}'),
        ('{"colorRGB":{"name":{"text":"{}"}}}', '{"colorRGB":{"name":{"text":"{}"}}}'),
        ('{"colorRGB.r":7,"state":true}', '{"state":true}'),
        # one field that does not convert leaves the others alone
        ('{"state":"maybe","intensity":"55","colorRGB":{"r":1e99,"g":2}}', '{"intensity":55,"colorRGB":{"g":2}}'),
        # null is absent
        ('{"state":null,"intensity":1}', '{"intensity":1}'),
        # of equal names the last counts
        ('{"intensity":1,"intensity":2}', '{"intensity":2}'),
        ('{"intensity":1,"intensity":"x"}', None),
        ('{"intensity":1,"intensity":null}', None),
        ('{"colorRGB":{"r":1},"colorRGB":{"g":2}}', '{"colorRGB":{"g":2}}'),
        # names may be escaped
        ('{"st\\u0061te":true}', '{"state":true}'),
        ('{"\\ud800":1,"state":true}', '{"state":true}'),
        # what is dropped may hold anything
        ('{"x":"\\ud800","y":1e400,"z":"\\ud83d\\ude00","state":true}', '{"state":true}'),
        # nothing remains
        ("{}", None),
        (" {} ", None),
        ('{"x":1}', None),
        ('{"state":null}', None),
        ('{"colorRGB":{"name":{}}}', None),
        ('{"intensity":"x","history":{}}', None),
        ('{"history":[]}', '{"history":[]}'),
    ],
)
def test_objects(payload: str, kept: str | None) -> None:
    assert normalized(Normalizer(SMART_LIGHT), payload.encode()) == kept


def test_no_manifest_keeps_nothing() -> None:
    normalizer = Normalizer(NO_MANIFEST)
    assert normalized(normalizer, b'{"state":true}') is None
    assert normalized(normalizer, b"{}") is None
    with pytest.raises(BadRequest):
        normalizer.normalize(b"[]")


@each_row(
    "payload",
    [
        b"",
        b" ",
        b"{",
        b"{}}",
        b"{} x",
        b"{}\x00",
        b"\xef\xbb\xbf{}",
        b"null",
        b"true",
        b"7",
        b'"{}"',
        b"[]",
        b'[{"state":true}]',
        b"state=true",
        b'{"state":true,}',
        b"{'state':true}",
        b'{"state":True}',
        b'{"state":tru}',
        b'{"intensity":01}',
        b'{"intensity":+1}',
        b'{"intensity":.5}',
        b'{"intensity":NaN}',
        b'{"intensity":Infinity}',
        b'{"intensity":-Infinity}',
        b'{"x":NaN}',
        b'{"x":[1,]}',
        b'{"x":"\\q"}',
        b'{"x":"\n"}',
        b'{"x":"\xff"}',
        b'{"\xff":1}',
        b'{"state":true,"x":"\xed\xa0\x80"}',
        b"\xff\xfe{\x00}\x00",
        b"\x82\xa5state\xc3",
        b'{"x":' + b"[" * JSON_NESTING_MAX + b"]" * JSON_NESTING_MAX + b"}",
        b'{"x":' + b"[" * 8_000 + b"]" * 8_000 + b"}",
        b'{"state":' + b"[" * 16_000,
        b'{"colorRGB":' * 1_300 + b"1" + b"}" * 1_300,
    ],
)
def test_what_is_not_a_json_object(payload: bytes) -> None:
    normalizer = Normalizer(SMART_LIGHT)
    with pytest.raises(BadRequest):
        normalizer.normalize(payload)
    with pytest.raises(BadRequest):
        normalizer.normalize_leniently(payload)


def test_what_is_not_declared_nests_as_deep_as_the_limit() -> None:
    normalizer = Normalizer(SMART_LIGHT)
    inner = JSON_NESTING_MAX - 1
    payload = b'{"state":true,"x":' + b"[" * inner + b"]" * inner + b"}"
    assert normalizer.normalize(payload) == normalizer.normalize_leniently(payload) == b'{"state":true}'


@each_row("name", ["class", "None", "__init__", "__class__", "__struct_fields__", "f0", "self", "_"])
def test_a_field_may_be_called_anything(name: str) -> None:
    normalizer = Normalizer(parse_manifest({"fields": [{"name": name, "valueClass": "Long"}]}))
    assert normalized(normalizer, f'{{"{name}":1}}'.encode()) == f'{{"{name}":1}}'


def test_the_largest_manifest() -> None:
    names = [f"f{index}" for index in range(500)]
    normalizer = Normalizer(parse_manifest({"fields": [{"name": name, "valueClass": "Long"} for name in names]}))
    backwards = json.dumps(dict.fromkeys(reversed(names), 1))
    assert normalized(normalizer, backwards.encode()) == "{" + ",".join(f'"{name}":1' for name in names) + "}"


# Properties over generated Manifests and payloads

# Few names, so that payloads often meet their Manifest.
NAMES = ("a", "b", "class", "__init__", "f1")


def named(*entries: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """One to five siblings with different names."""
    siblings = st.dictionaries(st.sampled_from(NAMES), st.one_of(*entries), min_size=1)
    return siblings.map(lambda by_name: [{**entry, "name": name} for name, entry in by_name.items()])


leaf_entries = st.fixed_dictionaries({"valueClass": st.sampled_from(VALUE_CLASSES), "isCollection": st.booleans()})
group_entries = st.fixed_dictionaries(
    {"children": named(leaf_entries, st.fixed_dictionaries({"children": named(leaf_entries)}))}
)
manifests = named(leaf_entries, group_entries).map(lambda fields: parse_manifest({"fields": fields}))

# JSON texts, so that every way of writing a value comes up.
boundaries = [bound + step for bound in (0, 2**31, -(2**31), 2**63, -(2**63), 2**64) for step in (-1, 0, 1)]
numbers = (
    st.sampled_from(boundaries).map(str)
    | st.integers().map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
)
texts = st.one_of(
    st.text().map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text(st.characters(), max_size=5).map(json.dumps),
    st.sampled_from(['"true"', '"FALSE"', '"{}"', '"\\ud800"', '"\\u0061"', '""']),
    numbers.map(lambda number: f'"{number}"'),
)
scalars = st.sampled_from(["null", "true", "false", "0", "1", "{}", "[]"]) | numbers | texts
keys = st.sampled_from([f'"{name}"' for name in NAMES] + ['"\\u0061"']) | texts


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{key}: {value}" for key, value in members) + "}"


values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: "[" + ",".join(items) + "]")
        | st.lists(st.tuples(keys, inner), max_size=5).map(_object)
    ),
    max_leaves=12,
)
objects = st.lists(st.tuples(keys, values), max_size=6).map(_object)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An object with some bytes replaced; mostly no JSON any more."""
    payload = bytearray(draw(objects).encode(errors="surrogatepass"))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(payload) - 1))
        payload[at : at + 1] = draw(
            st.sampled_from([b"", b"\\", b'"', b"\xff", b"\x80", b"\n", b"{", b"]", b",", b"0"])
        )
        if not payload:
            break
    return bytes(payload)


payloads = st.one_of(objects.map(lambda text: text.encode(errors="surrogatepass")), damaged(), st.binary(max_size=8))


def _outcome(normalize: Any, payload: bytes) -> bytes | str | None:
    try:
        result: bytes | None = normalize(payload)
    except BadRequest:
        return "Bad Request"
    return result


@given(manifests, payloads)
@example(SMART_LIGHT, b'{"colorRGB":{"name":{"text":"{}"},"x":"\xff"}}')
def test_the_fast_path_gives_the_result_of_the_lenient_path(manifest: Manifest, payload: bytes) -> None:
    normalizer = Normalizer(manifest)
    assert _outcome(normalizer.normalize, payload) == _outcome(normalizer.normalize_leniently, payload)


@given(manifests, objects)
def test_an_object_is_never_refused_and_what_is_kept_is_kept_again(manifest: Manifest, payload: str) -> None:
    normalizer = Normalizer(manifest)
    result = normalizer.normalize(payload.encode())
    if result is not None:
        assert normalizer.normalize(result) == result


@given(manifests, objects)
def test_only_declared_fields_with_their_types_remain(manifest: Manifest, payload: str) -> None:
    result = Normalizer(manifest).normalize(payload.encode())
    if result is None:
        return
    kept = msgspec.json.decode(result)
    assert msgspec.json.encode(kept) == result  # compact, no name twice, nothing that is not finite
    _check_group(manifest, "", kept)


def _check_group(manifest: Manifest, prefix: str, group: dict[str, Any]) -> None:
    assert group
    for name, value in group.items():
        field = manifest.field_at(prefix + name)
        if field is None:
            _check_group(manifest, f"{prefix}{name}.", value)
        else:
            for item in value if field.is_collection else [value]:
                assert type(item) in _TYPES[str(field.value_class)]


_TYPES: dict[str, tuple[type, ...]] = {
    "Boolean": (bool,),
    "Double": (int, float),
    "Float": (int, float),
    "Integer": (int,),
    "Long": (int,),
    "String": (str,),
}
