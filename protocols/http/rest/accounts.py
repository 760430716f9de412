"""/accounts on the REST root: three calls of the accounts server (reference 2.2)."""

from quart import Blueprint, Response

from broker.accounts.token_server import TokenResponse
from broker.services import Services
from protocols.http.accounts.information import check, tell_about
from protocols.http.accounts.token import token_request
from protocols.http.answers import json_answer
from protocols.http.guard import APPLICATION, DEVICE, USER, Guard


def rest_accounts_blueprint(services: Services, guard: Guard) -> Blueprint:
    routes = Blueprint("rest_accounts", __name__)

    @routes.post("/accounts/token")
    async def refresh() -> Response:
        """Implicit tokens only. The old token may be expired, so `Guard` is not asked."""
        return _with_text_code(await services.accounts.grants.refresh_implicit(await token_request()))

    @routes.post("/accounts/checkToken")
    async def check_token() -> Response:
        return await check(services.accounts.tokens)

    @routes.get("/accounts/tokenInfo")
    async def token_info() -> Response:
        await guard.caller(USER, APPLICATION, DEVICE)
        return await tell_about(services.accounts.tokens)

    return routes


def _with_text_code(answer: TokenResponse) -> Response:
    if "error" not in answer.body:
        return json_answer(answer.body, answer.status)
    error = {"code": answer.body["error"], "message": answer.body.get("error_description", answer.body["error"])}
    return json_answer({"error": error}, answer.status)
