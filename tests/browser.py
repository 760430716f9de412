"""A real browser: Debian's headless Chromium, driven over its own protocol (Chrome DevTools Protocol 1.3).

It waits for conditions and never for a time. What its pages asked the network for, and what they complained of, is kept
until a test looks at it.

Commands and answers go through two pipes: with chromedriver between them a page takes a third more processor time. A
page itself looks for what a test waits for, and says so once.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import httpx

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
    "--remote-debugging-pipe",
    "--ignore-certificate-errors",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-component-update",
    "--disable-hang-monitor",
    "--disable-popup-blocking",
    "--disable-prompt-on-repost",
    "--no-first-run",
    "--disable-gpu",
    # No script runs for long: to make one quicker, and to look for garbage often, does not pay.
    "--js-flags=--no-turbofan --min-semi-space-size=32 --max-semi-space-size=64",
    "--disable-extensions",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-features=IsolateOrigins,site-per-process,OptimizationHints,MediaRouter,Translate",  # fewer processes
    "--mute-audio",
    "--password-store=basic",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing outside of this machine
)
#: Descriptors of Chromium's: it reads commands from the first and writes answers and events into the second.
_PIPES: Final = 'commands=$1 answers=$2; shift 2; exec "$@" 3<"/dev/fd/$commands" 4>"/dev/fd/$answers"'
_ALL_PAGES: Final = ({"type": "page", "exclude": False}, {"exclude": True})
_KEYS: Final = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37}
TAB, ENTER, ESCAPE, ARROW_LEFT = _KEYS
#: An element that is not shown has no text. An option has one also while its list is closed.
_HELPERS: Final = r"""
const shown = (one) => one.checkVisibility({visibilityProperty: true}) ? one.innerText : "";
const texts = (selector) => called(selector).map((one) =>
  (one instanceof HTMLOptionElement ? one.text : shown(one)).replaceAll("\u00a0", " ").trim());
// What a CSS selector finds, or an XPath, which begins with a slash.
const called = (path) => {
  if (!path.startsWith("/")) return Array.from(document.querySelectorAll(path));
  const found = document.evaluate(path, document, null, XPathResult.ORDERED_NODE_SNAPSHOT_TYPE, null);
  return Array.from({length: found.snapshotLength}, (_, at) => found.snapshotItem(at));
};
const labelled = (words) => {
  const label = called("label").find((one) => one.textContent.trim().replace(/\s+/g, " ") === words);
  return document.getElementById(label?.htmlFor);
};
const usable = (one) =>
  one.checkVisibility({visibilityProperty: true, opacityProperty: true}) && !one.matches(":disabled");
// As the mouse does it in the list that belongs to an option.
const choose = (option) => {
  const list = option.closest("select");
  const changes = !option.selected;
  option.selected = true;
  for (const kind of changes ? ["input", "change"] : ["input"]) list.dispatchEvent(new Event(kind, {bubbles: true}));
  return true;
};
// Where the mouse would hit it. It is not left at the edge, where a short message may lie over it.
const spot = (one) => {
  if (!one) return one;
  if (one instanceof HTMLOptionElement) return choose(one);
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
_OPTION: Final = "called(`${arguments[0]} option`).find((one) => one.text.trim() === arguments[1])"
#: Looks at each change of the page, and now and then, because not all that counts is a change of its elements.
_UNTIL: Final = """
const done = arguments[arguments.length - 1];
const condition = () => %s;
const first = condition();
if (first) return done(first);
let due = 0;
const look = () => {
  clearTimeout(due);
  due = 0;
  const found = condition();
  if (found) end(found);
};
// Nothing looks again after this: the condition of a click prepares the page, and a second look would undo that.
const end = (found) => {
  observer.disconnect();
  document.removeEventListener("readystatechange", soon);
  clearInterval(sometimes);
  clearTimeout(due);
  done(found);
};
const soon = () => { due ||= setTimeout(look, 5); };
const observer = new MutationObserver(soon);
observer.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
document.addEventListener("readystatechange", soon);
window.addEventListener("pagehide", () => end(null));  // a page that is left may be kept, and would never answer
const sometimes = setInterval(look, 100);
"""
_LOADED: Final = "document.readyState === 'complete' && performance.timeOrigin !== arguments[0]"
#: Selects what a field has. Whether the field has the focus then, and takes what is written.
_SELECT: Final = """
const field = %s;
field?.focus();
field?.select();
return Boolean(field) && document.activeElement === field && !field.readOnly;
"""


class BrowserError(Exception):
    """Chromium refuses a command, or a script of a test fails."""


class NotFoundError(BrowserError):
    """The page has no such element."""


class _PageLeftError(BrowserError):
    """The page has gone before it answered."""


#: Messages of Chromium about a page that goes.
_LEFT: Final = (
    "navigated or closed",
    "was destroyed",
    "with specified id",
    "default execution context",
    "was collected",
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests and complaints of the pages since the last look."""

    urls: tuple[str, ...]  # each with its fragment, in order, redirects too
    answers: tuple[tuple[int, str], ...]  # status and URL of each
    complaints: tuple[str, ...]  # of the console: violations of the policy, what did not load, errors, warnings


_EVENT: Final = b'{"method":"'
#: Windows, and of what `Chromium.traffic` tells.
_HEARD: Final = {
    "Target.attachedToTarget",
    "Target.detachedFromTarget",
    "Network.requestWillBeSent",
    "Network.responseReceived",
    "Log.entryAdded",
    "Runtime.consoleAPICalled",
    "Runtime.exceptionThrown",
}


class _Connection:
    """Commands to Chromium, and its events. Windows, which pages open as well, are attached before they load."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = open(commands, "wb")  # noqa: SIM115 - a descriptor
        self._answers = answers
        self._poll = select.poll()
        self._poll.register(answers, select.POLLIN)
        self._received = bytearray()
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self.windows: dict[str, str] = {}  # session by target, in the order in which they were opened

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._commands.close()
        os.close(self._answers)

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        number = self._send(method, session, parameters)
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            told = self._receive(method, until)
            if told.get("id") == number:
                break
        if "error" in told:
            message = f"{method}: {told['error']['message']}"
            raise _PageLeftError(message) if any(one in message for one in _LEFT) else BrowserError(message)
        result: dict[str, Any] = told["result"]
        return result

    def _send(self, method: str, session: str | None, parameters: dict[str, object]) -> int:
        self._number += 1
        command: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            command["sessionId"] = session
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        return self._number

    def _receive(self, what: str, until: float) -> dict[str, Any]:
        seen = 0
        while (end := self._received.find(b"\0", seen)) < 0:
            seen = len(self._received)
            if not self._poll.poll(max(0, until - time.monotonic()) * 1000):
                raise TimeoutError(what)
            part = os.read(self._answers, 1 << 16)
            assert part, "Chromium has ended"
            self._received += part
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        if line.startswith(_EVENT) and line[len(_EVENT) : line.index(b'"', len(_EVENT))].decode() not in _HEARD:
            return {}  # as most are
        told: dict[str, Any] = json.loads(line)
        if (event := told.get("method")) is not None:
            self._take(event, told["params"])
        return told

    def _take(self, event: str, told: dict[str, Any]) -> None:
        if event == "Target.attachedToTarget":
            session = told["sessionId"]
            self.windows[told["targetInfo"]["targetId"]] = session
            for domain in ("Page", "Network", "Runtime", "Log"):
                self._send(f"{domain}.enable", session, {})
            self._send("Runtime.runIfWaitingForDebugger", session, {})
        elif event == "Target.detachedFromTarget":
            self.windows = {one: session for one, session in self.windows.items() if session != told["sessionId"]}
        else:
            self.events.append({"method": event, **told})


class Chromium:
    """One window. Elements are found as a person finds them: by label, by the words on a button or a link.

    Where a selector is wanted, it is one of CSS, or an XPath, which begins with a slash.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", connection: _Connection) -> None:
        self.process = process
        self._connection = connection
        how: dict[str, object] = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
        connection.call("Target.setAutoAttach", None, **how, filter=_ALL_PAGES)
        (first,) = self.wait(self._windows)
        self._session = connection.windows[first]
        self._is_blank = False
        self._size: tuple[int, int] | None = None
        self._scheme = ""
        self._has_scripts = True

    def tell(self, command: str, **parameters: object) -> dict[str, Any]:
        """A command of the protocol for the window; gives its result."""
        return self._connection.call(command, self._session, **parameters)

    def fresh(self) -> None:
        """Reset: no cookies or history; a desktop's size, the light scheme, scripts on, no recorded traffic.

        The files of pages, which are kept under an address of their version, stay in the cache. A page without scripts
        stays, too: it does nothing, and to leave it takes 40 ms of processor time.
        """
        if self.run("return document.scripts.length"):
            self.leave()
        for command in ("Network.clearBrowserCookies", "Page.resetNavigationHistory"):
            self.tell(command)
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
            self.tell(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=size == PHONE,
            )
            self._size = size
        scheme = "dark" if dark else "light"
        if scheme != self._scheme:
            self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            self._scheme = scheme

    def run_scripts(self, allowed: bool) -> None:
        """Of pages; the test's own still run."""
        if allowed != self._has_scripts:
            self.tell("Emulation.setScriptExecutionDisabled", value=not allowed)
            self._has_scripts = allowed

    @contextmanager
    def bringing(self, script: str) -> Iterator[None]:
        """Every page that is opened meanwhile has the script: a long one is sent and compiled once."""
        brought = self.tell("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
        try:
            yield
        finally:
            self.tell("Page.removeScriptToEvaluateOnNewDocument", identifier=brought)

    def open(self, url: str) -> None:
        self._is_blank = False
        given = self.tell("Page.navigate", url=url)
        if "errorText" in given and not given.get("isDownload"):
            raise BrowserError(f"{url}: {given['errorText']}")
        self.until("document.readyState === 'complete'")

    def back(self) -> None:
        history = self.tell("Page.getNavigationHistory")
        entry = history["entries"][history["currentIndex"] - 1]
        self.leaving(lambda: self.tell("Page.navigateToHistoryEntry", entryId=entry["id"]))

    def reload(self) -> None:
        self.leaving(lambda: self.tell("Page.reload"))

    @contextmanager
    def another_window(self) -> Iterator[None]:
        """Of the same browser, with its cookies."""
        made = self._connection.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        with self._in_window(made):
            yield
            self._connection.call("Target.closeTarget", targetId=made)

    @contextmanager
    def opened_window(self, act: Callable[[], object]) -> Iterator[None]:
        """Do what has the page open a window, be in it, and wait until it has closed itself."""
        known = set(self._connection.windows)
        act()
        with self._in_window(self.wait(lambda: next(iter(self._windows() - known), None))):
            yield

    @contextmanager
    def _in_window(self, target: str) -> Iterator[None]:
        self.wait(lambda: target in self._windows())
        session, self._session = self._session, self._connection.windows[target]
        try:
            yield
        finally:
            self._session = session
        self.wait(lambda: target not in self._windows())

    def _windows(self) -> set[str]:
        self._connection.call("Target.getTargets")  # what has happened before the answer has been heard
        return set(self._connection.windows)

    def fill(self, label: str, text: str) -> None:
        """In place of what the field has, as a password manager or the clipboard does it, once it can be filled in.

        Each key of its own takes three milliseconds; tests of the keyboard use `keys`.
        """
        self.until(f"(() => {{ {_SELECT % 'labelled(arguments[0])'} }})()", label)
        self.tell("Input.insertText", text=text)

    def write(self, selector: str, text: str) -> None:
        """As `fill`, once the page has a field that the selector finds."""
        self.until(f"(() => {{ {_SELECT % 'called(arguments[0])[0]'} }})()", selector)
        self.tell("Input.insertText", text=text)

    def choose(self, selector: str, words: str) -> None:
        """The option with these words in the list, once the page offers it."""
        self.until(f"{_OPTION} && (({_OPTION}).selected || choose({_OPTION}))", selector, words)

    def take_file(self, selector: str, path: Path) -> None:
        """Choose a file of this machine in a field, once the page has it."""
        self.until("called(arguments[0]).length", selector)
        found = self._evaluate(f"called({json.dumps(selector)})[0]", returnByValue=False)
        self.tell("DOM.setFileInputFiles", files=[str(path)], objectId=found["objectId"])

    def press(self, button: str) -> None:
        """Gives when the next page is there."""
        self.until(_LOADED, self.click(f'//button[normalize-space()="{button}"]'))

    def follow(self, link: str) -> None:
        self.until(_LOADED, self.click(f'//a[normalize-space()="{link}"]'))

    def click(self, selector: str) -> float:
        """Click what is found, once it is there, may be clicked, and nothing lies over it.

        Gives the time at which the page was begun.
        """
        while True:
            found = self.until(_SPOT, selector)
            if found is True:  # an option, which the mouse finds in no place
                return 0.0
            x, y, began = found
            for what in ("mousePressed", "mouseReleased"):
                self.tell("Input.dispatchMouseEvent", type=what, x=x, y=y, button="left", clickCount=1)
            # Else the page has moved in between. Without scripts none moves, and none hears of the mouse.
            if not self._has_scripts or self.until(_HIT, began) == [True]:
                return float(began)

    def is_covered(self, selector: str) -> bool:
        """Whether the mouse would not hit what is found."""
        return bool(self.run("const [one] = called(arguments[0]); return spot(one) === null", selector))

    def keys(self, *keys: str) -> None:
        """As typed on a keyboard, wherever the focus is. TAB and the others of this module are keys of their own."""
        for key in keys:
            for one in (key,) if key in _KEYS else key:
                text = "\r" if one == ENTER else "" if one in _KEYS else one
                told = {"key": one, "windowsVirtualKeyCode": _KEYS.get(one, 0)}
                self.tell("Input.dispatchKeyEvent", type="keyDown", text=text, **told)
                self.tell("Input.dispatchKeyEvent", type="keyUp", **told)

    def leaving(self, act: Callable[[], object]) -> None:
        """Do what leads to another page, and wait until it is loaded."""
        # Where it came from cannot be told by the address: a form that is shown again has the same one.
        before = self.run("return performance.timeOrigin")
        act()
        self.until(_LOADED, before)

    def until(self, condition: str, *arguments: object) -> Any:
        """Wait until an expression of JavaScript over `arguments` is true, also in a page that comes; return its value.

        Raises:
            TimeoutError: it never was.
        """
        if not self._has_scripts:  # nor timers of the test's
            return self.wait(lambda: self._now(condition, *arguments))
        script, end = _UNTIL % condition, time.monotonic() + PATIENCE_SECONDS
        while True:
            # A page that goes away is an error, also before the time is over, and one that comes has not all yet.
            with suppress(BrowserError, TimeoutError):
                if found := self.run_async(script, *arguments):
                    return found
            if time.monotonic() > end:
                raise TimeoutError(condition, *arguments)
            time.sleep(_LOOK_EVERY_SECONDS)

    def wait(self, condition: Callable[[], T | None]) -> T:
        """Wait until the condition is true; return its value."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(NotFoundError, _PageLeftError):
                if found := condition():
                    return found
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(_LOOK_EVERY_SECONDS)

    def run(self, script: str, *arguments: object) -> Any:
        """The value that the body of a function over `arguments` returns in the page.

        Raises:
            BrowserError: it throws.
        """
        return self._evaluate(f"(function () {{ {script}\n}}).apply(null, {json.dumps(arguments)})").get("value")

    def run_async(self, script: str, *arguments: object) -> Any:
        """As `run`; the value is what the function gives to the one behind its arguments."""
        given = f"[...{json.dumps(arguments)}, done]"
        called = f"new Promise((done) => {{ (function () {{ {script}\n}}).apply(null, {given}) }})"
        return self._evaluate(called, awaitPromise=True).get("value")

    def _evaluate(self, expression: str, **how: object) -> dict[str, Any]:
        options = {"returnByValue": True, "userGesture": True} | how
        given = self.tell("Runtime.evaluate", expression=f"{{ {_HELPERS} {expression} }}", **options)
        if (details := given.get("exceptionDetails")) is not None:
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        result: dict[str, Any] = given["result"]
        return result

    @property
    def url(self) -> str:
        """As in the address bar."""
        history = self.tell("Page.getNavigationHistory")
        address: str = history["entries"][history["currentIndex"]]["url"]
        return address

    @property
    def heading(self) -> str:
        return self._text("h1")

    @property
    def text(self) -> str:
        return self.texts("body")[0]

    def texts(self, selector: str) -> list[str]:
        """The texts of the elements that are found, as they are shown."""
        texts: list[str] = self.run("return texts(arguments[0])", selector)
        return texts

    def count(self, selector: str) -> int:
        """The number of elements that are found, also of those that are not shown."""
        number: int = self.run("return called(arguments[0]).length", selector)
        return number

    def value(self, label: str) -> str:
        """The value of the field that belongs to this label."""
        found: str | None = self.run("return labelled(arguments[0])?.value ?? null", label)
        if found is None:
            raise NotFoundError(label)
        return found

    @property
    def alert(self) -> str:
        """The text that a screen reader says at once."""
        return self._text("[role=alert]")

    @property
    def focused(self) -> str:
        """The name of what has the focus, as a screen reader says it."""
        return self._name("document.activeElement")

    def names(self, selector: str) -> list[str]:
        """The names of the elements that are found, as a screen reader says them."""
        return [self._name(f"called({json.dumps(selector)})[{at}]") for at in range(self.count(selector))]

    def _name(self, expression: str) -> str:
        found = self._evaluate(expression, returnByValue=False)
        (node,) = self.tell("Accessibility.getPartialAXTree", objectId=found["objectId"], fetchRelatives=False)["nodes"]
        name: str = node.get("name", {}).get("value", "")
        return name

    def focuses(self, name: str) -> None:
        """Wait until what has this name has the focus: a page that is loaded gives it away only when it is drawn."""
        self.wait(lambda: self.focused == name)

    def cookies(self) -> dict[str, dict[str, Any]]:
        """All of them, whatever they are for, by name."""
        cookies: list[dict[str, Any]] = self.tell("Storage.getCookies")["cookies"]
        return {cookie["name"]: cookie for cookie in cookies}

    def take_cookies(self, origin: str, cookies: httpx.Cookies) -> None:
        """Copy cookies that a server has set at another client into the browser."""
        for one in cookies.jar:
            self.tell("Network.setCookie", url=origin, name=one.name, value=one.value, path=one.path, httpOnly=True)

    def overhang(self) -> int:
        """CSS pixels of the page that can only be seen by scrolling sideways."""
        wide: int = self.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return wide

    def screenshot(self, path: Path) -> None:
        """The page from its top, as PNG."""
        # It is laid out anew without a scroll bar, and would be cut off by the width of one.
        self.run_async("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        width, height = self.run(
            "return [window.innerWidth, Math.max(window.innerHeight, document.documentElement.scrollHeight)]"
        )
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, _TALLEST), "scale": 1}
        taken = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def traffic(self) -> Traffic:
        urls: list[str] = []
        pages: set[str] = set()
        answers: list[tuple[int, str]] = []
        heard: list[tuple[str, str]] = []
        self.run("")  # what has happened before the answer has been heard
        events, self._connection.events = self._connection.events, []
        for event in events:
            match event["method"]:
                case "Network.requestWillBeSent":
                    asked = event["request"]
                    urls.append(asked["url"] + asked.get("urlFragment", ""))
                    if event.get("type") == "Document":
                        pages.add(asked["url"])
                case "Network.responseReceived":
                    answers.append((event["response"]["status"], event["response"]["url"]))
                case "Log.entryAdded":
                    entry = event["entry"]
                    if entry["level"] in {"warning", "error"}:
                        url = entry.get("url", "") if entry["source"] == "network" else ""
                        heard.append((url, f"{entry.get('url', entry['source'])} {entry['text']}"))
                case "Runtime.consoleAPICalled":
                    if event["type"] in {"warning", "error", "assert"}:
                        said = (str(one.get("value", one.get("description", ""))) for one in event["args"])
                        heard.append(("", f"console.{event['type']} {' '.join(said)}"))
                case _:
                    details = event["exceptionDetails"]
                    heard.append(("", details.get("exception", {}).get("description") or details["text"]))
        # The console reports pages with an error status, and the missing favicon, as failures.
        complaints = [said for url, said in heard if not (url and (url in pages or url.endswith("/favicon.ico")))]
        return Traffic(tuple(urls), tuple(answers), tuple(complaints))

    def _text(self, selector: str) -> str:
        found = self.texts(selector)
        if not found:
            raise NotFoundError(selector)
        return found[0]

    def _now(self, condition: str, *arguments: object) -> Any:
        try:
            return self.run(f"return {condition};", *arguments)
        except BrowserError:
            return None


@contextmanager
def running_chromium() -> Iterator[Chromium]:
    """A headless Chromium that accepts certificates of unknown authorities. It ends with this process, too."""
    # Chromium without its windows takes a quarter less processor time.
    program = shutil.which("chromium-headless-shell") or require_program("chromium")
    commands, to_chromium = os.pipe()
    from_chromium, answers = os.pipe()
    with TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                "sh",
                "-c",
                _PIPES,
                "sh",
                str(commands),
                str(answers),
                program,
                *_ARGUMENTS,
                f"--user-data-dir={folder}",
                "about:blank",
            ],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        connection = _Connection(to_chromium, from_chromium)
        try:
            # Without its windows it would leave files that are downloaded in the folder of the tests.
            connection.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
            yield Chromium(process, connection)
            with suppress(AssertionError):  # it may end before it answers
                connection.call("Browser.close")
        finally:
            connection.close()
            process.wait(PATIENCE_SECONDS)
