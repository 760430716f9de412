"""Charts of a device: what their numbers are, silence, gaps, ranges of one's own, several fields in one."""

import time
from typing import Any, Final

import pytest

from tests.browser import ARROW_LEFT, ESCAPE
from tests.daemon import device_id
from tests.e2e.console.measures import measured
from tests.e2e.console.user import User
from tests.e2e.console.world import Site
from tests.properties import in_ci

HOUR_MS: Final = 3_600_000
#: Calls a function of a module of the page.
_CALL: Final = """
const [module, source, done] = [arguments[0], arguments[1], arguments[arguments.length - 1]];
const failed = (error) => done(String(error));
import(document.querySelector("script").src.replace(/[^/]*$/, module)).then((made) => done(%s), failed);
"""

#: Until what was to be painted is painted.
_TWO_FRAMES: Final = "requestAnimationFrame(() => requestAnimationFrame(arguments[arguments.length - 1]))"


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
    """Fields of one unit are drawn in one chart. A chart says its units, and the zone of its times."""
    silent.sees("No message since", "#silent")
    silent.sees("latest 30", ".chart .latest")
    legend: Any = silent.browser.run_async(
        _CALL % "new made.Chart({names: ['outside', 'inside'], unit: '°C'}).element.textContent", "chart.js", ""
    )
    assert "outside (°C)" in legend
    assert "inside (°C)" in legend
    for name in ("colorRGB.r", "colorRGB.g"):
        silent.browser.click(f"#drawn input[value='{name}']")
    apart = len(silent.browser.texts("figure.chart"))
    silent.browser.click("#together")
    silent.eventually(lambda: len(silent.browser.texts("figure.chart")) < apart)
    assert len(silent.browser.texts(".chart .legend")) == apart
    silent.browser.click("#together")
    silent.eventually(lambda: len(silent.browser.texts("figure.chart")) == apart)
    silent.click("Day")
    silent.sees("mean of the last ten minutes 30", ".chart .latest")
    silent.sees_no("No message since")
    assert measured(silent.browser) == []
    zone = silent.browser.run("return new Intl.DateTimeFormat().resolvedOptions().timeZone")
    silent.click("Month")
    silent.sees(zone, "#span")
    silent.eventually(lambda: any("Times in " in name for name in silent.browser.names("canvas")))


@in_ci
def test_a_range_cannot_be_chosen_before_the_page_can_show_it(ada: User) -> None:
    ada.browser.run_scripts(False)
    ada.open(f"/devices/{device_id(52)}")
    assert ada.browser.is_covered("//*[@id='ranges']/button[.='Day']")


def test_a_chart_without_values_says_so(ada: User) -> None:
    ada.open(f"/devices/{device_id(52)}")
    ada.sees("No values yet", ".chart .nothing")
    assert set(ada.browser.texts(".chart .latest")) == {""}
    ada.click("Day")
    ada.sees("No values in this time", ".chart .nothing")
    assert ada.browser.run("return called('.chart canvas').map((one) => one.checkVisibility())").count(True) == 0
    assert ada.browser.count(".chart canvas")


def test_a_range_of_ones_own_is_shown_in_the_finest_steps(silent: User) -> None:
    silent.click("Day")
    silent.sees("mean of the last ten minutes", ".chart .latest")
    silent.browser.run(
        "Array.from(document.querySelectorAll('.chart')).find((one) => one.textContent.startsWith('intensity'))"
        ".querySelector('canvas').focus()"
    )
    silent.browser.keys(ARROW_LEFT)
    silent.sees("(mean; 30 to 30, ", ".chart .latest")
    silent.browser.keys("+")  # half the range: still longer than an hour
    before = silent.browser.texts("#span")
    silent.browser.keys(ESCAPE)
    silent.eventually(lambda: silent.browser.texts("#span") != before)
    silent.browser.run(
        "const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60000).toISOString().slice(0, 16);"
        "document.querySelector('#own-range').open = true;"
        "document.querySelector('#own-from').value = local(Date.now() - 2 * 3600000 - 1200000);"
        "document.querySelector('#own-to').value = local(Date.now() - 2 * 3600000 + 1200000);"
    )
    silent.click("Show")
    silent.sees("mean of the last minute 20", ".chart .latest")


@in_ci
def test_a_chart_keeps_the_focus_until_its_answer_is_there(silent: User) -> None:
    """The answers for the other fields come first."""
    silent.click("Day")
    silent.sees("mean of the last ten minutes 30", ".chart .latest")
    browser = silent.browser
    browser.run(
        "const charts = [...document.querySelectorAll('.chart')];"
        "window.chart = charts.find((one) => one.textContent.startsWith('intensity'));"
        "window.chart.querySelector('canvas').focus();"
        "const real = window.fetch;"
        "window.open_calls = 0;"
        "window.fetch = async (at, ...more) => {"
        "  if (String(at).includes('field=intensity')) await new Promise((go) => { window.go = go; });"
        "  window.open_calls += 1;"
        "  try { return await real(at, ...more); } finally { window.open_calls -= 1; }"
        "};"
    )
    silent.browser.keys("+")
    silent.eventually(lambda: bool(browser.run("return window.go !== undefined && window.open_calls === 0")))
    browser.run_async(_TWO_FRAMES)
    assert browser.run("return window.chart.querySelector('.nothing').hidden")
    assert browser.run("return document.activeElement === window.chart.querySelector('canvas')")
    browser.run("window.go()")


@in_ci
def test_escape_leads_back_from_a_range_without_points(silent: User) -> None:
    silent.sees("latest 30", ".chart .latest")
    browser = silent.browser
    browser.run_async(
        _CALL % "(window.one = new made.Chart({names: ['x'], onZoom: (from) => { window.zoomed = from; }}),"
        " document.querySelector('#charts').append(window.one.element),"
        " window.one.show(new Map([['x', [{t: 1, v: 1}, {t: 2, v: 2}]]]), [0, 3]), window.one.canvas.focus())",
        "chart.js",
        "",
    )
    browser.run_async(_TWO_FRAMES)
    browser.run("window.one.show(new Map(), [7, 9])")
    browser.run_async(_TWO_FRAMES)
    assert browser.run("return [window.one.canvas.hidden, window.one.nothing.hidden]") == [True, False]
    silent.browser.keys(ESCAPE)
    assert browser.run("return window.zoomed === null")
    browser.run("window.one.show(new Map([['x', [{t: 1, v: 1}]]]), [0, 3])")
    browser.run_async(_TWO_FRAMES)
    assert browser.run("return document.activeElement === window.one.canvas")


def test_the_parts_of_charts_and_of_sentences(ada: User) -> None:
    """A gap is no line. Truths are yes or no unless they are switches. The bars of the usage have axes: the numbers
    at the left from the top down to nothing, days below, and each bar as high as its number.
    """
    ada.browser.open(f"{ada.origin}/developer/usage")
    ada.sees("Used this month")
    made: Any = ada.browser.run_async(
        _CALL % "new made.Chart({names: ['x']}).runs.call({gap: 10}, [0, 5, 30, 35, 60].map((t) => ({t})))"
        ".map((run) => run.map((one) => one.t))",
        "chart.js",
        "",
    )
    assert made == [[0, 5], [30, 35], [60]]
    made = ada.browser.run_async(
        _CALL % "['state', 'isOn', 'lamp.power', 'open', 'motion', 'button'].map((path) => made.shown(true, '', path))",
        "dom.js",
        "",
    )
    assert made == ["on", "on", "on", "yes", "yes", "yes"]
    did = device_id(1)
    said = f'open = true does not hold: open of {did} is false, state of {did} is true, note of {did} is \\"true\\"'
    told: Any = ada.browser.run_async(_CALL % f'made.withTruths("{said}")', "dom.js", "")
    assert told == f'open = yes does not hold: open of {did} is no, state of {did} is on, note of {did} is "true"'
    points = "Array.from({length: 31}, (_, at) => [Date.UTC(2026, 0, at + 1), at * 100])"
    tell = "(on, value) => `${new Date(on).toISOString().slice(0, 10)}: ${value}`"
    ada.browser.run_async(
        _CALL % f"document.querySelector('#page').replaceChildren(made.bars('Units', {points}, {tell}))", "dash.js", ""
    )
    assert ada.browser.texts(".axes .y span") == ["5,000", "2,500", "0"]
    assert ada.browser.texts(".axes .x span") == ["2026-01-01", "2026-01-16", "2026-01-31"]
    script = "return [...document.querySelectorAll('.bars rect')].map((one) => Number(one.getAttribute('height')))"
    heights = ada.browser.run(script)
    assert (heights[0], heights[15], heights[30]) == (0, 36, 72)  # of 120, which are 5,000
    assert measured(ada.browser) == []
