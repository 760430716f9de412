"""Kills a daemon and its readers again and again, and compares what the readers got with what is stored.

    python -m tests.e2e.stream_kills [--messages 10000] [--kills 50]

The readers are clients that others have written: httpx-sse, the npm package eventsource, and the EventSource of
Chromium. Each begins behind the same message and is killed as often as the daemon. Whatever was killed when: each
gets each stored message once, in the order of the log.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import connect_sse

from tests.browser import Chromium
from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, device_token
from tests.e2e.accounts.node_program import installed_programs
from tests.e2e.console.user import User
from tests.free_port import free_port
from tests.programs import require_program

_WRITERS = 3
_DEADLINE_SECONDS = 90
_PAUSE_SECONDS = 0.2
_SOURCES = Path(__file__).parent / "event_source_node"


class _Writer(threading.Thread):
    """A device that sends one message after the other, also when the daemon was killed, until enough are stored."""

    def __init__(self, url: str, number: int, enough: int, acknowledged: threading.Semaphore) -> None:
        super().__init__(daemon=True)
        self._url, self._number, self._enough, self._acknowledged = url, number, enough, acknowledged

    def run(self) -> None:
        done = 0
        with httpx.Client(base_url=self._url, headers=bearer(device_token(self._number)), timeout=20) as client:
            while done < self._enough:
                body = {"sdid": device_id(self._number), "data": {"intensity": done}}
                try:
                    client.post("/messages", json=body).raise_for_status()
                except httpx.HTTPError:
                    time.sleep(_PAUSE_SECONDS)  # nobody listens, until the daemon is there again
                    continue
                done += 1
                self._acknowledged.release()


class _Reader(ABC):
    """A client with the ids of the messages that it got."""

    def __init__(self, url: str, start: str) -> None:
        self.url, self._start = url, start
        self.got: list[str] = []

    @property
    def address(self) -> str:
        return f"{self.url}/live?after={self.got[-1] if self.got else self._start}"

    @abstractmethod
    def kill(self) -> None:
        """End the client, and begin again behind what it has got."""

    @abstractmethod
    def look(self) -> None:
        """Take over what the client has got by now."""

    @abstractmethod
    def end(self) -> None: ...


class _HttpxReader(_Reader):
    """httpx-sse, which leaves it to its caller to come again."""

    def __init__(self, url: str, start: str) -> None:
        super().__init__(url, start)
        self._last = ""
        self._is_over = self._is_killed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        address = self.address
        with httpx.Client(timeout=60) as client:
            while not self._is_over:
                headers = bearer(USER_TOKEN) | ({"Last-Event-ID": self._last} if self._last else {})
                self._is_killed = False
                try:
                    with connect_sse(client, "GET", address, headers=headers) as source:
                        for event in source.iter_sse():
                            if event.event == "message":
                                assert json.loads(event.data)["mid"] == event.id
                                self.got.append(event.id)
                            self._last = event.id
                            if self._is_killed:
                                break
                except httpx.HTTPError:
                    time.sleep(_PAUSE_SECONDS)

    def kill(self) -> None:
        self._is_killed = True

    def look(self) -> None: ...

    def end(self) -> None:
        self._is_over = self._is_killed = True


class _NodeReader(_Reader):
    """The npm package eventsource, which comes again by itself."""

    def __init__(self, url: str, start: str) -> None:
        super().__init__(url, start)
        self._folder = installed_programs(_SOURCES)
        self._begin()

    def _begin(self) -> None:
        node = require_program("node")
        self._process = subprocess.Popen(
            [node, "client.mjs", self.address, USER_TOKEN], cwd=self._folder, stdout=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._thread.start()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout:
            self.got += (json.loads(line)["id"] for line in process.stdout if line.endswith("\n"))

    def kill(self) -> None:
        self.end()
        self._begin()

    def look(self) -> None:
        assert self._process.poll() is None, "eventsource has given up"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()


class _BrowserReader(_Reader):
    """The EventSource of Chromium on a page of the console: it sends the session's cookie, and no header of its own."""

    def __init__(self, url: str, start: str, browser: Chromium) -> None:
        super().__init__(url, start)
        self._browser = browser
        self._begin()

    def _begin(self) -> None:
        self._browser.run(
            """
            window.source?.close();
            window.got = [];
            window.source = new EventSource(arguments[0]);
            window.source.onmessage = (event) => {
              if (JSON.parse(event.data).mid !== event.lastEventId) throw new Error("the id is not the mid");
              window.got.push(event.lastEventId);
            };
            """,
            self.address.removeprefix(self.url.removesuffix("/v1.1")),
        )

    def kill(self) -> None:
        self.look()
        self._begin()

    def look(self) -> None:
        got, state = self._browser.run("return [window.got.splice(0), window.source.readyState]")
        self.got += got
        assert state != 2, "EventSource has given up"

    def end(self) -> None:
        self._browser.run("window.source.close()")


@contextmanager
def _listening_on(port: int) -> Iterator[None]:
    """Daemons that are started meanwhile listen there."""
    before = os.environ.get("TRUNKLINE_HTTP_BIND")
    os.environ["TRUNKLINE_HTTP_BIND"] = f"127.0.0.1:{port}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRUNKLINE_HTTP_BIND"]
        else:
            os.environ["TRUNKLINE_HTTP_BIND"] = before


def _stored(url: str, start: str) -> list[str]:
    """The mids of all messages behind one, in the order of the log: mids grow with it."""
    mids: list[str] = []
    with httpx.Client(base_url=url, headers=bearer(USER_TOKEN), timeout=30) as client:
        for number in range(_WRITERS):
            query: dict[str, Any] = {"sdid": device_id(number), "startDate": 0, "endDate": 1 << 50, "count": 100}
            while True:
                page = client.get("/messages", params=query).raise_for_status().json()
                mids += (message["mid"] for message in page["data"])
                if "next" not in page:
                    break
                query["offset"] = page["next"]
    return sorted(mid for mid in mids if mid > start)


def run(folder: Path, browser: Chromium, *, messages: int, kills: int) -> tuple[list[str], dict[str, list[str]]]:
    """The mids that are stored, and those that each reader got."""
    chance = random.Random(20_261_127)  # noqa: S311 - the moments are random
    daemon = Daemon(folder / "state")
    daemon.configure(devices=_WRITERS)
    with ExitStack() as stack:
        stack.enter_context(_listening_on(free_port()))
        daemon.start()
        stack.callback(daemon.stop)
        url = daemon.base_url
        with httpx.Client(base_url=url, headers=bearer(USER_TOKEN), timeout=20) as client:
            body = {"sdid": device_id(0), "data": {"intensity": 1}}
            start = client.post("/messages", json=body).raise_for_status().json()["data"]["mid"]
        ada = User(browser, url.removesuffix("/v1.1"))
        ada.take_session()
        ada.open("")
        readers: dict[str, _Reader] = {}
        makers: dict[str, Callable[[], _Reader]] = {
            "httpx-sse": lambda: _HttpxReader(url, start),
            "eventsource": lambda: _NodeReader(url, start),
            "Chromium": lambda: _BrowserReader(url, start, browser),
        }
        for name, make in makers.items():
            readers[name] = make()
            stack.callback(readers[name].end)
        acknowledged = threading.Semaphore(0)
        writers = [_Writer(url, number, messages // _WRITERS, acknowledged) for number in range(_WRITERS)]
        for writer in writers:
            writer.start()
        each = messages // _WRITERS * _WRITERS // (kills + 1)
        for _ in range(kills):
            for _ in range(each):
                acknowledged.acquire()
            for reader in readers.values():
                if chance.random() < 0.5:
                    reader.kill()
            time.sleep(chance.uniform(0, 0.05))
            daemon.kill()
            for reader in readers.values():
                reader.kill()
            daemon.start()
        for writer in writers:
            writer.join()
        expected = _stored(url, start)
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while time.monotonic() < deadline:
            for reader in readers.values():
                reader.look()
            if all(len(reader.got) >= len(expected) for reader in readers.values()):
                break
            time.sleep(0.05)
        return expected, {name: reader.got for name, reader in readers.items()}


def main() -> None:
    from tests.browser import running_chromium

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_chromium() as browser:
        browser.fresh()
        expected, got = run(Path(folder), browser, messages=options.messages, kills=options.kills)
    for name, mids in got.items():
        missing, twice = len(set(expected) - set(mids)), len(mids) - len(set(mids))
        order = "in order" if mids == sorted(mids) else "out of order"
        sys.stdout.write(
            f"{name}: {len(mids)} of {len(expected)} messages, {options.kills} kills of the daemon: "
            f"{missing} missing, {twice} twice, {order}\n"
        )


if __name__ == "__main__":
    main()
