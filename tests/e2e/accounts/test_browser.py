"""The browser fixture detects everything that a page must not do. All tests of the pages rely on that."""

from tests.browser import Chromium
from tests.e2e.accounts.person import Person
from tests.e2e.accounts.world import WEB, Site
from tests.rows import each_row


def breaking(person: Person, script: str) -> Chromium:
    """The sign-in page, in which this script was run."""
    person.asked_by(WEB)
    person.browser.traffic()
    person.browser.run(script)
    return person.browser


@each_row(
    "script",
    [
        "document.body.appendChild(Object.assign(document.createElement('script'), {text: '1'}))",
        "document.body.setAttribute('style', 'color: red')",
        "document.body.appendChild(Object.assign(document.createElement('img'), {src: '/accounts/x.png'}))",
        "console.error('something')",
    ],
)
def test_complaints_are_recorded(person: Person, script: str) -> None:
    assert breaking(person, script).traffic().complaints


def test_requests_are_recorded(person: Person, site: Site) -> None:
    elsewhere = site.callback.url("elsewhere")
    browser = breaking(person, f"window.open('{elsewhere}', '_self')")
    browser.wait(lambda: browser.heading == "Back at the application")
    assert elsewhere in browser.traffic().urls
