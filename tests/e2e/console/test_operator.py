"""The operator's pages, as a person goes through them (reference 27.21)."""

import time
from typing import Final

import httpx

from tests.browser import Chromium
from tests.daemon import LIGHT_TYPE
from tests.e2e.console.test_developer import go
from tests.e2e.console.user import User
from tests.e2e.console.world import BOB_EMAIL, Site
from tests.properties import in_ci


def test_the_first_questions_of_an_incident(ada: User, site: Site) -> None:
    """Refusals and their origins, lagging readers, full disks, changes, and the doctor's findings."""
    ada.open("")
    httpx.get(f"{site.daemon.base_url}/users/self", headers={"Authorization": "Bearer " + "9" * 32})
    ada.click("Operator")
    ada.sees("Runs since", "#page")
    ada.sees("Free on its disk", "#room")
    ada.sees("rules", "#consumers")
    ada.sees("http", '[aria-label="Listeners"]')
    ada.sees("disk", "#doctor")
    ada.click("Diagnostics file")
    ada.sees("no secrets", "#toasts")
    ada.click("Refusals")
    ada.sees("http credentials refused", "tbody")
    ada.sees("127.0.0.1", "tbody")
    ada.click("Audit")
    ada.sees("sign in", "tbody")
    ada.sees("127.0.0.1", "tbody")


@in_ci
def test_upstreams_and_topic_devices_are_shown_on_a_tablet(ada: User) -> None:
    """An upstream that cannot be reached says so, also to the doctor; long names and sentences keep to their boxes."""
    ada.browser.show((820, 1180), dark=False)
    go(ada, "/operator")
    ada.sees("centre", "#forwarding")
    ada.sees("http://127.0.0.1:1", "#forwarding code")
    ada.sees("shellies", "#topics")
    ada.browser.run(NOT_UNDERSTOOD)
    ada.sees("no number in it", "#topics")
    ada.sees("centre", "#doctor")
    for box in ("#forwarding", "#topics"):
        assert ada.browser.run(FITS, box), box


#: From now on the entry has a problem, and keys that no device has, as long as they may be.
NOT_UNDERSTOOD: Final = """
const real = window.fetch;
window.fetch = async (...asked) => {
  const answer = await real(...asked);
  if (!String(asked[0]?.url ?? asked[0]).includes("/operator/overview")) return answer;
  const said = await answer.json();
  Object.assign(said.data.statistics["topic devices"].entries[0], {
    not_understood: 12, problem: "shellies/shellyplug-s-7A1B2C/relay/0/power: the payload has no number in it",
    unknown: ["shellyplug-s-7A1B2C", "shellyplug-s-7A1B2D", "shellyplug-s-7A1B2E"] });
  return new Response(JSON.stringify(said), { status: answer.status, headers: answer.headers });
};
"""
#: Whether the tables of a box are no wider than it.
FITS: Final = """
const tables = [...document.querySelectorAll(arguments[0] + " table")];
return tables.length > 0 && tables.every((one) => one.offsetWidth <= one.parentElement.clientWidth + 1);
"""


#: What would come by the clock never comes; what follows a frame of the feed at once does.
WITHOUT_A_CLOCK: Final = """
const real = window.setTimeout;
window.setTimeout = (work, ms, ...more) => (ms >= 4500 ? 0 : real(work, ms, ...more));
"""


def test_the_progress_of_a_backup_and_of_a_task_comes_without_polling(ada: User, site: Site) -> None:
    """The backup is found again."""
    go(ada, "/operator/backups")
    ada.sees("Make a backup")
    ada.browser.run(WITHOUT_A_CLOCK)
    file = ada.browser.texts("#latest code")
    ada.click("Make a backup")
    ada.sees("The backup has begun")
    ada.eventually(lambda: ada.browser.texts("#latest code") not in (file, []))
    go(ada, "/operator/backups")
    ada.sees("done", "#latest")
    ada.sees("trunkline-", "#kept th")
    tomorrow = int(time.time() * 1000) + 86_400_000
    task = {"dtid": LIGHT_TYPE, "taskType": "R", "property": "serverProperties.site", "scheduledOn": tomorrow}
    made = site.of_ada_at_the_console(ada, "POST", "/devicemgmt/tasks", task)["id"]
    go(ada, f"/developer/tasks/{made}")
    ada.sees("scheduled", "#standing")
    ada.browser.run(WITHOUT_A_CLOCK)
    site.of_ada_at_the_console(ada, "PUT", f"/devicemgmt/tasks/{made}", {"status": "CANCELLED"})
    ada.sees("cancelled", "#standing .badge")


def test_others_are_told_that_a_page_is_not_for_them(chromium: Chromium, site: Site) -> None:
    bob = User(chromium, site.origin)
    bob.take_session(BOB_EMAIL)
    for area in ("operator", "developer"):
        go(bob, "/console")
        assert bob.browser.texts(".areas") == []
        go(bob, f"/{area}")
        bob.sees("This is not for you")
        bob.sees("operators of this service" if area == "operator" else "administrators and developers")
    bob.browser.traffic()  # the refusals


@in_ci
def test_a_lost_connection_is_shown_and_comes_back(ada: User, site: Site) -> None:
    go(ada, "/operator")
    ada.sees("Runs since", "#page")  # it still waits for the doctor, which answers 503 when the daemon ends
    site.daemon.stop()
    ada.sees("No connection to the server", "#connection")
    site.start()
    ada.sees_no("No connection", "#connection")
    ada.sees("listens", '[aria-label="Listeners"]')
    ada.sees("disk", "#doctor")
    expected = ("401", "503", "ERR_CONNECTION", "ERR_EMPTY_RESPONSE")  # 503: of the daemon that ends
    complaints = ada.browser.traffic().complaints
    assert [one for one in complaints if not any(part in one for part in expected)] == []
