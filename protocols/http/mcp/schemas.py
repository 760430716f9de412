"""The schemas of the tools, made of the declarations of the REST calls that they make.

Each schema stands by itself: a client of the protocol looks nowhere else for its parts.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from protocols.http.calls import RestCall, RestCalls
from protocols.http.mcp.tools import TOOLS, Tool, ToolStep
from protocols.http.openapi.document import PATH_NAMES
from protocols.http.openapi.errors import ErrorBody
from protocols.http.openapi.schemas import Schemas
from protocols.http.rest.nouns import NOUNS
from protocols.http.schema import Schema

#: For pages; a model reads the types and descriptions.
_UNTOLD: Final = frozenset({"examples", "example"})
_REFERENCE: Final = "#/components/schemas/"
_TOOL_NAMES: Final = [tool.name for tool in TOOLS]
_ENVELOPE: Final[dict[str, Schema]] = {
    "isComplete": {"type": "boolean", "description": "False: this is a part of the answer"},
    "now": {"type": "integer", "description": "The present time, in milliseconds since the epoch"},
    "goOn": {
        "type": "object",
        "description": "Of a part: how to get the next one",
        "properties": {
            "tool": {"type": "string", "enum": _TOOL_NAMES},
            "change": {
                "type": "object",
                "description": "The arguments of the same call that change",
                "additionalProperties": True,
            },
            "call": {"type": "string", "description": "The REST call that has all of it, where no tool has"},
        },
    },
    "leftOut": {
        "type": "array",
        "description": "Members of the answer that alone are too long",
        "items": {"type": "string"},
    },
}


class Argument:
    """An argument of a tool: where it goes in the calls of its steps."""

    def __init__(self, schema: Schema, *, is_required: bool) -> None:
        self.schema = schema
        self.is_required = is_required

    @property
    def kind(self) -> Any:
        return self.schema.get("type")


class DeclaredCalls:
    """The REST calls that the tools make, with the schemas of what they take and answer."""

    def __init__(self) -> None:
        self._schemas = Schemas()
        self._calls: dict[str, tuple[RestCall, type[RestCalls]]] = {
            str(call): (call, noun) for noun in NOUNS for call in noun.declared()
        }
        for noun in {self._calls[step.call][1] for tool in TOOLS for step in tool.steps}:
            for name, schema in noun.components.items():
                self._schemas.add(name, schema)
            for call in noun.declared():  # its shapes are named by others of the noun
                self._schemas.of(call.answer)

    def call(self, step: ToolStep) -> RestCall:
        return self._calls[step.call][0]

    def parameters(self, step: ToolStep) -> Iterator[tuple[str, Schema, bool]]:
        """The name, the schema and whether it is required, of each name in the path, parameter and member."""
        call, noun = self._calls[step.call]
        kinds = {**PATH_NAMES, **noun.path_names}
        for name in call.names:
            yield name, self._schemas.of(kinds[name][0]), True
        queries = [self._schemas.properties(query) for query in call.queries]
        for name in dict.fromkeys(name for query in queries for name in query):
            schema = next(query[name][0] for query in queries if name in query)
            yield name, schema, all(name in query and query[name][1] for query in queries)
        if call.body is not None and not call.is_object and call.body is not bytes:
            for name, (schema, is_required) in self._schemas.properties(call.body).items():
                yield name, schema, is_required

    def arguments(self, tool: Tool) -> dict[str, Argument]:
        found: dict[str, Argument] = {}
        for step in tool.steps:
            for name, schema, is_required in self.parameters(step):
                if name in step.fixed or name in step.taken or (step.only is not None and name not in step.only):
                    continue
                argument = step.renamed.get(name, name)
                known = found.setdefault(argument, Argument(_told(schema), is_required=False))
                known.is_required |= is_required and not step.needs and not step.without
        for name in tool.required:
            found[name].is_required = True
        for name, value in tool.defaults.items():
            found[name].is_required = False
            found[name].schema["default"] = value
        return found

    def answer(self, step: ToolStep) -> Schema:
        return self._schemas.of(self.call(step).answer)

    def input_schema(self, tool: Tool) -> Schema:
        arguments = self.arguments(tool)
        schema: Schema = {
            "type": "object",
            "properties": {name: one.schema for name, one in arguments.items()},
            "additionalProperties": False,
        }
        if required := [name for name, one in arguments.items() if one.is_required]:
            schema["required"] = required
        return self._whole(schema)

    def output_schema(self, tool: Tool) -> Schema:
        """An answer of the REST call with what the tool adds, a part, or a refusal."""
        refusal = self._schemas.of(ErrorBody)
        if tool.is_composed:
            by_member: dict[str, list[Schema]] = {}
            for step in tool.steps:
                by_member.setdefault(step.member, []).append(self.answer(step))
            members: dict[str, Schema] = {
                name: answers[0] if len(answers) == 1 else {"anyOf": answers} for name, answers in by_member.items()
            }
            members["refused"] = {
                "type": "object",
                "description": "The members that the caller may not have, each with the error",
                "additionalProperties": self._schemas.components[ErrorBody.shape]["properties"]["error"],
            }
            answers = [{"type": "object", "properties": members}]
        else:
            answers = [self.answer(step) for step in tool.steps]
        left_out = {"type": "object", "required": ["leftOut"], "properties": {"leftOut": _ENVELOPE["leftOut"]}}
        return self._whole(
            {
                "type": "object",
                "properties": _ENVELOPE,
                "required": ["isComplete", "now"],
                "anyOf": [*answers, left_out, refusal],
            }
        )

    def _whole(self, schema: Schema) -> Schema:
        """The schema, with the components that it refers to."""
        told: Schema = _told(schema)
        needed: dict[str, Schema] = {}
        waiting = list(_references(told))
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed[name] = _told(self._schemas.components[name])
                waiting += _references(needed[name])
        return told | ({"$defs": dict(sorted(needed.items()))} if needed else {})


def _told(value: Any) -> Any:
    """The schema as a tool has it: references lead into it, and there are no examples."""
    if isinstance(value, Mapping):
        return {
            name: f"#/$defs/{one.removeprefix(_REFERENCE)}"
            if name == "$ref" and isinstance(one, str)
            else _named(one)
            if name in {"properties", "$defs"}
            else _told(one)
            for name, one in value.items()
            if name not in _UNTOLD
        }
    return [_told(one) for one in value] if isinstance(value, list) else value


def _named(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Schemas by the names of members, which may be called like a keyword."""
    return {name: _told(schema) for name, schema in schemas.items()}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            if name == "$ref" and isinstance(one, str):
                yield one.rpartition("/")[2]
            else:
                yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


@cache
def declared_calls() -> DeclaredCalls:
    """They are the same on every listener, and made when the first assistant asks."""
    return DeclaredCalls()


@cache
def listed(*, with_acts: bool) -> list[dict[str, Any]]:
    """The tools as `tools/list` answers them."""
    calls = declared_calls()
    return [
        {
            "name": tool.name,
            "title": tool.title,
            "description": tool.about,
            "inputSchema": calls.input_schema(tool),
            "outputSchema": calls.output_schema(tool),
            "annotations": {
                "title": tool.title,
                "readOnlyHint": not tool.acts,
                "destructiveHint": tool.acts,
                "idempotentHint": not tool.acts,
                "openWorldHint": tool.acts,
            },
        }
        for tool in TOOLS
        if with_acts or not tool.acts
    ]
