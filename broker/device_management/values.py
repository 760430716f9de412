"""Types of resources, and the values that texts and JSON stand for (reference 15.2, 18.7)."""

import base64
import re
from enum import Enum
from typing import Final

from broker.device_management.sessions import ResourceValue

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


class ValueType(Enum):
    """Type of a resource's value. A time is an int in milliseconds, opaque bytes are shown in base64."""

    STRING = "String"
    INTEGER = "Integer"
    UNSIGNED_INTEGER = "Unsigned Integer"
    FLOAT = "Float"
    BOOLEAN = "Boolean"
    TIME = "Time"
    OPAQUE = "Opaque"
    NONE = "None"  # of a resource that can only be executed


def parse_value(text: str, kind: ValueType) -> ResourceValue:
    """The value that a text stands for. Raises ValueError when it stands for none of this type."""
    if kind in {ValueType.INTEGER, ValueType.UNSIGNED_INTEGER, ValueType.TIME}:
        if _INTEGER.fullmatch(text.strip()) is None:
            raise ValueError(text)
        if kind is ValueType.UNSIGNED_INTEGER and int(text) < 0:
            raise ValueError(text)
        return int(text)
    if kind is ValueType.FLOAT:
        if _NUMBER.fullmatch(text.strip()) is None:
            raise ValueError(text)
        return float(text)
    if kind is ValueType.BOOLEAN:
        if (value := _BOOLEANS.get(text.strip().lower())) is None:
            raise ValueError(text)
        return value
    if kind is ValueType.OPAQUE:
        return base64.b64decode(text, validate=True)
    return text


def value_of(value: bool | int | float | str, kind: ValueType) -> ResourceValue:
    """The value of this type that a constant or a parameter of an Action is. Raises ValueError when it is none."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return parse_value(text, kind)
