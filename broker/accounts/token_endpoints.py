"""The token endpoints /token and /device/code. Authlib decides each request in one transaction (token_server.py).

This module translates what reference 4.3 and 4.4 add to RFC 6749 and RFC 8628 before Authlib reads the request:
parameters may stand in the body or in the query, `device_code` is a grant type whose code may be called `code`, and
`scope` is ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace

from broker.accounts.clients import Credentials
from broker.accounts.grants import DeviceCodeTerms, TokenServerRequest
from broker.accounts.issuance import Issuance
from broker.accounts.openid import NoSigningKey, SigningKeys
from broker.accounts.token_server import DEVICE_CODE_GRANT, TokenResponse, TokenServer
from broker.accounts.tokens import Tokens
from broker.secrets import Vault
from broker.site import AccountsRoot

_KNOWN: Final = frozenset(
    {
        "grant_type",
        "client_id",
        "client_secret",
        "code",
        "code_verifier",
        "device_code",
        "old_access_token",
        "redirect_uri",
        "refresh_token",
    }
)


_SECRETS: Final = frozenset(
    {"client_secret", "code", "code_verifier", "device_code", "old_access_token", "refresh_token"}
)
#: Published clients send secrets in the address, where proxies log them (RFC 9110, 17.9). They are read all the same.
_MISPLACED: Final = (
    '299 - "Secrets belong in the form body, and the client secret in the Authorization header, not in the URI"'
)


class TokenRequest(msgspec.Struct, frozen=True):
    """An unchanged request: every value of every parameter, and the Authorization header."""

    parameters: Mapping[str, Sequence[str]]
    authorization: str = ""
    has_secret_in_query: bool = False

    @classmethod
    def of(cls, *, query: bytes, body: bytes, authorization: str = "") -> "TokenRequest":
        """Merge form and query; where both have a parameter, the form's counts. Empty parameters are absent."""
        in_query = _fields(query)
        return cls(in_query | _fields(body), authorization, has_secret_in_query=not _SECRETS.isdisjoint(in_query))


def _fields(text: bytes) -> dict[str, list[str]]:
    # A client may have written a second question mark before a name (reference 1.3).
    return {name.lstrip("?"): values for name, values in parse_qs(text.decode("latin-1"), errors="replace").items()}


class TokenEndpoints:
    def __init__(self, tokens: Tokens, vault: Vault, signing_keys: SigningKeys, terms: DeviceCodeTerms) -> None:
        self._tokens = tokens
        self._vault = vault
        self._signing_keys = signing_keys
        self._terms = terms

    def at(self, root: AccountsRoot) -> "TokenEndpoints":
        """These endpoints at another root: addresses in their responses begin with that root."""
        return TokenEndpoints(self._tokens, self._vault, self._signing_keys, replace(self._terms, root=root))

    async def token(self, request: TokenRequest) -> TokenResponse:
        """POST /token: every row of the grant table (reference 4.3). Errors are responses, not exceptions."""
        return await self._run(request, needs_grant_type=True, work=TokenServer.create_token_response)

    async def refresh_implicit(self, request: TokenRequest) -> TokenResponse:
        """POST {base_url}/accounts/token: only refreshes tokens of the implicit flow (reference 4.3)."""
        if request.parameters.get("grant_type", ["refresh_token"])[-1] != "refresh_token":
            return _told(request, _refusal("unsupported_grant_type", "This API refreshes tokens only"))
        return await self._run(
            request, needs_grant_type=True, work=TokenServer.create_token_response, implicit_only=True
        )

    async def device_code(self, request: TokenRequest) -> TokenResponse:
        """POST /device/code (RFC 8628, 3.1)."""
        return await self._run(request, needs_grant_type=False, work=_authorize_device)

    async def _run(
        self,
        request: TokenRequest,
        *,
        needs_grant_type: bool,
        work: Callable[[TokenServer, TokenServerRequest], Any],
        implicit_only: bool = False,
    ) -> TokenResponse:
        answer = await self._answer(request, needs_grant_type=needs_grant_type, work=work, implicit_only=implicit_only)
        return _told(request, answer)

    async def _answer(
        self,
        request: TokenRequest,
        *,
        needs_grant_type: bool,
        work: Callable[[TokenServer, TokenServerRequest], Any],
        implicit_only: bool,
    ) -> TokenResponse:
        repeated = sorted(name for name in _KNOWN if len(request.parameters.get(name, ())) > 1)
        if repeated:
            return _refusal("invalid_request", f"{repeated[0]} is repeated")
        parameters = _plain(request.parameters)
        if needs_grant_type and "grant_type" not in parameters:
            return _refusal("invalid_request", "grant_type is missing")
        prepared = TokenServerRequest(
            parameters, Credentials.of_header(request.authorization), implicit_only=implicit_only
        )

        def in_transaction(issuance: Issuance) -> TokenResponse:
            answer: TokenResponse = work(TokenServer(issuance, self._vault, self._terms), prepared)
            return answer

        try:
            return await self._tokens.change(in_transaction)
        except NoSigningKey:
            await self._signing_keys.ensure()
            return await self._tokens.change(in_transaction)


def _told(request: TokenRequest, answer: TokenResponse) -> TokenResponse:
    """The answer, with a warning where the request had a secret in its address."""
    if not request.has_secret_in_query:
        return answer
    return replace(answer, headers={**answer.headers, "Warning": _MISPLACED})


def _authorize_device(server: TokenServer, request: TokenServerRequest) -> Any:
    return server.create_endpoint_response("device_authorization", request)


def _plain(parameters: Mapping[str, Sequence[str]]) -> dict[str, str]:
    plain = {name: values[-1] for name, values in parameters.items() if name in _KNOWN}
    if plain.get("grant_type") == "device_code":
        plain["grant_type"] = DEVICE_CODE_GRANT
    if plain.get("grant_type") == DEVICE_CODE_GRANT and "code" in plain:
        plain.setdefault("device_code", plain["code"])
    return plain


def _refusal(error: str, description: str) -> TokenResponse:
    return TokenResponse(400, {"error": error, "error_description": description})
