"""Values and operands: constants, last values of fields, and operations on them (reference 12.10)."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from broker.device_types.manifest import Field, ValueClass
from broker.rules.view import Seen, Value, View
from storage.keys import DeviceKey, DeviceTypeKey

Bound = Mapping[DeviceTypeKey, DeviceKey]
"""The devices that satisfy `any`, by their type."""

NOTHING_BOUND: Final[Bound] = MappingProxyType({})
NUMERIC_TEXT: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_EXACT_DIGITS: Final = 18  # a whole number with more of them is read as a float
_LARGEST: Final = 2**64


class UnknownValueError(Exception):
    """A value that is needed is unknown, or cannot be made. The text says which one."""


class Kind(Enum):
    """Values of different kinds are never equal, and never in an order."""

    BOOLEAN = "Boolean"
    NUMBER = "number"
    TEXT = "text"
    COLLECTION = "collection"


_KINDS: Final[Mapping[type, Kind]] = MappingProxyType(
    {bool: Kind.BOOLEAN, int: Kind.NUMBER, float: Kind.NUMBER, str: Kind.TEXT, list: Kind.COLLECTION}
)
_KINDS_OF_CLASSES: Final[Mapping[ValueClass | None, Kind]] = MappingProxyType(
    {ValueClass.BOOLEAN: Kind.BOOLEAN, ValueClass.STRING: Kind.TEXT}
)


def kind_of(value: object) -> Kind | None:
    """The kind of a value; None: it is no value of a field."""
    return _KINDS.get(type(value))


def kind_of_items(field: Field) -> Kind:
    """The kind of a field's values; of a collection, that of its items."""
    return _KINDS_OF_CLASSES.get(field.value_class, Kind.NUMBER)


def kind_of_field(field: Field) -> Kind:
    return Kind.COLLECTION if field.is_collection else kind_of_items(field)


def is_finite(value: float) -> bool:
    """Whether a number can be a value: not infinite, not far beyond 64 bits."""
    return math.isfinite(value) if isinstance(value, float) else -_LARGEST < value < _LARGEST


class Operand(Protocol):
    """Something that has a value at the time of an evaluation."""

    @property
    def kind(self) -> Kind:
        """What its values are."""

    def read(self, view: View, bound: Bound) -> Value:
        """Its value now. Raises UnknownValueError."""

    def parts(self) -> Iterator["Operand"]:
        """Itself and all operands inside it."""


@dataclass(frozen=True, slots=True)
class Constant:
    """`{"value": …}`"""

    value: Value

    @property
    def kind(self) -> Kind:
        return _KINDS[type(self.value)]

    def read(self, view: View, bound: Bound) -> Value:  # noqa: ARG002
        return self.value

    def parts(self) -> Iterator[Operand]:
        yield self


@dataclass(frozen=True, slots=True)
class LastValue:
    """`{"valueFrom": {"sdid": …, "field": …}}`: of a device, or of the device of a type that satisfied `any`."""

    device: DeviceKey | None
    device_type: DeviceTypeKey | None  # None with a device
    name: str  # of the device or type, for texts
    field: str
    kind: Kind

    def source(self, bound: Bound) -> DeviceKey | None:
        return bound.get(self.device_type) if self.device_type is not None else self.device

    def read(self, view: View, bound: Bound) -> Value:
        device = self.source(bound)
        value = None if device is None else view.value(device, self.field)
        if value is None:
            raise UnknownValueError(f'{self.name} has not sent "{self.field}"')
        return value

    def parts(self) -> Iterator[Operand]:
        yield self


@dataclass(frozen=True, slots=True)
class Operation:
    """`{"concat": […]}`, `{"add": […]}`, `{"sub": […]}`: the operands are cast, then joined, added or subtracted."""

    calculate: Callable[[Sequence[Value]], Value]
    kind: Kind
    operands: tuple[Operand, ...]

    def read(self, view: View, bound: Bound) -> Value:
        return self.calculate([operand.read(view, bound) for operand in self.operands])

    def parts(self) -> Iterator[Operand]:
        yield self
        for operand in self.operands:
            yield from operand.parts()


def seen_by(operand: Operand, view: View, bound: Bound) -> list[Seen]:
    """The last values that an operand reads."""
    return [
        seen(view, device, part.field)
        for part in operand.parts()
        if isinstance(part, LastValue) and (device := part.source(bound)) is not None
    ]


def seen(view: View, device: DeviceKey, field: str) -> Seen:
    return Seen(device, field, view.value(device, field), view.value_ms(device, field))


# The casts of operations


def as_text(value: Value) -> str:
    """A number as in JSON, a Boolean as `true` or `false`. Raises UnknownValueError for a collection."""
    match value:
        case str():
            return value
        case bool() | int() | float():
            return msgspec.json.encode(value).decode()
        case _:
            raise UnknownValueError("a collection cannot be made a text")


def as_number(value: Value) -> int | float:
    """The number in a text or 0, a Boolean as 1 or 0. Raises UnknownValueError for a collection."""
    match value:
        case bool():
            return int(value)
        case int() | float():
            return value
        case str():
            return _number_in(value.strip(" \t\r\n"))
        case _:
            raise UnknownValueError("a collection cannot be made a number")


def _number_in(text: str) -> int | float:
    if NUMERIC_TEXT.fullmatch(text) is None:
        return 0
    if len(text) <= _EXACT_DIGITS and text.lstrip("+-").isdecimal():
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else 0


def _concat(values: Sequence[Value]) -> Value:
    return "".join(map(as_text, values))


def _add(values: Sequence[Value]) -> Value:
    return _checked(sum(map(as_number, values)))


def _sub(values: Sequence[Value]) -> Value:
    first, *others = map(as_number, values)
    return _checked(first - sum(others))


def _checked(number: float) -> int | float:
    if not is_finite(number):
        raise UnknownValueError("the number is too large")
    return number


OPERATIONS: Final[Mapping[str, tuple[Callable[[Sequence[Value]], Value], Kind]]] = MappingProxyType(
    {"concat": (_concat, Kind.TEXT), "add": (_add, Kind.NUMBER), "sub": (_sub, Kind.NUMBER)}
)
