"""Every page on a phone, a tablet and a desktop, with a light or a dark color scheme: no overflow, accessible.

Screenshots are stored in the folder that the environment variable SCREENSHOTS names.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from tests.browser import LOOKS, PHONE, Chromium
from tests.daemon import ADA_EMAIL, device_id
from tests.e2e.accounts.node_program import axe_script
from tests.e2e.accounts.person import NAME_LABEL, Person
from tests.e2e.accounts.postbox import Postbox
from tests.e2e.accounts.world import GALE_EMAIL, OWN_EMAILS, PASSWORD, SHARON_EMAIL, TV, WEB, Site
from tests.e2e.console.measures import measured

# The rules of the Web Content Accessibility Guidelines, and the best practices of the authors of axe.
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
#: Of the rules that a page passes, their number is enough: axe describes no element of them.
_FIND: Final = """
const [values, done] = arguments;
axe.run({runOnly: {type: "tag", values}, resultTypes: ["violations"], preload: false}).then(
  ({passes, violations}) => done({
    passes: passes.length,
    findings: violations.flatMap(({id, nodes}) => nodes.map(({html}) => `${id}: ${html}`)),
  }),
  (error) => done({error: String(error)}),
);
"""


def sign_in(person: Person) -> None:
    person.asked_by(WEB)


def wrong_password(person: Person) -> None:
    person.asked_by(WEB)
    person.sign_in("nobody@example.org", "wrong horse")


def consent(person: Person) -> None:
    person.take_session()
    person.asked_by(WEB)


def sign_up(person: Person) -> None:
    person.asked_by(WEB, path="signup")


def taken_address(person: Person) -> None:
    sign_up(person)
    person.browser.fill("E-mail address", ADA_EMAIL)
    person.browser.fill("Password", PASSWORD)
    person.browser.press("Create the account")


def forgotten_password(person: Person) -> None:
    sign_in(person)
    person.browser.follow("Forgot your password?")


def mail_on_its_way(person: Person) -> None:
    forgotten_password(person)
    person.browser.fill(NAME_LABEL, "nobody@example.org")
    person.browser.press("Send the mail")


def invitation(person: Person, guest: str = "guest@example.org") -> None:
    printed = person.site.trunkline("user", "invite", guest, "--again")
    person.browser.open(person.site.link_in(printed))


def welcome(person: Person) -> None:
    invitation(person, "wilma@example.org")
    person.browser.fill("Password", PASSWORD)
    person.browser.press("Open the account")


def link_over(person: Person) -> None:
    person.visit("signup", code="0" * 32)


def new_password(person: Person) -> None:
    forgotten_password(person)
    person.browser.fill(NAME_LABEL, GALE_EMAIL)
    person.browser.press("Send the mail")
    person.browser.open(Postbox(person.site, person.browser).link_to(GALE_EMAIL))


def accept_share(person: Person) -> None:
    person.site.of_ada("POST", f"/devices/{device_id(0)}/shares", email=SHARON_EMAIL)
    person.take_session(SHARON_EMAIL)
    person.browser.open(Postbox(person.site, person.browser).link_to(SHARON_EMAIL))


def accept_label(person: Person) -> None:
    file = person.site.daemon.config.with_name("label.csv")
    file.write_text("name,type\nLamp in the hall,example.light\n", encoding="utf-8")
    printed = person.site.trunkline("device", "import", str(file), "--owner", ADA_EMAIL).splitlines()
    person.take_session(SHARON_EMAIL)
    person.visit("accept/label", code=printed[1].split(",")[4])


def label_code(person: Person) -> None:
    person.take_session(SHARON_EMAIL)
    person.visit("accept/label", code="WRONG")


def accept_trial(person: Person) -> None:
    invitation = {"email": OWN_EMAILS[10], "invitationType": "participant"}
    types = [{"dtid": "brightlight.lamp"}, {"dtid": "brightlight.weather_station"}]
    about = "Does dimmed light help?"
    person.site.of_ada(
        "POST", "/trials", name="Sleep and light", description=about, deviceTypes=types, invitations=[invitation]
    )
    person.take_session(OWN_EMAILS[10])
    person.browser.open(Postbox(person.site, person.browser).link_to(OWN_EMAILS[10]))


def upgrade(person: Person) -> None:
    offered = person.site.of_ada("GET", f"/pricing/devices/{device_id(0)}/revenueshare/upgradepath")
    person.browser.open(offered["url"])


def upgrade_waiting(person: Person) -> None:
    upgrade(person)
    person.browser.press("Pay 4.99 USD")


def no_such_page(person: Person) -> None:
    person.visit("login")  # this address only accepts a posted form


def sign_in_to_go(person: Person) -> None:
    person.visit("go")


def go(person: Person) -> None:
    person.take_session()
    person.visit("go")


def wrong_code(person: Person) -> None:
    go(person)
    person.enter_code("AAAA-AAAA")


def confirm(person: Person) -> None:
    person.take_session()
    person.visit("go", user_code=person.new_user_code(TV))
    person.browser.press("Continue")


def connected(person: Person) -> None:
    confirm(person)
    person.browser.press("Allow")


def refused(person: Person) -> None:
    confirm(person)
    person.browser.press("Deny")


def second_factor(person: Person) -> None:
    person.take_session(OWN_EMAILS[3])
    person.visit("account/second-factor")


def wrong_first_code(person: Person) -> None:
    person.take_session(OWN_EMAILS[4])
    person.visit("account/second-factor")
    person.browser.fill("Code", "123")
    person.browser.press("Turn on")


def recovery_codes(person: Person) -> None:
    person.take_session(OWN_EMAILS[5])
    person.set_up_second_factor()


def sign_in_code(person: Person, email: str = OWN_EMAILS[6]) -> None:
    person.take_session(email)
    person.set_up_second_factor()
    person.browser.fresh()
    person.asked_by(WEB)
    person.sign_in(email)


def wrong_sign_in_code(person: Person) -> None:
    sign_in_code(person, OWN_EMAILS[7])
    person.browser.fill("The code that your app shows", "123")
    person.browser.press("Continue")


def account(person: Person) -> None:
    for _ in range(2):  # the other session is shown, too
        person.take_session(OWN_EMAILS[8])
    person.visit("account")


def account_with_second_factor(person: Person) -> None:
    person.take_session(OWN_EMAILS[9])
    person.set_up_second_factor()
    person.browser.follow("Continue to your account")


def error(person: Person) -> None:
    person.visit("authorize", client_id="nobody")


def automations(person: Person) -> None:
    person.take_session(OWN_EMAILS[8])
    person.visit("account/automations")


def before(person: Person) -> None:
    person.take_session(OWN_EMAILS[8])
    person.visit("account/before")


def confirmed_too_late(person: Person) -> None:
    person.take_session(OWN_EMAILS[8])
    person.visit("account/confirm", code="0" * 32)


def alarm_over(person: Person) -> None:
    person.visit("alarm", code="0" * 32)


#: By the route below the root: how to come to what it shows. What a posted form leads to is with the form's page.
PAGES: Final[Mapping[str, Sequence[Callable[[Person], None]]]] = {
    "/authorize": (sign_in, consent, error),
    "/signin": (wrong_password,),
    "/signup": (sign_up, taken_address, welcome, link_over, invitation),
    "/reset": (forgotten_password, mail_on_its_way, new_password),
    "/accept/share": (accept_share,),
    "/accept/label": (accept_label, label_code),
    "/accept/trial": (accept_trial,),
    "/pricing/upgrade": (upgrade, upgrade_waiting),
    "/login": (no_such_page,),
    "/login/code": (sign_in_code, wrong_sign_in_code),
    "/go": (sign_in_to_go, go, wrong_code, confirm, connected, refused),
    "/account": (account, account_with_second_factor),
    "/account/second-factor": (second_factor, wrong_first_code, recovery_codes),
    "/account/automations": (automations,),
    "/account/before": (before,),
    "/account/confirm": (confirmed_too_late,),
    "/alarm": (alarm_over,),
}
#: Routes without a page of their own: redirects, answers for programs, and what a redirect of a provider leads to.
_DATA: Final = ("/checkSession", "/tokenInfo", "/userinfo", "/jwks.json")
NO_PAGES: Final = ("/logout", "/signout", "/external", "/external/callback", *_DATA)


_EACH: Final = [page for pages in PAGES.values() for page in pages]


@pytest.mark.parametrize(
    ("lead_to", "dark"), list(zip(_EACH, cycle([False, True]))), ids=lambda each: getattr(each, "__name__", "")
)
def test_a_page_has_no_overflow_and_no_findings_of_axe(
    with_axe: None,
    person: Person,
    lead_to: Callable[[Person], None],
    dark: bool,
    screenshots: Path | None,
    node_folder: Path,
) -> None:
    """Light or dark: pages share their colors."""
    lead_to(person)
    assert faults(person.browser, node_folder, lead_to.__name__, screenshots, dark=dark) == []


def faults(browser: Chromium, node_folder: Path, name: str, screenshots: Path | None, *, dark: bool) -> list[str]:
    """Those of the layout at each width, and those that axe finds, light or dark, on a phone.

    The findings of axe do not depend on the size.
    """
    wrong = measured(browser)
    if screenshots is not None:
        for look, (size, is_dark) in LOOKS.items():
            browser.show(size, dark=is_dark)
            browser.screenshot(screenshots / f"{name}.{look}.png")
    browser.show(PHONE, dark=dark)
    wrong += [f"{'dark' if dark else 'light'}: {one}" for one in findings(browser, node_folder)]
    return [f"{name}: {one}" for one in wrong]


def findings(browser: Chromium, node_folder: Path) -> list[str]:
    """The accessibility violations that axe finds, with their elements."""
    if not browser.run("return 'axe' in window"):
        browser.run(axe_script(node_folder))
    found = browser.run_async(_FIND, RULES)
    assert "error" not in found, found["error"]
    assert found["passes"], "axe looked at nothing"
    findings: list[str] = found["findings"]
    return findings


def test_axe_would_find_something(person: Person, site: Site, node_folder: Path) -> None:
    """axe finds too little contrast, also in a headless browser."""
    person.asked_by(WEB)
    person.browser.run("document.querySelector('button').style.color = 'rgb(90, 140, 210)'")
    assert [finding.split(":")[0] for finding in findings(person.browser, node_folder)] == ["color-contrast"]
