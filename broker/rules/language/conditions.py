"""Operators and compiled conditions: whether a condition holds for a device (reference 12.7)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from enum import Enum
from types import MappingProxyType
from typing import Final

import msgspec

from broker.rules.language.schedule import MINUTE_MS, Schedule
from broker.rules.language.values import (
    Bound,
    LastValue,
    Operand,
    Seen,
    UnknownValueError,
    Value,
    ValueKind,
    View,
    seen_by,
    seen_value,
)
from storage.keys import DeviceKey, DeviceTypeKey, Milliseconds

# Operators, and which ones a field allows

Test = Callable[[Value, Value], bool]
"""Compares a field's value with the operand."""

IS_IN_MESSAGE: Final = "is in message"
IS_NOT_IN_MESSAGE: Final = "is not in message"
PRESENCE: Final = frozenset({IS_IN_MESSAGE, IS_NOT_IN_MESSAGE})
OF_TIMES: Final = frozenset({"<", "<=", "=", ">", ">="})

_NUMBERS: Final = frozenset({int, float})


def _equal(value: Value, operand: Value) -> bool:
    if isinstance(value, list):
        return isinstance(operand, list) and len(value) == len(operand) and all(map(_equal, value, operand))
    return _comparable(value, operand) and value == operand


def _comparable(value: Value, operand: Value) -> bool:
    """Whether both are of one kind. Python takes `True` for 1; here a Boolean is no number."""
    return type(value) is type(operand) or (type(value) in _NUMBERS and type(operand) in _NUMBERS)


def _less(value: Value, operand: Value) -> bool:
    return _ordered(value, operand) and value < operand  # type: ignore[operator]


def _less_or_equal(value: Value, operand: Value) -> bool:
    return _ordered(value, operand) and value <= operand  # type: ignore[operator]


def _greater(value: Value, operand: Value) -> bool:
    return _ordered(value, operand) and value > operand  # type: ignore[operator]


def _greater_or_equal(value: Value, operand: Value) -> bool:
    return _ordered(value, operand) and value >= operand  # type: ignore[operator]


def _ordered(value: Value, operand: Value) -> bool:
    kind = type(value)
    if kind in _NUMBERS:
        return type(operand) in _NUMBERS
    return kind is str and type(operand) is str


def _contains(value: Value, operand: Value) -> bool:
    if isinstance(value, list):
        return any(_equal(item, operand) for item in value)
    return isinstance(value, str) and isinstance(operand, str) and operand in value


TESTS: Final[Mapping[str, Test]] = MappingProxyType(
    {
        "=": _equal,
        "!=": lambda value, operand: not _equal(value, operand),
        "<": _less,
        "<=": _less_or_equal,
        ">": _greater,
        ">=": _greater_or_equal,
        "contains": _contains,
        "does not contain": lambda value, operand: not _contains(value, operand),
    }
)

_ORDERING: Final = frozenset({"<", "<=", ">", ">="})
EQUALITY: Final = frozenset({"=", "!="})
_CONTAINING: Final = frozenset({"contains", "does not contain"})

#: The operators that fields of a kind allow.
ALLOWED: Final[Mapping[ValueKind, frozenset[str]]] = MappingProxyType(
    {
        ValueKind.BOOLEAN: PRESENCE | EQUALITY,
        ValueKind.NUMBER: PRESENCE | EQUALITY | _ORDERING,
        ValueKind.TEXT: PRESENCE | EQUALITY | _ORDERING | _CONTAINING,
        ValueKind.COLLECTION: PRESENCE | EQUALITY | _CONTAINING,
    }
)


# Conditions

NO_DEVICE: Final = DeviceKey(0)


class Choice(Enum):
    """Which devices of a type a selector means. `any` and `matched` mean the same device, so one choice serves both."""

    MATCHED = "matched"
    EVERY = "every"


class Duration(msgspec.Struct, frozen=True):
    """How long a condition must hold. Without `accepts_update`, an update of the field restarts the period."""

    length_ms: int
    accepts_update: bool


@dataclass(slots=True, eq=False)
class Condition:
    """One condition of a rule.

    Attributes:
        index: its place among the conditions.
        path: where it stands in the body.
        device: whose field it is about; NO_DEVICE: that of devices of a type, or it is about times.
        device_type, choice: which devices of a type it is about.
        needs: the types whose bound devices decide it: that of its `any` or `matched`, and those of its operand.
        named: the devices that it names by id: in `sdid`, and in the operand.
        failed: the device that last kept an `every` from holding; it decides only which device is looked at first.
    """

    index: int
    path: str
    device: DeviceKey
    device_type: DeviceTypeKey | None
    choice: Choice | None
    field: str
    duration: Duration | None
    operand: Operand | None
    failed: DeviceKey = attribute(default=NO_DEVICE, init=False)

    @property
    def needs(self) -> frozenset[DeviceTypeKey]:
        own = {self.device_type} if self.choice is Choice.MATCHED else set()
        operand = {part.device_type for part in self.last_values()}
        return frozenset(type_ for type_ in own | operand if type_ is not None)

    @property
    def named(self) -> frozenset[DeviceKey]:
        devices = {self.device, *(part.device for part in self.last_values())}
        return frozenset(device for device in devices if device)

    def fields_of(self, device_type: DeviceTypeKey) -> Iterator[str]:
        """The fields that it looks at of the device of a type that satisfies `any`."""
        if self.choice is Choice.MATCHED and self.device_type == device_type:
            yield self.field
        for part in self.last_values():
            if part.device_type == device_type:
                yield part.field

    def last_values(self) -> Iterator[LastValue]:
        """The last values that the operand reads."""
        for part in self.operand.parts() if self.operand is not None else ():
            if isinstance(part, LastValue):
                yield part

    def holds(self, view: View, device: DeviceKey, bound: Bound) -> bool | None:
        """Whether it holds for a device, its duration aside; None: a value is unknown that it needs.

        `bound` has the devices of all types that it `needs`. A condition on times has no device, and ignores this one.
        """
        raise NotImplementedError

    def output(self, view: View, device: DeviceKey) -> Value | None:  # noqa: ARG002
        """The answer of the model; None: there is no model, or it is not ready."""
        return None

    def looks_at(self, view: View, device: DeviceKey, bound: Bound) -> list[Seen]:
        """The values that `holds` looks at."""
        found = [seen_value(view, device, self.field)] if self.field else []
        return found + (seen_by(self.operand, view, bound) if self.operand is not None else [])

    def operand_value(self, view: View, bound: Bound) -> Value | None:
        """The value of the operand; None: there is none, or it is unknown."""
        try:
            return self.operand.read(view, bound) if self.operand is not None else None
        except UnknownValueError:
            return None


@dataclass(slots=True, eq=False)
class FixedValueCondition(Condition):
    """Compares the last value of the field with a constant."""

    test: Test
    constant: Value

    def holds(self, view: View, device: DeviceKey, bound: Bound) -> bool | None:  # noqa: ARG002
        value = view.value(device, self.field)
        return None if value is None else self.test(value, self.constant)


@dataclass(slots=True, eq=False)
class ValueCondition(Condition):
    """Compares the last value of the field with the operand."""

    test: Test

    def holds(self, view: View, device: DeviceKey, bound: Bound) -> bool | None:
        value = view.value(device, self.field)
        operand = self.operand_value(view, bound)
        return None if value is None or operand is None else self.test(value, operand)


@dataclass(slots=True, eq=False)
class ModelCondition(Condition):
    """Compares what the model says with the operand. `rule` and the attributes after `test` are for the model."""

    rule: int
    test: Test
    kind: str
    predict_in_seconds: float | None
    sensitivity: float | None

    def holds(self, view: View, device: DeviceKey, bound: Bound) -> bool | None:
        output = self.output(view, device)
        operand = self.operand_value(view, bound)
        return None if output is None or operand is None else self.test(output, operand)

    def output(self, view: View, device: DeviceKey) -> Value | None:
        return view.model_output(self.rule, self.index, device, self.field)


@dataclass(slots=True, eq=False)
class PresenceCondition(Condition):
    """`is in message` and `is not in message`: about the current message of the device, and false for all others."""

    names: tuple[str, ...]  # the field's path
    wanted: bool

    def holds(self, view: View, device: DeviceKey, bound: Bound) -> bool | None:  # noqa: ARG002
        message = view.message
        return message is not None and message.device == device and has_field(message.data, self.names) is self.wanted


@dataclass(slots=True, eq=False)
class TimeCondition(Condition):
    """Compares the time with an expression."""

    schedule: Schedule
    operator: str
    #: The last answer of `next_after`, and since when it is the answer.
    known: tuple[Milliseconds, Milliseconds | None] | None = attribute(default=None, init=False)

    def next_after(self, after_ms: Milliseconds) -> Milliseconds | None:
        """The next time of the schedule. It may take a millisecond, so the answer is kept while it stays the same."""
        if self.known is not None:
            since_ms, found_ms = self.known
            if since_ms <= after_ms and (found_ms is None or after_ms < found_ms):
                return found_ms
        found_ms = self.schedule.next_after(after_ms)
        self.known = (after_ms, found_ms)
        return found_ms

    def holds(self, view: View, device: DeviceKey, bound: Bound) -> bool | None:  # noqa: ARG002
        return self.schedule.holds(self.operator, view.now_ms)

    def begins(self, now_ms: Milliseconds) -> bool:
        """Whether a matching minute begins now, so that the rule is evaluated."""
        return now_ms % MINUTE_MS == 0 and self.schedule.holds("=", now_ms)


def has_field(data: object, names: tuple[str, ...]) -> bool:
    """Whether decoded data has a field."""
    for name in names:
        if not isinstance(data, dict) or name not in data:
            return False
        data = data[name]
    return True
