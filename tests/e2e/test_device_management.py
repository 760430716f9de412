"""The demo's board as the README shows it: properties, a task and a firmware update over LWM2M (reference 15, 18)."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon import TRUNKLINE, bearer
from tests.programs import require_dtls, require_program

SECONDS = 60
_README = Path(__file__).parents[2] / "README.md"
_PLACEHOLDER = "URL=http://127.0.0.1:8080 TOKEN=…"


@dataclass
class Demo:
    """The demo, and the README's lines about managing devices, block by block."""

    url: str
    token: str
    folder: Path

    def run(self, *blocks: str) -> list[dict[str, Any]]:
        """Paste blocks into a shell; the `data` of each answer that is shown."""
        given = f"URL={self.url} TOKEN={self.token}"
        lines = "\n".join(blocks).replace(_PLACEHOLDER, given)
        done = subprocess.run(
            ["bash", "-euc", lines], capture_output=True, text=True, cwd=self.folder, timeout=SECONDS, check=True
        )
        decoder, shown, rest = json.JSONDecoder(), [], done.stdout
        while rest:
            document, end = decoder.raw_decode(rest)
            shown.append(document["data"])
            rest = rest[end:]
        return shown

    def get(self, path: str) -> Any:
        answer = httpx.get(f"{self.url}/v1.1/devicemgmt{path}", headers=bearer(self.token), timeout=SECONDS)
        return answer.raise_for_status().json()["data"]

    def outcome(self, task: str) -> str:
        """The status in which the task ends on the board."""

        def statuses() -> list[str]:
            return [entry["status"] for entry in self.get(f"/tasks/{task}/statuses")["statuses"]]

        (found,) = eventually(statuses, lambda found: found in (["SUCCEEDED"], ["FAILED"]))
        return str(found)


def eventually(read: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """What `read` gives once it holds; the last thing that it gave after a minute."""
    end = time.monotonic() + SECONDS
    while not holds(found := read()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    require_dtls()
    require_program("curl")
    output = tmp_path / "output"
    command = [str(TRUNKLINE), "demo", "--state", str(tmp_path / "demo"), "--http-port", "0", "--mqtt-port", "0"]
    with output.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            printed = eventually(output.read_text, lambda text: "tail --live" in text)
            url, token = re.search(r"(http://\S+)/v1\.1", printed), re.search(r"User token +([0-9a-f]{32})", printed)
            assert url is not None, printed
            assert token is not None, printed
            yield Demo(url[1], token[1], tmp_path)
        finally:
            process.terminate()


def test_the_lines_of_the_readme_read_write_and_update_the_board(demo: Demo) -> None:
    section = _README.read_text(encoding="utf-8").split("### Managing devices", 1)[1].split("\n##", 1)[0]
    first, write, update = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    named = re.search(r"BOARD=([0-9a-f]{32}) .*", first)
    assert named is not None
    variables, board = f"{_PLACEHOLDER}\n{named[0]}\n", named[1]

    def version() -> str | None:
        properties = demo.get(f"/devices/{board}/properties")
        found: str | None = properties["deviceProperties"].get("device", {}).get("firmwareVersion")
        return found

    assert eventually(version, lambda found: found == "1.0.0") == "1.0.0"
    properties, _, found = demo.run(first)
    connection = properties["systemProperties"]["connection"]
    assert (connection["connected"], connection["protocol"]) == (True, "LWM2M")
    assert (found["total"], found["properties"][0]["serverProperties"]) == (1, {"site": {"floor": "3"}})
    (task,) = demo.run(variables, write)
    assert demo.outcome(task["id"]) == "SUCCEEDED"
    assert demo.get(f"/devices/{board}/properties")["deviceProperties"]["device"]["utcOffset"] == "+01:00"
    (task,) = demo.run(variables, update)
    assert demo.outcome(task["id"]) == "SUCCEEDED"
    assert version() == "1.2.0"
