"""One daemon with all its listeners, two people, and the one browser."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Chromium
from tests.e2e.console.user import User
from tests.e2e.console.world import Site, running_site


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture
def chromium(window: Chromium) -> Iterator[Chromium]:
    """The browser. After each test: no console errors, no violations of the policy, nothing from elsewhere."""
    window.fresh()
    yield window
    window.leave()
    traffic = window.traffic()
    # A page that is left while it connects.
    left = "WebSocket is closed before the connection is established"
    assert [one for one in traffic.complaints if left not in one] == []
    elsewhere = [url for url in traffic.urls if not url.startswith(("http://127.0.0.1:", "data:", "blob:", "about:"))]
    assert elsewhere == []


@pytest.fixture
def ada(chromium: Chromium, site: Site) -> User:
    """Signed in, with no page open yet. Tests that sign in themselves fill the form in."""
    user = User(chromium, site.origin)
    user.take_session()
    return user


@pytest.fixture(scope="session")
def screenshots() -> Path | None:
    """The folder for screenshots that the environment variable SCREENSHOTS names."""
    given = os.environ.get("SCREENSHOTS")
    if not given:
        return None
    folder = Path(given) / "console"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
