"""The pages without a mouse, without scripts, and on small screens."""

from collections.abc import Iterator

import pytest

from tests.browser import ENTER, PHONE, TAB, Chromium
from tests.daemon import ADA_EMAIL
from tests.e2e.accounts.callback import query_of
from tests.e2e.accounts.person import CODE_LABEL, NAME_LABEL, Person
from tests.e2e.accounts.world import PASSWORD, TV, WEB, Site

FINGER_PIXELS = 44  # WCAG 2.5.5


def test_with_the_keyboard_alone(person: Person, site: Site) -> None:
    browser = person.browser
    person.asked_by(WEB)
    browser.focuses(NAME_LABEL)
    browser.keys(ADA_EMAIL, TAB)
    browser.focuses("Password")
    browser.leaving(lambda: browser.keys(PASSWORD, ENTER))
    assert browser.heading == "Allow access?"
    browser.keys(TAB)
    browser.focuses("Allow")
    browser.leaving(lambda: browser.keys(ENTER))
    assert "code" in query_of(site.callback.take())


def test_a_code_is_typed_with_the_keyboard_alone(person: Person) -> None:
    browser = person.browser
    code = person.new_user_code(TV)
    person.visit("go")
    browser.focuses(NAME_LABEL)
    browser.leaving(lambda: browser.keys(ADA_EMAIL, TAB, PASSWORD, ENTER))
    browser.focuses(CODE_LABEL)
    browser.leaving(lambda: browser.keys(code, ENTER))
    assert browser.heading == "Connect this device?"
    browser.keys(TAB, TAB)
    browser.focuses("Deny")
    browser.leaving(lambda: browser.keys(ENTER))
    assert browser.heading == "Device refused"


def test_the_focus_is_visible(person: Person) -> None:
    person.asked_by(WEB)
    person.browser.focuses(NAME_LABEL)
    for _ in range(4):  # both fields, the button, the link
        outline = person.browser.run("return getComputedStyle(document.activeElement).outlineWidth")
        assert float(outline.removesuffix("px")) >= 2, person.browser.focused
        person.browser.keys(TAB)


@pytest.fixture
def without_scripts(person: Person, site: Site) -> Iterator[Person]:
    person.browser.run_scripts(False)
    yield person
    person.browser.run_scripts(True)


def test_without_scripts(without_scripts: Person, site: Site) -> None:
    person = without_scripts
    person.browser.open("data:text/html,<h1>off</h1><script>document.querySelector('h1').textContent='on'</script>")
    assert person.browser.heading == "off"
    person.asked_by(WEB)
    person.sign_in(password="wrong horse")
    person.sign_in()
    assert query_of(person.agree()).keys() == {"code", "state"}
    person.visit("go", user_code=person.new_user_code(TV))
    person.browser.press("Continue")
    person.browser.press("Allow")
    assert person.browser.heading == "Device connected"


def test_on_a_phone_all_targets_are_large_enough(person: Person) -> None:
    person.browser.show(PHONE, dark=False)
    person.asked_by(WEB)
    check_reach(person.browser)
    person.browser.follow("Create an account")
    check_reach(person.browser)
    person.browser.follow("Sign in")
    person.sign_in()
    check_reach(person.browser)
    assert query_of(person.agree()).keys() == {"code", "state"}


def check_reach(browser: Chromium) -> None:
    assert browser.overhang() == 0
    targets = browser.run(
        "return called('button, input:not([type=hidden])')"
        ".map((one) => ({name: one.outerHTML, ...one.getBoundingClientRect().toJSON()}))"
    )
    assert targets
    for target in targets:
        assert min(target["width"], target["height"]) >= FINGER_PIXELS, target["name"]
        assert target["right"] <= PHONE[0], target["name"]


def test_test_css_blank_removes_the_style_sheet(person: Person) -> None:
    person.asked_by(WEB, test_css_blank="true")
    assert person.browser.count("link[rel=stylesheet]") == 0
    assert person.browser.overhang() == 0
    person.sign_in()
    assert query_of(person.agree()).keys() == {"code", "state"}
