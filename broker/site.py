"""Where people and programs outside reach the accounts server: links begin with it, never with a request's Host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from config.settings import Address, Settings


@dataclass(frozen=True, slots=True)
class AccountsRoot:
    """One of the places where the accounts paths are. `path` is what stands before them: `/accounts`, or nothing."""

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
    """`public_url`, or else the address that was bound: enough for one machine, and for trying things out.

    The accounts paths are under `accounts`; those who have a listener of their own (`accounts.tls_bind`) also find them
    at the root of `own_accounts`, and each leads only to itself.
    """

    def __init__(self, settings: Settings) -> None:
        self._public_url = settings.public_url.rstrip("/")
        self._accounts_public_url = settings.accounts.public_url.rstrip("/")
        self._bound = _url_of({"http": settings.http.bind, "https": settings.http.tls_bind})
        self._accounts_bound = _url_of({"https": settings.accounts.tls_bind})
        self.accounts = AccountsRoot("/accounts", lambda: self.origin)
        self.own_accounts = AccountsRoot("", lambda: self._accounts_public_url or self._accounts_bound)

    def listens_on(self, addresses: Mapping[str, Address]) -> None:
        """The listeners are open: a port that was 0 has a number now."""
        self._bound = _url_of(addresses)
        self._accounts_bound = _url_of({"https": addresses.get("accounts")})

    @property
    def origin(self) -> str:
        return self._public_url or self._bound

    @property
    def accounts_url(self) -> str:
        return self.accounts.url

    @property
    def mailed_accounts_url(self) -> str:
        """Where links in mails lead: as public as it gets."""
        return self._accounts_public_url or self.accounts.url


def _url_of(addresses: Mapping[str, Address | None]) -> str:
    for scheme in ("https", "http"):
        if (address := addresses.get(scheme)) is not None:
            return f"{scheme}://{address}"
    return "http://localhost"
