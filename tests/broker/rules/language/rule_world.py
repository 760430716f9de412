"""A small house for tests of rules: devices with Manifests, and a view of their values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.device_types.manifest import Manifest
from broker.device_types.manifest_parser import parse_manifest
from broker.errors import ValidationFailed
from broker.rules.language.body_reader import ResolvedDevice, ResolvedNames, ResolvedType
from broker.rules.language.compiler import compile_rule
from broker.rules.language.rule import CompiledRule
from broker.rules.language.values import CurrentMessage, Value
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, UserKey

OWNER = UserKey(1)
STRANGER = UserKey(2)


def _field(name: str, value_class: str, *, is_collection: bool = False) -> dict[str, Any]:
    return {"name": name, "valueClass": value_class, "isCollection": is_collection}


SENSOR: Manifest = parse_manifest(
    {
        "fields": [
            _field("temp", "Double"),
            _field("level", "Integer"),
            _field("on", "Boolean"),
            _field("mode", "String"),
            _field("tags", "String", is_collection=True),
            _field("counts", "Integer", is_collection=True),
            {"name": "wind", "children": [_field("speed", "Double"), _field("gusty", "Boolean")]},
        ]
    }
)
LIGHT: Manifest = parse_manifest(
    {
        "fields": [_field("state", "Boolean"), _field("intensity", "Integer"), _field("label", "String")],
        "actions": [
            {"name": "setOn", "parameters": []},
            {"name": "setOff", "parameters": []},
            {"name": "setText", "parameters": [_field("text", "String")]},
            {"name": "setIntensity", "parameters": [_field("intensity", "Integer")]},
            {"name": "setScenes", "parameters": [_field("scenes", "Integer", is_collection=True)]},
            {
                "name": "setColorRGB",
                "parameters": [{"name": "colorRGB", "children": [_field(name, "Integer") for name in ("r", "g", "b")]}],
            },
        ],
    }
)

SENSORS = ResolvedType(DeviceTypeKey(1), "dt1", SENSOR)
LIGHTS = ResolvedType(DeviceTypeKey(2), "dt2", LIGHT)
TYPES = {"dt1": SENSORS, "house.sensor": SENSORS, "dt2": LIGHTS}

#: By id: two sensors and two lights of the owner, and a sensor that a stranger shares.
DEVICES = {
    "s1": ResolvedDevice(DeviceKey(11), "s1", SENSOR),
    "s2": ResolvedDevice(DeviceKey(12), "s2", SENSOR),
    "s9": ResolvedDevice(DeviceKey(19), "s9", SENSOR),
    "l1": ResolvedDevice(DeviceKey(21), "l1", LIGHT),
    "l2": ResolvedDevice(DeviceKey(22), "l2", LIGHT),
}
WORLD = ResolvedNames(OWNER, DEVICES, TYPES)
KEYS = {id_: device.key for id_, device in DEVICES.items()}


@dataclass
class FakeView:
    """Values by device and field, as (value, cts)."""

    now_ms: Milliseconds = Milliseconds(1_000_000_000_000)
    message: CurrentMessage | None = None
    values: dict[tuple[DeviceKey, str], tuple[Value, int]] = field(default_factory=dict)
    members: dict[DeviceTypeKey, tuple[DeviceKey, ...]] = field(
        default_factory=lambda: {
            SENSORS.key: (KEYS["s1"], KEYS["s2"]),
            LIGHTS.key: (KEYS["l1"], KEYS["l2"]),
        }
    )
    outputs: dict[tuple[int, DeviceKey], Value] = field(default_factory=dict)

    def value(self, device: DeviceKey, field: str) -> Value | None:
        found = self.values.get((device, field))
        return None if found is None else found[0]

    def value_ms(self, device: DeviceKey, field: str) -> Milliseconds | None:
        found = self.values.get((device, field))
        return None if found is None else Milliseconds(found[1])

    def devices_of(self, owner: UserKey, device_type: DeviceTypeKey) -> Collection[DeviceKey]:
        return self.members.get(device_type, ()) if owner == OWNER else ()

    def model_output(self, rule: int, condition: int, device: DeviceKey, field: str) -> Value | None:  # noqa: ARG002
        return self.outputs.get((condition, device))

    def later(self, seconds: float) -> "FakeView":
        """Let time pass; there is no current message any more."""
        self.now_ms = Milliseconds(self.now_ms + round(seconds * 1000))
        self.message = None
        return self

    def sends(self, device: str, data: Mapping[str, Any]) -> "FakeView":
        """A message comes in."""
        key = KEYS[device]
        owner = STRANGER if device == "s9" else OWNER
        type_ = LIGHTS.key if device.startswith("l") else SENSORS.key
        self.message = CurrentMessage(key, type_, owner, data)
        for path, value in _flat(data, ""):
            self.values[key, path] = (value, self.now_ms)
        return self


def _flat(data: Mapping[str, Any], prefix: str) -> list[tuple[str, Value]]:
    found: list[tuple[str, Value]] = []
    for name, value in data.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return found


def condition(sdid: Any, field: str, operator: str, value: Any = None, **others: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"sdid": sdid, "field": field, "operator": operator, **others}
    return found if value is None else {**found, "operand": {"value": value}}


def selector(choice: str, type_: str = "dt1") -> dict[str, str]:
    return {"selector": choice, "dtid": type_}


SWITCH_ON = {"ddid": "l1", "action": "setOn"}


def body(*conditions: Any, then: Any = SWITCH_ON) -> dict[str, Any]:
    return {"if": {"and": list(conditions)}, "then": then}


def rule(*conditions: Any, then: Any = SWITCH_ON) -> CompiledRule:
    return compile_rule(body(*conditions, then=then), WORLD, key=7)


def findings(refused: Any) -> list[tuple[str, str]]:
    """The findings of a body, as (path, text); a valid body has none."""
    try:
        compile_rule(refused, WORLD, key=7)
    except ValidationFailed as error:
        return [(finding.field, message) for finding in error.findings for message in finding.messages]
    return []
