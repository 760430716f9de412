"""The port: talking to an external identity provider. Implemented in protocols/outbound/identity_providers.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from config.settings import IdentityProvider


@dataclass(frozen=True, slots=True)
class ProviderMetadata:
    """What a provider says of itself (OpenID Connect Discovery 1.0, 3). The issuer is the configured one."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    algorithms: tuple[str, ...]  # id_token_signing_alg_values_supported
    userinfo_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Leaving:
    """One sign-in that begins here and goes on at the provider; what comes back must fit it."""

    redirect_uri: str
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    code_verifier: str = field(repr=False)
    login_wanted: bool = False


@dataclass(frozen=True, slots=True)
class ProviderTokens:
    """What a code is redeemed for. The ID token is unverified; the access token is for the provider's userinfo."""

    id_token: str = field(repr=False)
    access_token: str = field(repr=False)


class ProviderError(Exception):
    """The provider was not reached, was too slow, or said what it must not. The text is one line for the log."""


class ProviderDenied(Exception):
    """The provider does not give what it is asked for. The text is one line for the log."""


class Providers(Protocol):
    """Every call is bounded in time and in what it reads.

    Raises:
        ProviderError: it did not work.
        ProviderDenied: see there.
    """

    async def authorization_url(self, provider: IdentityProvider, leaving: Leaving) -> str:
        """Where the browser goes: with PKCE (S256), `state` and `nonce`."""

    async def tokens(self, provider: IdentityProvider, leaving: Leaving, code: str) -> ProviderTokens:
        """Redeem a code, with the client's secret and the verifier."""

    async def userinfo(self, provider: IdentityProvider, access_token: str) -> Mapping[str, Any]:
        """The claims that its userinfo endpoint has (OpenID Connect Core 1.0, 5.3). There must be one."""

    async def metadata(self, provider: IdentityProvider) -> ProviderMetadata: ...

    async def keys(self, provider: IdentityProvider, *, but: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The provider's JWK Set; asked for anew where the remembered one is `but`, which did not fit."""
