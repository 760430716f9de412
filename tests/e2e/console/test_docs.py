"""The documents at /docs in a browser: the search, the copy buttons, the way back, and three widths."""

import re
from pathlib import Path

from tests.browser import DESKTOP, LOOKS, PHONE, WIDTHS, Chromium
from tests.e2e.console.measures import measured
from tests.e2e.console.world import Site
from tests.properties import in_ci

#: Data and queries may go on in the next line behind their signs.
BEHIND_A_SIGN = re.compile(r'".*[]:=,._].*" is broken')
#: The longest, and the widest tables.
PAGES = (
    "",
    "limits",
    "operate/monitoring",
    "api/developer",
    "reference/02-paths",
    "reference/08-device-types-and-manifests",
    "reference/25-configuration",
)
#: Of those, what has wide tables and paths.
MEASURED = ("limits", "operate/monitoring", "reference/02-paths", "api/developer")


def test_the_search_finds_sections_and_leads_to_one(site: Site, chromium: Chromium, screenshots: Path | None) -> None:
    """The list of them is not wider than the screen."""
    chromium.open(f"{site.origin}/docs/limits")
    chromium.fill("Search the documentation", "zebra <b>")
    chromium.wait(lambda: chromium.texts("#found li") == ["Nothing found."])
    chromium.fill("Search the documentation", "pre-shared key")
    chromium.wait(lambda: "LWM2M\nDevices" in chromium.texts("#found a"))
    look(chromium, screenshots, "found")
    chromium.leaving(lambda: chromium.run("document.querySelector('#found a').click()"))
    assert "/docs/" in chromium.url
    assert "#" in chromium.url


def test_every_example_has_a_button_that_copies_it(site: Site, chromium: Chromium) -> None:
    """It covers no line. A cell names its column on a phone, and the page leads back to the console."""
    chromium.open(f"{site.origin}/docs/first-steps")
    blocks = chromium.texts(".copyable pre")
    assert len(blocks) == len(chromium.texts("main pre")) > 4
    chromium.tell("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    chromium.run("document.querySelector('.copyable button').click()")
    said = chromium.wait(lambda: next((one for one in chromium.texts(".copyable button") if one != "Copy"), None))
    assert said in {"Copied", "Press Ctrl-C"}  # a browser without a focused window refuses the clipboard
    if said == "Press Ctrl-C":
        assert chromium.run("return getSelection().toString()").strip() == blocks[0]
    for size in reversed(WIDTHS):
        chromium.show(size, dark=False)
        covered = chromium.run(
            "return Array.from(document.querySelectorAll('.copyable'), (one) => {"
            "const [lines, button] = [...one.children].map((child) => child.getBoundingClientRect());"
            "return button.left < lines.right && button.bottom > lines.top; }).filter(Boolean).length"
        )
        assert covered == 0, size
    label = "return document.querySelector('main td:nth-child(2)').dataset.label"  # on the phone
    assert chromium.run(label) == "Id"
    assert chromium.texts("main thead") == [""]
    chromium.show(DESKTOP, dark=False)
    chromium.follow("Back to the console")
    assert "/docs" not in chromium.url


def test_pages_are_whole_without_scripts(site: Site, chromium: Chromium) -> None:
    chromium.run_scripts(False)
    chromium.open(f"{site.origin}/docs/first-steps")
    assert chromium.heading == "First steps"
    assert len(chromium.texts("main pre")) > 4
    assert chromium.texts("nav a[aria-current]") == ["First steps"]


def test_the_menu_shows_the_current_page_on_a_desktop_and_is_closed_on_a_phone(site: Site, chromium: Chromium) -> None:
    chromium.open(f"{site.origin}/docs/reference/28-logs-and-audit")
    inner, outer = chromium.run(
        "const current = document.querySelector('nav [aria-current]');"
        "return [current, current.closest('header')].map((one) => one.getBoundingClientRect().toJSON())"
    )
    assert outer["top"] <= inner["top"] < inner["bottom"] <= outer["bottom"]
    chromium.show(PHONE, dark=False)
    chromium.wait(lambda: chromium.run("return document.querySelector('h1').offsetTop < 300"))
    chromium.show(DESKTOP, dark=False)
    chromium.wait(lambda: "28 Logs and audit" in chromium.texts("nav [aria-current]"))


def test_an_address_without_a_document_says_so(site: Site, chromium: Chromium) -> None:
    chromium.open(f"{site.origin}/docs/none")
    assert chromium.alert == "There is no such page here."
    chromium.follow("To the documentation")
    assert chromium.heading == "Documentation"


@in_ci
def test_no_page_is_wider_than_the_screen(site: Site, chromium: Chromium, screenshots: Path | None) -> None:
    """Nor is a word of a table or a path broken. With SCREENSHOTS, pictures of it."""
    wrong = []
    for page in PAGES:
        chromium.show(DESKTOP, dark=False)
        chromium.open(f"{site.origin}/docs/{page}".rstrip("/"))
        found = measured(chromium) if page in MEASURED else []
        wrong += [f"{page}: {one}" for one in found if "px long" not in one and not BEHIND_A_SIGN.search(one)]
        if page not in MEASURED or screenshots is not None:
            look(chromium, screenshots, page)
    assert wrong == [], "\n".join(wrong)


def look(chromium: Chromium, screenshots: Path | None, page: str) -> None:
    for size in reversed(WIDTHS):
        chromium.show(size, dark=False)
        assert chromium.overhang() <= 0, (page, size)
    if screenshots is not None:
        for name, (size, dark) in LOOKS.items():
            chromium.show(size, dark=dark)
            chromium.screenshot(screenshots / f"docs_{page.replace('/', '_') or 'index'}.{name}.png")
