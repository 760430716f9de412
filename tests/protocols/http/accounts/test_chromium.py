"""A real browser applies the policy of a form to every redirect that follows the form."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
import trio

from config.settings import Address
from tests.broker.accounts.oauth_world import WEB, OAuthWorld, provision_application
from tests.properties import in_ci
from tests.protocols.http.accounts.browser import PASSWORD, give_password
from tests.protocols.http.accounts.test_pages import ask_for_their_locks
from tests.rows import each_row
from tests.served import served

if TYPE_CHECKING:  # most processes that collect tests have no use for a browser
    from tests.browser import Chromium

pytestmark = [pytest.mark.processes, in_ci]


@contextmanager
def site(redirect_to: str = "") -> Iterator[int]:
    """The port of a web server on loopback, which redirects or has one page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if redirect_to else 200)
            if redirect_to:
                self.send_header("Location", redirect_to)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><link rel='icon' href='data:,'><h1>Arrived</h1>")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield server.server_port


@pytest.fixture
def callback() -> Iterator[str]:
    """The redirect URI of an application that redirects on to another origin."""
    with ExitStack() as stack:
        landing = stack.enter_context(site())
        yield f"http://127.0.0.1:{stack.enter_context(site(f'http://127.0.0.1:{landing}/landing'))}/callback"


@each_row("consent", [False, True])
async def test_a_callback_may_go_on_to_another_origin(
    door: Address, oauth: OAuthWorld, callback: str, window: "Chromium", consent: bool
) -> None:
    await provision_application(oauth.services, WEB, redirect_uri=callback)
    await give_password(oauth.services, oauth.ada)
    if consent:
        await ask_for_their_locks(oauth)

    def drive() -> None:
        window.fresh()
        sign_in(window, door)
        if consent:
            assert window.heading == "Allow access?"
            window.press("Allow")
        assert (window.heading, window.url.rpartition("/")[2]) == ("Arrived", "landing")
        assert window.traffic().complaints == ()
        # The cookie of a session on plain http was kept, and is sent.
        assert window.cookies()["trunkline_session"]["secure"] is False
        window.open(f"http://{door}/accounts/go")
        assert window.heading == "Connect a device"

    await trio.to_thread.run_sync(drive)


def sign_in(chromium: "Chromium", door: Address) -> None:
    chromium.open(f"http://{door}/accounts/authorize?{urlencode({'client_id': WEB, 'response_type': 'code'})}")
    chromium.fill("E-mail address or user name", "ada-example")
    chromium.fill("Password", PASSWORD)
    chromium.press("Sign in")
