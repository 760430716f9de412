"""Authorization server metadata, with which standard clients configure themselves (RFC 8414)."""

from quart import Blueprint, Response

from broker.accounts.token_server import DEVICE_CODE_GRANT
from broker.site import AccountsRoot
from protocols.http.answers import json_answer

_PATH = "/.well-known/oauth-authorization-server"
_CLIENT_PROOFS = ["client_secret_basic", "client_secret_post", "none"]


def discovery_blueprint(root: AccountsRoot) -> Blueprint:
    routes = Blueprint("discovery", __name__)

    def about(issuer: str) -> Response:
        answer = json_answer(
            {
                "issuer": issuer,
                "authorization_endpoint": f"{root.url}/authorize",
                "token_endpoint": f"{root.url}/token",
                "device_authorization_endpoint": f"{root.url}/device/code",
                "revocation_endpoint": f"{root.url}/revokeToken",
                "response_types_supported": ["code", "token"],
                "response_modes_supported": ["query", "fragment"],
                "grant_types_supported": [
                    "authorization_code",
                    "implicit",
                    "client_credentials",
                    "refresh_token",
                    DEVICE_CODE_GRANT,
                ],
                "token_endpoint_auth_methods_supported": _CLIENT_PROOFS,
                "revocation_endpoint_auth_methods_supported": _CLIENT_PROOFS,
                "code_challenge_methods_supported": ["S256"],
            }
        )
        answer.headers["Access-Control-Allow-Origin"] = "*"
        return answer

    @routes.get(_PATH)
    async def of_the_origin() -> Response:
        return about(root.origin)

    if root.path:

        @routes.get(f"{_PATH}{root.path}")
        async def of_the_accounts() -> Response:
            """RFC 8414, 3.1: for an issuer with a path, the well-known part stands before the path."""
            return about(root.url)

    return routes
