"""The client of a third party's authorization server. Authlib implements the protocols; nothing here does I/O."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

import msgspec
from authlib.oauth1 import ClientAuth as OAuth1Auth
from authlib.oauth2.auth import ClientAuth as OAuth2Auth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from broker.accounts.redirects import with_parameters
from broker.connectors.plugin import AccessToken, Request, Response
from broker.connectors.terms import ConnectorTerms, OAuth1Terms, OAuth2Terms

_FORM: Final = "application/x-www-form-urlencoded"
_TOKEN_CHARACTERS: Final = 16_384
# The errors after which only the user can authorize again: RFC 6749, 5.2, and deviations of some servers.
_REVOKED: Final = frozenset({"invalid_grant", "invalid_token"})
# RFC 6749, 5.2: what is wrong with the operator's client, not with the user's token.
_OPERATOR: Final = frozenset({"invalid_client", "unauthorized_client", "unsupported_grant_type"})

# Codes of OAuth 1 servers about the client (the extension "Problem Reporting"); RFC 5849 has no such codes.
_CLIENT_PROBLEMS: Final = ("consumer_key", "signature", "timestamp", "nonce", "version_rejected")


class AuthorizationRefusedError(Exception):
    """The third party did not issue a token. `error` is an error code of RFC 6749."""

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(reason)
        self.error = error


class OperatorFaultError(AuthorizationRefusedError):
    """The third party refuses the client that the operator registered. The user's authorization is not affected."""


class TokenRevokedError(Exception):
    """The third party does not accept the token any more: the user must authorize again."""


class Started(msgspec.Struct, frozen=True):
    """The address to send the browser to, and the secret to check the answer with."""

    url: str
    secret: str


class Granted(msgspec.Struct, frozen=True):
    token: AccessToken
    account: str | None


class OAuthClient(Protocol):
    def first_request(self, redirect_uri: str) -> Request | None:
        """The request to send before the browser goes to the third party; None when none is needed."""

    def start(self, *, redirect_uri: str, state: str, mobile: bool, response: Response | None) -> Started:
        """The authorization request for the browser. Raises AuthorizationRefusedError."""

    def exchange(self, *, redirect_uri: str, parameters: Mapping[str, str], secret: str) -> Request:
        """The request that exchanges the browser's parameters for a token. Raises AuthorizationRefusedError."""

    def granted(self, response: Response, *, now_ms: int) -> Granted:
        """The token in the answer to `exchange`. Raises AuthorizationRefusedError."""

    def refresh(self, token: AccessToken) -> Request | None:
        """The request that renews a token; None when only the user can renew it."""

    def refreshed(self, response: Response, old: AccessToken, *, now_ms: int) -> AccessToken:
        """The token in the answer to `refresh`.

        Raises:
            TokenRevokedError: only the user can renew the token.
            AuthorizationRefusedError: a later attempt may succeed.
        """

    def sign(self, request: Request, token: AccessToken) -> Request:
        """The request with its `Authorization` header."""

    def blames_client(self, response: Response) -> bool:
        """Whether a 401 for a signed request refuses the operator's client, and not the user's token."""


def oauth_client(terms: ConnectorTerms) -> OAuthClient:
    """The client for OAuth 1 or 2. Raises ValueError when the terms have neither, or both."""
    if terms.oauth2 is not None and terms.oauth1 is None:
        return OAuth2Client(terms.oauth2)
    if terms.oauth1 is not None and terms.oauth2 is None:
        return OAuth1Client(terms.oauth1)
    raise ValueError("must have oauth2 or oauth1")


class OAuth2Client:
    def __init__(self, terms: OAuth2Terms) -> None:
        self._terms = terms
        self._auth = OAuth2Auth(terms.client_id, terms.client_secret, terms.authentication)

    def first_request(self, redirect_uri: str) -> None:
        del redirect_uri

    def start(self, *, redirect_uri: str, state: str, mobile: bool, response: Response | None) -> Started:
        del response
        terms = self._terms
        verifier = secrets.token_urlsafe(48) if terms.pkce else ""
        pkce = (
            {"code_challenge": create_s256_code_challenge(verifier), "code_challenge_method": "S256"}
            if verifier
            else {}
        )
        page = (terms.mobile_authorize_url if mobile else None) or terms.authorize_url
        url = prepare_grant_uri(
            page,
            terms.client_id,
            "code",
            redirect_uri=redirect_uri,
            scope=terms.scope or None,
            state=state,
            **(terms.parameters | pkce),
        )
        return Started(url, verifier)

    def exchange(self, *, redirect_uri: str, parameters: Mapping[str, str], secret: str) -> Request:
        code = parameters.get("code")
        if not code:
            raise AuthorizationRefusedError("server_error", "no code")
        return self._token_request(
            "authorization_code", redirect_uri=redirect_uri, code=code, code_verifier=secret or None
        )

    def refresh(self, token: AccessToken) -> Request | None:
        if not token.refresh:
            return None
        return self._token_request("refresh_token", refresh_token=token.refresh)

    def _token_request(self, grant: str, **parameters: str | None) -> Request:
        headers = {"Content-Type": _FORM, "Accept": "application/json"}
        url, headers, body = self._auth.prepare(
            "POST", self._terms.token_url, headers, prepare_token_request(grant, **parameters)
        )
        return Request("POST", url, headers, body.encode())

    def granted(self, response: Response, *, now_ms: int) -> Granted:
        answer = _object(response)
        if not response.ok:
            raise _refusal(response, answer)
        return Granted(_token(answer, now_ms), _account(answer, self._terms.account_member))

    def refreshed(self, response: Response, old: AccessToken, *, now_ms: int) -> AccessToken:
        answer = _object(response)
        if 400 <= response.status < 500 and answer.get("error") in _REVOKED:
            raise TokenRevokedError
        if not response.ok:
            raise _refusal(response, answer)
        token = _token(answer, now_ms)
        # RFC 6749, 6: without a new refresh token the old one stays.
        return token if token.refresh else msgspec.structs.replace(token, refresh=old.refresh)

    def sign(self, request: Request, token: AccessToken) -> Request:
        return replace(request, headers={**request.headers, "Authorization": f"Bearer {token.value}"})

    def blames_client(self, response: Response) -> bool:
        return "invalid_client" in response.headers.get("www-authenticate", "")


class OAuth1Client:
    def __init__(self, terms: OAuth1Terms) -> None:
        self._terms = terms

    def _signed(self, request: Request, **about: str) -> Request:
        auth = OAuth1Auth(self._terms.consumer_key, self._terms.consumer_secret, **about)
        is_form = request.headers.get("Content-Type") == _FORM
        # RFC 5849, 3.4.1.3.1: only a form's members are signed; any other body is left as it is.
        body = request.body if is_form else b""
        _, headers, _ = auth.prepare(request.method, request.url, dict(request.headers), body)
        return replace(request, headers={**request.headers, "Authorization": headers["Authorization"]})

    def first_request(self, redirect_uri: str) -> Request:
        return self._signed(Request("POST", self._terms.request_token_url), redirect_uri=redirect_uri)

    def start(self, *, redirect_uri: str, state: str, mobile: bool, response: Response | None) -> Started:
        """The state is in the redirect address that `first_request` was given: RFC 5849 has no parameter for it."""
        del redirect_uri, state
        answer = _form(response)
        token, secret = answer.get("oauth_token"), answer.get("oauth_token_secret")
        if not token or secret is None or answer.get("oauth_callback_confirmed") != "true":
            raise AuthorizationRefusedError("server_error", "no request token")
        page = (self._terms.mobile_authorize_url if mobile else None) or self._terms.authorize_url
        return Started(with_parameters(page, [("oauth_token", token)]), f"{token} {secret}")

    def exchange(self, *, redirect_uri: str, parameters: Mapping[str, str], secret: str) -> Request:
        del redirect_uri
        token, _, token_secret = secret.partition(" ")
        verifier = parameters.get("oauth_verifier")
        if parameters.get("oauth_token") != token or not verifier:
            raise AuthorizationRefusedError("access_denied", "no verifier for the request token")
        return self._signed(
            Request("POST", self._terms.access_token_url), token=token, token_secret=token_secret, verifier=verifier
        )

    def granted(self, response: Response, *, now_ms: int) -> Granted:
        del now_ms
        answer = _form(response)
        token, secret = answer.get("oauth_token"), answer.get("oauth_token_secret")
        if not token or secret is None:
            raise AuthorizationRefusedError("server_error", f"no access token: {response.status}")
        return Granted(AccessToken(value=token, secret=secret), _account(answer, self._terms.account_member))

    def refresh(self, token: AccessToken) -> None:
        del token

    def refreshed(self, response: Response, old: AccessToken, *, now_ms: int) -> AccessToken:
        """OAuth 1 has no refresh: only the user can renew its token."""
        del response, old, now_ms
        raise TokenRevokedError

    def sign(self, request: Request, token: AccessToken) -> Request:
        return self._signed(request, token=token.value, token_secret=token.secret)

    def blames_client(self, response: Response) -> bool:
        told = response.headers.get("www-authenticate", "") + response.body[:1_000].decode("latin-1")
        return any(f"oauth_problem={problem}" in told.replace('"', "") for problem in _CLIENT_PROBLEMS)


def _refusal(response: Response, answer: Mapping[str, Any]) -> AuthorizationRefusedError:
    error = str(answer.get("error"))[:100]
    kind = OperatorFaultError if response.status == 401 or error in _OPERATOR else AuthorizationRefusedError
    return kind("server_error", f"the token endpoint answered {response.status} {error!r}")


def _object(response: Response) -> Mapping[str, Any]:
    try:
        answer = response.json()
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = None
    return answer if isinstance(answer, dict) else {}


def _form(response: Response | None) -> Mapping[str, str]:
    if response is None or not response.ok or len(response.body) > _TOKEN_CHARACTERS:
        return {}
    return dict(parse_qsl(response.body.decode("latin-1"), max_num_fields=100))


def _token(answer: Mapping[str, Any], now_ms: int) -> AccessToken:
    value, refresh = answer.get("access_token"), answer.get("refresh_token") or ""
    seconds, scope = answer.get("expires_in"), answer.get("scope")
    if not isinstance(value, str) or not value or not isinstance(refresh, str):
        raise AuthorizationRefusedError("server_error", "the token endpoint gave no access token")
    if not f"{value}{refresh}".isascii() or len(value) + len(refresh) > _TOKEN_CHARACTERS:
        raise AuthorizationRefusedError("server_error", "the token endpoint gave a token that cannot be used")
    if str(answer.get("token_type", "bearer")).lower() != "bearer":
        raise AuthorizationRefusedError("server_error", "the token endpoint gave no bearer token")
    lasts = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 2**33
    return AccessToken(
        value=value,
        refresh=refresh,
        expires_on=now_ms + int(seconds * 1000) if lasts and seconds is not None else None,
        scope=scope[:1000] if isinstance(scope, str) else "",
    )


def _account(answer: Mapping[str, Any], member: str | None) -> str | None:
    found = answer.get(member) if member is not None else None
    return str(found) if isinstance(found, str | int) else None
