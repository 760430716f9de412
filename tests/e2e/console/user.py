"""A person at the console, who finds things by the words that they show."""

from collections.abc import Callable
from typing import Final

import httpx

from tests.browser import BrowserError, Chromium
from tests.daemon import ADA_EMAIL
from tests.protocols.http.accounts.browser import Form

PASSWORD: Final = "correct horse battery staple"


class User:
    def __init__(self, browser: Chromium, origin: str) -> None:
        self.browser = browser
        self.origin = origin
        self.clicks = 0

    def sign_in(self, email: str = ADA_EMAIL) -> None:
        self.open("")
        self.browser.fill("E-mail address or user name", email)
        self.browser.fill("Password", PASSWORD)
        self.browser.press("Sign in")
        self.sees("Devices")

    def take_session(self, email: str = ADA_EMAIL) -> None:
        """Sign in without the browser, which then has the cookies: quicker than the form."""
        with httpx.Client(base_url=self.origin, follow_redirects=True, timeout=30) as client:
            form = Form(client.get("/console").text)
            client.post(form.action, data=form.fields | {"email": email, "password": PASSWORD}).raise_for_status()
            self.browser.take_cookies(self.origin, client.cookies)

    def open(self, path: str) -> None:
        self.browser.open(f"{self.origin}/console{path}")

    def click(self, words: str) -> None:
        """The button or link that is called so, by its text or its label, once it is there and may be clicked."""
        self.clicks += 1
        name = f'"{words}"'
        is_called = f"normalize-space()={name} or @aria-label={name}"
        path = f"//*[self::button or self::a or self::option][{is_called}]"
        self.now(lambda: self.browser.click(path))

    def now(self, act: Callable[[], object]) -> None:
        """Do it as soon as it can be done: the page may be about to show what it needs."""

        def did() -> bool:
            try:
                act()
            except (AssertionError, BrowserError):
                return False
            return True

        self.browser.wait(did)

    def sees(self, words: str, selector: str = "body") -> None:
        self.browser.until("texts(arguments[0]).some((text) => text.includes(arguments[1]))", selector, words)

    def sees_no(self, words: str, selector: str = "body") -> None:
        self.browser.until("!texts(arguments[0]).some((text) => text.includes(arguments[1]))", selector, words)

    def sees_all(self) -> None:
        """Nothing is still to come."""
        self.browser.until("document.querySelector('[aria-busy]') === null")

    def was_refused(self, status: int) -> None:
        """The console reports each refusal of a call as a failure to load: there were such, and nothing else."""
        complaints = self.browser.traffic().complaints
        assert complaints
        assert [one for one in complaints if f"the server responded with a status of {status}" not in one] == []

    def eventually(self, holds: Callable[[], bool]) -> None:
        self.browser.wait(holds)
