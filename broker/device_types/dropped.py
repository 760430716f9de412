"""Which fields of a message a Manifest does not keep, and why (reference 9.7).

Only messages that do not fit are looked at here: `Normalizer.normalize_noting` decides that.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from broker.device_types.manifest import Field, ValueClass

#: The fields that are named for one message.
NAMED_MAX: Final = 20
_NAME_CHARACTERS: Final = 128
_KINDS: Final[Mapping[ValueClass, str]] = {
    ValueClass.BOOLEAN: "a Boolean",
    ValueClass.INTEGER: "an Integer",
    ValueClass.LONG: "a Long",
    ValueClass.FLOAT: "a Float",
    ValueClass.DOUBLE: "a Double",
    ValueClass.STRING: "a String",
}


class DroppedField(msgspec.Struct, frozen=True):
    """`field` is the dotted path, or `data` for the whole message."""

    field: str
    message: str


def dropped_fields(fields: tuple[Field, ...], given: Mapping[str, Any], kept: Mapping[str, Any]) -> list[DroppedField]:
    """The fields of a message that the Manifest does not keep, at most `NAMED_MAX`, and how many more there are.

    A null is no value, so it is not dropped.
    """
    found: list[DroppedField] = []
    more = 0
    for one in _dropped("", fields, given, kept):
        if len(found) < NAMED_MAX:
            found.append(one)
        else:
            more += 1
    return [*found, DroppedField("data", f"{more} more fields were dropped")] if more else found


def _dropped(
    above: str, fields: tuple[Field, ...], given: Mapping[str, Any], kept: Mapping[str, Any]
) -> Iterator[DroppedField]:
    declared = {field.name: field for field in fields}
    for name, value in given.items():
        path = f"{above}{_shortened(name)}"
        field = declared.get(name)
        if value is None:
            continue
        if field is None:
            yield DroppedField(path, "not in the Manifest")
        elif field.value_class is None:
            if isinstance(value, dict):
                yield from _dropped(f"{path}.", field.children, value, kept.get(name) or {})
            else:
                yield DroppedField(path, "is not a group of fields")
        elif name not in kept:
            yield DroppedField(path, f"is not {_KINDS[field.value_class]}")
        elif field.is_collection and isinstance(value, list) and len(kept[name]) < len(value):
            lost = len(value) - len(kept[name])
            yield DroppedField(path, f"{lost} of {len(value)} items are not {_KINDS[field.value_class]}")


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS else f"{name[:_NAME_CHARACTERS]}…"
