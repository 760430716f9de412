"""Charts of a device: what their numbers are, silence, gaps, ranges of one's own, several fields in one."""

import time
from typing import Any, Final

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.daemon import device_id
from tests.e2e.console.measures import measured
from tests.e2e.console.user import User
from tests.e2e.console.world import Site

HOUR_MS: Final = 3_600_000
#: What a module of the page gives.
_CALL: Final = """
const [module, source, done] = [arguments[0], arguments[1], arguments[arguments.length - 1]];
const failed = (error) => done(String(error));
import(document.querySelector("script").src.replace(/[^/]*$/, module)).then((made) => done(%s), failed);
"""


@pytest.fixture
def silent(ada: User, site: Site) -> User:
    """At the page of a device that sent something two hours ago, twice within one hour, and nothing since."""
    now = round(time.time() * 1000)
    for ago, value in ((2 * HOUR_MS, 10), (2 * HOUR_MS - 60_000, 20), (HOUR_MS + 600_000, 30)):
        body = {"sdid": device_id(50), "data": {"intensity": value, "temperature": 21.5}, "ts": now - ago}
        site.of_ada("POST", "/messages", json=body)
    ada.open(f"/devices/{device_id(50)}")
    return ada


def test_live_says_since_when_a_device_is_silent_and_numbers_say_what_they_are(silent: User) -> None:
    silent.sees("No message since", "#silent")
    silent.sees("latest 30", ".chart .latest")
    silent.click("Day")
    silent.sees("mean of the last ten minutes 30", ".chart .latest")
    silent.sees_no("No message since")
    assert measured(silent.browser) == []


def test_a_range_of_ones_own_is_shown_in_the_finest_steps(silent: User) -> None:
    silent.click("Day")
    silent.sees("mean of the last ten minutes", ".chart .latest")
    silent.browser.driver.execute_script(
        "Array.from(document.querySelectorAll('.chart')).find((one) => one.textContent.startsWith('intensity'))"
        ".querySelector('canvas').focus()"
    )
    silent.browser.keys(Keys.ARROW_LEFT)
    silent.sees("(mean; 30 to 30, ", ".chart .latest")
    silent.browser.keys("+")  # half the range: still longer than an hour
    before = silent.browser.texts("#span")
    silent.browser.keys(Keys.ESCAPE)
    silent.eventually(lambda: silent.browser.texts("#span") != before)
    silent.browser.driver.execute_script(
        "const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60000).toISOString().slice(0, 16);"
        "document.querySelector('#own-range').open = true;"
        "document.querySelector('#own-from').value = local(Date.now() - 2 * 3600000 - 1200000);"
        "document.querySelector('#own-to').value = local(Date.now() - 2 * 3600000 + 1200000);"
    )
    silent.click("Show")
    silent.sees("mean of the last minute 20", ".chart .latest")


def test_fields_of_one_unit_are_drawn_in_one_chart(silent: User) -> None:
    silent.sees("latest 30", ".chart .latest")
    for name in ("colorRGB.r", "colorRGB.g"):
        silent.browser.driver.find_element(By.CSS_SELECTOR, f"#drawn input[value='{name}']").click()
    apart = len(silent.browser.texts("figure.chart"))
    silent.browser.driver.find_element(By.ID, "together").click()
    silent.eventually(lambda: len(silent.browser.texts("figure.chart")) < apart)
    assert len(silent.browser.texts(".chart .legend")) == apart


def test_a_gap_is_no_line(ada: User) -> None:
    made: Any = ada.browser.driver.execute_async_script(
        _CALL % "new made.Chart({names: ['x']}).runs.call({gap: 10}, [0, 5, 30, 35, 60].map((t) => ({t})))"
        ".map((run) => run.map((one) => one.t))",
        "chart.js",
        "",
    )
    assert made == [[0, 5], [30, 35], [60]]


def test_truths_are_yes_or_no_unless_they_are_switches(ada: User) -> None:
    made: Any = ada.browser.driver.execute_async_script(
        _CALL % "['state', 'isOn', 'lamp.power', 'open', 'motion', 'button'].map((path) => made.shown(true, '', path))",
        "dom.js",
        "",
    )
    assert made == ["on", "on", "on", "yes", "yes", "yes"]
