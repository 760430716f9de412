"""The client of external identity providers: Authlib over httpx, with limits on time and size.

The metadata and keys of a provider are cached for an hour. Redirects are not followed, and every address must be https
or loopback.
"""

import ssl
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import msgspec
import trio

from broker.accounts.provider_port import (
    AuthenticationRequest,
    ProviderDenied,
    ProviderError,
    ProviderMetadata,
    Providers,
    ProviderTokens,
)
from broker.nesting import check_nesting
from config.loading import SettingsError
from config.providers import is_trustworthy
from config.settings import IdentityProvider, Settings
from protocols.outbound.http import HttpAnswer, HttpFailedError, OutboundHttp

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Authlib warns that it prefers another httpx package
    from authlib.common.errors import AuthlibBaseError
    from authlib.integrations.httpx_client import AsyncOAuth2Client

T = TypeVar("T")
TALK_SECONDS: Final = 10.0
ANSWER_BYTES: Final = 256 * 1024
_SENT_HEADERS: Final = frozenset({"accept", "authorization", "content-type"})
_REMEMBERED_SECONDS: Final = 3600
_KEYS_AGAIN_SECONDS: Final = 60  # the shortest time between two fetches, also when tokens name unknown keys


class _Metadata(msgspec.Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


@dataclass(slots=True)
class _Known:
    """The cached metadata and keys of one provider, and their times, in seconds of trio's clock."""

    metadata: _Metadata
    asked_at: float
    keys: Mapping[str, Any] | None = None
    keys_asked_at: float = 0.0


def identity_providers(settings: Settings, tls: ssl.SSLContext) -> Providers:
    """The client of the providers in the settings. Raises SettingsError when a secret's file cannot be used."""
    secrets = {provider.name: _secret(provider) for provider in settings.accounts.providers}
    # The operator has chosen the providers, so they may be on a private network.
    return HttpProviders(secrets, OutboundHttp(tls, allow_private=True))


def _secret(provider: IdentityProvider) -> str:
    if not provider.client_secret_file:
        return provider.client_secret
    try:
        return Path(provider.client_secret_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingsError(f"accounts.providers: {provider.name}: {provider.client_secret_file}: {reason}") from None


class HttpProviders:
    """`secrets` by the provider's name; with an empty secret, Trunkline is a public client."""

    def __init__(self, secrets: Mapping[str, str], http: OutboundHttp) -> None:
        self._secrets = secrets
        self._http = http
        self._known: dict[str, _Known] = {}

    async def authorization_url(self, provider: IdentityProvider, authentication: AuthenticationRequest) -> str:
        about = (await self._about(provider)).metadata
        more = {"prompt": "login"} if authentication.login_wanted else {}
        async with self._client(provider, about, authentication) as client:
            url, _state = client.create_authorization_url(
                about.authorization_endpoint,
                state=authentication.state,
                code_verifier=authentication.code_verifier,
                nonce=authentication.nonce,
                **more,
            )
        return str(url)

    async def tokens(
        self, provider: IdentityProvider, authentication: AuthenticationRequest, code: str
    ) -> ProviderTokens:
        about = (await self._about(provider)).metadata
        async with self._client(provider, about, authentication) as client:
            try:
                token = await client.fetch_token(
                    about.token_endpoint,
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=authentication.code_verifier,
                )
            except AuthlibBaseError as error:
                raise ProviderDenied(str(error)) from error
            # Authlib raises these for an answer that is no JSON object.
            except (httpx.HTTPError, ValueError, TypeError, AttributeError) as error:
                raise ProviderError(f"{type(error).__name__}: not a token response") from error
        id_token, access_token = token.get("id_token"), token.get("access_token")
        if not isinstance(id_token, str):
            raise ProviderDenied("the answer has no ID token")
        return ProviderTokens(id_token, access_token if isinstance(access_token, str) else "")

    async def userinfo(self, provider: IdentityProvider, access_token: str) -> Mapping[str, Any]:
        url = (await self._about(provider)).metadata.userinfo_endpoint
        if url is None:
            raise ProviderError("it has no userinfo endpoint")
        if not access_token.isascii() or not access_token.isprintable():
            raise ProviderDenied("its access token does not fit into a header")
        headers = {"accept": "application/json", "authorization": f"Bearer {access_token}"}
        answer = await _send(self._http, "GET", url, headers=headers)
        if answer.headers.get("content-type", "").startswith("application/jwt"):
            raise ProviderDenied("its userinfo is a JWT: please register us for plain JSON there")
        if answer.status in {400, 401, 403}:  # RFC 6750, 3.1
            raise ProviderDenied(f"{url} answers {answer.status}")
        return _read(url, answer, dict[str, Any])

    async def metadata(self, provider: IdentityProvider) -> ProviderMetadata:
        about = (await self._about(provider)).metadata
        return ProviderMetadata(
            about.issuer,
            about.authorization_endpoint,
            about.token_endpoint,
            about.jwks_uri,
            about.id_token_signing_alg_values_supported,
            about.userinfo_endpoint,
        )

    async def keys(self, provider: IdentityProvider, *, but: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        known = await self._about(provider)
        age = trio.current_time() - known.keys_asked_at
        is_stale = age > _REMEMBERED_SECONDS or (known.keys is but and age > _KEYS_AGAIN_SECONDS)
        if known.keys is None or is_stale:
            known.keys = await self._fetch(known.metadata.jwks_uri, dict[str, Any])
            known.keys_asked_at = trio.current_time()
        return known.keys

    async def _about(self, provider: IdentityProvider) -> _Known:
        known = self._known.get(provider.name)
        if known is None or trio.current_time() - known.asked_at > _REMEMBERED_SECONDS:
            url = f"{provider.issuer.rstrip('/')}/.well-known/openid-configuration"
            metadata = await self._fetch(url, _Metadata)
            if metadata.issuer != provider.issuer:
                raise ProviderError("it says that it is another issuer")
            endpoints = (metadata.authorization_endpoint, metadata.token_endpoint, metadata.userinfo_endpoint)
            for address in (*endpoints, metadata.jwks_uri):
                if address is not None and not is_trustworthy(address):
                    raise ProviderError("one of its addresses is not https")
            known = self._known[provider.name] = _Known(metadata, trio.current_time())
        return known

    async def _fetch(self, url: str, kind: type[T]) -> T:
        return _read(url, await _send(self._http, "GET", url), kind)

    def _client(self, provider: IdentityProvider, about: _Metadata, authentication: AuthenticationRequest) -> Any:
        secret = self._secrets[provider.name]
        offered = about.token_endpoint_auth_methods_supported
        method = "client_secret_post" if "client_secret_basic" not in offered else "client_secret_basic"
        return AsyncOAuth2Client(
            client_id=provider.client_id,
            client_secret=secret or None,
            token_endpoint_auth_method=method if secret else "none",
            scope=" ".join(provider.scopes),
            redirect_uri=authentication.redirect_uri,
            code_challenge_method="S256",
            transport=_Transport(self._http),
        )


class _Transport(httpx.AsyncBaseTransport):
    """The transport of Authlib's client: sends its requests through OutboundHttp."""

    def __init__(self, http: OutboundHttp) -> None:
        self._http = http

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        headers = {name: value for name, value in request.headers.items() if name in _SENT_HEADERS}
        answer = await _send(self._http, request.method, str(request.url), headers=headers, body=body)
        return httpx.Response(answer.status, content=answer.body, request=request)


def _read(url: str, answer: HttpAnswer, kind: type[T]) -> T:
    if answer.status != 200:
        raise ProviderError(f"{url} answers {answer.status}")
    try:
        check_nesting(answer.body)
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProviderError(f"{url}: {error}") from error


async def _send(
    http: OutboundHttp, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> HttpAnswer:
    try:
        return await http.send(
            method, url, headers=headers or {}, body=body, seconds=TALK_SECONDS, most_bytes=ANSWER_BYTES
        )
    except HttpFailedError as error:
        raise ProviderError(str(error)) from error
