"""Pages of developers and operators with little or nothing to show. With much, they are in test_every_page.py."""

from pathlib import Path
from typing import Final

from tests.browser import DESKTOP
from tests.daemon import LIGHT_TYPE
from tests.e2e.accounts.test_looks import faults
from tests.e2e.console.test_developer import go
from tests.e2e.console.user import User

TYPE: Final = f"/developer/types/{LIGHT_TYPE}"
#: Each with words that it shows when it is complete.
PAGES: Final = {
    "/developer": "Needs attention",
    f"{TYPE}/list": "Certificates",
    f"{TYPE}/firmware": "Roll an image out",
    f"{TYPE}/connector": "no cloud connector",
    f"{TYPE}/plans": "New plan",
    f"{TYPE}/errors": "Failed messages",
    "/developer/tasks/" + "9" * 32: "Not found",
    "/developer/subscriptions": "Subscriptions",
    "/developer/trials": "New trial",
    "/developer/usage": "Used this month",
    "/operator/refusals": "The latest refusals",
    "/operator/backups": "Make a backup",
    "/operator/decisions": "Payments",
}


def test_pages_have_no_overflow_and_no_findings_of_axe(
    with_axe: None, ada: User, screenshots: Path | None, node_folder: Path
) -> None:
    wrong = []
    for number, (path, words) in enumerate(PAGES.items()):
        ada.browser.show(DESKTOP, dark=False)
        go(ada, path)
        ada.sees(words, "#page")
        if words.startswith(("Not found", "no cloud")):
            ada.was_refused(404 if "found" in words else 409)
        name = path.strip("/").replace("/", "_")
        # They share their colors.
        wrong += faults(ada.browser, node_folder, name, screenshots, dark=number % 2 == 1)
    assert wrong == [], "\n".join(wrong)
