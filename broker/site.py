"""The public addresses of this service. Links begin with them, never with the Host header of a request."""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from config.settings import Address, Settings

#: By which devices fetch firmware images; the first one is that of REST, with or without TLS.
IMAGE_PROTOCOLS: Final = ("https", "coaps", "coap")


class AccountsRoot(msgspec.Struct, frozen=True):
    """A root of the accounts paths. `path` is their prefix: `/accounts`, or empty on a listener of their own."""

    path: str
    _origin: Callable[[], str]

    @property
    def origin(self) -> str:
        return self._origin()

    @property
    def url(self) -> str:
        """The `{auth_url}` of reference 1.2."""
        return f"{self.origin}{self.path}"

    @property
    def is_secure(self) -> bool:
        return self.origin.startswith("https://")


class Site:
    """`public_url`, or else the bound address, which is enough on one machine.

    The accounts paths are at the root `accounts`. With `accounts.tls_bind` they are also at the root `own_accounts` on
    a listener of their own. Links on the pages of one root lead to the same root. `addresses` has those of the
    listeners by name, once they listen.
    """

    def __init__(self, settings: Settings) -> None:
        self._public_url = settings.public_url.rstrip("/")
        self._accounts_public_url = settings.accounts.public_url.rstrip("/")
        self._bound = _url_of({"http": settings.http.bind, "https": settings.http.tls_bind})
        self._accounts_bound = _url_of({"https": settings.accounts.tls_bind})
        self.addresses: Mapping[str, Address] = {}
        self.accounts = AccountsRoot("/accounts", lambda: self.origin)
        self.own_accounts = AccountsRoot("", lambda: self._accounts_public_url or self._accounts_bound)

    def listens_on(self, addresses: Mapping[str, Address]) -> None:
        """Take the bound addresses, in which a configured port 0 is replaced by the real port."""
        self.addresses = addresses
        self._bound = _url_of(addresses)
        self._accounts_bound = _url_of({"https": addresses.get("accounts")})

    @property
    def origin(self) -> str:
        return self._public_url or self._bound

    def image_root(self, protocol: str | None) -> str | None:
        """Where devices fetch images by `coap` or `coaps`: None without such a listener. Otherwise as `origin`."""
        if protocol not in IMAGE_PROTOCOLS[1:]:
            return self.origin
        address = self.addresses.get(protocol)
        if address is None:
            return None
        host = urlsplit(self.origin).hostname or "localhost"
        return f"{protocol}://{f'[{host}]' if ':' in host else host}:{address.port}"

    @property
    def accounts_url(self) -> str:
        return self.accounts.url

    @property
    def mailed_accounts_url(self) -> str:
        """The address in mails: `accounts.public_url` if it is set, else that of the accounts paths."""
        return self._accounts_public_url or self.accounts.url


def _url_of(addresses: Mapping[str, Address | None]) -> str:
    for scheme in ("https", "http"):
        if (address := addresses.get(scheme)) is not None:
            return f"{scheme}://{address}"
    return "http://localhost"
