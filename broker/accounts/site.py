"""Where people and programs outside reach the accounts server: links begin with it, never with a request's Host."""

from collections.abc import Mapping

from config.settings import Address, Settings


class Site:
    """`public_url`, or else the address that was bound: enough for one machine, and for trying things out."""

    def __init__(self, settings: Settings) -> None:
        self._public_url = settings.public_url.rstrip("/")
        self._bound = _url_of({"http": settings.http.bind, "https": settings.http.tls_bind})

    def listens_on(self, addresses: Mapping[str, Address]) -> None:
        """The listeners are open: a port that was 0 has a number now."""
        self._bound = _url_of(addresses)

    @property
    def origin(self) -> str:
        return self._public_url or self._bound

    @property
    def accounts_url(self) -> str:
        """The specification's {auth_url}."""
        return f"{self.origin}/accounts"


def _url_of(addresses: Mapping[str, Address | None]) -> str:
    for scheme in ("https", "http"):
        if (address := addresses.get(scheme)) is not None:
            return f"{scheme}://{address}"
    return "http://localhost"
