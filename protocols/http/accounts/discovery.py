"""Metadata with which standard clients configure themselves: of the authorization server (RFC 8414), and of the OpenID
provider (OpenID Connect Discovery 1.0, 3)."""

from collections.abc import Mapping
from typing import Any, Final

from quart import Blueprint, Response

from broker.accounts.openid import ALGORITHM, CLAIMS, SCOPES
from broker.accounts.token_server import DEVICE_CODE_GRANT
from broker.site import AccountsRoot
from protocols.http.accounts.openid import KEYS, USERINFO
from protocols.http.answers import json_answer

_OPENID: Final = "/.well-known/openid-configuration"
_PATH = "/.well-known/oauth-authorization-server"
_CLIENT_PROOFS = ["client_secret_basic", "client_secret_post", "none"]


def discovery_blueprint(root: AccountsRoot) -> Blueprint:
    routes = Blueprint("discovery", __name__)

    def about(issuer: str, **more: Any) -> Response:
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
                **more,
            }
        )
        answer.headers["Access-Control-Allow-Origin"] = "*"
        return answer

    @routes.get(_PATH)
    async def of_the_origin() -> Response:
        return about(root.origin)

    @routes.get(_OPENID)
    async def of_the_provider() -> Response:
        """The issuer of ID tokens is the origin."""
        return about(root.origin, **_of_provider(root))

    if root.path:

        @routes.get(f"{_PATH}{root.path}")
        async def of_the_accounts() -> Response:
            """RFC 8414, 3.1: for an issuer with a path, the well-known part stands before the path."""
            return about(root.url)

    return routes


def _of_provider(root: AccountsRoot) -> Mapping[str, Any]:
    return {
        "userinfo_endpoint": f"{root.url}{USERINFO}",
        "jwks_uri": f"{root.url}{KEYS}",
        "scopes_supported": list(SCOPES),
        "claims_supported": ["iss", "aud", "exp", "iat", "auth_time", "nonce", "at_hash", *CLAIMS],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [ALGORITHM],
        "prompt_values_supported": ["none", "login", "consent", "select_account"],
        "claims_parameter_supported": False,
        "request_parameter_supported": False,
        "request_uri_parameter_supported": False,
    }
