"""The operators of conditions, and which ones a field allows (reference 12.7)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from broker.rules.values import Kind
from broker.rules.view import Value

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


def _unequal(value: Value, operand: Value) -> bool:
    return not _equal(value, operand)


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


def _contains_not(value: Value, operand: Value) -> bool:
    return not _contains(value, operand)


TESTS: Final[Mapping[str, Test]] = MappingProxyType(
    {
        "=": _equal,
        "!=": _unequal,
        "<": _less,
        "<=": _less_or_equal,
        ">": _greater,
        ">=": _greater_or_equal,
        "contains": _contains,
        "does not contain": _contains_not,
    }
)

_ORDERING: Final = frozenset({"<", "<=", ">", ">="})
EQUALITY: Final = frozenset({"=", "!="})
_CONTAINING: Final = frozenset({"contains", "does not contain"})

#: The operators that fields of a kind allow.
ALLOWED: Final[Mapping[Kind, frozenset[str]]] = MappingProxyType(
    {
        Kind.BOOLEAN: PRESENCE | EQUALITY,
        Kind.NUMBER: PRESENCE | EQUALITY | _ORDERING,
        Kind.TEXT: PRESENCE | EQUALITY | _ORDERING | _CONTAINING,
        Kind.COLLECTION: PRESENCE | EQUALITY | _CONTAINING,
    }
)
