"""Reading mails from the daemon's outbox, where they are when no mail server is configured."""

import email
import email.policy
from pathlib import Path

from tests.browser import Chromium
from tests.e2e.accounts.world import Site


class Postbox:
    def __init__(self, site: Site, browser: Chromium) -> None:
        self._site = site
        self._folder = site.daemon.state / "outbox"
        self._browser = browser

    def link_to(self, address: str) -> str:
        """The link in the only mail to this address."""
        path = self._browser.wait(lambda: self._mail_to(address))
        with path.open("rb") as file:
            body = email.message_from_binary_file(file, policy=email.policy.default).get_body(["plain"])
        assert body is not None
        return self._site.link_in(body.get_content())

    def _mail_to(self, address: str) -> Path | None:
        found = [path for path in self._folder.glob("*.eml") if f"To: {address}" in path.read_text(encoding="utf-8")]
        assert len(found) <= 1
        return found[0] if found else None
