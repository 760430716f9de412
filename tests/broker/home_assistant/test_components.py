"""Components made from a Manifest, and the Actions that payloads on their set topics become (reference 16.7)."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from broker.device_types.manifest_parser import parse_manifest
from broker.errors import ValidationFailed
from broker.home_assistant.components import Component, components_of
from config.limits import HOME_COMPONENTS_MAX
from tests.rows import each_row


def made(fields: Sequence[Mapping[str, Any]], actions: Sequence[Mapping[str, Any]] = ()) -> dict[str, Component]:
    manifest = parse_manifest({"fields": fields, "actions": actions})
    return {one.id: one for one in components_of(manifest)}


def call(component: Component, payload: bytes, option: str = "command_topic") -> Any:
    (command,) = (one for name, _, one in component.commands if name == option)
    (action,) = msgspec.json.decode(command(payload).data)["actions"]
    return action["name"], action.get("parameters")


def field(name: str, value_class: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "valueClass": value_class, **more}


@each_row(
    ("name", "unit", "expected"),
    [
        ("temperature", "SI.CELSIUS", ("temperature", "°C", "measurement")),
        ("level", "NonSI.PERCENT", (None, "%", "measurement")),
        ("battery", "NonSI.PERCENT", ("battery", "%", "measurement")),
        ("soilMoisture", "NonSI.PERCENT", ("moisture", "%", "measurement")),
        ("used", "SI.KILO(SI.JOULE)", ("energy", "SI.KILO(SI.JOULE)", "")),
        ("co2", "PARTS_PER_MILLION", ("carbon_dioxide", "ppm", "measurement")),
        ("windSpeed", "SI.METERS_PER_SECOND", ("wind_speed", "m/s", "measurement")),
        ("windDirection", "NonSI.DEGREE_ANGLE", ("wind_direction", "°", "measurement_angle")),
        ("age", "NonSI.DAY", ("duration", "d", "measurement")),
        ("pulse", "BEATS_PER_MINUTE", (None, "b/min", "measurement")),
        ("count", None, (None, None, "measurement")),
    ],
)
def test_the_class_of_a_number(name: str, unit: str | None, expected: tuple[str | None, str | None, str]) -> None:
    if unit == "SI.KILO(SI.JOULE)":
        expected = ("energy", "kJ", "total_increasing")
    options = made([field(name, "Double", **({} if unit is None else {"unit": unit}))])[f"sensor_{name}"].options
    found = options.get("device_class"), options.get("unit_of_measurement"), options.get("state_class")
    assert found == expected


def test_what_fields_become() -> None:
    found = made(
        [
            field("open", "Boolean"),
            field("mode", "String"),
            field("samples", "Double", isCollection=True),
            {"name": "wind", "children": [field("maxSpeed", "Double")]},
        ]
    )
    assert list(found) == ["binary_sensor_open", "sensor_mode", "sensor_samples", "sensor_wind-maxSpeed"]
    assert found["sensor_wind-maxSpeed"].options["name"] == "Wind max speed"
    assert "state_class" not in found["sensor_mode"].options
    assert "state_class" not in found["sensor_samples"].options


_RELAY = field("relay", "Boolean", lwm2m="/3311/0/5850")


@each_row(
    ("fields", "actions", "on", "off"),
    [
        (
            [field("state", "Boolean"), field("other", "Boolean")],
            [
                {"name": "go", "type": "SET_ON", "isStandard": True},
                {"name": "stop", "type": "SET_OFF", "isStandard": True},
            ],
            ("go", None),
            ("stop", None),
        ),
        (
            [field("state", "Boolean")],
            [{"name": "setState", "parameters": [field("state", "Boolean")]}],
            ("setState", {"state": True}),
            ("setState", {"state": False}),
        ),
        (
            [{**_RELAY, "name": "state"}],
            [
                {
                    "name": "write",
                    "parameters": [field("value", "Boolean")],
                    "lwm2m": {"write": "/3311/0/5850", "parameter": "value"},
                }
            ],
            ("write", {"value": True}),
            ("write", {"value": False}),
        ),
        (
            [{**_RELAY, "name": "state"}],
            [
                {"name": "on", "lwm2m": {"write": "/3311/0/5850", "value": True}},
                {"name": "off", "lwm2m": {"write": "/3311/0/5850", "value": False}},
            ],
            ("on", None),
            ("off", None),
        ),
    ],
)
def test_a_boolean_that_actions_set_is_a_switch(
    fields: Sequence[Mapping[str, Any]], actions: Sequence[Mapping[str, Any]], on: object, off: object
) -> None:
    found = made(fields, actions)
    switch = found["switch_state"]
    assert "binary_sensor_state" not in found
    assert not [one for one in found if one.startswith("button_")]
    assert (call(switch, b"ON"), call(switch, b"OFF")) == (on, off)
    with pytest.raises(ValidationFailed):
        switch.commands[0][2](b"TOGGLE")


def test_what_actions_become() -> None:
    found = made(
        [field("intensity", "Integer")],
        [
            {"name": "reset"},
            {
                "name": "setIntensity",
                "parameters": [
                    field(
                        "intensity",
                        "Integer",
                        unit="NonSI.PERCENT",
                        metaData=[{"type": "MAX_VALUE_INTEGER", "value": 80}],
                    )
                ],
            },
            {"name": "setText", "type": "SET_TEXT", "isStandard": True},
            {"name": "arm", "parameters": [field("armed", "Boolean")]},
            {"name": "both", "parameters": [field("a", "Double"), field("b", "Double")]},
        ],
    )
    assert list(found) == ["sensor_intensity", "button_reset", "number_setIntensity", "text_setText", "switch_arm"]
    assert call(found["button_reset"], b"PRESS") == ("reset", None)
    number = found["number_setIntensity"]
    assert (number.options["min"], number.options["max"], number.options["unit_of_measurement"]) == (0, 80, "%")
    assert number.state == ("state_topic",)
    assert call(number, b"40") == ("setIntensity", {"intensity": 40})
    for payload in (b"81", b"-1", b"1.5", b"nan", b"1e999", b"x", b"\xff", b"9" * 4_000):
        with pytest.raises(ValidationFailed):
            number.commands[0][2](payload)
    assert call(found["text_setText"], "grün".encode()) == ("setText", {"text": "grün"})
    assert call(found["switch_arm"], b"OFF") == ("arm", {"armed": False})


COLOUR = {"name": "colorRGB", "children": [field(name, "Integer") for name in "rgb"]}
SET_COLOUR = {"name": "setColorRGB", "type": "SET_COLOR_RGB", "isStandard": True}


def test_a_colour_is_a_light() -> None:
    actions = [
        {"name": "setOn", "type": "SET_ON", "isStandard": True},
        {"name": "setOff", "type": "SET_OFF", "isStandard": True},
        SET_COLOUR,
    ]
    found = made([field("state", "Boolean"), COLOUR], actions)
    light = found.pop("light_setColorRGB")
    assert set(found) == {"sensor_colorRGB-r", "sensor_colorRGB-g", "sensor_colorRGB-b"}
    assert light.state == ("state_topic", "rgb_state_topic")
    assert call(light, b"OFF") == ("setOff", None)
    colour = ("setColorRGB", {"colorRGB": {"r": 255, "g": 128, "b": 0}})
    assert call(light, b"255,128,0", "rgb_command_topic") == colour
    for payload in (b"1,2", b"1,2,3,4", b"256,0,0", b"a,b,c", b""):
        with pytest.raises(ValidationFailed):
            call(light, payload, "rgb_command_topic")
    alone = made([field("x", "Double")], [SET_COLOUR])["light_setColorRGB"]
    assert call(alone, b"OFF") == ("setColorRGB", {"colorRGB": {"r": 0, "g": 0, "b": 0}})


def test_a_device_has_a_bounded_number_of_components() -> None:
    fields = [field(f"f{number}", "Double") for number in range(500)]
    actions = [{"name": f"a{number}"} for number in range(100)]
    assert len(made(fields, actions)) == HOME_COMPONENTS_MAX
