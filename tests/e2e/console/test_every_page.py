"""Every page of the console, of developers and of operators, opened with much to show: in English, and in German or
French, where longer words must fit, at three widths.

No word is broken, nothing is cut off, touches its neighbour or has to be scrolled sideways, buttons of a row stay in
one line, no page is endless, axe finds nothing, and everything is said in the language of the browser.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from protocols.http.console.doors import HOME
from protocols.http.console.pages import DASHBOARDS, OBJECTS, PAGES
from protocols.http.texts import TEXTS
from tests.browser import DESKTOP, LOOKS, WIDTHS, Chromium
from tests.e2e.accounts.test_looks import findings
from tests.e2e.console.content import MEMBER, PLAIN, STATION, VIEWER, Content, full_site
from tests.e2e.console.measures import measured
from tests.e2e.console.user import User
from tests.properties import IS_CI

#: By the route: the paths to open, with the words that each shows when it is complete and, after "#", where.
VISITS: Final[Mapping[str, Mapping[str, str]]] = {
    "/console": {"/console": "1–25 of #pages"},
    "/console/devices/new": {"/console/devices/new": "Actions: setOn"},
    "/console/devices/<id_>": {
        "/console/devices/{device}": "refused#trail",
        "/console/devices/{gone}": "No such device",
        "/console/devices/{shared}": "Leave",
    },
    "/console/board": {"/console/board": "Make a board"},
    "/console/rules": {"/console/rules": "Of the dashboard"},
    "/console/rules/new": {"/console/rules/new": "Add a mail"},
    "/console/rules/<id_>": {
        "/console/rules/{rule}": "This device was deleted#conditions",
        "/console/rules/{running rule}": "running#standing",
        "/console/rules/{foreign rule}": "made this rule#foreign",
    },
    "/console/alarms": {"/console/alarms": "so far#alarms"},
    "/console/scenes": {"/console/scenes": "Activate"},
    "/console/scenes/new": {"/console/scenes/new": "Add an Action"},
    "/console/scenes/<id_>": {"/console/scenes/{scene}": "to every device of the type"},
    "/console/exports": {"/console/exports": "Download"},
    "/console/data": {"/console/data": "read#readers"},
    "/console/types/<id_>/sheet": {f"/console/types/{STATION}/sheet": "for ever"},
    "/console/account": {"/console/account": "Older#activity-pages"},
    "/console/signed-in": {"/console/signed-in": "You are signed in"},
    "/developer": {"/developer": "Needs attention"},
    "/developer/applications": {"/developer/applications": "New application"},
    "/developer/types": {"/developer/types": "acme.ventilation.station"},
    "/developer/types/<id_>": {f"/developer/types/{STATION}": "Unique name"},
    "/developer/types/<id_>/manifest": {f"/developer/types/{STATION}/manifest": "Version 1"},
    "/developer/types/<id_>/list": {f"/developer/types/{STATION}/list": "1–50 of 60"},
    "/developer/types/<id_>/devices": {f"/developer/types/{STATION}/devices": "site.floor"},
    "/developer/types/<id_>/firmware": {f"/developer/types/{STATION}/firmware": "release-candidate#page"},
    "/developer/types/<id_>/connector": {"/developer/types/{light}/connector": "Nothing fails"},
    "/developer/types/<id_>/plans": {f"/developer/types/{STATION}/plans": "Version 1"},
    "/developer/types/<id_>/errors": {f"/developer/types/{STATION}/errors": "Feuchtigkeitsmesser"},
    "/developer/tasks/<id_>": {"/developer/tasks/{task}": "Feuchtigkeitsmesser"},
    "/developer/subscriptions": {"/developer/subscriptions": "collector.instruments"},
    "/developer/subscriptions/<id_>": {"/developer/subscriptions/{subscription}": "Deliver again"},
    "/developer/trials": {"/developer/trials": "New trial"},
    "/developer/trials/<id_>": {"/developer/trials/{trial}": "participant.number11"},
    "/developer/usage": {"/developer/usage": "Used this month"},
    "/operator": {"/operator": "disk#doctor"},
    "/operator/people": {"/operator/people": "Acme"},
    "/operator/devices": {"/operator/devices": "Light"},
    "/operator/refusals": {"/operator/refusals": "127.0.0.1"},
    "/operator/audit": {"/operator/audit": "Details"},
    "/operator/backups": {"/operator/backups": "done#latest"},
    "/operator/decisions": {"/operator/decisions": "Approve"},
}
#: The page after a sign-in in a window of its own closes it.
_TRANSLATED: Final = [one for one in VISITS if one != "/console/signed-in"]
#: Each page is read in one of them: German has the longest words, French the longest sentences.
_LANGUAGE_OF: Final = dict(zip(_TRANSLATED, cycle(["de", "fr", "de"])))
#: Names in the data that are also texts: of a person, of a firmware image, of fields.
_DATA: Final = frozenset({"Developer", "Application", "Of", "text"})
#: Texts of the page, with those that are spoken.
_SHOWN: Final = """
const found = [], unread = "pre, code, textarea, script, noscript, .named";
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) if (!node.parentElement.closest(unread)) found.push(node.data.trim());
for (const name of ["aria-label", "placeholder", "title", "data-label"]) {
  for (const one of document.querySelectorAll(`[${name}]`)) found.push(one.getAttribute(name));
}
return [...new Set(found)];
"""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Content]:
    with full_site(tmp_path_factory.mktemp("full")) as content:
        yield content


@pytest.fixture
def person(chromium: Chromium, full: Content) -> Iterator[User]:
    # The page after a sign-in in a window of its own closes it soon, and would complain that it may not close this one.
    with chromium.bringing("window.close = () => {};"):
        yield full.user(chromium)
    chromium.tell("Network.setExtraHTTPHeaders", headers={})


def test_every_page_is_measured() -> None:
    """A new page is to be added to VISITS."""
    routes = {HOME + page.path for page in (*PAGES, *OBJECTS)} | {page.path for page in DASHBOARDS}
    assert set(VISITS) == routes


@pytest.mark.parametrize("email", [MEMBER, VIEWER, PLAIN] if IS_CI else [MEMBER])
def test_the_console_asks_for_nothing_that_is_refused(chromium: Chromium, full: Content, email: str) -> None:
    """This opens the pages as a developer, a viewer and a person without a role; an administrator's are below.

    People with and without a role share what is below /console: one opens all of it. A page that is not for a person
    says so before it asks for anything, whichever it is.
    """
    person = full.user(chromium, email)
    ids = full.ids | full.of[email]
    wrong = []
    for route, path in [(route, path) for route, visits in VISITS.items() for path in visits]:
        is_open = route.startswith("/developer") if email != PLAIN else route.startswith(HOME)
        if not is_open and route not in {"/developer", "/operator"}:
            continue
        opened = path.format_map(ids)
        person.browser.open(person.origin + opened)
        person.sees_all()
        wrong += [f"{route}: {one}" for one in refusals(person)]
    assert wrong == [], "\n".join(wrong)


def test_scripts_ask_for_nothing_before_they_know_whether_the_person_may() -> None:
    """`show` says whether, and is the same for all pages of developers and operators."""
    static = files("protocols.http.console").joinpath("static")
    for page in DASHBOARDS:
        outside = re.findall(r"(?m)^(?:\S.*)?\bawait\b.*", static.joinpath(page.script).read_text(encoding="utf-8"))
        assert [line[: len("await show(")] for line in outside] == ["await show("], page.script


def test_the_fields_of_a_type_have_a_column_of_units_only_if_one_has_a_unit(person: User) -> None:
    person.browser.open(f"{person.origin}/console/devices/new")
    person.sees("Actions:")
    kinds = set()
    for name in person.browser.texts("#dtid option"):
        person.browser.choose("#dtid", name)
        person.sees(name, "#type b")
        has_column = "Unit" in person.browser.texts("#type th")
        assert has_column == any(person.browser.texts("#type td:nth-child(3)")), name
        kinds.add(has_column)
    assert kinds == {False, True}


def refusals(person: User) -> list[str]:
    """The refused requests of the pages since the last look."""
    return [f"{status} {url}" for status, url in person.browser.traffic().answers if status == 403]


#: axe looks at a page in one of them: it takes a quarter of a second, and pages share their colors.
_LOOKS: Final = dict(zip(VISITS, cycle(LOOKS.values())))


@pytest.mark.parametrize("route", VISITS)
def test_a_page_full_of_content_fits(
    with_axe: None, person: User, full: Content, route: str, screenshots: Path | None, node_folder: Path
) -> None:
    """The page itself is measured at one width in English and at all of them in a language with longer words."""
    wrong = []
    for path, words in VISITS[route].items():
        person.browser.show(DESKTOP, dark=False)
        person.browser.open(person.origin + path.format_map(full.ids))
        what, _, where = words.partition("#")
        person.sees(what, f"#{where}" if where else "#content")
        person.sees_all()
        is_translated = route in _LANGUAGE_OF and path == next(iter(VISITS[route]))
        widths = [_LOOKS[route][0]] if is_translated or not IS_CI else WIDTHS
        wrong += [f"{path}: {one}" for one in measured(person.browser, widths=widths)]
        if screenshots is not None:
            take(person.browser, screenshots, "full", path, LOOKS)
        size, dark = _LOOKS[route]
        person.browser.show(size, dark=dark)
        found = findings(person.browser, node_folder)
        wrong += [f"{path}: at {size[0]} px, {'dark' if dark else 'light'}, {one}" for one in found]
    if route in _LANGUAGE_OF:
        for language in ["de", "fr"] if screenshots is not None else [_LANGUAGE_OF[route]]:
            wrong += faults_in(language, person, full, route, screenshots)
    wrong += refusals(person)
    assert wrong == [], "\n".join(wrong)


def faults_in(language: str, person: User, full: Content, route: str, screenshots: Path | None) -> list[str]:
    """What is in English, and what does not fit at one of the widths."""
    person.browser.tell("Network.setExtraHTTPHeaders", headers={"Accept-Language": f"{language}-CH, en;q=0.5"})
    path = next(iter(VISITS[route]))
    person.browser.show(DESKTOP, dark=False)
    person.browser.open(person.origin + path.format_map(full.ids))
    person.sees_all()
    assert person.browser.run("return document.documentElement.lang") == language
    english = {key for key, forms in TEXTS.items() if forms[language] != key}
    seen = english.intersection(person.browser.run(_SHOWN))
    if route == "/operator":  # statistics have the names of `trunkline statistics`
        seen = {one for one in seen if not re.fullmatch("[a-z ]+", one)}
    wrong = [f"{language}: {path}: English: {one}" for one in sorted(seen - _DATA)]
    wrong += [f"{language}: {path}: {one}" for one in measured(person.browser)]
    if screenshots is not None:
        take(person.browser, screenshots, language, path, {str(size[0]): (size, False) for size in WIDTHS})
    return wrong


def take(
    browser: Chromium, folder: Path, kind: str, path: str, looks: Mapping[str, tuple[tuple[int, int], bool]]
) -> None:
    """Pictures of the page."""
    for look, (size, dark) in looks.items():
        browser.show(size, dark=dark)
        browser.screenshot(folder / f"{kind}_{path.strip('/').replace('/', '_')}.{look}.png")
