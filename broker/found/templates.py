"""Templates in announcements of devices: a small, bounded part of Jinja (reference 16.9).

A template comes from a stranger. It runs in Jinja's sandbox, and it is bounded by its form: there are no loops, no
macros and no power, so each of its nodes is worked out at most once, and each operation looks at the length of its
result before it makes it. No variable is set to a list or an object of variables, which could double its size each
time. The time of the longest template that is taken is in tests/broker/found/test_templates.py.
"""

import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from jinja2 import TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.environment import Template as Compiled
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from broker.errors import DomainError
from broker.nesting import NestedTooDeeplyError, check_nesting
from config.limits import FOUND_TEMPLATE_CHARACTERS, FOUND_TEMPLATE_NODES, FOUND_TEXT_CHARACTERS

#: Integers beyond this are refused: their digits could double with each product.
_LARGEST: Final = 2**64


class TemplateRefusedError(Exception):
    """The template is not taken; the text says why."""


class _TooLargeError(ValueError):
    """A result beyond the bounds."""


_NODES: Final = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem),
    *(nodes.Slice, nodes.Filter, nodes.Test, nodes.If, nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And),
    *(nodes.Or, nodes.Not, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Neg, nodes.Pos),
    *(nodes.Concat, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Assign, nodes.Call, nodes.Keyword),
)
#: Words of Jinja for the nodes that are not taken, by their classes.
_WORDS: Final[Mapping[type[nodes.Node], str]] = {
    nodes.For: "for",
    nodes.Macro: "macro",
    nodes.Pow: "**",
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "import",
    nodes.Extends: "extends",
    nodes.Block: "block",
    nodes.With: "with",
    nodes.CallBlock: "call",
    nodes.FilterBlock: "filter blocks",
}
#: Methods of texts and objects. Their results are no longer than what they are called on.
_METHODS: Final = frozenset({"get", "lower", "upper", "strip", "lstrip", "rstrip", "split", "startswith", "endswith"})
_TESTS: Final = frozenset(
    {"defined", "undefined", "none", "number", "string", "mapping", "true", "false", "boolean", "integer", "float"}
    | {"in", "eq", "ne", "lt", "le", "gt", "ge", "==", "!=", "<", "<=", ">", ">=", "equalto", "odd", "even"}
)


def _bounded(value: Any) -> Any:
    """A text or a number within the bounds. Raises _TooLargeError."""
    if isinstance(value, str):
        if len(value) > FOUND_TEXT_CHARACTERS:
            raise _TooLargeError("the text is too long")
    elif isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        raise _TooLargeError("the number is too large")
    return value


def _text(value: object) -> str:
    """Raises _TooLargeError."""
    if isinstance(value, list | dict | tuple):
        return _json(value)
    return str(_bounded(str(value)))


def _json(value: object) -> str:
    return str(_bounded(msgspec.json.encode(value).decode()))


def _from_json(value: object) -> Any:
    text = _text(value).encode()
    check_nesting(text)
    return msgspec.json.decode(text)


_MISSING: Final = object()


def _number(value: object, default: object = _MISSING) -> Any:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if math.isfinite(found):
        return found
    if default is _MISSING:
        raise ValueError("no number")
    return default


def _whole(value: object, default: object = _MISSING) -> Any:
    if isinstance(value, int):
        return _bounded(value)
    found = _number(value, default)
    return _bounded(int(found)) if isinstance(found, float) else found


def _round(value: object, precision: int = 0, method: str = "common") -> Any:
    number, places = _number(value), max(-20, min(20, int(precision)))
    if method in {"ceil", "floor"}:
        found = (math.ceil if method == "ceil" else math.floor)(number * 10.0**places) / 10.0**places
    else:
        found = round(number, places)
    return int(found) if places == 0 else found


def _is_true(value: object, default: object = _MISSING) -> Any:
    text = str(value).lower() if isinstance(value, str | bool | int) else ""
    if text in {"true", "yes", "on", "enable", "1"}:
        return True
    if text in {"false", "no", "off", "disable", "0"}:
        return False
    if default is _MISSING:
        raise ValueError("no Boolean")
    return default


def _default(value: object, default: object = "", boolean: bool = False) -> object:
    return default if isinstance(value, Undefined) or (boolean and not value) else value


def _is_defined(value: object) -> object:
    """Raises UndefinedError."""
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()  # as each use of it does
    return value


def _replace(value: object, old: object, new: object) -> str:
    text, before, after = _text(value), _text(old), _text(new)
    if len(text) + text.count(before) * len(after) > FOUND_TEXT_CHARACTERS:
        raise _TooLargeError("the text is too long")
    return text.replace(before, after)


def _join(values: object, between: str = "") -> str:
    parts = [_text(one) for one in values] if isinstance(values, list | tuple) else [_text(values)]
    if sum(map(len, parts)) + len(parts) * len(between) > FOUND_TEXT_CHARACTERS:
        raise _TooLargeError("the text is too long")
    return between.join(parts)


def _choose(value: object, if_true: object = True, if_false: object = False) -> object:
    return if_true if value else if_false


def _first(value: Any) -> Any:
    return value[0] if value else None


def _last(value: Any) -> Any:
    return value[-1] if value else None


def _multiply(value: object, by: object) -> Any:
    return _number(value) * _number(by)


def _add(value: object, other: object) -> Any:
    return _number(value) + _number(other)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": lambda value: abs(_number(value)),
    "add": _add,
    "bool": _is_true,
    "capitalize": lambda value: _text(value).capitalize(),
    "count": len,
    "d": _default,
    "default": _default,
    "first": _first,
    "float": _number,
    "from_json": _from_json,
    "iif": _choose,
    "int": _whole,
    "is_defined": _is_defined,
    "join": _join,
    "last": _last,
    "length": len,
    "lower": lambda value: _text(value).lower(),
    "multiply": _multiply,
    "replace": _replace,
    "round": _round,
    "string": _text,
    "title": lambda value: _text(value).title(),
    "to_json": _json,
    "tojson": _json,
    "trim": lambda value: _text(value).strip(),
    "upper": lambda value: _text(value).upper(),
}
#: Filters that are functions, too.
_FUNCTIONS: Final = ("bool", "float", "iif", "int")
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(_OPERATORS)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002 - as Jinja calls it
        """Numbers are worked out, and texts are joined."""
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return _join([left, right])
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            if isinstance(left, Undefined) or isinstance(right, Undefined):
                return _OPERATORS[operator](left, right)  # raises UndefinedError
            raise TypeError(f"{operator} is for numbers")
        return _bounded(_OPERATORS[operator](left, right))

    def is_safe_callable(self, obj: Any) -> bool:
        name = getattr(obj, "__name__", "")
        return obj in FILTERS.values() or (name in _METHODS and isinstance(getattr(obj, "__self__", None), str | dict))


# Not optimized: a number that Jinja works out beforehand may be infinite, which its code has no word for.
_ENVIRONMENT: Final = _Environment(autoescape=False, optimized=False)
_ENVIRONMENT.filters = dict(FILTERS)
_ENVIRONMENT.tests = {name: one for name, one in _ENVIRONMENT.tests.items() if name in _TESTS}
_ENVIRONMENT.globals = {name: FILTERS[name] for name in _FUNCTIONS}


class _Bounding(NodeTransformer):
    """`~` joins texts without asking how long they are: the filter of that name asks."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - the name that Jinja calls
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, "join", [], [], None, None, lineno=node.lineno)


class Template:
    """A template that is taken. `cost` is the number of its nodes. Raises TemplateRefusedError."""

    __slots__ = ("_compiled", "cost")

    def __init__(self, source: str) -> None:
        if len(source) > FOUND_TEMPLATE_CHARACTERS:
            raise TemplateRefusedError(f"a template has at most {FOUND_TEMPLATE_CHARACTERS} characters")
        try:
            tree = _ENVIRONMENT.parse(source)
            self.cost = _checked(tree)
            code = _ENVIRONMENT.compile(_Bounding().visit(tree))
        except TemplateSyntaxError as error:
            raise TemplateRefusedError(f"template: {error.message}") from None
        except (RecursionError, MemoryError, TemplateError, SyntaxError, ValueError):
            raise TemplateRefusedError("template: cannot be read") from None
        self._compiled = Compiled.from_code(_ENVIRONMENT, code, dict(_ENVIRONMENT.globals))

    def render(self, **names: Any) -> str | None:
        """The text with these names, without white space around it; None when it cannot be made of them."""
        parts, length = [], 0
        try:
            for part in self._compiled.generate(**names):
                length += len(part)
                if length > FOUND_TEXT_CHARACTERS:
                    return None
                parts.append(part)
        except (TemplateError, DomainError, NestedTooDeeplyError, ArithmeticError):
            return None
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError, MemoryError):
            return None
        return "".join(parts).strip()


@lru_cache(maxsize=4_096)
def template_of(source: str) -> Template:
    """Many components have the same one. Raises TemplateRefusedError."""
    return Template(source)


def _checked(tree: nodes.Template) -> int:
    """The number of nodes. Raises TemplateRefusedError for what is not taken."""
    count, waiting = 0, list[nodes.Node]([tree])
    while waiting:
        node = waiting.pop()
        count += 1
        if count > FOUND_TEMPLATE_NODES:
            raise TemplateRefusedError(f"a template has at most {FOUND_TEMPLATE_NODES} parts")
        _check(node)
        waiting += node.iter_child_nodes()
    return count


def _check(node: nodes.Node) -> None:
    if not isinstance(node, _NODES):
        word = _WORDS.get(type(node), type(node).__name__)
        raise TemplateRefusedError(f"template: {word} is not taken")
    if isinstance(node, nodes.Const) and isinstance(node.value, float) and not math.isfinite(node.value):
        raise TemplateRefusedError("template: a number is too large")
    if isinstance(node, nodes.Filter) and node.name not in FILTERS:
        raise TemplateRefusedError(f"template: the filter {node.name[:40]} is not taken")
    if isinstance(node, nodes.Test) and node.name not in _TESTS:
        raise TemplateRefusedError(f"template: the test {node.name[:40]} is not taken")
    if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
        raise TemplateRefusedError(f"template: {node.attr[:40]} is not taken")
    if isinstance(node, nodes.Assign) and any(
        part.find(nodes.Name)
        for part in node.find_all((nodes.List, nodes.Tuple, nodes.Dict))
        if part is not node.target
    ):
        raise TemplateRefusedError("template: a list or an object with names in set is not taken")
    if isinstance(node, nodes.Call):
        called = node.node
        is_method = isinstance(called, nodes.Getattr) and called.attr in _METHODS
        if not is_method and not (isinstance(called, nodes.Name) and called.name in _FUNCTIONS):
            word = getattr(called, "attr", getattr(called, "name", "this"))
            raise TemplateRefusedError(f"template: a call of {str(word)[:40]} is not taken")
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise TemplateRefusedError("template: * and ** are not taken")
    if isinstance(node, nodes.Filter | nodes.Test) and (node.dyn_args is not None or node.dyn_kwargs is not None):
        raise TemplateRefusedError("template: * and ** are not taken")
