"""The one page of the account, from the sign-in pages: what it shows is what was agreed to, and it needs no scripts."""

from tests.daemon import ADA_EMAIL
from tests.e2e.accounts.person import Person
from tests.e2e.accounts.world import OWN_EMAILS, WEB, WEB_NAME

#: A function of the account in each: of the former two pages, and of the page of applications.
SECTIONS = (
    "Profile",
    "Signing in",
    "Where you are signed in",
    "Applications with access",
    "Devices that others share with you",
    "Your archive",
    "Leaving",
    "Account activity",
)


def test_the_sentences_of_the_permission_screen_are_those_of_the_account(person: Person) -> None:
    browser = person.browser
    person.asked_by(WEB)
    person.sign_in(ADA_EMAIL)
    asked = browser.texts(".asked li")
    assert asked[0] == "See your name and e-mail address."
    assert "See your devices of the type Brightlight Weather Station and their messages." in asked
    assert "After 28 days without use" in browser.text
    person.agree()
    person.visit("account")
    row = f'//div[@id="applications"]//tr[th[.="{WEB_NAME}"]]'
    (found,) = browser.wait(lambda: browser.texts(row))
    assert sorted(browser.texts(f"{row}//li")) == sorted(asked)
    assert "After 28 days without use" in found


def test_the_former_addresses_lead_to_the_page_with_every_function(person: Person) -> None:
    browser = person.browser
    person.enter_account(OWN_EMAILS[11])
    for address in ("/accounts/account", "/console/applications"):
        browser.open(f"{person.site.origin}{address}")
        browser.wait(lambda: "/console/account" in browser.url)
        assert browser.texts("#account h2") == list(SECTIONS), address
    browser.follow("Set up a second factor")
    assert browser.heading == "Set up a second factor"


def test_without_scripts_another_browser_is_signed_out(person: Person) -> None:
    browser = person.browser
    email = OWN_EMAILS[12]
    person.enter_account(email)
    browser.fresh()
    browser.run_scripts(False)
    try:
        person.enter_account(email)
        other = '//*[@id="sessions"]//tbody/tr[not(contains(., "this browser"))]'
        assert browser.count(other) == 1
        browser.leaving(lambda: browser.click(f"{other}//button"))
        (left,) = browser.texts("#sessions tbody tr")
        assert "this browser" in left
        assert browser.heading == "Your account"
    finally:
        browser.run_scripts(True)
