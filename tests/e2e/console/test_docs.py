"""The documents at /docs in a browser: the search, the copy buttons, the way back, and three widths."""

from itertools import product

from tests.browser import DESKTOP, PHONE, Chromium
from tests.e2e.console.world import Site

TABLET = (768, 1024)
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


def test_no_page_is_wider_than_the_screen(site: Site, chromium: Chromium) -> None:
    for size, dark in product((PHONE, TABLET, DESKTOP), (False, True)):
        chromium.show(size, dark=dark)
        for page in PAGES:
            chromium.open(f"{site.origin}/docs/{page}".rstrip("/"))
            assert chromium.overhang() <= 0, (size, page)
