"""The whole document: the nouns in their order, put into the words of OpenAPI 3.1."""

from collections.abc import Iterator
from typing import Any, Final

from protocols.http.openapi.about import ABOUT, OVERVIEW
from protocols.http.openapi.accounts import ACCOUNTS
from protocols.http.openapi.analytics import ANALYTICS
from protocols.http.openapi.approved_lists import APPROVED_LISTS
from protocols.http.openapi.connectors import CONNECTORS
from protocols.http.openapi.device_types import DEVICE_TYPES
from protocols.http.openapi.devices import DEVICES
from protocols.http.openapi.errors import (
    ERROR,
    ERROR_REF,
    TEXT_ERROR,
    TEXT_ERROR_REF,
    USUAL_REASONS,
    error_example,
    error_schema,
    refusals_of,
    usual_reason,
)
from protocols.http.openapi.export import EXPORT
from protocols.http.openapi.messages import MESSAGES
from protocols.http.openapi.operation import Answer, Body, Counted, Noun, Operation, Parameter
from protocols.http.openapi.paths import PATH_PARAMETERS, names_in
from protocols.http.openapi.pricing import PRICING
from protocols.http.openapi.registrations import REGISTRATIONS
from protocols.http.openapi.shapes import Schema, integer, text
from protocols.http.openapi.shares import SHARES
from protocols.http.openapi.status import STATUS
from protocols.http.openapi.tags import TAGS
from protocols.http.openapi.users import USERS

NOUNS: Final[tuple[Noun, ...]] = (
    MESSAGES,
    ANALYTICS,
    EXPORT,
    DEVICES,
    STATUS,
    SHARES,
    REGISTRATIONS,
    DEVICE_TYPES,
    TAGS,
    APPROVED_LISTS,
    CONNECTORS,
    PRICING,
    USERS,
    ACCOUNTS,
    ABOUT,
)
TITLE: Final = "Trunkline"
API_VERSION: Final = "1.1"
_HEADERS: Final[dict[str, Schema]] = {
    "X-Rate-Limit-Limit": text("Calls allowed, as minute/day", pattern="^[0-9]+/[0-9]+$"),
    "X-Rate-Limit-Remaining": text("Calls left, as minute/day", pattern="^[0-9]+/[0-9]+$"),
    "X-Rate-Limit-Reset": text(
        "When there are more, in seconds since the epoch, as minute/day", pattern="^[0-9]+/[0-9]+$"
    ),
    "Retry-After": integer("Seconds to wait", lowest=0),
    "x-quota-max-payload-size": integer("Bytes that data may have", lowest=0),
    "x-quota-organization-limits": text("Used and allowed, this month", pattern=r"^[0-9]+/-?[0-9]+$"),
    "x-quota-organization-reset": text("Start and end of the month, in milliseconds", pattern="^[0-9]+/[0-9]+$"),
    "x-quota-device-limits": text("Used and allowed, this day; of devices with a plan", pattern=r"^[0-9]+/-?[0-9]+$"),
    "x-quota-device-reset": text("Start and end of the day, in milliseconds", pattern="^[0-9]+/[0-9]+$"),
}
_RATE_HEADERS: Final = tuple(name for name in _HEADERS if name.startswith("X-Rate-"))
_QUOTA_HEADERS: Final = tuple(name for name in _HEADERS if name.startswith("x-quota-"))
#: By what a call is counted with: the row of the rate limits.
_COUNTED_BY: Final[dict[Counted, str]] = {"rest": "REST", "messages": "POST /messages", None: "none"}


def document(server_url: str) -> dict[str, Any]:
    """The OpenAPI document of a server whose REST root has this address."""
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": API_VERSION, "description": OVERVIEW},
        "servers": [{"url": server_url}],
        "security": [{"bearer": []}],
        "tags": [{"name": noun.title, "description": noun.about} for noun in NOUNS],
        "paths": _paths(),
        "components": {
            "schemas": {"Error": ERROR, "TextError": TEXT_ERROR}
            | {name: schema for noun in NOUNS for name, schema in noun.schemas.items()},
            "responses": _usual_refusals(),
            "headers": {name: _header(schema) for name, schema in _HEADERS.items()},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A user, application or device token; x-token-kinds says which a call accepts",
                },
                "certificate": {"type": "mutualTLS", "description": "On the secure listener only"},
            },
        },
    }


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for noun, operation in operations():
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(noun, operation)
    return paths


def operations() -> Iterator[tuple[Noun, Operation]]:
    for noun in NOUNS:
        for operation in noun.operations:
            yield noun, operation


def _operation(noun: Noun, operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "tags": [noun.title],
        "summary": operation.summary,
        "x-token-kinds": list(operation.tokens),
        "x-rate-limit-row": _COUNTED_BY[operation.counted],
    }
    if operation.about:
        described["description"] = operation.about
    parameters = [_in_path(name) for name in names_in(operation.path)] + [_parameter(one) for one in operation.query]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _body(operation.body)
    if operation.needs_certificate:
        described["security"] = [{"certificate": []}]
    elif not operation.tokens:
        described["security"] = []
    described["responses"] = {str(operation.answer.status): _answer(operation)} | {
        status: _refusal(operation, status, reason) for status, reason in refusals_of(operation)
    }
    return described


def _operation_id(operation: Operation) -> str:
    """Such as `getDevicesByDidStatus`."""
    words = operation.path.replace(".", "/").strip("/").split("/")
    named = (f"By{word[1].upper()}{word[2:-1]}" if word[0] == "{" else word[0].upper() + word[1:] for word in words)
    return operation.method.lower() + "".join(named)


def _in_path(name: str) -> dict[str, Any]:
    schema, example = PATH_PARAMETERS[name]
    return {"name": name, "in": "path", "required": True, "schema": schema, "example": example}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "schema": parameter.schema,
    }
    if parameter.example is not None:
        described["example"] = parameter.example
    return described


def _body(body: Body) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for content_type, schema in body.schemas.items():
        content[content_type] = {"schema": schema}
        if content_type != "multipart/form-data":  # the example is of what is not in parts
            content[content_type]["example"] = body.example
    return {"required": body.required, "content": content}


def _answer(operation: Operation) -> dict[str, Any]:
    answer: Answer = operation.answer
    described: dict[str, Any] = {"description": answer.about}
    if answer.schema is not None:
        described["content"] = {answer.content_type: {"schema": answer.schema}}
        if answer.example is not None:
            described["content"][answer.content_type]["example"] = answer.example
    headers = _headers(operation.counted) | {name: _header(schema) for name, schema in answer.headers.items()}
    return described | ({"headers": headers} if headers else {})


def _refusal(operation: Operation, status: str, reason: str) -> dict[str, Any]:
    if error_schema(operation, status) is TEXT_ERROR_REF:
        return {"description": reason, "content": {"application/json": {"schema": TEXT_ERROR_REF}}}
    if reason == usual_reason(status):
        return {"$ref": f"#/components/responses/{_usual_name(status, operation.counted)}"}
    return _refused(status, reason, operation.counted)


def _usual_refusals() -> dict[str, Any]:
    """Those that calls have in common; answers to counted calls have more headers."""
    return {
        _usual_name(status, counted): _refused(status, reason, counted)
        for counted in _COUNTED_BY
        for status, reason in USUAL_REASONS.items()
    }


def _usual_name(status: str, counted: Counted) -> str:
    return f"Error{status}" + {"rest": "", "messages": "Sending", None: "Uncounted"}[counted]


def _refused(status: str, reason: str, counted: Counted) -> dict[str, Any]:
    media: dict[str, Any] = {"schema": ERROR_REF}
    if (example := error_example(status, reason)) is not None:
        media["example"] = example
    headers = _headers(counted) if status != "401" else {}
    if status in {"429", "5XX"}:
        headers = headers | _header_refs(("Retry-After",))
    described = {"description": reason, "content": {"application/json": media}}
    return described | ({"headers": headers} if headers else {})


def _headers(counted: Counted) -> dict[str, Any]:
    if counted is None:
        return {}
    return _header_refs(_RATE_HEADERS + (_QUOTA_HEADERS if counted == "messages" else ()))


def _header_refs(names: tuple[str, ...]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _header(schema: Schema) -> dict[str, Any]:
    about = schema.get("description", "")
    return {
        "description": about,
        "schema": {keyword: value for keyword, value in schema.items() if keyword != "description"},
    }
