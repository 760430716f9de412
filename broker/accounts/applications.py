"""Applications: the OAuth2 clients, their secrets, methods and redirect URIs (reference 4.1)."""

import hmac
import re
from collections.abc import Collection
from enum import StrEnum
from typing import Final

import msgspec

from broker.errors import Unauthorized, ValidationFailed
from broker.ids import is_id
from broker.secrets import Vault
from storage.database import Database
from storage.keys import ApplicationKey
from storage.records import ApplicationRecord
from storage.transaction import Transaction

_LOOPBACK: Final = re.compile(
    r"http://(?P<host>127\.0\.0\.1|\[::1\]|localhost)(:(?P<port>[0-9]{1,5}))?(?P<rest>(?:[/?].*)?)", re.DOTALL
)
_HIGHEST_PORT: Final = 65_535


class Method(StrEnum):
    """How an application may get tokens."""

    AUTHORIZATION_CODE = "authorization_code"
    PKCE = "pkce"
    IMPLICIT = "implicit"
    LIMITED_INPUT = "limited_input"
    CLIENT_CREDENTIALS = "client_credentials"


class Application(msgspec.Struct, frozen=True):
    record: ApplicationRecord

    @property
    def key(self) -> ApplicationKey:
        return self.record.key

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str:
        return self.record.name

    def allows(self, *methods: Method) -> bool:
        """One of these methods is enabled."""
        return not set(methods).isdisjoint(self.record.methods)

    def redirect_uri(self, wanted: str | None) -> str | None:
        """`wanted`, if it is registered byte for byte, else None; the first registered one when `wanted` is None.

        Where the application has chosen so, the port of a loopback address does not matter (RFC 8252, 7.3).
        """
        registered = self.record.redirect_uris
        if wanted is None:
            return registered[0] if registered else None
        if wanted in registered:
            return wanted
        without_port = _without_loopback_port(wanted) if self.record.any_loopback_port else None
        fits = without_port is not None and without_port in map(_without_loopback_port, registered)
        return wanted if fits else None

    def has_secret(self, vault: Vault, candidates: Collection[str]) -> bool:
        """One of the candidates is the secret. The comparison takes the same time however many bytes are right."""
        secret = vault.open(self.record.secret).encode()
        found = [hmac.compare_digest(secret, one.encode(errors="surrogatepass")) for one in candidates]
        return any(found)


def _without_loopback_port(uri: str) -> tuple[str, str] | None:
    """Host and rest of a redirect URI to the person's own computer; None for every other URI, and for a wrong port."""
    match = _LOOPBACK.fullmatch(uri)
    if match is None or not 0 < int(match["port"] or 80) <= _HIGHEST_PORT:
        return None
    return match["host"], match["rest"]


def find_application(tx: Transaction, application_id: str) -> Application | None:
    """None if there is no such application, also when the text does not have the form of an id."""
    record = tx.accounts.application_by_id(application_id) if is_id(application_id) else None
    return Application(record) if record is not None else None


class MadeByApplication(msgspec.Struct, frozen=True):
    """An object of a user, and the name of the application that made it."""

    name: str
    application: str


class Applications:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_redirect_uri(self, uri: str) -> bool:
        """An application registered exactly this address, so `/logout` may redirect to it."""
        return uri in await self._database.read(lambda tx: tx.accounts.redirect_uris())

    async def listed(self, *, limit: int) -> list[Application]:
        """The first applications by name, for the operator."""
        return await self._database.read(
            lambda tx: [Application(found) for found in tx.accounts.applications(limit=limit)]
        )

    async def named(self, name: str) -> Application:
        """An application by id, or by a name that no other one has, for the operator. Raises ValidationFailed."""

        def work(tx: Transaction) -> list[ApplicationRecord]:
            by_id = tx.accounts.application_by_id(name)
            return [by_id] if by_id is not None else tx.accounts.applications_named(name)

        found = await self._database.read(work)
        if len(found) != 1:
            number = "no application" if not found else f"{len(found)} applications"
            several = f": give the id: {', '.join(one.id for one in found)}" if found else ""
            raise ValidationFailed.of("application", f"{number} called {name!r}{several}")
        return Application(found[0])


def require_application(tx: Transaction, application: ApplicationKey) -> None:
    """Check, before creating an object of the application, that it still exists. Raises Unauthorized: it does not."""
    if tx.accounts.application(application) is None:
        raise Unauthorized


def name_of_application(tx: Transaction, application: ApplicationKey) -> str:
    """Empty when it is not there any more."""
    found = tx.accounts.application(application)
    return "" if found is None else found.name
