"""JSON Schemas and examples of types, as msgspec derives them, in the form that the document uses.

Shapes with a name become components. All other structs and enums are shown where they are used. Nothing forbids further
members: clients must bear what a later version adds, and the server ignores what it does not know.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from protocols.http.schema import OTHER_TYPE, BodyForm, DataAndFlat, Schema, Shape, component

_WITHIN: Final = "{name}"


class Schemas:
    """Makes schemas of types, and collects the components to which the schemas refer."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self._owners: dict[str, type[Shape]] = {}
        self._made: dict[type, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type that stands in a declaration. The caller may change it."""
        if not isinstance(kind, type):
            return self._make(kind)
        if kind not in self._made:  # the same few shapes stand in the refusals of all calls
            self._made[kind] = self._make(kind)
        return deepcopy(self._made[kind])

    def _make(self, kind: Any) -> Schema:
        if get_origin(kind) is DataAndFlat:
            return self._data_and_flat(*get_args(kind))
        shapes = list(dict.fromkeys(shapes_in(kind)))
        (schema, *references), parts = msgspec.json.schema_components([kind, *shapes], ref_template=_WITHIN)
        names = {reference["$ref"]: shape for reference, shape in zip(references, shapes, strict=True)}
        return self._tidy(schema, parts, names)

    def add(self, name: str, schema: Schema) -> None:
        """Add a component that is written by hand."""
        self.components[name] = schema

    def properties(self, kind: Any) -> Mapping[str, tuple[Schema, bool]]:
        """The members of a struct by their names on the wire, each with whether it is required."""
        schema = self.of(kind)
        return {name: (one, name in schema.get("required", ())) for name, one in schema["properties"].items()}

    def _data_and_flat(self, content: Any) -> Schema:
        inner = self.of(content)
        flat = self.components[inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
        properties = {"data": inner, **flat["properties"]}
        return {"type": "object", "required": ["data", *flat.get("required", ())], "properties": properties}

    def _tidy(self, schema: Schema, parts: Mapping[str, Schema], names: Mapping[str, type[Shape]]) -> Schema:
        if (name := schema.get("$ref", "")) in parts:
            shape = names.get(name)
            if shape is not None and shape.__dict__.get("shape"):
                return self._named(shape, parts[name], parts, names)
            inner = self._tidy(parts[name], parts, names)
            inner |= {keyword: value for keyword, value in schema.items() if keyword not in {"$ref", "title"}}
            return _with_forms(inner, shape) if shape is not None else inner
        tidied = {
            keyword: self._tidied(keyword, value, parts, names)
            for keyword, value in schema.items()
            if keyword != "title"
        }
        return _with_type(_without_null(tidied))

    def _tidied(self, keyword: str, value: Any, parts: Mapping[str, Schema], names: Mapping[str, type[Shape]]) -> Any:
        if keyword in {"properties", "patternProperties"}:
            return {name: self._tidy(one, parts, names) for name, one in value.items()}
        if keyword in {"anyOf", "oneOf", "allOf"}:
            return [self._tidy(one, parts, names) for one in value]
        if keyword in {"items", "additionalProperties"} and isinstance(value, dict):
            return self._tidy(value, parts, names)
        return value

    def _named(
        self, shape: type[Shape], schema: Schema, parts: Mapping[str, Schema], names: Mapping[str, type[Shape]]
    ) -> Schema:
        owner = self._owners.setdefault(shape.shape, shape)
        if owner is not shape:
            raise TypeError(f"{shape.shape} is the name of {owner} and of {shape}")
        if shape.shape not in self.components:
            self.components[shape.shape] = {}  # a shape may hold itself
            self.components[shape.shape] = self._tidy(schema, parts, names)
        return {"$ref": component(shape.shape)}


def _without_null(schema: Schema) -> Schema:
    """A default of None means that the member may be absent. Without a default, null is a value of the member."""
    options = schema.get("anyOf", [])
    if {"type": "null"} in options:
        (plain,) = [one for one in options if one != {"type": "null"}]
        rest = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
        if "default" in rest and rest["default"] is None:
            del rest["default"]
        else:
            plain = {**plain, "type": [plain["type"], "null"]}
        schema = plain | rest
    if schema.get("default") in ("", (), [], {}):
        del schema["default"]
    if schema.get("required") == []:
        del schema["required"]
    return schema


def _with_type(schema: Schema) -> Schema:
    """Replace the type by the one that the document states, and add a type that msgspec leaves out."""
    if OTHER_TYPE in schema:
        schema["type"] = schema.pop(OTHER_TYPE)
        schema.pop("items", None)
    if "enum" in schema:
        schema = {"type": "string", **schema}
    if schema.get("type") == "object" and "properties" not in schema:
        schema.setdefault("additionalProperties", True)
    return schema


def _with_forms(schema: Schema, shape: type[Shape]) -> Schema:
    for keyword, forms in (("anyOf", shape.any_of), ("oneOf", shape.exactly_one_of)):
        if forms:
            return {keyword: [_form(form, schema["properties"]) for form in forms]}
    return schema


def _form(form: BodyForm, properties: Mapping[str, Schema]) -> Schema:
    schema: Schema = {"type": "object", "required": list(form.required)}
    schema["properties"] = {name: properties[name] for name in (*form.required, *form.optional)}
    return schema | ({"description": form.about} if form.about else {})


def shapes_in(kind: Any) -> Iterator[type[Shape]]:
    """The structs that a type is made of."""
    plain = get_origin(kind) or kind
    if isinstance(plain, type) and issubclass(plain, Shape):
        if plain is kind:
            yield plain
        for field in msgspec.structs.fields(kind):
            yield from shapes_in(field.type)
    else:
        for argument in get_args(kind):
            yield from shapes_in(argument)


# Examples


def example_of(kind: Any) -> Any:
    """A JSON value of this type. Raises LookupError when its parts have no examples."""
    origin = get_origin(kind)
    if origin is DataAndFlat:
        content = example_of(*get_args(kind))
        return {"data": content, **content}
    if origin is Annotated:
        return _of_annotated(*get_args(kind))
    if origin in {Union, UnionType}:
        return example_of(get_args(kind)[0])
    if origin is list:
        return [example_of(*get_args(kind))]
    plain = origin or kind
    if isinstance(plain, type) and issubclass(plain, Shape):
        return plain.__dict__.get("example") or dict(_members(kind))
    raise LookupError(f"no example of {kind}")


def _of_annotated(plain: Any, *notes: Any) -> Any:
    for note in notes:
        if isinstance(note, msgspec.Meta) and note.examples:
            return note.examples[0]
    return example_of(plain)


def _members(kind: Any) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(kind):
        try:
            yield field.encode_name, example_of(field.type)
        except LookupError:
            if field.required:
                raise
