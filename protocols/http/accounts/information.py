"""Token information, validity and revocation (reference 4.5)."""

from urllib.parse import parse_qs

import msgspec
from quart import Blueprint, Response

from broker.accounts.tokens import TokenKind, Tokens
from broker.errors import PermissionDenied, Unauthorized
from config.limits import MAX_FORM_BYTES
from protocols.http.answers import json_answer
from protocols.http.guard import Guard, token_in_header
from protocols.http.reading import Query, members, read_body


def information_blueprint(tokens: Tokens, guard: Guard) -> Blueprint:
    routes = Blueprint("token_information", __name__)

    @routes.get("/tokenInfo")
    async def token_info() -> Response:
        return await tell_about(tokens)

    @routes.post("/checkToken")
    async def check_token() -> Response:
        return await validate_token(tokens)

    @routes.route("/revokeToken", methods=["POST", "PUT"])
    async def revoke_token() -> Response:
        await tokens.revoke(_sure(Query.of_request().text("token") or await _token_in_body() or token_in_header()))
        return _message("Token successfully revoked")

    @routes.put("/revokeAccessToken")
    async def revoke_access_token() -> Response:
        """Deprecated: an application, authenticated by a token of its own, revokes a token."""
        query = Query.of_request()
        given = query.text("client_credentials")
        caller = await tokens.caller(given) if given is not None else await guard.caller(TokenKind.APPLICATION)
        if caller.kind is not TokenKind.APPLICATION:
            raise PermissionDenied("application token")
        await tokens.revoke(_sure(query.text("token") or await _token_in_body()), on_behalf_of=caller)
        return _message("Token successfully revoked")

    return routes


async def tell_about(tokens: Tokens) -> Response:
    information = await tokens.information(_sure(Query.of_request().text("token") or token_in_header()))
    client = {} if information.client_id is None else {"client_id": information.client_id}
    return json_answer(
        {
            "data": {
                "device_id": information.device_id,
                "user_id": information.user_id,
                **client,
                "expires_in": information.expires_in,
            }
        }
    )


async def validate_token(tokens: Tokens) -> Response:
    await tokens.caller(_sure(await _token_in_body()))
    return _message("Token is valid")


class _TokenBody(msgspec.Struct):
    token: str | None = None


async def _token_in_body() -> str | None:
    """The member `token` of a JSON body, or the field `token` of a form."""
    body = await read_body(limit=MAX_FORM_BYTES)
    if body.lstrip().startswith(b"{"):
        return members(body, _TokenBody).token
    return parse_qs(body.decode("latin-1"), errors="replace").get("token", [None])[-1]


def _sure(token: str | None) -> str:
    if token is None:
        raise Unauthorized
    return token


def _message(text: str) -> Response:
    return json_answer({"data": {"message": text}})
