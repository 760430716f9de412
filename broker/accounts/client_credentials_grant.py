"""Client credentials: a token for the application itself (RFC 6749, 4.4)."""

from typing import Any

from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant

from broker.accounts.clients import BY_BASIC, BY_POST
from broker.accounts.grant_base import OAuthGrant


class ClientCredentials(OAuthGrant, ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = [BY_BASIC, BY_POST]  # noqa: RUF012 - Authlib's

    def generate_token(self, **_about: object) -> dict[str, Any]:
        return self._issuance.for_application(self._application.key).answer()
