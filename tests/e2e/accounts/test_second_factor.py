"""The second factor in Chromium."""

from tests.e2e.accounts.callback import query_of
from tests.e2e.accounts.person import Person
from tests.e2e.accounts.test_pages import CHALLENGE
from tests.e2e.accounts.world import MOBILE, OWN_EMAILS, Site
from tests.properties import in_ci

CODE = "The code that your app shows"


def test_setting_it_up_signing_in_with_it_and_turning_it_off(person: Person, site: Site) -> None:
    person.enter_account(OWN_EMAILS[0])
    phone = person.set_up_second_factor()
    assert person.browser.heading == "Keep these recovery codes"
    assert len(set(phone.recovery)) == 10
    person.browser.follow("Continue to your account")
    assert "Recovery codes left: 10." in person.browser.text

    person.browser.fresh()
    person.asked_by(MOBILE, **CHALLENGE)
    person.sign_in(OWN_EMAILS[0])
    assert person.browser.heading == "Enter your code"
    person.browser.focuses(CODE)
    person.browser.fill(CODE, "000")
    person.browser.press("Continue")
    assert "This code is not right" in person.browser.alert
    person.browser.fill(CODE, phone.code())
    person.browser.press("Continue")
    assert query_of(site.callback.take()).keys() == {"code", "state"}

    person.browser.fresh()
    person.enter_account(OWN_EMAILS[0])
    person.browser.fill(CODE, phone.recovery[0])
    person.browser.press("Continue")
    assert "Recovery codes left: 9." in person.browser.text
    person.browser.press("Turn off")
    assert "Off. Turn it on" in person.browser.text

    person.browser.fresh()
    person.enter_account(OWN_EMAILS[0])
    assert person.browser.heading == "Your account"


@in_ci
def test_the_operator_resets_it(person: Person, site: Site) -> None:
    """The daemon runs: the command goes through its control socket."""
    person.enter_account(OWN_EMAILS[1])
    person.set_up_second_factor()
    assert "the second factor is removed" in site.trunkline("user", "reset", OWN_EMAILS[1], "--second-factor")
    person.enter_account(OWN_EMAILS[1])
    assert "Off. Turn it on" in person.browser.text
    person.browser.until("document.querySelector('[aria-busy]') === null")
    person.browser.traffic()  # what the console has asked with the token of before the reset was refused
    assert "has no second factor" in site.trunkline("user", "reset", OWN_EMAILS[1], "--second-factor")


@in_ci
def test_another_browser_is_signed_out(person: Person) -> None:
    person.enter_account(OWN_EMAILS[2])
    person.browser.fresh()
    person.enter_account(OWN_EMAILS[2])
    browser, other = person.browser, '//div[@id="sessions"]//tr[td][not(contains(., "this browser"))]//button'
    browser.wait(lambda: "Signed in until" in browser.text)
    browser.click(other)
    browser.wait(lambda: len(browser.texts("#sessions tbody tr")) == 1)
    assert "this browser" in browser.texts("#sessions tbody tr")[0]
    person.visit("account")  # the address that it had before
    browser.wait(lambda: browser.url.endswith("/console/account"))
