"""Values, the view in which a rule sees them, and operands: constants, last values, operations (reference 12.10)."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from broker.device_types.manifest import Field, ValueClass
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds, UserKey

Value = bool | int | float | str | list["Value"]
"""A value of a field, as it was normalised (reference 8.4)."""

NestedValue = Value | dict[str, "NestedValue"]
"""A value of a parameter: a group of parameters is an object."""


class CurrentMessage(msgspec.Struct, frozen=True):
    """The message that causes an evaluation. `owner` owns the device, `data` is its normalised data, decoded."""

    device: DeviceKey
    device_type: DeviceTypeKey
    owner: UserKey
    data: Mapping[str, object]


class Seen(msgspec.Struct, frozen=True):
    """A value that an evaluation looked at, and its message's cts. `value` None: the device never sent the field."""

    device: DeviceKey
    field: str
    value: Value | None
    at_ms: Milliseconds | None


class View(Protocol):
    """A rule's sight of one moment: values, the message, the time, devices, outputs of models.

    One view serves all rules that are evaluated at that moment.
    """

    @property
    def now_ms(self) -> Milliseconds:
        """The time of the evaluation: of a message its cts, otherwise when the minute began or the timer was due."""

    @property
    def message(self) -> CurrentMessage | None:
        """The message that is evaluated; None when time is the cause."""

    def value(self, device: DeviceKey, field: str) -> Value | None:
        """The last known value of a field by its dotted path, that of the current message included; None: unknown."""

    def value_ms(self, device: DeviceKey, field: str) -> Milliseconds | None:
        """The cts of the message that brought the last known value; None: unknown."""

    def devices_of(self, owner: UserKey, device_type: DeviceTypeKey) -> Collection[DeviceKey]:
        """The devices of a type that a user owns, in a stable order."""

    def model_output(self, rule: int, condition: int, device: DeviceKey, field: str) -> Value | None:
        """The answer of the model of a condition with a `transformer` to the last value of the condition's field; None
        while the model is not ready or the value is not known.

        A prediction is the predicted value, an anomaly detection says true or false.
        """


class _NoView:
    """View of an empty service: no messages and no devices."""

    now_ms: Final = Milliseconds(0)
    message: Final = None

    def value(self, device: DeviceKey, field: str) -> Value | None:  # noqa: ARG002
        return None

    def value_ms(self, device: DeviceKey, field: str) -> Milliseconds | None:  # noqa: ARG002
        return None

    def devices_of(self, owner: UserKey, device_type: DeviceTypeKey) -> Collection[DeviceKey]:  # noqa: ARG002
        return ()

    def model_output(self, rule: int, condition: int, device: DeviceKey, field: str) -> Value | None:  # noqa: ARG002
        return None


NO_VIEW: Final[View] = _NoView()
"""For what depends on nothing, such as an operation on constants."""


Bound = Mapping[DeviceTypeKey, DeviceKey]
"""The devices that satisfy `any`, by their type."""

NOTHING_BOUND: Final[Bound] = MappingProxyType({})
NUMERIC_TEXT: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_EXACT_DIGITS: Final = 18  # a whole number with more of them is read as a float
_LARGEST: Final = 2**64


class UnknownValueError(Exception):
    """A value that is needed is unknown, or cannot be made. The text says which one."""


class ValueKind(Enum):
    """Values of different kinds are never equal, and never in an order."""

    BOOLEAN = "Boolean"
    NUMBER = "number"
    TEXT = "text"
    COLLECTION = "collection"


_KINDS: Final[Mapping[type, ValueKind]] = MappingProxyType(
    {
        bool: ValueKind.BOOLEAN,
        int: ValueKind.NUMBER,
        float: ValueKind.NUMBER,
        str: ValueKind.TEXT,
        list: ValueKind.COLLECTION,
    }
)
_KINDS_OF_CLASSES: Final[Mapping[ValueClass | None, ValueKind]] = MappingProxyType(
    {ValueClass.BOOLEAN: ValueKind.BOOLEAN, ValueClass.STRING: ValueKind.TEXT}
)


def value_kind(value: object) -> ValueKind | None:
    """The kind of a value; None: it is no value of a field."""
    return _KINDS.get(type(value))


def kind_of_items(field: Field) -> ValueKind:
    """The kind of a field's values; of a collection, that of its items."""
    return _KINDS_OF_CLASSES.get(field.value_class, ValueKind.NUMBER)


def kind_of_field(field: Field) -> ValueKind:
    return ValueKind.COLLECTION if field.is_collection else kind_of_items(field)


def is_finite(value: float) -> bool:
    """Whether a number can be a value: not infinite, not far beyond 64 bits."""
    return math.isfinite(value) if isinstance(value, float) else -_LARGEST < value < _LARGEST


class Constant(msgspec.Struct, frozen=True):
    """`{"value": …}`"""

    value: Value

    @property
    def kind(self) -> ValueKind:
        return _KINDS[type(self.value)]

    def read(self, view: View, bound: Bound) -> Value:  # noqa: ARG002
        return self.value

    def parts(self) -> Iterator["Operand"]:
        yield self


class LastValue(msgspec.Struct, frozen=True):
    """`{"valueFrom": {"sdid": …, "field": …}}`: of a device, or of the device of a type that satisfied `any`."""

    device: DeviceKey | None
    device_type: DeviceTypeKey | None  # None with a device
    name: str  # of the device or type, for texts
    field: str
    kind: ValueKind

    def source(self, bound: Bound) -> DeviceKey | None:
        return bound.get(self.device_type) if self.device_type is not None else self.device

    def read(self, view: View, bound: Bound) -> Value:
        device = self.source(bound)
        value = None if device is None else view.value(device, self.field)
        if value is None:
            raise UnknownValueError(f'{self.name} has not sent "{self.field}"')
        return value

    def parts(self) -> Iterator["Operand"]:
        yield self


class Operation(msgspec.Struct, frozen=True):
    """`{"concat": […]}`, `{"add": […]}`, `{"sub": […]}`: the operands are cast, then joined, added or subtracted."""

    calculate: Callable[[Sequence[Value]], Value]
    kind: ValueKind
    operands: tuple["Operand", ...]

    def read(self, view: View, bound: Bound) -> Value:
        return self.calculate([operand.read(view, bound) for operand in self.operands])

    def parts(self) -> Iterator["Operand"]:
        yield self
        for operand in self.operands:
            yield from operand.parts()


Operand = Constant | LastValue | Operation
"""An expression with a value at the time of an evaluation.

`kind` is the kind of its values, `read` returns its value now (it raises UnknownValueError), and `parts` itself and all
operands inside it.
"""


def seen_by(operand: Operand, view: View, bound: Bound) -> list[Seen]:
    """The last values that an operand reads."""
    return [
        seen_value(view, device, part.field)
        for part in operand.parts()
        if isinstance(part, LastValue) and (device := part.source(bound)) is not None
    ]


def seen_value(view: View, device: DeviceKey, field: str) -> Seen:
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


OPERATIONS: Final[Mapping[str, tuple[Callable[[Sequence[Value]], Value], ValueKind]]] = MappingProxyType(
    {"concat": (_concat, ValueKind.TEXT), "add": (_add, ValueKind.NUMBER), "sub": (_sub, ValueKind.NUMBER)}
)
