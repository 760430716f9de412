"""One daemon, one application server and one browser for all tests; the browser is reset before every test."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser import Chromium
from tests.e2e.accounts.person import Person
from tests.e2e.accounts.postbox import Postbox
from tests.e2e.accounts.world import Site, running_site


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("accounts"), certificate) as running:
        yield running


@pytest.fixture
def chromium(window: Chromium, site: Site) -> Iterator[Chromium]:
    """The browser. After each test: no requests to other origins, no policy violations, no tokens in URLs."""
    window.fresh()
    site.callback.forget()
    yield window
    traffic = window.traffic()
    assert traffic.complaints == ()
    known = {site.origin, site.callback.origin, *site.others}
    for url in traffic.urls:
        parts = urlsplit(url)
        if parts.scheme == "data":  # Chromium's own pages use them
            continue
        assert f"{parts.scheme}://{parts.netloc}" in known, url
        # The one-time token of reference 13 is in this URL.
        assert "token=" not in parts.query or parts.path == "/accounts/pricing/upgrade", url
        assert "token=" not in parts.fragment or parts.path == "/page", url


@pytest.fixture
def person(chromium: Chromium, site: Site) -> Person:
    site.forget_agreements()
    return Person(chromium, site)


@pytest.fixture
def postbox(site: Site, chromium: Chromium) -> Postbox:
    return Postbox(site, chromium)


@pytest.fixture(scope="session")
def screenshots() -> Path | None:
    """The folder for screenshots that the environment variable SCREENSHOTS names."""
    given = os.environ.get("SCREENSHOTS")
    if not given:
        return None
    folder = Path(given)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
