"""/userinfo and /jwks.json: the parts of the OpenID provider that no other flow has (reference 4.11)."""

from quart import Blueprint, Response

from broker.accounts.openid import SigningKeys
from broker.accounts.tokens import TokenKind
from broker.accounts.userinfo import Userinfo
from broker.errors import PermissionDenied, Unauthorized
from protocols.http.accounts.caching import accounts_path
from protocols.http.answers import json_answer
from protocols.http.errors import app_refusals, refusal_answer, route_of_request
from protocols.http.guard import Guard

USERINFO = "/userinfo"
KEYS = "/jwks.json"


def openid_blueprint(keys: SigningKeys, userinfo: Userinfo, guard: Guard) -> Blueprint:
    routes = Blueprint("openid", __name__)

    @routes.route(USERINFO, methods=["GET", "POST"])
    async def about_person() -> Response:
        caller = await guard.caller(TokenKind.USER)
        return json_answer(await userinfo.of(caller))

    @routes.get(KEYS)
    async def public_keys() -> Response:
        return json_answer(await keys.public())

    @routes.errorhandler(Unauthorized)
    @routes.errorhandler(PermissionDenied)
    async def refused(error: Unauthorized | PermissionDenied) -> Response:
        """RFC 6750, 3.1."""
        answer = refusal_answer(error, app_refusals(), "GET", route_of_request()).response()
        name = "invalid_token" if isinstance(error, Unauthorized) else "insufficient_scope"
        answer.headers["WWW-Authenticate"] = f'Bearer realm="{accounts_path() or "/"}", error="{name}"'
        return answer

    return routes
