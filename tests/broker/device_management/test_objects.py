"""Which resources are which properties, with and without model files (reference 18.4)."""

from pathlib import Path

import pytest

from broker.device_management.models import ModelError, camel_case, parse_models, read_models
from broker.device_management.objects import ObjectMap, nested, values_by_path
from broker.device_management.registry import shipped_models, unit_of
from broker.device_management.values import ValueType, parse_value
from broker.device_types.manifest import Field, ValueClass
from tests.rows import each_row

TEMPERATURE = b"""<?xml version="1.0" encoding="UTF-8"?>
<LWM2M xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:noNamespaceSchemaLocation="LWM2M.xsd">
<Object ObjectType="MODefinition"><Name>IPSO Temperature</Name><ObjectID>3303</ObjectID>
<Resources>
<Item ID="5700"><Name>Sensor Value</Name><Operations>R</Operations><MultipleInstances>Single</MultipleInstances>
<Type>Float</Type><Description>Last value</Description></Item>
<Item ID="5605"><Name>Reset Min and Max</Name><Operations>E</Operations><MultipleInstances>Single</MultipleInstances>
<Type></Type></Item>
<Item ID="5750"><Name>Application Type</Name><Operations>RW</Operations><MultipleInstances>Multiple</MultipleInstances>
<Type>String</Type></Item>
</Resources></Object></LWM2M>"""


@each_row(
    ("path", "name"),
    [
        ((3, 0, 0), "device.manufacturer"),
        ((3, 0, 21), "device.memoryTotal"),
        ((5, 0, 3), "firmwareUpdate.state"),
        ((7, 0, 8), "connectivityStatistics.collectionPeriod"),
        ((3303, 2, 5700), "object3303.2.5700"),
        ((1, 0, 1), "object1.0.1"),
    ],
)
def test_resources_have_names_in_both_directions(path: tuple[int, ...], name: str) -> None:
    objects = ObjectMap()
    at, named = objects.property_at(path), objects.property_named(name)
    assert at is not None
    assert named is not None
    assert (at.name, named.path) == (name, path)


@each_row("path", [(3, 0, 22), (5, 0, 0), (3, 1, 0), (0, 0, 5), (2, 0, 3), (3, 0), (3303, 0, 65_535)])
def test_other_resources_have_none(path: tuple[int, ...]) -> None:
    assert ObjectMap().property_at(path) is None


@each_row(
    "name",
    [
        "",
        "device",
        "device.x",
        "device.manufacturer.x",
        "object3.0.0",
        "object0.0.0",
        "object3303",
        "object3303.0",
        "object03303.0.1",
        "object3303.0.x",
        "object65535.0.0",
        "x.0.1",
    ],
)
def test_other_names_are_no_property(name: str) -> None:
    assert ObjectMap().property_named(name) is None


def test_groups_are_object_instances() -> None:
    objects = ObjectMap()
    asked = ("device", "object3303.1", "device.manufacturer", "object3303", "object0.0", "object2.0", "")
    assert [objects.group_named(name) for name in asked] == [(3, 0), (3303, 1), None, None, None, None, None]


def test_a_model_gives_names_types_and_operations() -> None:
    objects = ObjectMap(parse_models(TEMPERATURE))
    value = objects.property_named("ipsoTemperature.0.sensorValue")
    assert value is not None
    assert (value.path, value.resource.operations, value.resource.type) == ((3303, 0, 5700), "R", ValueType.FLOAT)
    by_number = objects.property_named("object3303.0.5700")
    assert by_number is not None
    assert by_number.name == "ipsoTemperature.0.sensorValue"
    reset = objects.property_at((3303, 1, 5605))
    assert reset is not None
    assert (reset.name, reset.resource.operations) == ("ipsoTemperature.1.resetMinAndMax", "E")
    unknown = objects.property_at((3303, 0, 9))
    assert unknown is not None
    assert unknown.name == "ipsoTemperature.0.9"
    assert objects.type_at((3303, 0, 5700)) is ValueType.FLOAT
    assert objects.type_at((3304, 0, 5700)) is None


@each_row(
    "content",
    [
        b"",
        b"<LWM2M/>",
        b"<LWM2M><Object>",
        b"<LWM2M><Object><Name>X</Name></Object></LWM2M>",
        b'<!DOCTYPE x [<!ENTITY a "aaaa">]><LWM2M>&a;</LWM2M>',
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><LWM2M/>',
        TEMPERATURE.replace(b"<Type>Float</Type>", b"<Type>Strange</Type>"),
        b'<?xml version="1.0" encoding="unknown"?><LWM2M/>',
        b'<?xml version="1.0" encoding="utf-7"?><LWM2M/>',
        b'<?xml version="1.0" encoding="shift_jis"?><LWM2M/>',
        TEMPERATURE.replace(b">3303<", b">" + b"9" * 5_000 + b"<"),
        TEMPERATURE.replace(b">3303<", b">65536<"),
        TEMPERATURE.replace(b">3303<", ">\u0663<".encode()),
        TEMPERATURE.replace(b'"5700"', b'"' + b"9" * 5_000 + b'"'),
    ],
)
def test_what_is_no_model_is_refused(content: bytes) -> None:
    with pytest.raises(ModelError):
        parse_models(content)


def test_a_folder_with_a_broken_model_gives_the_others(tmp_path: Path) -> None:
    (tmp_path / "3303.xml").write_bytes(TEMPERATURE)
    (tmp_path / "broken.xml").write_bytes(b"<")
    (tmp_path / "large.xml").write_bytes(TEMPERATURE + b" " * 1024 * 1024)
    (tmp_path / "notes.txt").write_text("no model", encoding="utf-8")
    assert [model.number for model in read_models(tmp_path)] == [3303]


def test_a_name_that_is_taken_leaves_the_number() -> None:
    taken = TEMPERATURE.replace(b"IPSO Temperature", b"Device")
    found = ObjectMap(parse_models(taken)).property_at((3303, 0, 5700))
    assert found is not None
    assert found.name == "object3303.0.5700"


@each_row(
    ("words", "name"),
    [
        ("Sensor Value", "sensorValue"),
        ("LWM2M Server", "lwm2mServer"),
        ("On/Off", "onOff"),
        ("3D Axis", "_3dAxis"),
        ("...", ""),
        ("x", "x"),
    ],
)
def test_names_of_models(words: str, name: str) -> None:
    assert camel_case(words) == name


@each_row(
    ("text", "kind", "value"),
    [
        ("7", ValueType.INTEGER, 7),
        (" -7 ", ValueType.TIME, -7),
        ("1.5e3", ValueType.FLOAT, 1500.0),
        ("TRUE", ValueType.BOOLEAN, True),
        ("0", ValueType.BOOLEAN, False),
        ("7", ValueType.UNSIGNED_INTEGER, 7),
        ("AAE=", ValueType.OPAQUE, b"\x00\x01"),
        ("x", ValueType.STRING, "x"),
    ],
)
def test_values_are_read_by_type(text: str, kind: ValueType, value: object) -> None:
    assert parse_value(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("7.5", ValueType.INTEGER),
        ("-7", ValueType.UNSIGNED_INTEGER),
        ("9" * 20, ValueType.INTEGER),
        ("nan", ValueType.FLOAT),
        ("yes", ValueType.BOOLEAN),
        ("?", ValueType.OPAQUE),
    ],
)
def test_other_values_are_refused(text: str, kind: ValueType) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - base64 and numbers have texts of their own
        parse_value(text, kind)


def test_leaves_and_trees_are_the_same() -> None:
    tree = {"a": {"b": 1, "c": {"d": [1]}}, "e": None}
    assert nested(values_by_path(tree)) == tree


def test_the_registry_gives_names_types_units_and_operations() -> None:
    """Issue 44, 5. A model file comes first, and an object whose name is taken keeps its number."""
    objects = ObjectMap(shipped_models())
    shown = [objects.property_at(path) for path in ((3303, 0, 5700), (3305, 1, 5820), (3201, 0, 5550), (3336, 0, 5514))]
    assert [
        one and (one.name, one.resource.operations, one.resource.type.value, one.resource.unit) for one in shown
    ] == [
        ("temperature.0.sensorValue", "R", "Float", ""),
        ("powerMeasurement.1.powerFactor", "R", "Float", ""),
        ("digitalOutput.0.digitalOutputState", "RW", "Boolean", ""),
        ("object3336.0.5514", "RWE", "String", ""),
    ]
    assert unit_of(3, 9) == "/100"
    own = ObjectMap([*parse_models(TEMPERATURE), *shipped_models()])
    value = own.property_at((3303, 0, 5700))
    assert value is not None
    assert value.name == "ipsoTemperature.0.sensorValue"
    assert (own.is_shipped(3303), own.is_shipped(3304)) == (False, True)


def test_every_described_resource_is_found_by_its_name() -> None:
    objects = ObjectMap(shipped_models())
    for number, name, resources in objects.groups():
        if not objects.is_shipped(number):
            continue
        for key, one in resources.items():
            found = objects.property_named(f"{name}.1.{one.name}")
            assert found is not None, (number, key)
            assert found.path == (number, 1, key)


@each_row(
    ("path", "class_", "is_collection", "problem"),
    [
        ((3303, 0, 5700), "Double", False, None),
        ((3303, 7, 5700), "Integer", False, None),
        ((3303, 0, 5700), "String", False, None),
        ((3303, 0, 5700), "Double", True, None),
        (
            (3303, 0, 5700),
            "Boolean",
            False,
            "/3303/0/5700 is Float, so valueClass must be one of Double, Float, Integer, Long, String",
        ),
        ((3311, 0, 5850), "Boolean", False, None),
        ((3311, 0, 5850), "Integer", False, "/3311/0/5850 is Boolean, so valueClass must be one of Boolean, String"),
        ((3, 0, 13), "Integer", False, "/3/0/13 is Time, so valueClass must be one of Double, Float, Long, String"),
        ((3, 0, 13), "Long", False, None),
        ((3, 0, 0), "Double", False, "/3/0/0 is String, so valueClass must be one of String"),
        ((3, 0, 7), "Integer", False, "/3/0/7 has several values, so isCollection must be true"),
        ((3, 0, 7), "Integer", True, None),
        ((3, 0, 4), "Boolean", False, "/3/0/4 cannot be read"),
        ((5, 0, 1), "String", False, "/5/0/1 cannot be read"),
        ((4242, 0, 1), "Boolean", False, None),
        ((3303, 0, 26_000), "Boolean", False, None),
    ],
)
def test_fields_and_the_models_of_their_resources(
    path: tuple[int, ...], class_: str, is_collection: bool, problem: str | None
) -> None:
    field = Field("f", ValueClass(class_), is_collection=is_collection, lwm2m=path)
    assert ObjectMap(shipped_models()).problem_of(field) == problem


def test_a_settable_field_has_a_resource_that_can_be_written() -> None:
    objects = ObjectMap(shipped_models())
    assert objects.problem_of(Field("f", ValueClass.BOOLEAN, lwm2m=(3311, 0, 5850), settable=True)) is None
    problem = "/3303/0/5700 cannot be written, so the field is not settable"
    assert objects.problem_of(Field("f", ValueClass.DOUBLE, lwm2m=(3303, 0, 5700), settable=True)) == problem
