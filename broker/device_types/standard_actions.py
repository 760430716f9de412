"""The Actions that every device type may use without describing their parameters (reference 8.3)."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class StandardAction(msgspec.Struct, frozen=True):
    """A standard Action; `parameters` is written as in a Manifest document, whose parser reads it."""

    name: str
    parameters: tuple[Mapping[str, object], ...] = ()


def _parameter(name: str, value_class: str) -> Mapping[str, object]:
    return MappingProxyType({"name": name, "valueClass": value_class})


def _group(name: str, *children: Mapping[str, object]) -> Mapping[str, object]:
    return MappingProxyType({"name": name, "children": children})


STANDARD_ACTIONS: Mapping[str, StandardAction] = MappingProxyType(
    {
        "SET_ON": StandardAction("setOn"),
        "SET_OFF": StandardAction("setOff"),
        "TOGGLE": StandardAction("toggle"),
        "SET_LEVEL": StandardAction("setLevel", (_parameter("level", "Integer"),)),
        "SET_VALUE": StandardAction("setValue", (_parameter("value", "Double"),)),
        "SET_TEXT": StandardAction("setText", (_parameter("text", "String"),)),
        "SET_TEMPERATURE": StandardAction("setTemperature", (_parameter("temperature", "Double"),)),
        "SET_COLOR_RGB": StandardAction(
            "setColorRGB",
            (
                _group(
                    "colorRGB",
                    _parameter("r", "Integer"),
                    _parameter("g", "Integer"),
                    _parameter("b", "Integer"),
                ),
            ),
        ),
        "LOCK": StandardAction("lock"),
        "UNLOCK": StandardAction("unlock"),
    }
)
