"""Where links begin."""

from pathlib import Path

import pytest

from broker.site import Site
from config.settings import Address, Http, Settings

PLAIN, TLS = Address("127.0.0.1", 0), Address("0.0.0.0", 8443)  # noqa: S104


@pytest.mark.parametrize(
    ("public_url", "http", "bound", "origin"),
    [
        ("", Http(), {}, "http://localhost"),
        ("", Http(bind=PLAIN), {"http": Address("127.0.0.1", 4711)}, "http://127.0.0.1:4711"),
        ("", Http(bind=PLAIN), {"http": Address("::1", 4711), "https": Address("::1", 8443)}, "https://[::1]:8443"),
        ("https://gate.example.org:1/", Http(tls_bind=TLS), {"https": TLS}, "https://gate.example.org:1"),
    ],
)
def test_the_origin(public_url: str, http: Http, bound: dict[str, Address], origin: str) -> None:
    site = Site(Settings(state_dir=Path(), public_url=public_url, http=http))
    site.listens_on(bound)
    assert (site.origin, site.accounts_url) == (origin, f"{origin}/accounts")


def test_before_anything_listens_the_origin_is_what_was_configured() -> None:
    assert Site(Settings(state_dir=Path(), http=Http(tls_bind=TLS))).origin == "https://0.0.0.0:8443"
