"""Refreshing a token, with the client authentication of the flow that issued it (RFC 6749, 6; reference 4.3)."""

from dataclasses import dataclass
from typing import Any, Final

from authlib.oauth2.rfc6749 import (
    InvalidClientError,
    InvalidGrantError,
    InvalidRequestError,
    UnauthorizedClientError,
)
from authlib.oauth2.rfc6749.grants import RefreshTokenGrant

from broker.accounts.applications import Method
from broker.accounts.clients import BY_BASIC, BY_ID, BY_OLD_TOKEN, BY_POST, WITH_SECRET, old_tokens
from broker.accounts.grant_base import Client, OAuthGrant
from broker.accounts.issuance import NewTokens
from broker.secrets import token_hash
from config.limits import REFRESH_REPEAT_SECONDS
from storage.records import RefreshTokenRecord, UserRecord

IMPLICIT_ONLY: Final = "This API works only with implicit apps."


@dataclass(frozen=True, slots=True)
class _Refreshable:
    record: RefreshTokenRecord
    presented: str
    answer: NewTokens | None = None  # the one that its first use got

    def check_client(self, client: Client) -> bool:
        return self.record.application == client.application.key

    def get_scope(self) -> str:
        return ""


class RefreshToken(OAuthGrant, RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = [BY_BASIC, BY_POST, BY_ID, BY_OLD_TOKEN]  # noqa: RUF012 - Authlib's

    def authenticate_refresh_token(self, refresh_token: str) -> _Refreshable | None:
        if self.request.implicit_only and not self._application.allows(Method.IMPLICIT):
            raise InvalidRequestError(IMPLICIT_ONLY)
        found = self._issuance.tx.authorizations.refresh_token(token_hash(refresh_token))
        if found is None or found.application != self._application.key:
            return None
        self._require_proof(found)
        if found.used_on is not None:
            return self._used_before(found, refresh_token)
        return _Refreshable(found, refresh_token) if found.usable_until > self._issuance.now_ms else None

    def _used_before(self, found: RefreshTokenRecord, presented: str) -> _Refreshable | None:
        """Soon after its first use, the client may have lost the answer, or two of its workers refresh at once. Later
        it is a replay, which ends the family."""
        if self._issuance.now_ms - (found.used_on or 0) < REFRESH_REPEAT_SECONDS * 1000:
            answer = self._issuance.refreshed_again(found, presented)
            return None if answer is None else _Refreshable(found, presented, answer)
        self._issuance.end_family(found.family)
        return None

    def _require_proof(self, token: RefreshTokenRecord) -> None:
        """Check what the flow that issued the token requires of a refresh (the rows of the grant table)."""
        method = Method(token.method)
        if self.request.implicit_only and method is not Method.IMPLICIT:
            raise InvalidRequestError(IMPLICIT_ONLY)
        if not self._application.allows(method):
            raise UnauthorizedClientError
        if method is Method.IMPLICIT:
            given = old_tokens(self._issuance.tx, self.request.credentials, self.request.parameters)
            if not given:
                raise InvalidRequestError("The old access token is missing")
            if any(old.family != token.family for old in given):
                raise InvalidGrantError("The old access token does not belong to the refresh token")
        elif self.request.auth_method == BY_OLD_TOKEN:
            raise InvalidRequestError("client_id is missing")
        elif method is Method.AUTHORIZATION_CODE and self.request.auth_method not in WITH_SECRET:
            raise InvalidClientError("The client secret is missing")

    def authenticate_user(self, token: _Refreshable) -> UserRecord | None:
        return self._user(token.record.user)

    def issue_token(self, _holder: UserRecord, token: _Refreshable) -> dict[str, Any]:
        return (token.answer or self._issuance.refreshed(token.record, token.presented)).answer()

    def revoke_old_credential(self, token: _Refreshable) -> None:
        """Do nothing: `Issuance.refreshed` has marked the refresh token as used."""
