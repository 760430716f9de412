"""The operator's configuration of one device type's connector: the table `connectors` of the provision file."""

from typing import Any, Literal

import msgspec

from config.limits import CONNECTOR_CALLS_PER_DAY, CONNECTOR_CALLS_PER_MINUTE
from config.rates import Rate


class _Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class OAuth2Terms(_Terms, frozen=True, kw_only=True):
    """The client's registration with the third party: authorization code grant (RFC 6749, 4.1), PKCE (RFC 7636)."""

    authorize_url: str
    mobile_authorize_url: str | None = None
    token_url: str
    client_id: str
    client_secret: str = ""
    authentication: Literal["client_secret_basic", "client_secret_post", "none"] = "client_secret_basic"
    scope: str = ""
    pkce: bool = True
    parameters: dict[str, str] = {}  # added to the authorization request
    account_member: str | None = None  # of the token answer: the id of the user's account


class OAuth1Terms(_Terms, frozen=True, kw_only=True):
    """The client's registration with the third party (RFC 5849); requests are signed by HMAC-SHA1."""

    request_token_url: str
    authorize_url: str
    mobile_authorize_url: str | None = None
    access_token_url: str
    consumer_key: str
    consumer_secret: str
    account_member: str | None = None  # of the answer with the access token


class ConnectorTerms(_Terms, frozen=True, kw_only=True):
    """`pull_minutes` None is that of the settings. Calls are counted separately for a type that has its own limits."""

    plugin: str = "generic"
    oauth2: OAuth2Terms | None = None
    oauth1: OAuth1Terms | None = None
    parameters: dict[str, Any] = {}
    pull_minutes: int | None = None
    calls_per_minute: int | None = None
    calls_per_day: int | None = None

    @property
    def own_rate(self) -> Rate | None:
        """Calls in a minute and on a day, when the type has limits of its own."""
        if self.calls_per_minute is None and self.calls_per_day is None:
            return None
        return Rate(
            CONNECTOR_CALLS_PER_MINUTE if self.calls_per_minute is None else self.calls_per_minute,
            CONNECTOR_CALLS_PER_DAY if self.calls_per_day is None else self.calls_per_day,
        )


class ConnectorEntry(ConnectorTerms, frozen=True, kw_only=True):
    """An entry of the provision file: it describes the connector of `device_type` (id or unique name) entirely."""

    device_type: str

    @property
    def terms(self) -> ConnectorTerms:
        return ConnectorTerms(**{name: getattr(self, name) for name in ConnectorTerms.__struct_fields__})
