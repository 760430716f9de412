"""What all grants of the token endpoint share: the request and the client in the form that Authlib wants."""

from collections.abc import Mapping
from typing import Any, Final

from authlib.oauth2.rfc6749 import OAuth2Request
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, ClientCredentialsGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc8628 import DEVICE_CODE_GRANT_TYPE

from broker.accounts.applications import Application, Method
from broker.accounts.clients import Credentials
from broker.accounts.issuance import Issuance
from storage.keys import UserKey
from storage.records import UserRecord

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
        # Whether a refresh is allowed depends on how the token was obtained: refresh_grant.py decides.
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
