"""The provision file as a JSON Schema, made from the declarations of its tables (reference 26.1)."""

from typing import Any, Final

import msgspec

from broker.provisioning.document import TABLES
from broker.provisioning.reading import keys_of, structs_in

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def document_schema() -> dict[str, Any]:
    """JSON Schema for editors and checks of the file. Only `trunkline provision` checks references to objects."""
    tables, definitions = msgspec.json.schema_components(TABLES.values(), ref_template="#/$defs/{name}")
    for kind in {inner for entry in TABLES.values() for inner in structs_in(entry)}:
        _add_forms(kind, definitions[kind.__name__])
    return {
        "$schema": _DIALECT,
        "title": "Provision file of Trunkline",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            table: {"type": "array", "items": reference} for table, reference in zip(TABLES, tables, strict=True)
        },
        "$defs": {name: _without_null(definition) for name, definition in definitions.items()},
    }


def _add_forms(kind: type[msgspec.Struct], definition: dict[str, Any]) -> None:
    for key in keys_of(kind):
        for form in key.forms:
            shown = definition["properties"][key.name]
            # The members of `X | None` are beside those of null.
            for member in shown.get("anyOf", [shown]):
                if member.get("type") != "null":
                    member.update(form.schema)


def _without_null(shown: Any) -> Any:
    """TOML has no null: a key is left out instead."""
    if isinstance(shown, list):
        return [_without_null(one) for one in shown]
    if not isinstance(shown, dict):
        return shown
    shown = {name: _without_null(one) for name, one in shown.items() if not (name == "default" and one is None)}
    others = [one for one in shown.get("anyOf", ()) if one != {"type": "null"}]
    if len(others) == 1:
        shown = {**{name: one for name, one in shown.items() if name != "anyOf"}, **others[0]}
    return shown
