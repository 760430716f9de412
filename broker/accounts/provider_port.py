"""The port to external identity providers. Implemented in protocols/outbound/identity_providers.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from config.settings import IdentityProvider


class ProviderMetadata(msgspec.Struct, frozen=True):
    """A provider's metadata (OpenID Connect Discovery 1.0, 3). `issuer` is the configured one."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    algorithms: tuple[str, ...]  # id_token_signing_alg_values_supported
    userinfo_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class AuthenticationRequest:
    """One authentication request to a provider (OpenID Connect Core 1.0, 3.1.2.1; RFC 7636)."""

    redirect_uri: str
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    code_verifier: str = field(repr=False)
    login_wanted: bool = False


@dataclass(frozen=True, slots=True)
class ProviderTokens:
    """The token response to a code. The ID token is not verified yet; the access token is for the userinfo endpoint."""

    id_token: str = field(repr=False)
    access_token: str = field(repr=False)


class ProviderError(Exception):
    """The provider was not reached, was too slow, or broke the protocol. The text is one line for the log."""


class ProviderDenied(Exception):
    """The provider answered with an error of the protocol. The text is one line for the log."""


class Providers(Protocol):
    """Conversations with providers. Every call is limited in time and in the size of the response.

    Raises:
        ProviderError: the call failed.
        ProviderDenied: the provider answered with an error.
    """

    async def authorization_url(self, provider: IdentityProvider, authentication: AuthenticationRequest) -> str:
        """The URL that the browser is redirected to, with PKCE (S256), `state` and `nonce`."""

    async def tokens(
        self, provider: IdentityProvider, authentication: AuthenticationRequest, code: str
    ) -> ProviderTokens:
        """Exchange a code for tokens, with the client secret and the code verifier."""

    async def userinfo(self, provider: IdentityProvider, access_token: str) -> Mapping[str, Any]:
        """The claims of the userinfo endpoint (OpenID Connect Core 1.0, 5.3). The provider must have one."""

    async def metadata(self, provider: IdentityProvider) -> ProviderMetadata: ...

    async def keys(self, provider: IdentityProvider, *, but: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The provider's JWK Set, possibly a cached one; fetched again when the cached one is `but`."""
