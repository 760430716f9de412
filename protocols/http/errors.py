"""Refusals and failures as REST answers (reference 3).

Every error has a fresh id that the caller and the log both see.
"""

from typing import Any, Final

import structlog
from quart import Quart, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from broker.errors import BodyTooLarge, DomainError
from broker.ids import new_id
from broker.trace.refusals import Refusals
from protocols.http.answers import error_answer
from protocols.http.peers import note_origin
from protocols.http.scene_errors import scene_members
from protocols.refusals import note_refusal, refusal_for, rest_error_body, rest_refusal_body, rest_refusal_headers
from storage.sql import StoreError

_RETRY_SECONDS = 5

_log = structlog.get_logger(__name__)


_REFUSALS = "REFUSALS"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def install_error_handlers(app: Quart, refusals: Refusals) -> None:
    app.config[_REFUSALS] = refusals
    app.before_request(note_origin)
    app.register_error_handler(DomainError, _refused)
    app.register_error_handler(StoreError, _store_failed)
    app.register_error_handler(HTTPException, refused_by_http)
    app.register_error_handler(Exception, _failed)


def app_refusals() -> Refusals:
    """Where the current application logs what it refuses."""
    refusals: Refusals = current_app.config[_REFUSALS]
    return refusals


async def _refused(error: DomainError) -> Response:
    error_id = new_id()
    about = _about(error_id, error.status)
    note_refusal(app_refusals(), "http", error, code=error.code, **about)
    answer = error_answer(error.status, rest_refusal_body(error, error_id, scene_members(route_of_request(), error)))
    answer.headers.update(rest_refusal_headers(error))
    if error.status == 503:
        answer.headers["Retry-After"] = str(_RETRY_SECONDS)
    return answer


async def _store_failed(error: StoreError) -> Response:
    return await _refused(refusal_for(error))


async def refused_by_http(error: HTTPException) -> Response:
    """Answer what Quart refuses: unknown paths, wrong methods, bodies that are too long or too slow."""
    status = error.code or 500
    if status == 413:
        return await _refused(BodyTooLarge())
    error_id, text = new_id(), error.name
    app_refusals().note("http_refused", reason=text, code=status, **_about(error_id, status))
    return allow_methods(error_answer(status, rest_error_body(status, text, error_id)), error)


def allow_methods(answer: Response, error: HTTPException) -> Response:
    """Add the methods that the path takes to an answer to a wrong method."""
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        answer.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return answer


async def _failed(error: Exception) -> Response:
    error_id = new_id()
    _log.error("http_failed", exc_info=error, **_about(error_id, 500))
    return error_answer(500, rest_error_body(500, "Internal Server Error", error_id))


def _about(error_id: str, status: int) -> dict[str, Any]:
    return {"error_id": error_id, "status": status, "method": _method(), "route": route_of_request()}


def _method() -> str:
    """The method, for the log; empty for one that the peer has made up, which may be long or a secret."""
    return request.method if request.method in _METHODS else ""


def route_of_request() -> str:
    """The path of the request with the names of what varies, for the log; empty for an unknown path.

    Paths and queries as they were sent may have a token in them, also where none belongs.
    """
    return "" if request.url_rule is None else str(request.url_rule.rule)
