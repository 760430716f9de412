"""The authorization code, with and without PKCE (RFC 6749, 4.1; RFC 7636)."""

import hmac
import re
from dataclasses import dataclass
from typing import Any, Final

from authlib.oauth2.rfc6749 import InvalidClientError, InvalidRequestError
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant
from authlib.oauth2.rfc7636 import CodeChallenge, create_s256_code_challenge

from broker.accounts.applications import Method
from broker.accounts.clients import BY_BASIC, BY_ID, BY_POST, WITH_SECRET
from broker.accounts.grant_base import Client, OAuthGrant
from broker.secrets import token_hash
from storage.records import AuthorizationCodeRecord, UserRecord

VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}")  # reference 4.3


@dataclass(frozen=True, slots=True)
class _Code:
    record: AuthorizationCodeRecord
    redirect_uri_sent: bool
    code_challenge_method: str = "S256"

    @property
    def code_challenge(self) -> str | None:
        return self.record.code_challenge

    def get_redirect_uri(self) -> str | None:
        # `redirect_uri` is optional at /token (reference 4.3): it is compared only when the request has it.
        return self.record.redirect_uri if self.redirect_uri_sent else None

    def get_scope(self) -> str:
        return ""


class AuthorizationCode(OAuthGrant, AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = [BY_BASIC, BY_POST, BY_ID]  # noqa: RUF012 - Authlib's

    def query_authorization_code(self, code: str, _client: Client) -> _Code | None:
        secret_shown = self.request.auth_method in WITH_SECRET
        if not secret_shown and not self._application.allows(Method.PKCE):
            raise InvalidClientError("The client secret is missing")
        found = self._issuance.tx.authorizations.code(token_hash(code))
        if found is None or found.application != self._application.key:
            return None
        if found.used_on is not None:
            if found.family is not None:
                self._issuance.end_family(found.family)
            return None
        if found.expires_on <= self._issuance.now_ms:
            return None
        return _Code(found, self.request.payload.redirect_uri is not None)

    def authenticate_user(self, code: _Code) -> UserRecord | None:
        return self._user(code.record.user)

    def generate_token(self, **_about: object) -> dict[str, Any]:
        code: AuthorizationCodeRecord = self.request.authorization_code.record
        # Tokens that were obtained with the client secret need it for a refresh, too; others need only `client_id`.
        method = Method.AUTHORIZATION_CODE if self.request.auth_method in WITH_SECRET else Method.PKCE
        tokens, family = self._issuance.for_user(code.application, code.user, method)
        self._issuance.tx.authorizations.use_code(code.hash, family=family, now_ms=self._issuance.now_ms)
        return tokens.answer()

    def delete_authorization_code(self, code: _Code) -> None:
        """Keep the code: `use_code` marked it as used, with its token family, so that a replay is recognised."""


class S256(CodeChallenge):
    SUPPORTED_CODE_CHALLENGE_METHOD = ["S256"]  # noqa: RUF012 - Authlib's
    CODE_CHALLENGE_METHODS = {  # noqa: RUF012 - Authlib's
        "S256": lambda verifier, challenge: hmac.compare_digest(create_s256_code_challenge(verifier), challenge)
    }

    def validate_code_verifier(self, grant: AuthorizationCode, result: object) -> None:
        verifier = grant.request.form.get("code_verifier")
        if verifier is not None and VERIFIER.fullmatch(verifier) is None:
            raise InvalidRequestError("code_verifier is malformed")
        super().validate_code_verifier(grant, result)
