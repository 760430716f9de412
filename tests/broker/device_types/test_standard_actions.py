"""The standard Actions and their parameters (reference 8.3)."""

import pytest

from broker.device_types.manifest_parser import parse_manifest
from broker.device_types.standard_actions import STANDARD_ACTIONS
from tests.rows import each_row


def _leaf(value_class: str) -> dict[str, object]:
    return {"type": value_class, "isCollection": False, "description": ""}


TABLE: list[tuple[str, str, dict[str, object]]] = [
    ("SET_ON", "setOn", {}),
    ("SET_OFF", "setOff", {}),
    ("TOGGLE", "toggle", {}),
    ("SET_LEVEL", "setLevel", {"level": _leaf("Integer")}),
    ("SET_VALUE", "setValue", {"value": _leaf("Double")}),
    ("SET_TEXT", "setText", {"text": _leaf("String")}),
    ("SET_TEMPERATURE", "setTemperature", {"temperature": _leaf("Double")}),
    (
        "SET_COLOR_RGB",
        "setColorRGB",
        {"colorRGB": {"r": _leaf("Integer"), "g": _leaf("Integer"), "b": _leaf("Integer")}},
    ),
    ("LOCK", "lock", {}),
    ("UNLOCK", "unlock", {}),
]


@each_row(("type_", "name", "parameters"), TABLE)
def test_standard_action(type_: str, name: str, parameters: dict[str, object]) -> None:
    assert STANDARD_ACTIONS[type_].name == name
    action = {"name": name, "type": type_, "isStandard": True}
    (parsed,) = parse_manifest({"fields": [], "actions": [action]}).actions
    assert parsed.name == name
    assert parsed.properties() == {
        "description": "",
        "isStandard": True,
        "parameters": parameters,
    }


def test_no_other_standard_action() -> None:
    assert list(STANDARD_ACTIONS) == [type_ for type_, _, _ in TABLE]


@pytest.mark.parametrize(
    ("given", "names"),
    [(None, ["level"]), ([], []), ([{"name": "percent", "valueClass": "Double"}], ["percent"])],
)
def test_manifest_may_override_the_parameters(given: object, names: list[str]) -> None:
    action = {"name": "setLevel", "type": "SET_LEVEL", "isStandard": True, "parameters": given}
    (parsed,) = parse_manifest({"fields": [], "actions": [action]}).actions
    assert [parameter.name for parameter in parsed.parameters] == names


def test_custom_action_gets_no_parameters_from_the_table() -> None:
    (parsed,) = parse_manifest({"fields": [], "actions": [{"name": "setLevel", "type": "SET_LEVEL"}]}).actions
    assert parsed.parameters == ()
