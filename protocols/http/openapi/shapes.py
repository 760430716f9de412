"""JSON Schemas in few words (OpenAPI 3.1, which uses JSON Schema 2020-12).

Members are required unless they are in `optional`. Nothing here forbids further members: clients must bear what a later
version adds, and the server ignores what it does not know.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from config.limits import FORBIDDEN_IN_NAMES, NAME_MAX_CHARACTERS

Schema = dict[str, Any]

_INT64_MAX: Final = 2**63 - 1


def text(about: str = "", *, longest: int | None = None, pattern: str | None = None, **more: Any) -> Schema:
    """`more` are further keywords of JSON Schema."""
    return _stated(
        {"type": "string", "maxLength": longest, "pattern": pattern, **more, "description": about},
    )


def number(about: str = "") -> Schema:
    return _stated({"type": "number", "description": about})


def integer(
    about: str = "", *, lowest: int | None = None, highest: int | None = None, default: int | None = None
) -> Schema:
    return _stated(
        {
            "type": "integer",
            "format": "int64" if highest is None else None,
            "minimum": lowest,
            "maximum": highest,
            "default": default,
            "description": about,
        }
    )


def milliseconds(about: str = "") -> Schema:
    """A point in time."""
    said = about or "A time"
    return {
        "type": "integer",
        "format": "int64",
        "minimum": 0,
        "maximum": _INT64_MAX,
        "description": f"{said}, in milliseconds since the epoch",
    }


def boolean(about: str = "", *, default: bool | None = None) -> Schema:
    return _stated({"type": "boolean", "default": default, "description": about})


def one_of(values: Sequence[str], about: str = "", *, default: str | None = None) -> Schema:
    return _stated({"type": "string", "enum": list(values), "default": default, "description": about})


def id_(about: str = "") -> Schema:
    """reference 1.1: 32 lower-case hexadecimal characters."""
    return _stated({"type": "string", "pattern": "^[0-9a-f]{32}$", "description": about})


def type_id(about: str = "") -> Schema:
    """reference 1.1: `dt` and 32 hexadecimal characters, a plain name of an imported type, or the "
    "unique name."""
    return _stated({"type": "string", "pattern": r"^[A-Za-z0-9_.\-]{1,128}$", "description": about})


def name(about: str = "") -> Schema:
    """reference 6.1: 1 to 64 characters without < > & ' "."""
    forbidden = "".join(sorted(FORBIDDEN_IN_NAMES))
    return _stated(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": NAME_MAX_CHARACTERS,
            "pattern": f"^[^{forbidden}]+$",
            "description": about,
        }
    )


def ids(about: str, *, longest: int | None = None) -> Schema:
    """A comma-separated list in one text."""
    bound = "" if longest is None else f", at most {longest}"
    return text(f"{about}, separated by commas{bound}")


def nullable(schema: Schema) -> Schema:
    """Or null. reference 1.4 lists where that is; everywhere else what is not there is left out."""
    return {**schema, "type": [schema["type"], "null"]}


def array(items: Schema, about: str = "", **more: Any) -> Schema:
    return _stated({"type": "array", "items": items, **more, "description": about})


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, about: str = "") -> Schema:
    return _stated(
        {
            "type": "object",
            "required": list(required) or None,
            "properties": {**required, **(optional or {})},
            "description": about,
        }
    )


def free(about: str) -> Schema:
    """An object whose members are not ours to name."""
    return {"type": "object", "additionalProperties": True, "description": about}


def by_name(values: Schema, about: str = "") -> Schema:
    """An object whose members are named by others, and all of one shape."""
    return _stated({"type": "object", "additionalProperties": values, "description": about})


def ref(component: str) -> Schema:
    return {"$ref": f"#/components/schemas/{component}"}


def data(content: Schema) -> Schema:
    """The answer of most calls."""
    return record({"data": content})


def page(content: Schema) -> Schema:
    """reference 1.4: a numbered list."""
    return record(
        {
            "data": content,
            "total": integer("All matches", lowest=0),
            "offset": integer("As asked for", lowest=0),
            "count": integer("Items in this answer", lowest=0),
        }
    )


def _stated(schema: Schema) -> Schema:
    return {keyword: value for keyword, value in schema.items() if value is not None and value != ""}
