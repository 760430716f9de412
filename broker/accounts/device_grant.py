"""Limited input: a device shows a user code and polls /token until a person has decided (RFC 8628; reference 4.4)."""

from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from authlib.oauth2.rfc6749 import InvalidClientError, InvalidGrantError, UnauthorizedClientError
from authlib.oauth2.rfc8628 import DEVICE_CODE_GRANT_TYPE, DeviceAuthorizationEndpoint, DeviceCodeGrant

from broker.accounts.applications import Method
from broker.accounts.clients import BY_BASIC, BY_ID, BY_POST
from broker.accounts.grant_base import Client, OAuthGrant, TokenServerRequest
from broker.accounts.issuance import Issuance
from broker.accounts.user_codes import new_user_code
from broker.secrets import token_hash
from broker.site import AccountsRoot
from config.limits import DEVICE_POLL_GROWTH_SECONDS, DEVICE_POLL_TOLERANCE_MS
from config.settings import Accounts
from storage.records import DeviceCodeRecord, UserRecord


@dataclass(frozen=True, slots=True)
class DeviceCodeTerms:
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
