"""A real browser: Debian's headless Chromium, driven through its chromedriver with Selenium.

It waits for conditions and never for a time. What its pages asked the network for, and what they complained of, is kept
until a test looks at it.

Each command goes through two programs and takes 3 ms of processor time. So a page itself looks for what a test waits
for, and says so once.
"""

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import httpx
from selenium.common.exceptions import (
    JavascriptException,
    NoSuchElementException,
    NoSuchWindowException,
    TimeoutException,
    WebDriverException,
)
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.programs import require_program

T = TypeVar("T")

PATIENCE_SECONDS: Final = 60  # for what takes a second on an idle machine
_LOOK_EVERY_SECONDS: Final = 0.02
_TALLEST: Final = 6_000  # CSS pixels of a picture; a chapter of the reference has ten times as many
PHONE, TABLET, DESKTOP = WIDTHS = (390, 844), (768, 1024), (1280, 800)  # CSS pixels
#: Name of a picture: screen, whether the scheme is dark.
LOOKS: Final = {f"{size[0]}{'.dark' * dark}": (size, dark) for size, dark in product(WIDTHS, (False, True))}
# Chromium runs as root in CI, where its sandbox cannot; /dev/shm is small in containers.
_ARGUMENTS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-features=IsolateOrigins,site-per-process,OptimizationHints,MediaRouter,Translate",  # fewer processes
    "--mute-audio",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing outside of this machine
)
#: An element that is not shown has no text. An option has one also while its list is closed.
_HELPERS: Final = r"""
const shown = (one) => one.checkVisibility({visibilityProperty: true}) ? one.innerText : "";
const texts = (selector) => Array.from(document.querySelectorAll(selector), (one) =>
  (one instanceof HTMLOptionElement ? one.text : shown(one)).replaceAll("\u00a0", " ").trim());
const called = (path) => {
  const found = document.evaluate(path, document, null, XPathResult.ORDERED_NODE_SNAPSHOT_TYPE, null);
  return Array.from({length: found.snapshotLength}, (_, at) => found.snapshotItem(at));
};
const usable = (one) =>
  one.checkVisibility({visibilityProperty: true, opacityProperty: true}) && !one.matches(":disabled");
// Where the mouse would hit it. It is not left at the edge, where a short message may lie over it.
const spot = (one) => {
  if (!one || one instanceof HTMLOptionElement) return one;
  one.scrollIntoView({block: "center", behavior: "instant"});
  const {left, right, top, bottom} = one.getClientRects()[0];
  const [x, y] = [(Math.max(left, 0) + Math.min(right, innerWidth)) / 2, (top + bottom) / 2];
  if (!one.contains(document.elementFromPoint(x, y))) return null;
  window.endHearing?.();
  window.isHit = false;  // what has come in its place since then hears nothing of the mouse
  const kinds = ["mousedown", "mouseup", "click"];
  const heard = (event) => {
    if (event.type === "click") window.endHearing();
    if (one.contains(event.target)) window.isHit ||= event.type === "click";
    else event.stopImmediatePropagation(), event.preventDefault();
  };
  window.endHearing = () => kinds.forEach((kind) => window.removeEventListener(kind, heard, true));
  kinds.forEach((kind) => window.addEventListener(kind, heard, true));
  return [x, y, performance.timeOrigin];
};
"""
#: Of those that are shown and may be clicked the last one, because a dialog stands at the end of the page.
_SPOT: Final = "document.readyState === 'complete' && spot(called(arguments[0]).filter(usable).at(-1))"
_HIT: Final = "[window.isHit || performance.timeOrigin !== arguments[0]]"
_TEXTS: Final = f"{_HELPERS} return texts(arguments[0]);"
#: Looks at each change of the page, and now and then, because not all that counts is a change of its elements.
_UNTIL: Final = """
const done = arguments[arguments.length - 1];
const condition = () => %s;
const first = condition();
if (first) return done(first);
let due = 0;
const look = () => {
  due = 0;
  const found = condition();
  if (!found) return;
  observer.disconnect();
  clearInterval(sometimes);
  done(found);
};
const soon = () => { due ||= setTimeout(look, 5); };
const observer = new MutationObserver(soon);
observer.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
document.addEventListener("readystatechange", soon);
window.addEventListener("pagehide", () => done(null));  // a page that is left may be kept, and would never answer
const sometimes = setInterval(look, 100);
"""
_LOADED: Final = "document.readyState === 'complete' && performance.timeOrigin !== arguments[0]"
#: Selects what the field of a label has. Whether the field has the focus then, and takes what is written.
_SELECT: Final = r"""
const label = Array.from(document.querySelectorAll("label")).find((one) =>
  one.textContent.trim().replace(/\s+/g, " ") === arguments[0]);
const field = document.getElementById(label?.htmlFor);
field?.focus();
field?.select();
return field !== null && document.activeElement === field && !field.readOnly;
"""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests and complaints of the pages since the last look."""

    urls: tuple[str, ...]  # each with its fragment, in order, redirects too
    answers: tuple[tuple[int, str], ...]  # status and URL of each
    complaints: tuple[str, ...]  # of the console: violations of the policy, what did not load, errors, warnings


class Chromium:
    """One window. Elements are found as a person finds them: by label, by the words on a button or a link."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self._is_blank = False
        self._size: tuple[int, int] | None = None
        self._scheme = ""
        self._has_scripts = True
        driver.set_script_timeout(PATIENCE_SECONDS)

    def fresh(self) -> None:
        """Reset: no cookies or history; a desktop's size, the light scheme, scripts on, no recorded traffic.

        The files of pages, which are kept under an address of their version, stay in the cache. A page without scripts
        stays, too: it does nothing, and to leave it takes 40 ms of processor time.
        """
        if self.driver.execute_script("return document.scripts.length"):
            self.leave()
        for command in ("Network.clearBrowserCookies", "Page.resetNavigationHistory"):
            self._tell(command)
        self.show(DESKTOP, dark=False)
        self.run_scripts(True)
        self.traffic()

    def leave(self) -> None:
        """No socket of a page is left."""
        if not self._is_blank:
            self.open("about:blank")
            self._is_blank = True

    def show(self, size: tuple[int, int], *, dark: bool) -> None:
        """On a screen of that many CSS pixels, whose owner likes it so."""
        width, height = size
        if size != self._size:
            self._tell(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=size == PHONE,
            )
            self._size = size
        scheme = "dark" if dark else "light"
        if scheme != self._scheme:
            self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            self._scheme = scheme

    def run_scripts(self, allowed: bool) -> None:
        """Of pages; the test's own still run."""
        if allowed != self._has_scripts:
            self._tell("Emulation.setScriptExecutionDisabled", value=not allowed)
            self._has_scripts = allowed

    @contextmanager
    def bringing(self, script: str) -> Iterator[None]:
        """Every page that is opened meanwhile has the script: a long one is sent and compiled once."""
        brought = self._tell("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
        try:
            yield
        finally:
            self._tell("Page.removeScriptToEvaluateOnNewDocument", identifier=brought)

    def open(self, url: str) -> None:
        self._is_blank = False
        self.driver.get(url)

    def back(self) -> None:
        self.leaving(self.driver.back)

    @contextmanager
    def another_window(self) -> Iterator[None]:
        """Of the same browser, with its cookies."""
        here = self.driver.current_window_handle
        self.driver.switch_to.new_window("window")
        try:
            yield
        finally:
            self.driver.close()
            self.driver.switch_to.window(here)

    def fill(self, label: str, text: str) -> None:
        """In place of what the field has, as a password manager or the clipboard does it.

        Each key of its own takes three milliseconds; tests of the keyboard use `keys`.
        """
        assert self.driver.execute_script(_SELECT, label), f"no field {label} that can be filled in"
        self._tell("Input.insertText", text=text)

    def labelled(self, label: str) -> WebElement:
        """The field that belongs to this label."""
        found = self.driver.find_element(By.XPATH, f'//label[normalize-space()="{label}"]')
        return self.driver.find_element(By.ID, found.get_attribute("for") or "")

    def press(self, button: str) -> None:
        """Gives when the next page is there."""
        self.until(_LOADED, self.click(f'//button[normalize-space()="{button}"]'))

    def follow(self, link: str) -> None:
        self.until(_LOADED, self.click(f'//a[normalize-space()="{link}"]'))

    def click(self, path: str) -> float:
        """Click what an XPath finds, once it is there, may be clicked, and nothing lies over it.

        A click of WebDriver's own takes 40 ms of processor time; these are the mouse's same events in 10 ms. Gives the
        time at which the page was begun.
        """
        while True:
            found = self.until(_SPOT, path)
            if isinstance(found, WebElement):  # an option, which the mouse finds in no place
                found.click()
                return 0.0
            x, y, began = found
            for what in ("mousePressed", "mouseReleased"):
                self._tell("Input.dispatchMouseEvent", type=what, x=x, y=y, button="left", clickCount=1)
            # Else the page has moved in between. Without scripts none moves, and none hears of the mouse.
            if not self._has_scripts or self.until(_HIT, began) == [True]:
                return float(began)

    def keys(self, *keys: str) -> None:
        """As typed on a keyboard, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def leaving(self, act: Callable[[], object]) -> None:
        """Do what leads to another page, and wait until it is loaded."""
        # Where it came from cannot be told by the address: a form that is shown again has the same one.
        before = self.driver.execute_script("return performance.timeOrigin")
        act()
        self.until(_LOADED, before)

    def until(self, condition: str, *arguments: object) -> Any:
        """Wait until an expression of JavaScript over `arguments` is true, also in a page that comes; return its value.

        Raises:
            TimeoutException: it never was.
        """
        if not self._has_scripts:  # nor timers of the test's
            return self.wait(lambda: self._now(condition, *arguments))
        script, end = _HELPERS + _UNTIL % condition, time.monotonic() + PATIENCE_SECONDS
        while True:
            # A page that goes away is an error of one of these kinds, also before the time is over.
            with suppress(JavascriptException, NoSuchWindowException, TimeoutException):
                if found := self.driver.execute_async_script(script, *arguments):
                    return found
            if time.monotonic() > end:
                raise TimeoutException(condition)

    def wait(self, condition: Callable[[], T | None]) -> T:
        """Wait until the condition is true; return its value."""
        waiting = WebDriverWait(self.driver, PATIENCE_SECONDS, poll_frequency=_LOOK_EVERY_SECONDS)
        return waiting.until(lambda _driver: condition() or False)

    @property
    def url(self) -> str:
        """As in the address bar."""
        return self.driver.current_url

    @property
    def heading(self) -> str:
        return self._text("h1")

    @property
    def text(self) -> str:
        return self.texts("body")[0]

    def texts(self, selector: str) -> list[str]:
        """The texts of the elements that a CSS selector finds, as they are shown.

        In one command: WebDriver's own takes one for each element, and ten milliseconds.
        """
        texts: list[str] = self.driver.execute_script(_TEXTS, selector)
        return texts

    @property
    def alert(self) -> str:
        """The text that a screen reader says at once."""
        return self._text("[role=alert]")

    @property
    def focused(self) -> str:
        """The name of what has the focus, as a screen reader says it."""
        return self.driver.switch_to.active_element.accessible_name

    def focuses(self, name: str) -> None:
        """Wait until what has this name has the focus: a page that is loaded gives it away only when it is drawn."""
        self.wait(lambda: self.focused == name)

    def cookies(self) -> dict[str, dict[str, Any]]:
        """All of them, whatever they are for, by name."""
        cookies: list[dict[str, Any]] = self._tell("Storage.getCookies")["cookies"]
        return {cookie["name"]: cookie for cookie in cookies}

    def take_cookies(self, origin: str, cookies: httpx.Cookies) -> None:
        """Copy cookies that a server has set at another client into the browser."""
        for one in cookies.jar:
            self._tell("Network.setCookie", url=origin, name=one.name, value=one.value, path=one.path, httpOnly=True)

    def overhang(self) -> int:
        """CSS pixels of the page that can only be seen by scrolling sideways."""
        wide: int = self.driver.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return wide

    def screenshot(self, path: Path) -> None:
        """The page from its top, as PNG."""
        # It is laid out anew without a scroll bar, and would be cut off by the width of one.
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        width, height = self.driver.execute_script(
            "return [window.innerWidth, Math.max(window.innerHeight, document.documentElement.scrollHeight)]"
        )
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, _TALLEST), "scale": 1}
        taken = self._tell("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def traffic(self) -> Traffic:
        urls: list[str] = []
        pages: set[str] = set()
        answers: list[tuple[int, str]] = []
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                asked = event["params"]["request"]
                urls.append(asked["url"] + asked.get("urlFragment", ""))
                if event["params"].get("type") == "Document":
                    pages.add(asked["url"])
            elif event["method"] == "Network.responseReceived":
                answer = event["params"]["response"]
                answers.append((answer["status"], answer["url"]))
        heard = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        complaints = [
            one["message"] for one in heard if one["level"] in {"WARNING", "SEVERE"} and not _is_harmless(one, pages)
        ]
        return Traffic(tuple(urls), tuple(answers), tuple(complaints))

    def _text(self, selector: str) -> str:
        found = self.texts(selector)
        if not found:
            raise NoSuchElementException(selector)
        return found[0]

    def _now(self, condition: str, *arguments: object) -> Any:
        try:
            return self.driver.execute_script(f"{_HELPERS} return {condition};", *arguments)
        except JavascriptException:
            return None

    def _tell(self, command: str, **parameters: object) -> dict[str, Any]:
        told: dict[str, Any] = self.driver.execute_cdp_cmd(command, parameters)
        return told


def _is_harmless(heard: dict[str, Any], pages: set[str]) -> bool:
    """The console reports pages with an error status, and the missing favicon, as failures."""
    if heard["source"] != "network":
        return False
    url: str = heard["message"].split()[0]
    return url in pages or url.endswith("/favicon.ico")


@contextmanager
def running_chromium() -> Iterator[Chromium]:
    """A headless Chromium that accepts certificates of unknown authorities."""
    with TemporaryDirectory() as folder:
        options = ChromeOptions()
        # Chromium without its windows takes a quarter less processor time.
        options.binary_location = shutil.which("chromium-headless-shell") or require_program("chromium")
        for argument in _ARGUMENTS:
            options.add_argument(argument)
        options.accept_insecure_certs = True
        # Without its windows it would leave files that are downloaded in the folder of the tests.
        options.add_experimental_option("prefs", {"download.default_directory": folder})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        options.add_experimental_option("perfLoggingPrefs", {"enablePage": False})  # requests are enough
        with Chrome(options=options, service=Service(require_program("chromedriver"))) as driver:
            try:
                yield Chromium(driver)
            finally:
                with suppress(WebDriverException):  # the connection ends before the answer
                    driver.execute_cdp_cmd("Browser.close", {})  # chromium-headless-shell outlives its session (156)
