"""The pages in German and French: everything is said in the language, and longer words fit at three widths."""

import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from protocols.http.texts import TEXTS
from tests.browser import DESKTOP, WIDTHS, Chromium
from tests.e2e.console.content import Content, full_site
from tests.e2e.console.measures import measured
from tests.e2e.console.test_every_page import VISITS
from tests.e2e.console.user import User

#: The page after a sign-in in a window of its own closes it.
_PAGES: Final = [one for one in VISITS if one != "/console/signed-in"]
#: Each page is measured in one of them: German has the longest words, French the longest sentences.
_LANGUAGE_OF: Final = dict(zip(_PAGES, cycle(["de", "fr", "de"])))
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
    yield full.user(chromium)
    chromium.tell("Network.setExtraHTTPHeaders", headers={})


@pytest.mark.parametrize("route", _PAGES)
def test_a_page_is_in_the_language_of_the_browser_and_fits(
    person: User, full: Content, route: str, screenshots: Path | None
) -> None:
    wrong = []
    languages = ["de", "fr"] if screenshots is not None else [_LANGUAGE_OF[route]]
    for language in languages:
        person.browser.tell("Network.setExtraHTTPHeaders", headers={"Accept-Language": f"{language}-CH, en;q=0.5"})
        for path in list(VISITS[route])[:1]:
            person.browser.show(DESKTOP, dark=False)
            person.browser.open(person.origin + path.format_map(full.ids))
            person.sees_all()
            assert person.browser.run("return document.documentElement.lang") == language
            english = {key for key, forms in TEXTS.items() if forms[language] != key}
            seen = english.intersection(person.browser.run(_SHOWN))
            if route == "/operator":  # statistics have the names of `trunkline statistics`
                seen = {one for one in seen if not re.fullmatch("[a-z ]+", one)}
            wrong += [f"{language}: {path}: English: {one}" for one in sorted(seen - _DATA)]
            wrong += [f"{language}: {path}: {one}" for one in measured(person.browser)]
            if screenshots is not None:
                name = path.strip("/").replace("/", "_")
                for size in WIDTHS:
                    person.browser.show(size, dark=False)
                    person.browser.screenshot(screenshots / f"{language}_{name}.{size[0]}.png")
    assert wrong == [], "\n".join(wrong)
