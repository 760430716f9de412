"""States of pages of the console on a phone, a tablet and a desktop, light and dark: no overflow, accessible.

The pages themselves are in test_every_page.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.browser import DESKTOP, PHONE
from tests.daemon import LIGHT_TYPE, device_id
from tests.e2e.accounts.test_looks import faults, findings
from tests.e2e.console.user import User
from tests.e2e.console.world import Site
from tests.properties import drawn, in_ci


def devices(user: User) -> None:
    user.open("")
    user.sees("1–25 of")
    user.sees("Light", "#devices .type")


def no_device(user: User) -> None:
    user.open("")
    user.browser.fill("Search", "no such device")
    user.sees("No device fits")


def device(user: User) -> None:
    user.open(f"/devices/{device_id(1)}")
    user.sees("stored", "#trail")
    user.sees_no("taken", "#trail")
    user.sees("99", "#values")
    user.sees("Resets on", "#plan") if user.browser.texts("#plan .meter") else user.sees("turned off", "#plan")


def waiting_device(user: User) -> None:
    user.open(f"/devices/{device_id(29)}")
    user.click("Show me the line")
    user.sees("Hide the token")


def new_device(user: User) -> None:
    user.open("/devices/new")
    user.sees("Actions: setOn")


def wrong_name(user: User) -> None:
    new_device(user)
    user.browser.fill("Name", "<b>")
    user.click("Add the device")
    user.sees("Invalid", ".finding")
    user.was_refused(400)


def applications(user: User) -> None:
    user.open("/applications")
    user.sees("Revoke")


def really(user: User) -> None:
    applications(user)
    user.click("Revoke Dashboard")
    user.sees("Revoke Dashboard?", "dialog")


TYPE: Final = f"/developer/types/{LIGHT_TYPE}"
#: States of which axe looks at some, others in each run.
STATES: Final[list[Callable[[User], None]]] = [no_device, device, waiting_device, wrong_name, really]
#: Pages with little or nothing to show, each with words that it shows when it is complete.
EMPTY: Final = {
    f"{TYPE}/list": "Certificates",
    f"{TYPE}/connector": "no cloud connector",
    f"{TYPE}/errors": "Failed messages",
    "/developer/tasks/" + "9" * 32: "Not found",
    "/operator/refusals": "The latest refusals",
}


@in_ci
def test_pages_have_no_overflow_and_no_findings_of_axe(
    ada: User, site: Site, screenshots: Path | None, node_folder: Path
) -> None:
    site.send(1, state=True, intensity=99, colorRGB={"r": 1, "g": 2, "b": 3}, text="a rather long text " * 5)
    wrong = []
    for number, lead_to in enumerate(STATES):
        ada.browser.show(DESKTOP, dark=False)
        lead_to(ada)
        dark, with_axe = number % 2 == 1, lead_to in drawn(STATES, 2)  # they share their colors
        wrong += faults(ada.browser, node_folder, lead_to.__name__, screenshots, dark=dark, with_axe=with_axe)
    for path, words in EMPTY.items():
        ada.browser.show(DESKTOP, dark=False)
        ada.browser.open(ada.origin + path)
        ada.sees(words, "#page")
        if words.startswith(("Not found", "no cloud")):
            ada.was_refused(404 if "found" in words else 409)
        name = path.strip("/").replace("/", "_")
        wrong += faults(ada.browser, node_folder, name, screenshots, dark=False, with_axe=False)
    assert wrong == [], "\n".join(wrong)


def test_axe_would_find_something(ada: User, node_folder: Path) -> None:
    """axe looks into these pages although their policy lets no text become HTML."""
    devices(ada)
    ada.browser.run("document.querySelector('#content h1').style.color = 'rgb(140, 140, 140)'")
    ada.browser.show(PHONE, dark=False)
    found = findings(ada.browser, node_folder)
    assert {finding.split(":")[0] for finding in found} == {"color-contrast"}
