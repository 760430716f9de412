"""How calls refuse (reference 3), and which refusals every call of a kind has."""

from collections.abc import Iterator
from typing import Any, Final

from protocols.http.openapi import samples
from protocols.http.openapi.operation import Operation
from protocols.http.openapi.paths import names_in
from protocols.http.openapi.shapes import Schema, array, id_, integer, record, ref, text

ERROR: Final = record(
    {
        "error": record(
            {
                "code": integer("The status, or a number that says more", lowest=400, highest=9999),
                "message": text(),
                "id": id_("Also in the server's log"),
            },
            {
                "errors": array(
                    array(
                        record(
                            {
                                "field": text("Where it is: names and indexes, separated by dots"),
                                "messages": array(text(), minItems=1),
                            }
                        ),
                        minItems=1,
                    ),
                    "With code 4001: one list with everything that is wrong",
                    minItems=1,
                    maxItems=1,
                )
            },
        )
    }
)
TEXT_ERROR: Final = record(
    {"error": record({"code": text("As OAuth 2 calls it"), "message": text()})},
    about="Of accounts calls",
)
USUAL_REASONS: Final = {
    "400": "The body is not a JSON object, or something in the request is wrong.",
    "401": "Please provide a valid authorization header",
    "403": "You don't have the right permissions: …",
    "404": "Not Found",
    "413": "Request body too large",
    "429": "MINUTE rate limit exceeded",
    "5XX": "Our fault, or the store cannot be written at the moment",
}
ERROR_REF: Final = ref("Error")
TEXT_ERROR_REF: Final = ref("TextError")


def usual_reason(status: str) -> str:
    return USUAL_REASONS.get(status, "")


def refusals_of(operation: Operation) -> Iterator[tuple[str, str]]:
    """Status and reason of everything that a call may refuse with, in order."""
    found = dict.fromkeys(map(str, _expected(operation)), "")
    found |= {str(status): reason for status, reason in operation.refusals.items()}
    for status in sorted(found):
        yield status, found[status] or usual_reason(status)
    yield "5XX", usual_reason("5XX")


def _expected(operation: Operation) -> Iterator[int]:
    if operation.tokens:
        yield from (401, 403)
    if operation.needs_certificate:
        yield 403
    if operation.query or operation.body is not None:
        yield 400
    if operation.body is not None:
        yield 413
    if names_in(operation.path) or operation.query:
        yield 404
    yield 429


def error_schema(operation: Operation, status: str) -> Schema:
    """Calls of the accounts server have texts for codes."""
    return TEXT_ERROR_REF if operation.path == "/accounts/token" and status in {"400", "401"} else ERROR_REF


def error_example(status: str, reason: str) -> dict[str, Any] | None:
    if not status.isdigit():
        return None
    if status == "400":
        errors = [[{"field": "name", "messages": ["Maximum length 64"]}]]
        return {"error": {"code": 4001, "message": "Validation Error", "id": samples.ERROR, "errors": errors}}
    return {"error": {"code": int(status), "message": reason, "id": samples.ERROR}}
