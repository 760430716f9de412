"""Authlib's grants over one transaction: it decides what a grant needs, this says where things are kept.

Authlib is synchronous, and so is a transaction: one server is built for each request and runs on the writer's thread
(`Grants` in grants.py), so that a code is consumed and its token issued in one commit. Refusals are answers, not
exceptions: what a refused request did, such as ending a family because of a replay, is committed, too.
"""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import (
    AuthorizationServer,
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
from broker.accounts.clients import (
    BY_BASIC,
    BY_ID,
    BY_OLD_TOKEN,
    BY_POST,
    WITH_SECRET,
    Credentials,
    identify,
    named_application,
    old_tokens,
)
from broker.accounts.issuance import Issuance
from broker.accounts.redirects import with_parameters
from broker.accounts.site import Site
from broker.accounts.user_codes import new_user_code
from broker.secrets import Vault, token_hash
from config.limits import DEVICE_POLL_GROWTH_SECONDS
from config.settings import Accounts
from storage.records import AuthorizationCodeRecord, DeviceCodeRecord, RefreshTokenRecord, UserRecord

DEVICE_CODE_GRANT: Final[str] = DEVICE_CODE_GRANT_TYPE
_VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}")  # specification, POST /token
_METHODS: Final = {
    AuthorizationCodeGrant.GRANT_TYPE: (Method.AUTHORIZATION_CODE, Method.PKCE),
    ClientCredentialsGrant.GRANT_TYPE: (Method.CLIENT_CREDENTIALS,),
    DEVICE_CODE_GRANT_TYPE: (Method.LIMITED_INPUT,),
}
_DESCRIPTIONS: Final = {
    "authorization_pending": "The user has not entered the user code",
    "slow_down": "Polled too soon; the interval has grown",
    "expired_token": "The device code has expired or was used",
    "access_denied": "The user refused",
    "invalid_grant": "The code or token is wrong, used or expired",
    "unauthorized_client": "The application may not use this method",
    "unsupported_grant_type": "This grant type is not supported",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a token endpoint says: a flat JSON object. Nobody may store it."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceCodeTerms:
    lifetime_seconds: int
    poll_seconds: int
    site: Site

    @classmethod
    def of(cls, settings: Accounts, site: Site) -> "DeviceCodeTerms":
        return cls(settings.device_code_seconds, settings.device_poll_seconds, site)

    @property
    def verification_url(self) -> str:
        return f"{self.site.accounts_url}/go"


class TokenServerRequest(OAuth2Request):
    """Authlib's view of a request whose parameters were merged and made plain before (grants.py)."""

    def __init__(self, parameters: Mapping[str, str], credentials: Credentials, *, implicit_only: bool = False) -> None:
        # Authlib insists on HTTPS here. Which listeners may be without it is the operator's decision, not made here.
        super().__init__("POST", "https://accounts.invalid/token")
        self.payload = BasicOAuth2Payload(dict(parameters))
        self.parameters = parameters
        self.credentials = credentials
        self.implicit_only = implicit_only

    @property
    def form(self) -> Mapping[str, str]:
        return self.parameters


class TokenServer(AuthorizationServer):
    """One request in one transaction."""

    def __init__(self, issuance: Issuance, vault: Vault, terms: DeviceCodeTerms) -> None:
        super().__init__()
        self.issuance = issuance
        self.terms = terms
        self._vault = vault
        self.register_grant(_AuthorizationCode, [_S256(required=True)])
        for grant in (_ClientCredentials, _RefreshToken, _DeviceCode):
            self.register_grant(grant)
        self.register_endpoint(_DeviceAuthorization)

    def authenticate_client(
        self, request: TokenServerRequest, methods: list[str], _endpoint: str = "token"
    ) -> "_Client":
        identity = identify(
            self.issuance.tx,
            self._vault,
            request.credentials,
            request.parameters,
            by_old_token=BY_OLD_TOKEN in methods,
        )
        if identity.proof not in methods:
            raise InvalidClientError("The client secret is missing")
        request.auth_method = identity.proof
        client = request.client = _Client(identity.application)
        return client

    def save_token(self, token: dict[str, Any], request: TokenServerRequest) -> None:
        """The grants below keep what they issue, because each has a place of its own to keep it."""

    def send_signal(self, name: str, *args: object, **kwargs: object) -> None:
        """Nobody listens to Authlib's signals: facts tell what happened."""

    def create_oauth2_request(self, request: TokenServerRequest) -> TokenServerRequest:
        return request

    def handle_response(self, status: int, body: Mapping[str, Any], _headers: object) -> Answer:
        return Answer(status, body)

    def handle_error_response(self, request: TokenServerRequest, error: OAuth2Error) -> Answer:
        body = {"error": error.error}
        if description := error.description or _DESCRIPTIONS.get(error.error):
            body["error_description"] = description
        if error.error == "invalid_client":
            return Answer(401, body, {"WWW-Authenticate": 'Basic realm="accounts"'})
        if error.error == "unsupported_grant_type":
            return Answer(302, body, self._location_of(request, error.error))
        return Answer(400, body)

    def _location_of(self, request: TokenServerRequest, error: str) -> dict[str, str]:
        application = named_application(self.issuance.tx, request.credentials, request.parameters)
        uri = application.redirect_uri(None) if application is not None else None
        return {"Location": with_parameters(uri, [("error", error)])} if uri is not None else {}


class _Client:
    """What Authlib asks of an application."""

    def __init__(self, application: Application) -> None:
        self.application = application

    def get_client_id(self) -> str:
        return self.application.id

    def check_grant_type(self, grant_type: str) -> bool:
        # Whether a refresh token may be used depends on how it was obtained: `_RefreshToken` decides.
        return grant_type == "refresh_token" or self.application.allows(*_METHODS[grant_type])


class _Grant:
    """What our grants share beside Authlib's."""

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

    def _user(self, key: int) -> UserRecord | None:
        return self._issuance.tx.accounts.user(key)


# Authorization code, with and without PKCE


@dataclass(frozen=True, slots=True)
class _Code:
    record: AuthorizationCodeRecord
    redirect_uri_sent: bool
    code_challenge_method: str = "S256"

    @property
    def code_challenge(self) -> str | None:
        return self.record.code_challenge

    def get_redirect_uri(self) -> str | None:
        # This dialect leaves the parameter optional, and compares it when it is sent.
        return self.record.redirect_uri if self.redirect_uri_sent else None

    def get_scope(self) -> str:
        return ""


class _AuthorizationCode(_Grant, AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = [BY_BASIC, BY_POST, BY_ID]  # noqa: RUF012 - Authlib's

    def query_authorization_code(self, code: str, _client: _Client) -> _Code | None:
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
        # With the secret for the code, it takes the secret to refresh; without, the application's id will do.
        method = Method.AUTHORIZATION_CODE if self.request.auth_method in WITH_SECRET else Method.PKCE
        tokens, family = self._issuance.for_user(code.application, code.user, method)
        self._issuance.tx.authorizations.use_code(code.hash, family=family, now_ms=self._issuance.now_ms)
        return tokens.answer()

    def delete_authorization_code(self, code: _Code) -> None:
        """It was marked as used with the family it led to: a replay must still be recognised."""


class _S256(CodeChallenge):
    SUPPORTED_CODE_CHALLENGE_METHOD = ["S256"]  # noqa: RUF012 - Authlib's
    CODE_CHALLENGE_METHODS = {  # noqa: RUF012 - Authlib's
        "S256": lambda verifier, challenge: hmac.compare_digest(create_s256_code_challenge(verifier), challenge)
    }

    def validate_code_verifier(self, grant: _AuthorizationCode, result: object) -> None:
        verifier = grant.request.form.get("code_verifier")
        if verifier is not None and _VERIFIER.fullmatch(verifier) is None:
            raise InvalidRequestError("code_verifier is malformed")
        super().validate_code_verifier(grant, result)


# Client credentials


class _ClientCredentials(_Grant, ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = [BY_BASIC, BY_POST]  # noqa: RUF012 - Authlib's

    def generate_token(self, **_about: object) -> dict[str, Any]:
        return self._issuance.for_application(self._application.key).answer()


# Refresh


@dataclass(frozen=True, slots=True)
class _Refreshable:
    record: RefreshTokenRecord

    def check_client(self, client: _Client) -> bool:
        return self.record.application == client.application.key

    def get_scope(self) -> str:
        return ""


class _RefreshToken(_Grant, RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = [BY_BASIC, BY_POST, BY_ID, BY_OLD_TOKEN]  # noqa: RUF012 - Authlib's

    def authenticate_refresh_token(self, refresh_token: str) -> _Refreshable | None:
        if self.request.implicit_only and not self._application.allows(Method.IMPLICIT):
            raise InvalidRequestError("This API works only with implicit apps.")
        found = self._issuance.tx.authorizations.refresh_token(token_hash(refresh_token))
        if found is None or found.application != self._application.key:
            return None
        self._require_proof(found)
        if found.used_on is not None:
            self._issuance.end_family(found.family)
            return None
        return _Refreshable(found) if found.usable_until > self._issuance.now_ms else None

    def _require_proof(self, token: RefreshTokenRecord) -> None:
        """The rows of the grant table: each way to get tokens has its own way to refresh them."""
        method = Method(token.method)
        if self.request.implicit_only and method is not Method.IMPLICIT:
            raise InvalidRequestError("This API works only with implicit apps.")
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
        return self._issuance.refreshed(token.record).answer()

    def revoke_old_credential(self, token: _Refreshable) -> None:
        """`Issuance.refreshed` has done it."""


# Limited input (RFC 8628)


@dataclass(frozen=True, slots=True)
class _Credential:
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


class _DeviceCode(_Grant, DeviceCodeGrant):
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
        interval = record.interval_seconds
        too_soon = record.polled_on is not None and now_ms - record.polled_on < interval * 1000
        if too_soon:
            interval += DEVICE_POLL_GROWTH_SECONDS
        self._issuance.tx.authorizations.poll_device_code(record.hash, interval_seconds=interval, now_ms=now_ms)
        return too_soon

    def generate_token(self, **_about: object) -> dict[str, Any]:
        record: DeviceCodeRecord = self.request.credential.record
        user: UserRecord = self.request.user
        tokens, _family = self._issuance.for_user(record.application, user.key, Method.LIMITED_INPUT)
        self._issuance.tx.authorizations.decide_device_code(record.hash, state="used", user=user.key)
        return tokens.answer()


class _DeviceAuthorization(DeviceAuthorizationEndpoint):
    CLIENT_AUTH_METHODS = [BY_BASIC, BY_POST, BY_ID]  # noqa: RUF012 - Authlib's

    def __init__(self, server: TokenServer) -> None:
        super().__init__(server)
        self._issuance = server.issuance
        self._terms = server.terms
        self.EXPIRES_IN = self._terms.lifetime_seconds
        self.INTERVAL = self._terms.poll_seconds

    def authenticate_client(self, request: TokenServerRequest) -> _Client:
        client: _Client = super().authenticate_client(request)
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
