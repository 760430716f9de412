"""Authlib's authorization server over one transaction: Authlib checks a grant, this module reads and writes the store.

Authlib is synchronous, and so is a transaction. token_endpoints.py builds one server for each request and runs it on
the writer's thread, so that a code is used and its token issued in one commit. An error is a response, not an
exception: what a refused request changed, such as ending a token family because of a replay, is committed, too.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import AuthorizationServer, InvalidClientError
from authlib.oauth2.rfc8628 import DEVICE_CODE_GRANT_TYPE

from broker.accounts.applications import Application
from broker.accounts.clients import BY_OLD_TOKEN, authenticate_client, named_application
from broker.accounts.grants import (
    S256,
    AuthorizationCode,
    Client,
    ClientCredentials,
    DeviceAuthorization,
    DeviceCode,
    DeviceCodeTerms,
    RefreshToken,
    TokenServerRequest,
)
from broker.accounts.issuance import Issuance
from broker.accounts.redirects import with_parameters
from broker.secrets import Vault

DEVICE_CODE_GRANT: Final[str] = DEVICE_CODE_GRANT_TYPE
_DESCRIPTIONS: Final = {
    "authorization_pending": "The user has not entered the user code",
    "slow_down": "Polled too soon; the interval has grown",
    "expired_token": "The device code has expired or was used",
    "access_denied": "The user refused",
    "invalid_grant": "The code or token is wrong, used or expired",
    "unauthorized_client": "The application may not use this method",
    "unsupported_grant_type": "This grant type is not supported",
}


class TokenResponse(msgspec.Struct, frozen=True):
    """A response of a token endpoint, successful or not (RFC 6749, 5): a flat JSON object that must not be cached."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: The id of the application that a refused request names, if there is one; for the log.
    application: str = ""


class TokenServer(AuthorizationServer):
    """One request in one transaction."""

    def __init__(self, issuance: Issuance, vault: Vault, terms: DeviceCodeTerms) -> None:
        super().__init__()
        self.issuance = issuance
        self.terms = terms
        self.vault = vault
        self.register_grant(AuthorizationCode, [S256(required=True)])
        for grant in (ClientCredentials, RefreshToken, DeviceCode):
            self.register_grant(grant)
        self.register_endpoint(DeviceAuthorization)

    def authenticate_client(self, request: TokenServerRequest, methods: list[str], _endpoint: str = "token") -> Client:
        identity = authenticate_client(
            self.issuance.tx,
            self.vault,
            request.credentials,
            request.parameters,
            by_old_token=BY_OLD_TOKEN in methods,
        )
        if identity.proof not in methods:
            raise InvalidClientError("The client secret is missing")
        request.auth_method = identity.proof
        client = request.client = Client(identity.application)
        return client

    def save_token(self, token: dict[str, Any], request: TokenServerRequest) -> None:
        """Store nothing: each grant has stored its tokens in `generate_token`."""

    def send_signal(self, name: str, *args: object, **kwargs: object) -> None:
        """Send nothing: the broker publishes facts instead of Authlib's signals."""

    def create_oauth2_request(self, request: TokenServerRequest) -> TokenServerRequest:
        return request

    def handle_response(self, status: int, body: Mapping[str, Any], _headers: object) -> TokenResponse:
        return TokenResponse(status, body)

    def handle_error_response(self, request: TokenServerRequest, error: OAuth2Error) -> TokenResponse:
        body = {"error": error.error}
        if description := error.description or _DESCRIPTIONS.get(error.error):
            body["error_description"] = description
        named = named_application(self.issuance.tx, request.credentials, request.parameters)
        application = "" if named is None else named.id
        if error.error == "invalid_client":
            return TokenResponse(401, body, {"WWW-Authenticate": 'Basic realm="accounts"'}, application)
        if error.error == "unsupported_grant_type":
            return TokenResponse(302, body, _location_of(named, error.error), application)
        return TokenResponse(400, body, application=application)


def _location_of(application: Application | None, error: str) -> dict[str, str]:
    uri = application.redirect_uri(None) if application is not None else None
    return {"Location": with_parameters(uri, [("error", error)])} if uri is not None else {}
