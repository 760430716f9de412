"""POST /token and POST /device/code. Their errors are flat JSON objects, unlike those of REST (reference 3.1)."""

from http import HTTPStatus
from typing import Final

import structlog
from quart import Blueprint, Response, request
from werkzeug.exceptions import HTTPException

from broker.accounts.token_endpoints import TokenEndpoints, TokenRequest
from broker.accounts.token_server import TokenResponse
from broker.errors import DomainError, TryLater
from broker.ids import new_id
from broker.trace.audit import AuditEvent
from broker.trace.refusals import Refusals
from config.limits import MAX_FORM_BYTES
from protocols.http.answers import Answer, json_answer, plain_answer
from protocols.http.errors import app_refusals, route_of_request
from protocols.http.reading import read_body
from protocols.refusals import note_refusal, refusal_for
from storage.sql import StoreError

ENDPOINTS: Final = ("/token", "/device/code")
_WAITING: Final = frozenset({"authorization_pending", "slow_down"})  # a device polls (RFC 8628, 3.5)
_CREDENTIALS: Final = frozenset({"invalid_client", "invalid_grant"})

_log = structlog.get_logger(__name__)


def token_blueprint(grants: TokenEndpoints) -> Blueprint:
    routes = Blueprint("token", __name__)

    @routes.post(ENDPOINTS[0])
    async def token() -> Response:
        return _flat(await grants.token(await token_request()))

    @routes.post(ENDPOINTS[1])
    async def device_code() -> Response:
        return _flat(await grants.device_code(await token_request()))

    @routes.errorhandler(DomainError)
    @routes.errorhandler(StoreError)
    async def refused(error: DomainError | StoreError) -> Response:
        return token_refusal(refusal_for(error), app_refusals()).response()

    @routes.errorhandler(HTTPException)
    async def refused_by_http(error: HTTPException) -> Response:
        """A body that Quart refuses: it is too long, slow or cut off."""
        return json_answer({"error": "invalid_request", "error_description": error.name}, error.code or 400)

    @routes.errorhandler(Exception)
    async def failed(error: Exception) -> Response:
        error_id = new_id()
        # Do not log the query or the body: they contain secrets.
        _log.error("token_call_failed", exc_info=error, error_id=error_id, route=route_of_request())
        return json_answer({"error": "server_error", "error_description": f"Unexpected error {error_id}"}, 400)

    return routes


def token_refusal(error: DomainError, refusals: Refusals) -> Answer:
    """Log a refusal, and answer with it."""
    note_refusal(refusals, "token_request", error)
    name = "temporarily_unavailable" if error.status == HTTPStatus.SERVICE_UNAVAILABLE else "invalid_request"
    headers = (("Retry-After", str(error.retry_seconds)),) if isinstance(error, TryLater) else ()
    return plain_answer({"error": name, "error_description": str(error)}, error.status)._replace(headers=headers)


async def token_request() -> TokenRequest:
    return TokenRequest.of(
        query=request.query_string,
        body=await read_body(limit=MAX_FORM_BYTES),
        authorization=request.headers.get("Authorization", ""),
    )


def note_refused_request(answer: TokenResponse) -> None:
    """Log an answer that is an error, unless it only tells a device to go on waiting."""
    error = answer.body.get("error")
    if error is not None and error not in _WAITING:
        audited = AuditEvent.TOKEN_REFUSED if error in _CREDENTIALS else None
        about = {"application": answer.application} if answer.application else {}
        app_refusals().note("token_request_refused", reason=error, audited=audited, **about)


def _flat(answer: TokenResponse) -> Response:
    note_refused_request(answer)
    response = json_answer(answer.body, answer.status)
    response.headers.update(answer.headers)
    return response
