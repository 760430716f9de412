"""Every page of the console, of developers and of operators, opened with much to show: in German or French, whose
words are longer than those of English, at three widths.

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
from tests.properties import IS_CI, chance, drawn

#: By the route: the paths to open, with the words that each shows when it is complete and, after "#", where.
VISITS: Final[Mapping[str, Mapping[str, str]]] = {
    "/console": {"/console": "1–25#pages"},
    "/console/devices/new": {"/console/devices/new": "setOn"},
    "/console/devices/<id_>": {
        "/console/devices/{device}": "refused#trail",
        "/console/devices/{gone}": "No such device",
        "/console/devices/{shared}": "Leave",
    },
    "/console/board": {"/console/board": "Make a board"},
    "/console/rules": {"/console/rules": "Of the dashboard"},
    "/console/rules/new": {"/console/rules/new": "Add a mail"},
    "/console/rules/<id_>": {
        "/console/rules/{rule}": "Feuchtigkeitsmesser#conditions option",
        "/console/rules/{running rule}": "running#standing",
        "/console/rules/{foreign rule}": "Dashboard#foreign",
    },
    "/console/alarms": {"/console/alarms": "Feuchtigkeitsmesser#alarms"},
    "/console/scenes": {"/console/scenes": "Activate"},
    "/console/scenes/new": {"/console/scenes/new": "Add an Action"},
    "/console/scenes/<id_>": {"/console/scenes/{scene}": "Temperaturmessgerät"},
    "/console/exports": {"/console/exports": "Download"},
    "/console/data": {"/console/data": "Reads#readers"},
    "/console/types/<id_>/sheet": {f"/console/types/{STATION}/sheet": "for ever"},
    "/console/account": {"/console/account": "Older#activity-pages"},
    "/console/signed-in": {"/console/signed-in": "You are signed in"},
    "/developer": {"/developer": "Needs attention"},
    "/developer/applications": {"/developer/applications": "New application"},
    "/developer/types": {"/developer/types": "acme.ventilation.station"},
    "/developer/types/<id_>": {f"/developer/types/{STATION}": "Unique name"},
    "/developer/types/<id_>/manifest": {f"/developer/types/{STATION}/manifest": "Version 1"},
    "/developer/types/<id_>/list": {f"/developer/types/{STATION}/list": "1–50"},
    "/developer/types/<id_>/devices": {f"/developer/types/{STATION}/devices": "site.floor"},
    "/developer/types/<id_>/firmware": {f"/developer/types/{STATION}/firmware": "release-candidate#page"},
    "/developer/types/<id_>/connector": {"/developer/types/{light}/connector": "Nothing fails."},
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


@pytest.mark.parametrize("email", [MEMBER, VIEWER, PLAIN])
def test_the_console_asks_for_nothing_that_is_refused(chromium: Chromium, full: Content, email: str) -> None:
    """Each run draws pages that it opens as a developer, a viewer and a person without a role.

    An administrator's are below. People with and without a role share what is below /console. A page that is not for a
    person says so before it asks for anything, whichever it is.
    """
    person = full.user(chromium, email)
    ids = full.ids | full.of[email]
    area = HOME if email == PLAIN else "/developer"
    routes = [*chance().sample([one for one in VISITS if one.startswith(area)], 3 if IS_CI else 1), "/operator"]
    wrong = []
    for path in [path for route in routes for path in VISITS[route]]:
        person.browser.open(person.origin + path.format_map(ids))
        person.sees_all()
        wrong += [f"{path}: {one}" for one in refusals(person)]
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


#: A page is looked at in one of them: German has the longest words, French the longest sentences.
_LANGUAGE_OF: Final = dict(zip(VISITS, cycle(["de", "fr", "de"])))
#: axe looks at a page in one of them: it takes a quarter of a second, and pages share their colors.
_LOOKS: Final = dict(zip(VISITS, cycle(LOOKS.values())))
#: axe looks at a third of them in CI, and else at three, which are others in each run.
_SEEN_BY_AXE: Final = frozenset(drawn(list(VISITS), 3) if IS_CI else chance().sample(list(VISITS), 3))


@pytest.mark.parametrize("area", [HOME, "/developer", "/operator"])
def test_a_page_full_of_content_fits(
    person: User, full: Content, area: str, screenshots: Path | None, node_folder: Path
) -> None:
    """In a language with long words, at all widths in CI and else at one; and it is all in that language."""
    wrong = []
    for route in VISITS:
        if not route.startswith(area):
            continue
        for language in ["en", "de", "fr"] if screenshots is not None else [_LANGUAGE_OF[route]]:
            try:
                wrong += faults_in(language, person, full, route, screenshots, node_folder)
            except (AssertionError, TimeoutError) as error:
                wrong.append(f"{language}: {route}: {error!r}")
    assert wrong == [], "\n".join(wrong)


def faults_in(
    language: str, person: User, full: Content, route: str, screenshots: Path | None, node_folder: Path
) -> list[str]:
    """What is in English, what does not fit, and what axe finds."""
    browser = person.browser
    browser.tell("Network.setExtraHTTPHeaders", headers={"Accept-Language": f"{language}-CH, en;q=0.5"})
    wrong = []
    for path, words in VISITS[route].items():
        browser.show(DESKTOP, dark=False)
        browser.open(person.origin + path.format_map(full.ids))
        assert browser.run("return document.documentElement.lang") == language
        what, _, where = words.partition("#")
        person.sees(said(what, language), f"#{where}" if where else "#content")
        person.sees_all()
        if language != "en":
            wrong += in_english(browser, language, route)
        size, dark = _LOOKS[route]
        wrong += measured(browser, widths=WIDTHS if IS_CI else [size])
        if route in _SEEN_BY_AXE:
            browser.show(size, dark=dark)
            look = f"at {size[0]} px, {'dark' if dark else 'light'}"
            wrong += [f"{look}, {one}" for one in findings(browser, node_folder)]
        if screenshots is not None:
            take(browser, screenshots, language, path, LOOKS)
    return [f"{language}: {route}: {one}" for one in [*wrong, *refusals(person)]]


def said(words: str, language: str) -> str:
    """As the page says it: data, and what is not a whole text, in no other language."""
    return str(TEXTS.get(words, {}).get(language, words))


def in_english(browser: Chromium, language: str, route: str) -> list[str]:
    english = {key for key, forms in TEXTS.items() if forms[language] != key}
    seen = english.intersection(browser.run(_SHOWN))
    if route == "/operator":  # statistics have the names of `trunkline statistics`
        seen = {one for one in seen if not re.fullmatch("[a-z ]+", one)}
    return [f"English: {one}" for one in sorted(seen - _DATA)]


def take(
    browser: Chromium, folder: Path, kind: str, path: str, looks: Mapping[str, tuple[tuple[int, int], bool]]
) -> None:
    """Pictures of the page."""
    for look, (size, dark) in looks.items():
        browser.show(size, dark=dark)
        browser.screenshot(folder / f"{kind}_{path.strip('/').replace('/', '_')}.{look}.png")
