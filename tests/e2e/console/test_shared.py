"""A device that somebody else shares: whose it is, leaving it, and nothing that the console itself may not do."""

import httpx
import pytest

from tests.browser import Chromium
from tests.daemon import device_id
from tests.e2e.console.measures import measured
from tests.e2e.console.user import User
from tests.e2e.console.world import BOB_EMAIL, Site


@pytest.fixture
def bob(chromium: Chromium, site: Site) -> User:
    user = User(chromium, site.origin)
    user.take_session(BOB_EMAIL)
    user.open("")
    user.sees("Devices")
    return user


def test_words_would_be_found_broken(bob: User) -> None:
    """The measure of tables would find something."""
    bob.open("/account")
    bob.sees("Signed in until")
    narrow = "display: block; width: 1rem; min-width: 0; white-space: normal; overflow-wrap: anywhere"
    bob.browser.run(f"document.styleSheets[1].insertRule('#sessions tbody th {{ {narrow} }}')")
    assert any("is broken into" in one for one in measured(bob.browser))


def test_a_page_that_does_not_exist_is_a_page(bob: User, site: Site) -> None:
    for path in ("/console/nothing", "/nothing/at/all", "/developer/nothing"):
        answer = httpx.get(site.origin + path, headers={"Accept": "text/html,*/*"})
        assert answer.status_code == 404
        assert answer.headers["Content-Type"].startswith("text/html"), path
        assert "There is no such page" in answer.text
    bare = httpx.get(site.origin + "/nothing/at/all", headers={"Accept": "*/*"})
    assert not bare.headers.get("Content-Type", "").startswith("text/html")


def test_a_page_of_the_version_before_says_that_it_is_to_be_loaded_again(bob: User) -> None:
    script = (
        "const done = arguments[arguments.length - 1];"
        "document.querySelector('meta[name=build]').content = 'the version before';"
        "import(document.querySelector('script').src.replace(/[^/]*$/, 'api.js'))"
        ".then((api) => api.accessToken(true)).then(() => done(), done)"
    )
    bob.browser.run_async(script)
    bob.sees("another version now", "#outdated")
    bob.browser.leaving(lambda: bob.click("Reload"))
    bob.sees("Devices", "h1")
    assert bob.browser.texts("#outdated") == []


def test_a_share_is_left_at_the_device_and_on_the_page_of_the_account(bob: User, site: Site) -> None:
    for number in (40, 41):
        share = site.of_ada("POST", f"/devices/{device_id(number)}/shares", json={"email": BOB_EMAIL})["data"]
        path = f"/devices/{device_id(number)}/shares/{share['shareId']}"
        site.of_ada_at_the_console(bob, "PUT", path, {"status": "ACCEPTED"})
    bob.open("/account")
    bob.sees("Light 41", "#shared")
    bob.sees("Ada", "#shared")
    bob.click("Leave Light 41")
    bob.sees("Leave Light 41?", "dialog")
    bob.click("Leave it")
    bob.sees_no("Light 41", "#shared")
    site.send(40, intensity=7)
    bob.open(f"/devices/{device_id(40)}")
    bob.sees("stored", "#trail")
    bob.sees_all()  # what it still asked for would be refused
    bob.click("Leave")
    bob.sees("Leave Light 40?", "dialog")
    bob.browser.leaving(lambda: bob.click("Leave it"))
    bob.sees("No devices yet")
    for number in (40, 41):
        assert site.of_ada("GET", f"/devices/{device_id(number)}/shares")["total"] == 0
