"""The shipped device types (reference 8.7)."""

import json

from broker.device_types.examples import ExampleDeviceType, load_examples
from broker.device_types.manifest_parser import parse_manifest
from broker.device_types.standard_actions import STANDARD_ACTIONS
from broker.ids import is_unique_name
from tests.rows import each_row

EXAMPLES = {example.unique_name: example for example in load_examples()}

BOARD_FIELDS = {"state": "Boolean", "temperature": "Double °C", "text": "String"}
BOARD_ACTIONS = {"setOn": [], "setOff": [], "setText": ["text"], "reset": []}

TABLE: list[tuple[str, str, dict[str, str], dict[str, list[str]]]] = [
    ("example.simple_smart_light", "Simple Smart Light", {"state": "Boolean"}, {"setOn": [], "setOff": []}),
    (
        "example.smart_light",
        "Smart Light",
        {
            "state": "Boolean",
            "intensity": "Integer %",
            "colorRGB.r": "Integer",
            "colorRGB.g": "Integer",
            "colorRGB.b": "Integer",
        },
        {"setOn": [], "setOff": [], "setIntensity": ["intensity"], "setColorRGB": ["colorRGB"]},
    ),
    ("example.fire_sensor", "Fire Sensor", {"temp": "Double °F", "onFire": "Boolean"}, {}),
    ("example.pedometer", "Pedometer", {"steps": "Integer", "distance": "Double m"}, {}),
    (
        "example.tv",
        "TV",
        {"state": "Boolean", "volume": "Integer", "channel": "Integer"},
        {"setOn": [], "setOff": [], "setVolume": ["volume"], "setChannel": ["channel"]},
    ),
    (
        "example.thermostat",
        "Thermostat",
        {"temperature": "Double °C", "target": "Double °C", "mode": "String"},
        {"setOn": [], "setOff": [], "setTemperature": ["temperature"], "setMode": ["mode"]},
    ),
    ("example.door_sensor", "Door Sensor", {"open": "Boolean", "battery": "Integer %"}, {}),
    ("example.lock", "Door Lock", {"locked": "Boolean"}, {"lock": [], "unlock": []}),
    (
        "example.weather_station",
        "Weather Station",
        {
            "temperature": "Double °C",
            "humidity": "Double %",
            "pressure": "Double Pa",
            "wind.speed": "Double m/s",
            "wind.direction": "Double °",
        },
        {},
    ),
    ("example.dev_board", "Development Board", BOARD_FIELDS, BOARD_ACTIONS),
    ("example.managed_board", "Managed Board", BOARD_FIELDS, BOARD_ACTIONS),
    (
        "example.lorawan_sensor",
        "LoRaWAN sensor",
        {
            "temperature": "Double °C",
            "humidity": "Double %",
            "pressure": "Double",
            "co2": "Double ppm",
            "illuminance": "Double lx",
            "battery": "Double %",
            "fCnt": "Long",
            "fPort": "Long",
            "payload": "String",
            "rssi": "Long dBm",
            "snr": "Double dB",
        },
        {},
    ),
    (
        "example.shelly",
        "Shelly",
        {
            "state": "Boolean",
            "brightness": "Double %",
            "power": "Double W",
            "voltage": "Double V",
            "current": "Double A",
            "energy": "Double Wh",
            "temperature": "Double °C",
            "humidity": "Double %",
            "deviceTemperature": "Double °C",
            "battery": "Double %",
            "position": "Double %",
            "input": "Boolean",
            "rssi": "Long dBm",
        },
        {},
    ),
    (
        "example.tasmota",
        "Tasmota",
        {
            "state": "Boolean",
            "brightness": "Double %",
            "temperature": "Double °C",
            "humidity": "Double %",
            "pressure": "Double hPa",
            "illuminance": "Double lx",
            "power": "Double W",
            "voltage": "Double V",
            "current": "Double A",
            "energy": "Double kWh",
            "supplyVoltage": "Double V",
            "signal": "Long dBm",
        },
        {},
    ),
    ("example.secure_board", "Secure Board", BOARD_FIELDS, BOARD_ACTIONS),
]


@each_row(("unique_name", "name", "fields", "actions"), TABLE)
def test_example(unique_name: str, name: str, fields: dict[str, str], actions: dict[str, list[str]]) -> None:
    example = EXAMPLES[unique_name]
    assert example.name == name
    assert {
        path: f"{field.value_class} {field.unit or ''}".strip() for path, field in example.manifest.leaves.items()
    } == fields
    assert {
        action.name: [parameter.name for parameter in action.parameters] for action in example.manifest.actions
    } == actions


def test_nothing_else_is_shipped() -> None:
    assert sorted(EXAMPLES) == sorted(unique_name for unique_name, _, _, _ in TABLE)


@each_row("example", EXAMPLES.values())
def test_record_is_complete(example: ExampleDeviceType) -> None:
    assert is_unique_name(example.unique_name)
    assert example.published
    assert example.approved
    assert example.tags
    assert example.description
    assert parse_manifest(json.loads(example.manifest_document)) == example.manifest


def test_flags_of_the_special_boards() -> None:
    assert [name for name, example in EXAMPLES.items() if example.rsp] == ["example.secure_board"]
    assert [name for name, example in EXAMPLES.items() if example.device_properties_enabled] == [
        "example.managed_board"
    ]


@each_row("example", EXAMPLES.values())
def test_standard_actions_carry_their_standard_names(example: ExampleDeviceType) -> None:
    for action in example.manifest.actions:
        if action.is_standard:
            assert STANDARD_ACTIONS[action.type].name == action.name
