"""Every page on a phone, a tablet and a desktop, with a light or a dark color scheme: no overflow, accessible.

Screenshots are stored in the folder that the environment variable SCREENSHOTS names.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.browser import DESKTOP, LOOKS, PHONE, WIDTHS, Chromium
from tests.daemon import ADA_EMAIL, device_id
from tests.e2e.accounts.node_program import axe_script
from tests.e2e.accounts.person import NAME_LABEL, Person
from tests.e2e.accounts.postbox import Postbox
from tests.e2e.accounts.world import GALE_EMAIL, OWN_EMAILS, PASSWORD, TV, WEB
from tests.e2e.console.measures import measured
from tests.properties import IS_CI, chance, drawn

# The rules of the Web Content Accessibility Guidelines, and the best practices of the authors of axe.
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
#: Of the rules that a page passes, their number is enough: axe describes no element of them.
#: Of rows, entries and options that are alike in all but their text one is enough: axe takes a time for each element.
_FIND: Final = """
const [values, done] = arguments;
const made = (one) => `${one.tagName} ${one.className} ${one.getAttributeNames()} ${[...one.children].map(made)}`;
for (const list of document.querySelectorAll("tbody, ul, ol, select, datalist, svg, .tiles")) {
  const seen = new Set();
  for (const one of [...list.children]) {
    if (seen.has(made(one)) && !one.matches(":checked")) one.remove();
    seen.add(made(one));
  }
}
axe.run({runOnly: {type: "tag", values}, resultTypes: ["violations"], preload: false}).then(
  ({passes, violations}) => done({
    passes: passes.length,
    findings: violations.flatMap(({id, nodes}) => nodes.map(({html}) => `${id}: ${html}`)),
  }),
  (error) => done({error: String(error)}),
);
"""


def signing_in(person: Person) -> Iterator[str]:
    person.asked_by(WEB)
    person.sign_in("nobody@example.org", "wrong horse")
    yield "wrong_password"
    for email, look in (("nobody@example.org", "mail_on_its_way"), (GALE_EMAIL, "")):
        person.asked_by(WEB)
        person.browser.follow("Forgot your password?")
        if look:
            yield "forgotten_password"
        person.browser.fill(NAME_LABEL, email)
        person.browser.press("Send the mail")
        if look:
            yield look
    person.browser.open(Postbox(person.site, person.browser).link_to(GALE_EMAIL))
    yield "new_password"
    person.take_session()
    person.asked_by(WEB)
    yield "consent"


def signing_up(person: Person) -> Iterator[str]:
    person.asked_by(WEB, path="signup")
    person.browser.fill("E-mail address", ADA_EMAIL)
    person.browser.fill("Password", PASSWORD)
    person.browser.press("Create the account")
    yield "taken_address"
    person.browser.open(person.site.link_in(person.site.trunkline("user", "invite", "wilma@example.org")))
    yield "invitation"
    person.browser.fill("Password", PASSWORD)
    person.browser.press("Open the account")
    yield "welcome"
    for path, look in (("signup", "link_over"), ("account/confirm", "confirmed_too_late"), ("alarm", "alarm_over")):
        person.visit(path, code="0" * 32)
        yield look
    person.visit("authorize", client_id="nobody")
    yield "error"
    person.visit("login")  # this address only accepts a posted form
    yield "no_such_page"


def accepting(person: Person) -> Iterator[str]:
    email = OWN_EMAILS[10]
    person.site.of_ada("POST", f"/devices/{device_id(0)}/shares", email=email)
    person.take_session(email)
    postbox = Postbox(person.site, person.browser)
    person.browser.open(postbox.link_to(email))
    yield "accept_share"
    file = person.site.daemon.config.with_name("label.csv")
    file.write_text("name,type\nLamp in the hall,example.light\n", encoding="utf-8")
    printed = person.site.trunkline("device", "import", str(file), "--owner", ADA_EMAIL).splitlines()
    person.visit("accept/label", code=printed[1].split(",")[4])
    yield "accept_label"
    person.visit("accept/label", code="WRONG")
    yield "label_code"
    email = OWN_EMAILS[6]
    invitation = {"email": email, "invitationType": "participant"}
    types = [{"dtid": "brightlight.lamp"}, {"dtid": "brightlight.weather_station"}]
    about = "Does dimmed light help?"
    person.site.of_ada(
        "POST", "/trials", name="Sleep and light", description=about, deviceTypes=types, invitations=[invitation]
    )
    person.take_session(email)
    person.browser.open(postbox.link_to(email))
    yield "accept_trial"


def paying(person: Person) -> Iterator[str]:
    offered = person.site.of_ada("GET", f"/pricing/devices/{device_id(0)}/revenueshare/upgradepath")
    person.browser.open(offered["url"])
    yield "upgrade"
    person.browser.press("Pay 4.99 USD")
    yield "upgrade_waiting"


def connecting(person: Person) -> Iterator[str]:
    person.visit("go")
    yield "sign_in_to_go"
    person.take_session()
    person.visit("go")
    person.enter_code("AAAA-AAAA")
    yield "wrong_code"
    for button, look in (("Allow", "connected"), ("Deny", "refused")):
        person.visit("go", user_code=person.new_user_code(TV))
        person.browser.press("Continue")
        if button == "Allow":
            yield "confirm"
        person.browser.press(button)
        yield look


def with_a_second_factor(person: Person) -> Iterator[str]:
    email = OWN_EMAILS[3]
    person.take_session(email)
    person.visit("account/second-factor")
    person.browser.fill("Code", "123")
    person.browser.press("Turn on")
    yield "wrong_first_code"
    person.set_up_second_factor()
    yield "recovery_codes"
    person.visit("account")
    yield "account_with_second_factor"
    for page in ("automations", "before"):
        person.visit(f"account/{page}")
        yield page
    person.browser.fresh()
    person.asked_by(WEB)
    person.sign_in(email)
    person.browser.fill("The code that your app shows", "123")
    person.browser.press("Continue")
    yield "wrong_sign_in_code"


WAYS: Final = (signing_in, signing_up, accepting, paying, connecting, with_a_second_factor)
#: By the route below the root: what it shows. What a posted form leads to is with the form's page. Where a form says
#: what was wrong, it has all that it has at first.
PAGES: Final[Mapping[str, Sequence[str]]] = {
    "/authorize": ("consent", "error"),
    "/signin": ("wrong_password",),
    "/signup": ("taken_address", "welcome", "link_over", "invitation"),
    "/reset": ("forgotten_password", "mail_on_its_way", "new_password"),
    "/accept/share": ("accept_share",),
    "/accept/label": ("accept_label", "label_code"),
    "/accept/trial": ("accept_trial",),
    "/pricing/upgrade": ("upgrade", "upgrade_waiting"),
    "/login": ("no_such_page",),
    "/login/code": ("wrong_sign_in_code",),
    "/go": ("sign_in_to_go", "wrong_code", "confirm", "connected", "refused"),
    "/account": ("account_with_second_factor",),
    "/account/second-factor": ("wrong_first_code", "recovery_codes"),
    "/account/automations": ("automations",),
    "/account/before": ("before",),
    "/account/confirm": ("confirmed_too_late",),
    "/alarm": ("alarm_over",),
}
#: Routes without a page of their own: redirects, answers for programs, and what a redirect of a provider leads to.
_DATA: Final = ("/checkSession", "/tokenInfo", "/userinfo", "/jwks.json")
NO_PAGES: Final = ("/logout", "/signout", "/external", "/external/callback", *_DATA)


_EACH: Final = [page for pages in PAGES.values() for page in pages]
#: axe looks at a third of them in CI, and else at three, which are others in each run.
_SEEN_BY_AXE: Final = frozenset(drawn(_EACH, 3) if IS_CI else chance().sample(_EACH, 3))


@pytest.mark.parametrize("way", WAYS)
def test_pages_have_no_overflow_and_no_findings_of_axe(
    person: Person,
    way: Callable[[Person], Iterator[str]],
    screenshots: Path | None,
    node_folder: Path,
) -> None:
    wrong = []
    for look in way(person):
        assert look in _EACH
        dark = _EACH.index(look) % 2 == 1  # pages share their colors
        wrong += faults(person.browser, node_folder, look, screenshots, dark=dark, with_axe=look in _SEEN_BY_AXE)
        person.browser.show(DESKTOP, dark=False)
    assert wrong == [], "\n".join(wrong)


def faults(
    browser: Chromium, node_folder: Path, name: str, screenshots: Path | None, *, dark: bool, with_axe: bool = IS_CI
) -> list[str]:
    """Those of the layout, at each width in CI, and those that axe finds, light or dark, on a phone.

    The findings of axe do not depend on the size.
    """
    wrong = measured(browser, widths=WIDTHS if IS_CI else [PHONE])
    if screenshots is not None:
        for look, (size, is_dark) in LOOKS.items():
            browser.show(size, dark=is_dark)
            browser.screenshot(screenshots / f"{name}.{look}.png")
    if with_axe:
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
