"""Refusals and failures as REST answers (reference 3).

Every error has a fresh id that the caller and the log both see.
"""

from collections.abc import Mapping
from typing import Final

import structlog
from quart import Quart, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from broker.errors import BodyTooLarge, DomainError, ValidationFailed
from broker.ids import new_id
from broker.scenes.sending import SceneInvalid
from broker.trace.refusals import Refusals
from protocols.http.answers import REST_ROOT, Answer, plain_answer
from protocols.http.conditional import PreconditionFailed
from protocols.refusals import (
    error_id_of,
    note_refusal,
    refusal_for,
    rest_error_body,
    rest_refusal_body,
    rest_refusal_headers,
)
from storage.sql import StoreError

_RETRY_SECONDS = 5

_log = structlog.get_logger(__name__)


_REFUSALS = "REFUSALS"
#: Of scenes (reference 12.5).
SCENE_ERROR_TYPES: Final = ("ValidationError", "PermissionDenied", "NotFound", "SceneInvalid")
_BY_STATUS: Final = {400: "ValidationError", 403: "PermissionDenied", 404: "NotFound"}
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def install_error_handlers(app: Quart, refusals: Refusals) -> None:
    app.config[_REFUSALS] = refusals
    app.register_error_handler(DomainError, _refused)
    app.register_error_handler(StoreError, _refused)
    app.register_error_handler(HTTPException, refused_by_http)
    app.register_error_handler(Exception, _failed)


def app_refusals() -> Refusals:
    """Where the current application logs what it refuses."""
    refusals: Refusals = current_app.config[_REFUSALS]
    return refusals


def refusal_answer(error: DomainError | StoreError, refusals: Refusals, method: str, route: str) -> Answer:
    """Log a refusal, and answer with it. `method` and `route` are those for the log, without secrets."""
    error = refusal_for(error)
    error_id = error_id_of(error)
    note_refusal(
        refusals, "http", error, code=error.code, error_id=error_id, status=error.status, method=method, route=route
    )
    headers = rest_refusal_headers(error)
    if error.status == 503:
        headers["Retry-After"] = str(_RETRY_SECONDS)
    body = rest_refusal_body(error, error_id, _scene_members(route, error))
    if isinstance(error, PreconditionFailed):
        headers["ETag"] = f'"{error.tag}"'
        body = b"%s,%s" % (body[:-1], plain_answer({"data": error.present}).body[1:])
    return Answer(body, error.status, tuple(headers.items()))


def failure_answer(error: Exception, method: str, route: str) -> Answer:
    """Log a bug, and answer that there is one."""
    error_id = new_id()
    _log.error("http_failed", exc_info=error, error_id=error_id, status=500, method=method, route=route)
    return Answer(rest_error_body(500, "Internal Server Error", error_id), 500)


async def _refused(error: DomainError | StoreError) -> Response:
    return refusal_answer(error, app_refusals(), _method(), route_of_request()).response()


async def refused_by_http(error: HTTPException) -> Response:
    """Answer what Quart refuses: unknown paths, wrong methods, bodies that are too long or too slow."""
    forget_frames(error)
    status = error.code or 500
    if status == 413:
        return await _refused(BodyTooLarge())
    error_id, text = new_id(), error.name
    app_refusals().note(
        "http_refused",
        reason=text,
        code=status,
        error_id=error_id,
        status=status,
        method=_method(),
        route=route_of_request(),
    )
    return allow_methods(Answer(rest_error_body(status, text, error_id), status).response(), error)


def forget_frames(error: Exception) -> None:
    """The request, or a frame, keeps this error. With the frames that the error has passed, it would keep the request,
    too, and both would wait for the garbage collector."""
    error.__traceback__ = error.__context__ = None


def allow_methods(answer: Response, error: HTTPException) -> Response:
    """Add the methods that the path takes to an answer to a wrong method."""
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        answer.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return answer


async def _failed(error: Exception) -> Response:
    return failure_answer(error, _method(), route_of_request()).response()


def _method() -> str:
    """The method, for the log; empty for one that the peer has made up, which may be long or a secret."""
    return request.method if request.method in _METHODS else ""


def route_of_request() -> str:
    """The path of the request with the names of what varies, for the log; empty for an unknown path.

    Paths and queries as they were sent may have a token in them, also where none belongs.
    """
    return "" if request.url_rule is None else str(request.url_rule.rule)


def _scene_members(route: str, error: DomainError) -> Mapping[str, str]:
    """`errorType` and `errorMessage` of a refusal on this route. Refusals of other kinds have none."""
    path = route.removeprefix(REST_ROOT)
    if not path.startswith("/scenes") and not (path.startswith("/users/") and path.endswith("/scenes")):
        return {}
    kind = "SceneInvalid" if isinstance(error, SceneInvalid) else _BY_STATUS.get(error.status)
    return {} if kind is None else {"errorType": kind, "errorMessage": _scene_message(error)}


def _scene_message(error: DomainError) -> str:
    if not isinstance(error, ValidationFailed) or not error.findings:
        return str(error)
    return "; ".join(f"{one.field}: {', '.join(one.messages)}" for one in error.findings)
