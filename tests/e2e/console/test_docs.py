"""The documents at /docs in a browser: the search, the copy buttons, the way back, and three widths."""

import re
from itertools import product

from tests.browser import DESKTOP, PHONE, Chromium
from tests.e2e.console.measures import measured
from tests.e2e.console.world import Site

TABLET = (768, 1024)
#: Data and queries may go on in the next line behind their signs.
BEHIND_A_SIGN = re.compile(r'".*[]:=,._].*" is broken')
PAGES = ("", "first-steps", "devices", "operate/install", "api/messages", "reference/09-messages")


def test_the_search_leads_to_the_section(site: Site, chromium: Chromium) -> None:
    chromium.open(f"{site.origin}/docs/limits")
    chromium.fill("Search the documentation", "pre-shared key")
    chromium.wait(lambda: "LWM2M\nDevices" in chromium.texts("#found a"))
    chromium.leaving(lambda: chromium.driver.execute_script("document.querySelector('#found a').click()"))
    assert "/docs/" in chromium.url
    assert "#" in chromium.url


def test_the_search_says_that_nothing_is_found(site: Site, chromium: Chromium) -> None:
    chromium.open(f"{site.origin}/docs")
    chromium.fill("Search the documentation", "zebra <b>")
    chromium.wait(lambda: chromium.texts("#found li") == ["Nothing found."])


def test_every_example_has_a_button_that_copies_it(site: Site, chromium: Chromium) -> None:
    chromium.open(f"{site.origin}/docs/first-steps")
    blocks = chromium.texts(".copyable pre")
    assert len(blocks) == len(chromium.texts("main pre")) > 4
    chromium.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    chromium.driver.execute_script("document.querySelector('.copyable button').click()")
    said = chromium.wait(lambda: next((one for one in chromium.texts(".copyable button") if one != "Copy"), None))
    assert said in {"Copied", "Press Ctrl-C"}  # a browser without a focused window refuses the clipboard
    if said == "Press Ctrl-C":
        assert chromium.driver.execute_script("return getSelection().toString()").strip() == blocks[0]


def test_a_page_leads_back_to_the_console(site: Site, chromium: Chromium) -> None:
    chromium.open(f"{site.origin}/docs/devices")
    chromium.follow("Back to the console")
    assert "/docs" not in chromium.url


def test_pages_are_whole_without_scripts(site: Site, chromium: Chromium) -> None:
    chromium.run_scripts(False)
    chromium.open(f"{site.origin}/docs/first-steps")
    assert chromium.heading == "First steps"
    assert len(chromium.texts("main pre")) > 4
    assert chromium.texts("nav a[aria-current]") == ["First steps"]


def test_no_word_of_a_table_or_a_path_is_broken(site: Site, chromium: Chromium) -> None:
    for page in ("limits", "operate/monitoring", "reference/02-paths", "api/developer"):
        chromium.show(DESKTOP, dark=False)
        chromium.open(f"{site.origin}/docs/{page}")
        wrong = [one for one in measured(chromium) if "px long" not in one and not BEHIND_A_SIGN.search(one)]
        assert wrong == [], page


def test_a_cell_names_its_column_on_a_phone(site: Site, chromium: Chromium) -> None:
    chromium.open(f"{site.origin}/docs/first-steps")
    chromium.show(PHONE, dark=False)
    label = "return document.querySelector('main td:nth-child(2)').dataset.label"
    assert chromium.driver.execute_script(label) == "Id"
    assert chromium.texts("main thead") == [""]


def test_no_page_is_wider_than_the_screen(site: Site, chromium: Chromium) -> None:
    for size, dark in product((PHONE, TABLET, DESKTOP), (False, True)):
        chromium.show(size, dark=dark)
        for page in PAGES:
            chromium.open(f"{site.origin}/docs/{page}".rstrip("/"))
            assert chromium.overhang() <= 0, (size, page)
