"""Every rule and limit of a Manifest document (reference 8.2), and the answers of reference 8.6."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.device_types.manifest import NO_MANIFEST, DeclaredAction, Field, Manifest, Metadata, ValueClass
from broker.device_types.manifest_parser import parse_manifest
from broker.errors import ValidationFailed
from config.limits import JSON_NESTING_MAX
from tests.rows import each_row
from tests.wording import INVALID

Object = dict[str, object]

DOCUMENT: Object = {
    "messageFormat": "json",
    "fields": [
        {
            "name": "state",
            "type": "STATE",
            "valueClass": "Boolean",
            "isCollection": False,
            "tags": [],
            "description": "on or off",
        },
        {
            "name": "intensity",
            "type": "CUSTOM",
            "valueClass": "Integer",
            "isCollection": False,
            "unit": "NonSI.PERCENT",
            "metaData": [{"type": "MIN_VALUE_INTEGER", "value": 0}, {"type": "MAX_VALUE_INTEGER", "value": 100}],
        },
        {
            "name": "colorRGB",
            "type": "CUSTOM",
            "children": [
                {"name": "r", "type": "COLOR_RED_COMPONENT", "valueClass": "Integer", "isCollection": False},
                {"name": "g", "type": "COLOR_GREEN_COMPONENT", "valueClass": "Integer", "isCollection": False},
                {"name": "b", "type": "COLOR_BLUE_COMPONENT", "valueClass": "Integer", "isCollection": False},
            ],
        },
    ],
    "actions": [
        {"name": "setOn", "type": "SET_ON", "isStandard": True, "description": "Switch on", "parameters": []},
        {
            "name": "setIntensity",
            "type": "CUSTOM",
            "isStandard": False,
            "description": "Set brightness",
            "parameters": [{"name": "intensity", "type": "CUSTOM", "valueClass": "Integer", "isCollection": False}],
        },
    ],
}


def leaf(name: object = "steps", value_class: object = "Integer", **members: object) -> Object:
    return {"name": name, "valueClass": value_class, **members}


def group(name: str, *children: object, **members: object) -> Object:
    return {"name": name, "children": list(children), **members}


def fields(*entries: object) -> Object:
    return {"fields": list(entries)}


def actions(*entries: object) -> Object:
    return {"fields": [], "actions": list(entries)}


def nested(levels: int) -> Object:
    entry = leaf("leaf")
    for level in range(levels - 1):
        entry = group(f"g{level}", entry)
    return entry


def findings(document: object) -> list[tuple[str, str]]:
    """The findings about a document; none when it is accepted."""
    try:
        parse_manifest(document)
    except ValidationFailed as refusal:
        return [(finding.field, " and ".join(finding.messages)) for finding in refusal.findings]
    return []


# The document as a whole


def test_the_example_of_the_reference() -> None:
    manifest = parse_manifest(DOCUMENT)
    assert manifest == Manifest(
        fields=(
            Field("state", ValueClass.BOOLEAN, type="STATE", description="on or off"),
            Field(
                "intensity",
                ValueClass.INTEGER,
                unit="%",
                metadata=(Metadata("MIN_VALUE_INTEGER", 0), Metadata("MAX_VALUE_INTEGER", 100)),
            ),
            Field(
                "colorRGB",
                None,
                children=(
                    Field("r", ValueClass.INTEGER, type="COLOR_RED_COMPONENT"),
                    Field("g", ValueClass.INTEGER, type="COLOR_GREEN_COMPONENT"),
                    Field("b", ValueClass.INTEGER, type="COLOR_BLUE_COMPONENT"),
                ),
            ),
        ),
        actions=(
            DeclaredAction("setOn", type="SET_ON", is_standard=True, description="Switch on"),
            DeclaredAction(
                "setIntensity", description="Set brightness", parameters=(Field("intensity", ValueClass.INTEGER),)
            ),
        ),
    )


def deep_array(levels: int) -> object:
    value: object = []
    for _ in range(levels):
        value = [value]
    return value


@each_row(
    "document",
    [
        None,
        "function parse(data) {}",
        7,
        [],
        [leaf()],
        {},
        {"script": "var x"},
        {"fields": []},
        {"fields": None, "actions": None},
        {"fields": [], "actions": []},
        fields(leaf(description="\ud800")),
        fields(leaf(description=object())),
        {"fields": [leaf()], "extra": deep_array(JSON_NESTING_MAX - 1)},
        {"fields": [leaf()], "extra": deep_array(100_000)},
    ],
)
def test_what_is_no_manifest(document: object) -> None:
    assert findings(document) == [("manifest", "manifest content invalid or empty")]


def test_the_deepest_document() -> None:
    assert findings({"fields": [leaf()], "extra": deep_array(JSON_NESTING_MAX - 2)}) == []


def test_document_may_have_256_kib() -> None:
    document: Object = {**fields(leaf()), "extra": ""}
    room = 256 * 1024 - len(json.dumps(document, separators=(",", ":")))
    assert findings({**document, "extra": "x" * room}) == []
    assert findings({**document, "extra": "x" * (room + 1)}) == [("manifest", "Maximum length 262144")]
    # The limit is in bytes.
    assert findings({**document, "extra": "ü" * (room // 2 + 1)}) == [("manifest", "Maximum length 262144")]


@each_row(
    ("document", "expected"),
    [
        # fields
        ({"fields": 7}, [("fields", INVALID)]),
        ({"fields": {"name": "steps"}}, [("fields", INVALID)]),
        (fields(leaf(), 7), [("fields.1", INVALID)]),
        ({"actions": [{"name": "reset"}]}, [("fields", "Required parameter")]),
        ({"fields": [], "actions": [{"name": "reset"}]}, []),
        # actions
        ({"fields": [leaf()], "actions": None}, []),
        ({"fields": [leaf()], "actions": {}}, [("actions", INVALID)]),
        (actions(None), [("actions.0", INVALID)]),
        # messageFormat
        ({"messageFormat": "json", "fields": [leaf()]}, []),
        ({"messageFormat": None, "fields": [leaf()]}, []),
        ({"messageFormat": "groovy", "fields": [leaf()]}, [("messageFormat", INVALID)]),
        ({"messageFormat": "JSON", "fields": [leaf()]}, [("messageFormat", INVALID)]),
        ({"messageFormat": 1, "fields": [leaf()]}, [("messageFormat", "Text field only")]),
        # unknown members
        ({"fields": [leaf(colour="red")], "version": 3}, []),
    ],
)
def test_top_level(document: object, expected: list[tuple[str, str]]) -> None:
    assert findings(document) == expected


# Members that fields, parameters and Actions share


def as_field(entry: Object) -> Object:
    return fields(leaf("other"), entry)


def as_child(entry: Object) -> Object:
    return fields(group("g", leaf("other"), entry))


def as_action(entry: Object) -> Object:
    return actions({"name": "other"}, entry)


def as_parameter(entry: Object) -> Object:
    return actions({"name": "act", "parameters": [leaf("other"), entry]})


PLACES = [
    pytest.param(as_field, "fields.1", id="field"),
    pytest.param(as_child, "fields.0.children.1", id="child"),
    pytest.param(as_action, "actions.1", id="action"),
    pytest.param(as_parameter, "actions.0.parameters.1", id="parameter"),
]
FIELD_PLACES = [PLACES[0], PLACES[1], PLACES[3]]

Place = Callable[[Object], Object]


@each_row(("place", "path"), PLACES)
@each_row(
    ("name", "message"),
    [
        ("a", None),
        ("_", None),
        ("class", None),
        ("__init__", None),
        ("a9_B", None),
        ("a" * 64, None),
        (None, "Required parameter"),
        ("", "Minimum length 1"),
        ("a" * 65, "Maximum length 64"),
        (7, "Text field only"),
        ("9a", INVALID),
        ("a-b", INVALID),
        ("a.b", INVALID),
        ("a ", INVALID),
        ("a\n", INVALID),
        ("größe", INVALID),
        ("other", INVALID),
    ],
)
def test_name(place: Place, path: str, name: object, message: str | None) -> None:
    expected = [] if message is None else [(f"{path}.name", message)]
    assert findings(place({"name": name, "valueClass": "Integer"})) == expected


def test_names_are_unique_among_siblings_only() -> None:
    assert findings({"fields": [leaf("a"), group("b", leaf("a"), leaf("b"))], "actions": [{"name": "a"}]}) == []


@each_row(("place", "path"), PLACES)
@each_row(
    ("type_", "message"),
    [
        (None, None),
        ("CUSTOM", None),
        ("COLOR_RED_COMPONENT", None),
        ("ACCELERATION_3D", None),
        ("", INVALID),
        ("custom", INVALID),
        ("HEART-RATE", INVALID),
        ("_X", INVALID),
        (1, "Text field only"),
    ],
)
def test_type(place: Place, path: str, type_: object, message: str | None) -> None:
    expected = [] if message is None else [(f"{path}.type", message)]
    assert findings(place(leaf(type=type_))) == expected


def test_type_is_custom_by_default() -> None:
    manifest = parse_manifest({"fields": [leaf()], "actions": [{"name": "reset"}]})
    assert (manifest.fields[0].type, manifest.actions[0].type) == ("CUSTOM", "CUSTOM")


@pytest.mark.parametrize(("place", "path"), PLACES)
def test_description(place: Place, path: str) -> None:
    maximum = 128 if place is as_action else 1_500
    at = f"{path}.description"
    assert findings(place(leaf(description=None))) == []
    assert findings(place(leaf(description="ü" * maximum))) == []
    assert findings(place(leaf(description="x" * (maximum + 1)))) == [(at, f"Maximum length {maximum}")]
    assert findings(place(leaf(description=["x"]))) == [(at, "Text field only")]


# Members of fields and parameters


@each_row(("place", "path"), FIELD_PLACES)
@each_row(
    ("value_class", "message"),
    [
        ("Boolean", None),
        ("Double", None),
        ("Float", None),
        ("Integer", None),
        ("Long", None),
        ("String", None),
        (None, "Required parameter"),
        ("integer", INVALID),
        ("Date", INVALID),
        ("", INVALID),
        (1, "Text field only"),
        ([], "Text field only"),
    ],
)
def test_value_class(place: Place, path: str, value_class: object, message: str | None) -> None:
    expected = [] if message is None else [(f"{path}.valueClass", message)]
    assert findings(place(leaf(value_class=value_class))) == expected


@pytest.mark.parametrize(("place", "path"), FIELD_PLACES)
def test_children(place: Place, path: str) -> None:
    assert findings(place(group("g1", leaf()))) == []
    assert findings(place(leaf(children=[]))) == []
    assert findings(place(leaf(children=None))) == []
    assert findings(place({"name": "g1", "children": []})) == [(f"{path}.valueClass", "Required parameter")]
    assert findings(place({"name": "g1", "children": 7})) == [(f"{path}.children", INVALID)]
    assert findings(place({"name": "g1", "children": [7]})) == [(f"{path}.children.0", INVALID)]
    assert findings(place(group("g1", leaf(), valueClass="Integer"))) == [(f"{path}.valueClass", INVALID)]
    assert findings(place(group("g1", leaf(), isCollection=True))) == [(f"{path}.isCollection", INVALID)]
    assert findings(place(group("g1", leaf(), isCollection=False))) == []


def test_at_most_five_levels() -> None:
    assert findings(fields(nested(5))) == []
    deepest = "fields.0" + ".children.0" * 4 + ".children"
    assert findings(fields(nested(6))) == [(deepest, INVALID)]
    assert findings(fields(nested(400))) == [(deepest, INVALID)]


@each_row(("place", "path"), FIELD_PLACES)
@each_row("member", ["isCollection", "isSensitive"])
def test_flags_of_a_field(place: Place, path: str, member: str) -> None:
    for accepted in (True, False, None):
        assert findings(place(leaf(**{member: accepted}))) == []
    for refused in ("true", 1, "yes", 0.0):
        assert findings(place(leaf(**{member: refused}))) == [(f"{path}.{member}", "Boolean field only")]


def test_flags_of_a_field_are_kept() -> None:
    field = parse_manifest(fields(leaf(isCollection=True, isSensitive=True))).fields[0]
    assert (field.is_collection, field.is_sensitive) == (True, True)
    field = parse_manifest(fields(leaf())).fields[0]
    assert (field.is_collection, field.is_sensitive) == (False, False)


@each_row(
    ("members", "text"),
    [
        ({}, None),
        ({"unit": None, "unitSymbol": None}, None),
        ({"unit": ""}, None),
        ({"unit": "NONE"}, None),
        ({"unit": "SI.CELSIUS"}, "°C"),
        ({"unit": "SI.KILO(SI.METER)"}, "km"),
        ({"unit": "smoots"}, "smoots"),
        ({"unitSymbol": "l/min"}, "l/min"),
        ({"unitSymbol": "SI.METER"}, "SI.METER"),
        ({"unit": "SI.CELSIUS", "unitSymbol": "degrees"}, "degrees"),
    ],
)
def test_unit(members: Object, text: str | None) -> None:
    assert parse_manifest(fields(leaf(**members))).fields[0].unit == text


@each_row(("place", "path"), FIELD_PLACES)
@each_row("member", ["unit", "unitSymbol"])
def test_unit_is_text(place: Place, path: str, member: str) -> None:
    assert findings(place(leaf(**{member: 7}))) == [(f"{path}.{member}", "Text field only")]


@pytest.mark.parametrize(("place", "path"), FIELD_PLACES)
def test_tags(place: Place, path: str) -> None:
    assert findings(place(leaf(tags=["a", "b"]))) == []
    assert findings(place(leaf(tags=None))) == []
    assert findings(place(leaf(tags="a"))) == [(f"{path}.tags", INVALID)]
    assert findings(place(leaf(tags=["a", 1]))) == [(f"{path}.tags.1", "Text field only")]
    assert parse_manifest(fields(leaf(tags=["a", "b"]))).fields[0].tags == ("a", "b")


NUMERIC_CLASSES = ("DOUBLE", "FLOAT", "INTEGER", "LONG")


@each_row(
    ("type_", "value"),
    [
        ("SAMPLE_RATE", 50),
        ("SAMPLE_RATE", "50 Hz"),
        ("ENCODING", "UTF-8"),
        ("BYTE_ORDER", "BIG_ENDIAN"),
        *((f"{bound}_VALUE_{name}", -1.5) for bound in ("MIN", "MAX") for name in NUMERIC_CLASSES),
        ("MIN_VALUE_STRICT", True),
        ("MAX_VALUE_STRICT", False),
        ("VALUES_BOOLEAN", [True, False]),
        *((f"VALUES_{name}", [1, 2.5]) for name in NUMERIC_CLASSES),
        ("VALUES_STRING", ["heat", "cool"]),
    ],
)
def test_metadata(type_: str, value: object) -> None:
    manifest = parse_manifest(fields(leaf(metaData=[{"type": type_, "value": value}])))
    assert manifest.fields[0].properties() == {
        "type": "Integer",
        "isCollection": False,
        "description": "",
        "metadata": {type_: value},
    }


@each_row(("place", "path"), FIELD_PLACES)
@each_row(
    ("metadata", "expected"),
    [
        (None, []),
        ([], []),
        ({}, [("", INVALID)]),
        ([7], [(".0", INVALID)]),
        ([{"value": 1}], [(".0.type", "Required parameter")]),
        ([{"type": "ENCODING"}], [(".0.value", "Required parameter")]),
        ([{}], [(".0.value", "Required parameter"), (".0.type", "Required parameter")]),
        ([{"type": 7, "value": 1}], [(".0.type", "Text field only")]),
        ([{"type": "COLOUR", "value": 1}], [(".0.type", INVALID)]),
        ([{"type": "MIN_VALUE_STRING", "value": "a"}], [(".0.type", INVALID)]),
        ([{"type": "ENCODING", "value": "a"}, {"type": "ENCODING", "value": "b"}], [(".1.type", INVALID)]),
        ([{"type": "ENCODING", "value": {}}], [(".0.value", INVALID)]),
        ([{"type": "MIN_VALUE_DOUBLE", "value": "0"}], [(".0.value", "Numeric field only")]),
        ([{"type": "MIN_VALUE_DOUBLE", "value": True}], [(".0.value", "Numeric field only")]),
        ([{"type": "MAX_VALUE_DOUBLE", "value": float("inf")}], [(".0.value", "Numeric field only")]),
        ([{"type": "MAX_VALUE_LONG", "value": 10**400}], []),
        ([{"type": "MIN_VALUE_STRICT", "value": 1}], [(".0.value", "Boolean field only")]),
        ([{"type": "VALUES_STRING", "value": "heat"}], [(".0.value", INVALID)]),
        ([{"type": "VALUES_STRING", "value": ["heat", 1]}], [(".0.value.1", "Text field only")]),
        ([{"type": "VALUES_BOOLEAN", "value": ["true"]}], [(".0.value.0", "Boolean field only")]),
        ([{"type": "VALUES_LONG", "value": [1, None]}], [(".0.value.1", "Numeric field only")]),
    ],
)
def test_metadata_rules(place: Place, path: str, metadata: object, expected: list[tuple[str, str]]) -> None:
    assert findings(place(leaf(metaData=metadata))) == [(f"{path}.metaData{at}", message) for at, message in expected]


# Actions


@each_row(
    ("members", "expected"),
    [
        ({}, []),
        ({"isStandard": None}, []),
        ({"isStandard": False, "type": "SET_ON"}, []),
        ({"isStandard": False, "type": "LAUNCH"}, []),
        ({"isStandard": True, "type": "SET_ON"}, []),
        ({"isStandard": True}, [("actions.0.type", "Required parameter")]),
        ({"isStandard": True, "type": "CUSTOM"}, [("actions.0.type", INVALID)]),
        ({"isStandard": True, "type": "LAUNCH"}, [("actions.0.type", INVALID)]),
        ({"isStandard": True, "type": "set_on"}, [("actions.0.type", INVALID)]),
        ({"isStandard": "yes", "type": "SET_ON"}, [("actions.0.isStandard", "Boolean field only")]),
        ({"parameters": None}, []),
        ({"parameters": {}}, [("actions.0.parameters", INVALID)]),
        ({"parameters": ["level"]}, [("actions.0.parameters.0", INVALID)]),
        ({"parameters": [group("colorRGB", leaf("r"), leaf("g"))]}, []),
    ],
)
def test_action(members: Object, expected: list[tuple[str, str]]) -> None:
    assert findings(actions({"name": "act", **members})) == expected


# Limits


def leaves(count: int, prefix: str = "f") -> list[object]:
    return [leaf(f"{prefix}{index}") for index in range(count)]


def test_at_most_500_fields() -> None:
    assert findings(fields(*leaves(500))) == []
    assert findings(fields(*leaves(501))) == [("fields", "Maximum length 500")]
    assert findings(fields(*leaves(249), group("g", *leaves(250)))) == []
    assert findings(fields(*leaves(250), group("g", *leaves(250)))) == [("fields", "Maximum length 500")]


def test_at_most_100_actions() -> None:
    assert findings(actions(*({"name": f"a{index}"} for index in range(100)))) == []
    assert findings(actions(*({"name": f"a{index}"} for index in range(101)))) == [("actions", "Maximum length 100")]


def test_at_most_50_parameters_per_action() -> None:
    assert findings(actions(*({"name": f"a{index}", "parameters": leaves(50)} for index in range(2)))) == []
    assert findings(actions({"name": "a"}, {"name": "b", "parameters": leaves(51)})) == [
        ("actions.1.parameters", "Maximum length 50")
    ]


# Reporting


def test_all_findings_are_reported_together() -> None:
    document = {
        "messageFormat": "xml",
        "fields": [
            leaf("ok"),
            leaf("ok"),
            group("g", {"name": "r", "isCollection": "no"}, leaf("1", "Colour", tags=[0])),
        ],
        "actions": [{"type": "SET_ON"}, {"name": "a", "parameters": [leaf(unit=1)]}],
    }
    assert sorted(findings(document)) == [
        ("actions.0.name", "Required parameter"),
        ("actions.1.parameters.0.unit", "Text field only"),
        ("fields.1.name", INVALID),
        ("fields.2.children.0.isCollection", "Boolean field only"),
        ("fields.2.children.0.valueClass", "Required parameter"),
        ("fields.2.children.1.name", INVALID),
        ("fields.2.children.1.tags.0", "Text field only"),
        ("fields.2.children.1.valueClass", INVALID),
        ("messageFormat", INVALID),
    ]


def test_findings_about_noise_are_bounded() -> None:
    assert len(findings(fields(leaf(tags=[0] * 100_000)))) == 1_000


# Looking things up


def test_leaf_fields_by_path() -> None:
    manifest = parse_manifest(DOCUMENT)
    assert list(manifest.leaves) == ["state", "intensity", "colorRGB.r", "colorRGB.g", "colorRGB.b"]
    found = manifest.field_at("colorRGB.r")
    assert found is not None
    assert (found.name, found.value_class) == ("r", ValueClass.INTEGER)
    for path in ("colorRGB", "colorRGB.x", "r", "state.x", "", "."):
        assert manifest.field_at(path) is None


def test_no_manifest_declares_nothing() -> None:
    assert (dict(NO_MANIFEST.leaves), NO_MANIFEST.properties()) == ({}, {"fields": {}, "actions": {}})


def test_properties() -> None:
    integer = {"type": "Integer", "isCollection": False, "description": ""}
    properties = parse_manifest(DOCUMENT).properties()
    assert properties == {
        "fields": {
            "state": {"type": "Boolean", "isCollection": False, "description": "on or off"},
            "intensity": {
                **integer,
                "unit": "%",
                "metadata": {"MIN_VALUE_INTEGER": 0, "MAX_VALUE_INTEGER": 100},
            },
            "colorRGB": {"r": integer, "g": integer, "b": integer},
        },
        "actions": {
            "setOn": {"description": "Switch on", "isStandard": True, "parameters": {}},
            "setIntensity": {
                "description": "Set brightness",
                "isStandard": False,
                "parameters": {"intensity": integer},
            },
        },
    }
    assert json.loads(json.dumps(properties)) == properties


members = st.sampled_from(
    [
        "fields",
        "actions",
        "name",
        "type",
        "valueClass",
        "children",
        "isCollection",
        "unit",
        "unitSymbol",
        "description",
        "isSensitive",
        "tags",
        "metaData",
        "parameters",
        "isStandard",
        "value",
        "messageFormat",
        "transform",
        "format",
        "expression",
        "columns",
        "layout",
        "encoding",
        "delimiter",
        "byteOrder",
        "length",
        "scale",
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10) | members, inner, max_size=6),
    max_leaves=30,
)


@given(document=json_values | st.dictionaries(members, json_values, max_size=6))
def test_any_json_is_a_manifest_or_is_refused_by_path(document: object) -> None:
    try:
        manifest, findings = parse_manifest(document), None
    except ValidationFailed as refused:
        manifest, findings = NO_MANIFEST, refused.findings
    if findings is None:
        json.dumps(manifest.properties())
    else:
        assert findings
        assert all(finding.field and finding.messages for finding in findings)


def declared(names: st.SearchStrategy[str], depth: int, *, most: int) -> st.SearchStrategy[list[Object]]:
    leaf_ = st.fixed_dictionaries(
        {"name": names, "valueClass": st.sampled_from(list(ValueClass))},
        optional={
            "isCollection": st.booleans(),
            "unit": st.sampled_from(["SI.METER", "SI.KILO(SI.METER)", "NONE", "own"]),
            "description": st.text(max_size=20),
            "tags": st.lists(st.text(max_size=5), max_size=2),
            "metaData": st.just([{"type": "SAMPLE_RATE", "value": 5}]),
        },
    )
    entry = leaf_
    if depth > 1:
        inner = declared(names, depth - 1, most=2)  # two trees have at most 30 entries, fewer than MAX_PARAMETERS
        entry = leaf_ | st.fixed_dictionaries({"name": names, "children": inner})
    return st.lists(entry, min_size=1, max_size=most, unique_by=lambda one: str(one["name"]))


identifiers = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)


def paths(entries: list[Object], prefix: str = "") -> list[str]:
    found = []
    for entry in entries:
        children = entry.get("children")
        name = f"{prefix}{entry['name']}"
        found += paths(children, f"{name}.") if isinstance(children, list) else [name]
    return found


@given(entries=declared(identifiers, 4, most=4))
def test_every_field_that_is_declared_is_there_under_its_path(entries: list[Object]) -> None:
    document = {"fields": entries, "actions": [{"name": "act", "parameters": entries[:2]}]}
    manifest = parse_manifest(document)
    assert list(manifest.leaves) == paths(entries)
    assert parse_manifest(json.loads(json.dumps(document))) == manifest
    assert list(manifest.actions[0].properties()["parameters"]) == [entry["name"] for entry in entries[:2]]  # type: ignore[call-overload]


# Resources of LWM2M (reference 18.6)


@each_row(
    ("path", "is_one"),
    [
        ("/3303/0/5700", True),
        ("/65534/65534/65534", True),
        (None, True),
        (7, False),
        ("", False),
        ("3303/0/5700", False),
        ("/3303/0", False),
        ("/3303/0/5700/", False),
        ("/3303/0/5700/0", False),
        ("/3303/00/5700", False),
        ("/3303/0/65535", False),
        ("/3303/0/-1", False),
        ("/\u0663/0/1", False),
        ("/0/0/5", False),
        ("/1/0/1", False),
        ("/2/0/1", False),
        ("/21/0/0", False),
    ],
)
def test_the_resource_of_a_field(path: object, is_one: bool) -> None:
    found = findings(fields(leaf(lwm2m=path)))
    expected = [("fields.0.lwm2m", "Text field only" if path == 7 else INVALID)]
    assert found == ([] if is_one else expected)


def test_only_fields_with_values_have_a_resource() -> None:
    of_group = fields(group("g", leaf(), lwm2m="/3303/0/5700"))
    assert findings(of_group) == [("fields.0.lwm2m", INVALID)]
    of_parameter = actions({"name": "set", "parameters": [leaf(lwm2m="/3303/0/5700")]})
    assert findings(of_parameter) == [("actions.0.parameters.0.lwm2m", INVALID)]
    transformed = {**fields(leaf(lwm2m="/3303/0/5700")), "transform": {"format": "json"}}
    assert findings(transformed) == [("transform", INVALID)]


def test_at_most_64_resources() -> None:
    def of(number: int) -> Object:
        return fields(*(leaf(f"f{index}", lwm2m=f"/3303/{index}/5700") for index in range(number)))

    assert findings(of(64)) == []
    assert findings(of(65)) == [("fields", "Invalid value: at most 64 paths of lwm2m")]
    same = fields(*(leaf(f"f{index}", lwm2m="/3303/0/5700") for index in range(65)))
    assert findings(same) == []  # one path


def test_resources_by_field() -> None:
    manifest = parse_manifest(fields(leaf(), group("g", leaf("t", "Double", lwm2m="/3303/0/5700"))))
    assert dict(manifest.resources) == {"g.t": (3303, 0, 5700)}
    assert manifest.properties()["fields"]["g"]["t"]["lwm2m"] == "/3303/0/5700"  # type: ignore[index]
