"""The grants of the token endpoint, as classes of Authlib (reference 4.3 and 4.4).

- `ClientCredentials`: a token for the application itself (RFC 6749, 4.4).
- `AuthorizationCode`: with and without PKCE (RFC 6749, 4.1; RFC 7636).
- `DeviceCode` and its endpoint: a device shows a user code and polls /token until a person has decided (RFC 8628).
- `RefreshToken`: with the client authentication of the flow that issued the token (RFC 6749, 6).
"""

import hmac
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec
from authlib.oauth2.rfc6749 import (
    InvalidClientError,
    InvalidGrantError,
    InvalidRequestError,
    OAuth2Request,
    UnauthorizedClientError,
)
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, ClientCredentialsGrant, RefreshTokenGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc7636 import CodeChallenge, create_s256_code_challenge
from authlib.oauth2.rfc8628 import DEVICE_CODE_GRANT_TYPE, DeviceAuthorizationEndpoint, DeviceCodeGrant

from broker.accounts.applications import Application, Method
from broker.accounts.clients import BY_BASIC, BY_ID, BY_OLD_TOKEN, BY_POST, WITH_SECRET, Credentials, old_tokens
from broker.accounts.device_codes import new_user_code
from broker.accounts.issuance import Issuance, NewTokens
from broker.accounts.openid import OpenIdRequest, id_token
from broker.secrets import token_hash
from broker.site import AccountsRoot
from config.limits import DEVICE_POLL_GROWTH_SECONDS, DEVICE_POLL_TOLERANCE_MS, REFRESH_REPEAT_SECONDS
from config.settings import Accounts
from storage.keys import UserKey
from storage.records import AuthorizationCodeRecord, DeviceCodeRecord, RefreshTokenRecord, UserRecord

_METHODS: Final = {
    AuthorizationCodeGrant.GRANT_TYPE: (Method.AUTHORIZATION_CODE, Method.PKCE),
    ClientCredentialsGrant.GRANT_TYPE: (Method.CLIENT_CREDENTIALS,),
    DEVICE_CODE_GRANT_TYPE: (Method.LIMITED_INPUT,),
}


class TokenServerRequest(OAuth2Request):
    """A request for Authlib. token_endpoints.py has merged its parameters and removed the dialect of this service."""

    def __init__(self, parameters: Mapping[str, str], credentials: Credentials, *, implicit_only: bool = False) -> None:
        # Authlib refuses addresses without https. The operator decides which listeners have TLS, not this module.
        super().__init__("POST", "https://accounts.invalid/token")
        self.payload = BasicOAuth2Payload(dict(parameters))
        self.parameters = parameters
        self.credentials = credentials
        self.implicit_only = implicit_only

    @property
    def form(self) -> Mapping[str, str]:
        return self.parameters


class Client:
    """An application, with the methods that Authlib calls."""

    def __init__(self, application: Application) -> None:
        self.application = application

    def get_client_id(self) -> str:
        return self.application.id

    def check_grant_type(self, grant_type: str) -> bool:
        # Whether a refresh is allowed depends on how the token was obtained: `RefreshToken` decides.
        return grant_type == "refresh_token" or self.application.allows(*_METHODS[grant_type])


class OAuthGrant:
    """Base of the grants, beside Authlib's class of the same grant."""

    request: Any
    server: Any

    @property
    def _issuance(self) -> Issuance:
        issuance: Issuance = self.server.issuance
        return issuance

    @property
    def _application(self) -> Application:
        application: Application = self.request.client.application
        return application

    def _user(self, key: UserKey) -> UserRecord | None:
        return self._issuance.tx.accounts.user(key)


class ClientCredentials(OAuthGrant, ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = [BY_BASIC, BY_POST]  # noqa: RUF012 - Authlib's

    def generate_token(self, **_about: object) -> dict[str, Any]:
        return self._issuance.for_application(self._application.key).answer()


VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}")  # reference 4.3


class _Code(msgspec.Struct, frozen=True):
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
                self._issuance.end_families((found.family,))
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
        tokens, family = self._issuance.for_user(code.application, code.user, method, code.scope)
        self._issuance.tx.authorizations.use_code(code.hash, family=family, now_ms=self._issuance.now_ms)
        if not code.scope:
            return tokens.answer()
        return tokens.answer() | {"scope": code.scope, "id_token": self._id_token(code, tokens.access_token)}

    def _id_token(self, code: AuthorizationCodeRecord, access_token: str) -> str:
        signed: str = id_token(
            self._issuance.tx,
            self.server.vault,
            self.request.user,
            OpenIdRequest(code.scope, code.nonce, code.signed_in_on),
            issuer=self.server.terms.root.origin,
            client_id=self._application.id,
            access_token=access_token,
            now_ms=self._issuance.now_ms,
        )
        return signed

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


class DeviceCodeTerms(msgspec.Struct, frozen=True):
    lifetime_seconds: int
    poll_seconds: int
    root: AccountsRoot

    @classmethod
    def of(cls, settings: Accounts, root: AccountsRoot) -> "DeviceCodeTerms":
        return cls(settings.device_code_seconds, settings.device_poll_seconds, root)

    @property
    def verification_url(self) -> str:
        return f"{self.root.url}/go"


class _Server(Protocol):
    issuance: Issuance
    terms: DeviceCodeTerms


class _Credential(msgspec.Struct, frozen=True):
    record: DeviceCodeRecord
    client_id: str
    now_ms: int

    def get_client_id(self) -> str:
        return self.client_id

    def get_user_code(self) -> str:
        return self.record.user_code

    def get_scope(self) -> str:
        return ""

    def is_expired(self) -> bool:
        return self.record.state == "used" or self.record.expires_on <= self.now_ms


class DeviceCode(OAuthGrant, DeviceCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = [BY_BASIC, BY_POST, BY_ID]  # noqa: RUF012 - Authlib's

    def query_device_credential(self, device_code: str) -> _Credential:
        found = self._issuance.tx.authorizations.device_code(token_hash(device_code))
        if found is None or found.application != self._application.key:
            raise InvalidGrantError("The device code is not known")
        return _Credential(found, self._application.id, self._issuance.now_ms)

    def query_user_grant(self, user_code: str) -> tuple[UserRecord | None, bool] | None:
        found = self._issuance.tx.authorizations.device_code_shown_as(user_code)
        if found is None or found.state == "pending":
            return None
        user = self._user(found.user) if found.user is not None else None
        return user, found.state == "approved" and user is not None

    def should_slow_down(self, credential: _Credential) -> bool:
        record, now_ms = credential.record, self._issuance.now_ms
        interval, last = record.interval_seconds, record.polled_on
        too_soon = last is not None and now_ms - last < interval * 1000 - DEVICE_POLL_TOLERANCE_MS
        if too_soon:
            interval += DEVICE_POLL_GROWTH_SECONDS
        # The time of the last poll is that of one that was not refused: else who polls in step is refused for ever.
        polled_on = last if too_soon and last is not None else now_ms
        self._issuance.tx.authorizations.poll_device_code(record.hash, interval_seconds=interval, polled_on=polled_on)
        return too_soon

    def generate_token(self, **_about: object) -> dict[str, Any]:
        record: DeviceCodeRecord = self.request.credential.record
        user: UserRecord = self.request.user
        tokens, _family = self._issuance.for_user(record.application, user.key, Method.LIMITED_INPUT)
        self._issuance.tx.authorizations.decide_device_code(record.hash, state="used", user=user.key)
        return tokens.answer()


class DeviceAuthorization(DeviceAuthorizationEndpoint):
    CLIENT_AUTH_METHODS = [BY_BASIC, BY_POST, BY_ID]  # noqa: RUF012 - Authlib's

    def __init__(self, server: _Server) -> None:
        super().__init__(server)
        self._issuance = server.issuance
        self._terms = server.terms
        self.EXPIRES_IN = self._terms.lifetime_seconds
        self.INTERVAL = self._terms.poll_seconds

    def authenticate_client(self, request: TokenServerRequest) -> Client:
        client: Client = super().authenticate_client(request)
        if not client.check_grant_type(DEVICE_CODE_GRANT_TYPE):
            raise UnauthorizedClientError
        return client

    def create_endpoint_response(self, request: TokenServerRequest) -> tuple[int, dict[str, Any], object]:
        status, body, headers = super().create_endpoint_response(request)
        return status, {**body, "verification_url": self._terms.verification_url}, headers

    def get_verification_uri(self) -> str:
        return self._terms.verification_url

    def generate_device_code(self) -> str:
        return str(uuid4())

    def generate_user_code(self) -> str:
        while True:
            code = new_user_code()
            if self._issuance.tx.authorizations.device_code_shown_as(code) is None:
                return code

    def save_device_credential(self, client_id: str, _scope: str | None, data: dict[str, Any]) -> None:
        record = self._issuance.tx.accounts.application_by_id(client_id)
        if record is None:
            raise InvalidClientError("The application does not exist")
        self._issuance.tx.authorizations.add_device_code(
            DeviceCodeRecord(
                token_hash(data["device_code"]),
                data["user_code"],
                record.key,
                self._terms.poll_seconds,
                self._issuance.now_ms + self._terms.lifetime_seconds * 1000,
            )
        )


IMPLICIT_ONLY: Final = "This API works only with implicit apps."


class _Refreshable(msgspec.Struct, frozen=True):
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
        self._issuance.end_families((found.family,))
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
