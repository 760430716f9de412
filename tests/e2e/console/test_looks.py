"""States of pages of the console on a phone, a tablet and a desktop, light and dark: no overflow, accessible.

The pages themselves are in test_every_page.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.browser import DESKTOP, PHONE
from tests.daemon import device_id
from tests.e2e.accounts.test_looks import faults, findings
from tests.e2e.console.user import User
from tests.e2e.console.world import Site


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


def no_such_device(user: User) -> None:
    user.open(f"/devices/{'9' * 32}")
    user.sees("No such device")
    user.was_refused(404)


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


PAGES: Final[list[Callable[[User], None]]] = [
    no_device,
    device,
    waiting_device,
    no_such_device,
    wrong_name,
    really,
]


def test_pages_have_no_overflow_and_no_findings_of_axe(
    with_axe: None, ada: User, site: Site, screenshots: Path | None, node_folder: Path
) -> None:
    site.send(1, state=True, intensity=99, colorRGB={"r": 1, "g": 2, "b": 3}, text="a rather long text " * 5)
    wrong = []
    for number, lead_to in enumerate(PAGES):
        ada.browser.show(DESKTOP, dark=False)
        lead_to(ada)
        # They share their colors.
        wrong += faults(ada.browser, node_folder, lead_to.__name__, screenshots, dark=number % 2 == 1)
    assert wrong == [], "\n".join(wrong)


def test_axe_would_find_something(ada: User, node_folder: Path) -> None:
    """axe looks into these pages although their policy lets no text become HTML."""
    devices(ada)
    ada.browser.run("document.querySelector('#content h1').style.color = 'rgb(140, 140, 140)'")
    ada.browser.show(PHONE, dark=False)
    found = findings(ada.browser, node_folder)
    assert {finding.split(":")[0] for finding in found} == {"color-contrast"}
