"""A person's actions on the pages, in Chromium."""

import ssl
import time
from typing import Final
from urllib.parse import urlencode

import httpx
import pyotp

from tests.browser import Chromium
from tests.daemon import ADA_EMAIL
from tests.e2e.accounts.world import PASSWORD, WEB, Site
from tests.protocols.http.accounts.browser import Form

NAME_LABEL: Final = "E-mail address or user name"
CODE_LABEL: Final = "The code that your device shows"


class Person:
    def __init__(self, chromium: Chromium, site: Site) -> None:
        self.browser = chromium
        self.site = site

    def visit(self, path: str, **query: str) -> None:
        """Open a page of the accounts server."""
        self.browser.open(f"{self.site.accounts}/{path}?{urlencode(query)}")

    def in_another_window(self, path: str, **query: str) -> None:
        """Open a page in another window and close the window."""
        with self.browser.another_window():
            self.visit(path, **query)

    def asked_by(self, client_id: str = WEB, *, path: str = "authorize", **query: str) -> None:
        """Open /authorize as a redirect of an application does."""
        self.visit(path, **{"client_id": client_id, "response_type": "code", "state": "s 1&é", **query})

    def sign_in(self, name: str = ADA_EMAIL, password: str = PASSWORD) -> None:
        assert self.browser.heading == "Sign in"
        self.browser.fill(NAME_LABEL, name)
        self.browser.fill("Password", password)
        self.browser.press("Sign in")

    def take_session(self, email: str = ADA_EMAIL) -> None:
        """Sign in without the browser, which then has the cookies: a tenth of the processor time of the form."""
        trusted = ssl.create_default_context(cafile=self.site.certificate)
        with httpx.Client(base_url=self.site.origin, verify=trusted, follow_redirects=True, timeout=30) as client:
            form = Form(client.get("/accounts/go").text)
            client.post(form.action, data=form.fields | {"email": email, "password": PASSWORD}).raise_for_status()
            self.browser.take_cookies(self.site.origin, client.cookies)

    def enter_account(self, email: str) -> None:
        """Sign in at the own account."""
        self.visit("account")
        self.sign_in(email)

    def set_up_second_factor(self) -> "Phone":
        """Set up a second factor; the recovery codes are shown then."""
        self.visit("account/second-factor")
        assert self.browser.heading == "Set up a second factor"
        phone = Phone(self.browser.texts(".picture code")[0])
        self.browser.fill("Code", phone.code())
        self.browser.press("Turn on")
        phone.recovery = self.browser.texts(".codes code")
        return phone

    def agree(self) -> str:
        """Agree on the consent page. Returns the redirect URI with its parameters."""
        assert self.browser.heading == "Allow access?"
        self.browser.press("Allow")
        return self.site.callback.take()

    def sign_in_and_agree(self, url: str) -> str:
        """Open an authorization URL, sign in and agree."""
        self.browser.open(url)
        self.sign_in()
        return self.agree()

    def new_user_code(self, client_id: str) -> str:
        """A user code for a device of this application."""
        asked = httpx.post(
            f"{self.site.accounts}/device/code",
            data={"client_id": client_id},
            verify=ssl.create_default_context(cafile=self.site.certificate),
        )
        code: str = asked.raise_for_status().json()["user_code"]
        return code

    def enter_code(self, code: str) -> None:
        assert self.browser.heading == "Connect a device"
        self.browser.fill(CODE_LABEL, code)
        self.browser.press("Continue")


class Phone:
    """An authenticator app, which took over the secret that the page shows as text."""

    def __init__(self, secret: str) -> None:
        self._app = pyotp.TOTP(secret.replace(" ", ""))
        self._step = time.time() // 30 - 1
        self.recovery: list[str] = []

    def code(self) -> str:
        """A code that was not used before: of this half minute, or else of the next one."""
        self._step = max(self._step + 1, time.time() // 30)
        return self._app.generate_otp(int(self._step))
