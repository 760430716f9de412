"""The bodies of refusals (reference 3), and the refusals that all calls of a kind have."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final

from msgspec import UNSET, Meta, UnsetType

from broker.conditional import ChangedMeanwhile
from broker.errors import (
    BodyTooLarge,
    EncodingNotTaken,
    NotFound,
    PermissionDenied,
    TooManyValues,
    Unauthorized,
    ValidationFailed,
    too_long,
)
from broker.limits.refusals import TooManyRequests
from protocols.http.calls import RestCall
from protocols.http.errors import SCENE_ERROR_TYPES
from protocols.http.openapi import samples
from protocols.http.schema import Id, Shape, about, integer, one_of, text

USUAL_REASONS: Final = {
    "400": "The body is not a JSON object, or something in the request is wrong.",
    "401": Unauthorized.template,
    "403": str(PermissionDenied("…")),
    "404": NotFound.template,
    "412": f"{ChangedMeanwhile.template}. `data` is the object as it is now, and ETag its tag.",
    "413": f"{BodyTooLarge.template}, or: {TooManyValues.template}",
    "415": EncodingNotTaken.template,
    "429": TooManyRequests.template,
    "5XX": "Our fault, or the store cannot be written at the moment",
}


class FindingObject(Shape):
    shape = "Finding"
    example: ClassVar[Any] = {"field": "name", "messages": [too_long(64)]}

    field: Annotated[str, text("Where it is: names and indexes, separated by dots")]
    messages: Annotated[list[str], about("", minItems=1)]


class _Error(Shape, kw_only=True):
    code: Annotated[int, integer("The status, or a number that says more", lowest=400, highest=9999)]
    message: str
    id: Annotated[Id, Meta(description="Also in the server's log")]
    reason: Annotated[str, about("With 503: why the store cannot be used")] | UnsetType = UNSET
    errors: (
        Annotated[
            list[Annotated[list[FindingObject], about("", minItems=1)]],
            about("With code 4001: one list with everything that is wrong", minItems=1, maxItems=1),
        ]
        | UnsetType
    ) = UNSET
    error_type: Annotated[str, one_of(SCENE_ERROR_TYPES, "Of scenes")] | UnsetType = UNSET
    error_message: Annotated[str, about("Of scenes: all that is wrong in one text")] | UnsetType = UNSET


class ErrorBody(Shape):
    shape = "Error"
    error: _Error


class _TextError(Shape):
    code: Annotated[str, text("As OAuth 2 calls it")]
    message: str


class TextErrorBody(Shape):
    """Of accounts calls"""

    shape = "TextError"
    error: _TextError


def usual_reason(status: str) -> str:
    return USUAL_REASONS.get(status, "")


def refusals_of(call: RestCall) -> Iterator[tuple[str, str]]:
    """Status and reason of everything that a call may refuse with, in order."""
    found = dict.fromkeys(map(str, _expected(call)), "")
    found |= {str(status): reason for status, reason in call.refusals.items()}
    for status in sorted(found):
        yield status, found[status] or usual_reason(status)
    yield "5XX", usual_reason("5XX")


def _expected(call: RestCall) -> Iterator[int]:
    if call.tokens:
        yield from (401, 403)
    if call.needs_certificate:
        yield 403
    if call.queries or call.headers or call.takes_body:
        yield 400
    if call.takes_body:
        yield from (413, 415)
    if call.names or call.queries or call.headers:
        yield 404
    if call.is_conditional:
        yield 412
    yield 429


def error_shape(call: RestCall, status: str) -> type[Shape]:
    """The shape of an error. In errors of /accounts/token the code is a text."""
    return TextErrorBody if call.path == "/accounts/token" and status in {"400", "401"} else ErrorBody


def error_example(status: str, reason: str) -> dict[str, Any] | None:
    if not status.isdigit():
        return None
    if status == "400":
        errors = [[{"field": "name", "messages": [too_long(64)]}]]
        return {"error": {"code": 4001, "message": ValidationFailed.template, "id": samples.ERROR, "errors": errors}}
    return {"error": {"code": int(status), "message": reason, "id": samples.ERROR}}
