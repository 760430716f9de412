"""The links in mails: setting a new password, and accepting an invitation."""

from tests.e2e.accounts.callback import query_of
from tests.e2e.accounts.person import NAME_LABEL, Person
from tests.e2e.accounts.postbox import Postbox
from tests.e2e.accounts.world import FRIDA_EMAIL, PASSWORD, WEB, Site

NEW_PASSWORD = "a staple of correct horses"


def test_a_forgotten_password_is_reset(person: Person, site: Site, postbox: Postbox) -> None:
    browser = person.browser
    person.asked_by(WEB)
    browser.follow("Forgot your password?")
    browser.fill(NAME_LABEL, FRIDA_EMAIL)
    browser.press("Send the mail")
    assert browser.heading == "Look into your mail"
    link = postbox.link_to(FRIDA_EMAIL)
    browser.open(link)
    assert FRIDA_EMAIL in browser.text
    browser.fill("New password", NEW_PASSWORD)
    browser.press("Set the password")
    assert browser.heading == "Your password is set"
    person.asked_by(WEB)
    person.sign_in(FRIDA_EMAIL, PASSWORD)
    assert "wrong" in browser.alert
    person.sign_in(FRIDA_EMAIL, NEW_PASSWORD)
    assert query_of(person.agree()).keys() == {"code", "state"}
    browser.open(link)  # the link works once
    assert "New password" not in browser.text


def test_an_invited_person_opens_an_account(person: Person, site: Site, postbox: Postbox) -> None:
    browser = person.browser
    site.trunkline("user", "invite", "ivo@example.org")
    browser.open(postbox.link_to("ivo@example.org"))
    assert browser.heading == "Open your account"
    assert "ivo@example.org" in browser.text
    browser.fill("Your name optional", "Ivo Invited")
    browser.fill("Password", "short")
    browser.keys("\n")
    assert browser.heading == "Open your account"  # the browser itself refuses a short password
    browser.fill("Password", PASSWORD)
    browser.press("Open the account")
    person.asked_by(WEB)
    assert "ivo@example.org" in browser.text  # the new user is signed in
    assert query_of(person.agree()).keys() == {"code", "state"}
