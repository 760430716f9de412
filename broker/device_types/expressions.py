"""The expressions of Advanced Manifests: JMESPath with a few functions for payloads, and a bound on what one may cost.

JMESPath has no recursion, and loops only over the elements of a list. The remaining risk is growth: `[@,@][]` doubles
a list. So the interpreter counts steps, one for each node it visits and one for each element or 16 characters that
functions and comparisons read, and stops at `MAX_STEPS`. An expression cannot be interrupted otherwise: it runs on the
event loop, and a thread that runs Python cannot be ended. JSONata (recursion) and CEL (nested loops inside a native
call) were rejected for that reason.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import jmespath
from jmespath.exceptions import JMESPathError, ParseError
from jmespath.functions import Functions, signature
from jmespath.lexer import Lexer
from jmespath.visitor import Options, TreeInterpreter

from broker.errors import too_long
from broker.nesting import NestedTooDeeplyError, check_value_nesting

MAX_EXPRESSION_CHARACTERS: Final = 2_048
MAX_STEPS: Final = 2_000
MAX_NESTING: Final = 64  # levels of the syntax tree
MAX_PARENTHESES: Final = 256  # within each other; the parser recurses for them, but they leave no node in the tree
_TEXT_PER_STEP: Final = 16
_TOO_DEEP: Final = "Invalid value: too deeply nested"
_LARGEST: Final = 2**63

_Node = Any  # a dictionary, whose type exists in the stubs only


class InvalidExpressionError(Exception):
    """The text is not an expression; the message says what is wrong and where."""


class ExpressionFailedError(Exception):
    """The expression has no result for this value; the message says why."""


class Expression:
    """A checked expression. Not to be used by several threads at once.

    Raises InvalidExpressionError.
    """

    __slots__ = ("_interpreter", "_root")

    def __init__(self, text: str) -> None:
        self._root = _parse(text)
        self._interpreter = _BoundedInterpreter()

    def evaluate(self, value: object) -> object:
        """The result for a decoded payload, at most `MAX_STEPS` large. Raises ExpressionFailedError."""
        interpreter = self._interpreter
        interpreter.steps_left = MAX_STEPS
        try:
            result: object = interpreter.visit(self._root, value)
            interpreter.charge_size(result)
        except (JMESPathError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError) as error:
            # The interpreter does not check all operands, so Python's own errors occur.
            raise ExpressionFailedError(" ".join(str(error).split()) or type(error).__name__) from error
        return result


# Checking, once for each Manifest


def _parse(text: str) -> _Node:
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        raise InvalidExpressionError(too_long(MAX_EXPRESSION_CHARACTERS))
    try:
        _check_tokens(text)
        root: _Node = jmespath.compile(text).parsed
    except ParseError as error:
        found = "end" if error.token_value is None else repr(error.token_value)
        raise InvalidExpressionError(f"Invalid value: unexpected {found} at position {error.lex_position}") from error
    except (NestedTooDeeplyError, RecursionError) as error:  # the parser takes three calls for a level at most
        raise InvalidExpressionError(_TOO_DEEP) from error
    except (JMESPathError, ValueError) as error:
        raise InvalidExpressionError(f"Invalid value: {error}") from error
    for node, depth in _nodes(root):
        if depth > MAX_NESTING:
            raise InvalidExpressionError(_TOO_DEEP)
        if node["type"] == "function_expression":
            _check_call(node, text)
    return root


def _check_tokens(text: str) -> None:
    """Bound what leaves no nodes in the tree: parentheses, and the values in JSON literals.

    Raises InvalidExpressionError, NestedTooDeeplyError, and what the lexer raises.
    """
    depth = 0
    for token in Lexer().tokenize(text):
        if token["type"] == "literal":
            check_value_nesting(token["value"])
        depth += {"lparen": 1, "rparen": -1}.get(token["type"], 0)
        if depth > MAX_PARENTHESES:
            raise InvalidExpressionError(_TOO_DEEP)


def _nodes(root: _Node) -> Iterator[tuple[_Node, int]]:
    waiting = [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        # A slice has numbers where others have nodes.
        waiting += [(child, depth + 1) for child in node.get("children", ()) if isinstance(child, dict)]


def _check_call(node: _Node, text: str) -> None:
    """Check the name of a function and the number of its arguments before any message arrives."""
    name, given = node["value"], len(node["children"])
    position = text.find(f"{name}(")
    if (known := _PayloadFunctions.FUNCTION_TABLE.get(name)) is None:
        raise InvalidExpressionError(f"Invalid value: unknown function {name}() at position {position}")
    wanted = known["signature"]
    is_variadic = bool(wanted) and wanted[-1].get("variadic", False)
    if given < len(wanted) or (given > len(wanted) and not is_variadic):
        raise InvalidExpressionError(
            f"Invalid value: {name}() takes {len(wanted)} arguments, not {given}, at position {position}"
        )


# Evaluating


class _BoundedInterpreter(TreeInterpreter):
    """Counts down `steps_left`. Raises ArithmeticError when there are none left."""

    def __init__(self) -> None:
        self._calls = _PayloadFunctions()
        super().__init__(Options(custom_functions=self._calls))
        self.steps_left = 0

    def visit(self, node: _Node, *args: Any, **kwargs: Any) -> Any:
        self._spend(1)
        return super().visit(node, *args, **kwargs)

    def visit_flatten(self, node: _Node, value: Any) -> Any:
        return self._paid(super().visit_flatten(node, value))

    def visit_slice(self, node: _Node, value: Any) -> Any:
        return self._paid(super().visit_slice(node, value))

    def visit_comparator(self, node: _Node, value: Any) -> Any:
        operands = [self._weighed(child, value) for child in node["children"]]
        children: Any = [{"type": "literal", "value": operand, "children": []} for operand in operands]
        return super().visit_comparator({"type": "comparator", "value": node["value"], "children": children}, value)

    def visit_function_expression(self, node: _Node, value: Any) -> Any:
        arguments = [self._weighed(child, value) for child in node["children"]]
        if node["value"] == "join" and isinstance(arguments[0], str) and isinstance(arguments[1], list):
            self._spend(len(arguments[0]) * len(arguments[1]) // _TEXT_PER_STEP)
        result = self._calls.call_function(node["value"], arguments)
        self.charge_size(result)
        return result

    def charge_size(self, value: object) -> None:
        """Count steps for the size of a value. Shared parts count each time, as an encoder writes them each time."""
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                self._spend(len(item) // _TEXT_PER_STEP)
            elif isinstance(item, list | dict):
                self._spend(len(item))
                waiting.extend(item.values() if isinstance(item, dict) else item)

    def _weighed(self, node: _Node, value: Any) -> Any:
        result = self.visit(node, value)
        self.charge_size(result)
        return result

    def _paid(self, result: Any) -> Any:
        if result is not None:
            self._spend(len(result))
        return result

    def _spend(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise ArithmeticError(f"it takes more than {MAX_STEPS} steps")


_NUMBER: Final[Any] = {"types": ["number"]}
_TEXT: Final[Any] = {"types": ["string"]}
_ANY: Final[Any] = {"types": []}


def _bounded(number: float) -> float:
    if not math.isfinite(number) or abs(number) > _LARGEST:
        raise ArithmeticError("a number is too large")
    return number


def _whole(number: float) -> int:
    if number != int(number):
        raise ValueError(f"{number} is not a whole number")
    return int(_bounded(number))


def _divisor(number: float) -> float:
    if not number:  # Python's own words depend on its version
        raise ArithmeticError("division by zero")
    return _bounded(number)


class _PayloadFunctions(Functions):
    """JMESPath's own functions, and functions for payloads: arithmetic, bits and texts."""

    @signature(_NUMBER, _NUMBER)
    def _func_add(self, left: float, right: float) -> float:
        return _bounded(_bounded(left) + _bounded(right))

    @signature(_NUMBER, _NUMBER)
    def _func_subtract(self, left: float, right: float) -> float:
        return _bounded(_bounded(left) - _bounded(right))

    @signature(_NUMBER, _NUMBER)
    def _func_multiply(self, left: float, right: float) -> float:
        return _bounded(_bounded(left) * _bounded(right))

    @signature(_NUMBER, _NUMBER)
    def _func_divide(self, left: float, right: float) -> float:
        return _bounded(_bounded(left) / _divisor(right))

    @signature(_NUMBER, _NUMBER)
    def _func_modulo(self, left: float, right: float) -> float:
        return _bounded(left) % _divisor(right)

    @signature(_NUMBER, _NUMBER)
    def _func_round(self, number: float, digits: float) -> float:
        places = _whole(digits)
        if not 0 <= places <= 15:
            raise ValueError("round() takes 0 to 15 digits")
        return round(_bounded(number), places)

    @signature(_NUMBER, _NUMBER)
    def _func_bit(self, number: float, index: float) -> bool:
        """Bit 0 is the lowest."""
        return bool(self._func_bits(number, index, 1))

    @signature(_NUMBER, _NUMBER, _NUMBER)
    def _func_bits(self, number: float, index: float, count: float) -> int:
        first, many = _whole(index), _whole(count)
        if not (0 <= first < 64 and 1 <= many <= 64):
            raise ValueError("there are bits 0 to 63")
        return _whole(number) >> first & (1 << many) - 1

    @signature(_TEXT, _NUMBER)
    def _func_parse_int(self, text: str, base: float) -> int:
        return int(_bounded(int(text, _whole(base))))

    @signature(_TEXT, _TEXT)
    def _func_split(self, text: str, separator: str) -> list[str]:
        return text.split(separator)

    @signature(_TEXT, _NUMBER, _NUMBER)
    def _func_substring(self, text: str, start: float, length: float) -> str:
        first, many = _whole(start), _whole(length)
        if first < 0 or many < 0:
            raise ValueError("substring() takes no negative numbers")
        return text[first : first + many]

    @signature(_TEXT)
    def _func_trim(self, text: str) -> str:
        return text.strip()

    @signature(_TEXT)
    def _func_lower(self, text: str) -> str:
        return text.lower()

    @signature(_ANY, _ANY, _ANY)
    def _func_choose(self, condition: object, then: object, otherwise: object) -> object:
        """The condition is true as for `&&` and `||`: false, null and empty values are not true."""
        return otherwise if condition is None or condition is False or condition in ("", [], {}) else then
