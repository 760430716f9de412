"""Schemas as the rows of a table: one row for each member, with the members of inner objects below."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

_DEEPEST: Final = 4
_KNOWN_PATTERNS: Final = {"^[0-9a-f]{32}$": "id"}


class MemberRow(msgspec.Struct, frozen=True):
    name: str
    depth: int
    type: str
    required: bool
    #: Restrictions of values: bounds, default.
    bounds: tuple[str, ...]
    about: str


class MemberRows:
    """Makes rows of schemas, which may refer to the components of the document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._shapes: Mapping[str, Any] = document["components"]["schemas"]

    def of_members(self, schema: Mapping[str, Any], depth: int = 0) -> Iterator[MemberRow]:
        """The members of an object, or of the objects that an array holds."""
        inner = self._opened(schema)
        required = inner.get("required", ())
        for name, member in inner.get("properties", {}).items():
            yield self.of_one(name, member, required=name in required, depth=depth)
            if depth < _DEEPEST:
                yield from self.of_members(member, depth + 1)

    def of_one(self, name: str, schema: Mapping[str, Any], *, required: bool, depth: int = 0) -> MemberRow:
        shape = self._resolved(schema)
        return MemberRow(name, depth, self._type(schema), required, tuple(_bounds(shape)), shape.get("description", ""))

    def alternatives(self, schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """The schemas of which a value has one; usually there is only one."""
        shape = self._resolved(schema)
        found: Sequence[Mapping[str, Any]] = shape.get("anyOf") or shape.get("oneOf") or (shape,)
        return found

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = schema.get("$ref")
        if reference is None:
            return schema
        resolved: Mapping[str, Any] = self._shapes[reference.rpartition("/")[2]]
        return resolved

    def _opened(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        shape = self._resolved(schema)
        while shape.get("type") == "array":
            shape = self._resolved(shape["items"])
        return shape

    def _type(self, schema: Mapping[str, Any]) -> str:
        shape = self._resolved(schema)
        if "anyOf" in shape or "oneOf" in shape:
            return "object"
        types = shape.get("type", "anything")
        if isinstance(types, list):
            return " or ".join(types)
        if types == "array":
            return f"array of {self._plural(shape['items'])}"
        known = _KNOWN_PATTERNS.get(shape.get("pattern", ""))
        return known or str(types)

    def _plural(self, schema: Mapping[str, Any]) -> str:
        one = self._type(schema)
        return one if one == "anything" or one.startswith("array") else f"{one}s"


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in schema:
        yield " · ".join(map(str, schema["enum"]))
    lowest, highest = schema.get("minimum"), schema.get("maximum")
    if lowest is not None and highest is not None and highest < 2**53:
        yield f"{lowest} to {highest}"
    elif lowest:
        yield f"at least {lowest}"
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    if longest is not None:
        yield f"{shortest} to {longest} characters" if shortest else f"at most {longest} characters"
    if "minItems" in schema and "maxItems" in schema:
        yield f"{schema['minItems']} to {schema['maxItems']} items"
    if "default" in schema:
        yield f"default {_literal(schema['default'])}"


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
