"""A gateway for the lines of the README and of docs/: the demo, below a folder that stands for the machine's root.

Only what a line has of its place is replaced: ports and absolute paths. `sudo` runs the command, and `systemctl` does
to the daemon here what systemd would do.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import httpx

from tests.daemon import DEMO_ON_ANY_PORT, TRUNKLINE, bearer
from tests.forked_program import forked_program
from tests.stores import configuration, storage_of

ROOT = Path(__file__).parents[2]
SECONDS = 60  # for what takes a second on an idle machine
_BLOCK_SECONDS = 300
_SUDO = '#!/bin/sh\nexec "$@"\n'
_SYSTEMCTL = r"""#!/bin/sh
set -eu
echo "$*" >> "$GATEWAY/systemctl"
case "$*" in
"stop trunkline")
  pid=$(cat "$GATEWAY/pid")
  kill -TERM "$pid"
  while [ -e "/proc/$pid/exe" ]; do sleep 0.05; done
  ;;
"start trunkline")
  trunkline serve --config "$GATEWAY/root/etc/trunkline/trunkline.toml" >"$GATEWAY/ready" 2>"$GATEWAY/log" &
  echo $! > "$GATEWAY/pid"
  until grep -q "^trunkline ready" "$GATEWAY/ready"; do kill -0 $!; sleep 0.05; done
  ;;
"start trunkline-backup.service")
  start=$(sed -n 's/^ExecStart=//p' "$GATEWAY/root/etc/systemd/system/trunkline-backup.service")
  eval "$(echo "$start" | sed -e 's:/opt/trunkline/bin/::' -e "s: /\(etc\|var\)/: $GATEWAY/root/\1/:g")"
  ;;
esac
"""
_FOLDERS = (
    "bin",
    "root/etc/trunkline",
    "root/etc/systemd/system",
    "root/root",
    "root/var/lib/private",
)
_CONFIGURATION = """state_dir = "{state}"
[http]
bind = "127.0.0.1:0"
[mqtt]
bind = "127.0.0.1:0"
[limits]
rest_user = "1000/10000"
"""


#: Documents whose blocks are all for the demo. Of the others, test_guides.py runs all but those marked "demo".
_FOR_THE_DEMO: Final = (
    "README",
    "docs/first-steps",
    "docs/people",
    "docs/my-data",
    "docs/topics-and-hooks",
    "docs/rules-scenes-models",
    "docs/device-management",
    "docs/provision-file",
    "docs/trials-and-money",
)


@dataclass(frozen=True, slots=True)
class Block:
    """`name`: its heading, and which block below that heading it is."""

    name: str
    language: str
    code: str


def blocks(text: str) -> list[Block]:
    heading, number, found = "", 0, []
    for one in re.finditer(r"(?m)^#+ (.*)$|^```(.*)\n((?:.*\n)*?)```$", text):
        if one[1] is not None:
            heading, number = one[1], 0
        else:
            number += 1
            found.append(Block(f"{heading} {number}", one[2], one[3]))
    return found


def _found() -> Iterator[tuple[str, Block]]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        document = path.relative_to(ROOT).with_suffix("").as_posix()
        is_for_the_demo = document in _FOR_THE_DEMO or document.startswith("docs/operate/")
        for block in blocks(path.read_text(encoding="utf-8")):
            if is_for_the_demo or block.language.endswith(" demo"):
                yield f"{document.removeprefix('docs/')}: {block.name}", block


#: By document, heading, and number below that heading: "devices: MQTT 2".
BLOCKS: Final = dict(_found())


def eventually(read: Callable[[], Any], holds: Callable[[Any], bool], pause: float = 1.0) -> Any:
    """The value of `read` once it holds; after a minute, its last value."""
    end = time.monotonic() + SECONDS
    while not holds(found := read()) and time.monotonic() < end:
        time.sleep(pause)
    return found


def documents(text: str) -> list[Any]:
    """The JSON documents that stand one behind the other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.strip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


@dataclass
class Gateway:
    folder: Path
    printed: str  # by the demo

    def said(self, pattern: str) -> str:
        """The part of the demo's output in the pattern's group."""
        found = re.search(pattern, self.printed)
        assert found is not None, self.printed
        return found[1]

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def config(self) -> Path:
        return self.root / "etc/trunkline/trunkline.toml"

    @property
    def state_dir(self) -> Path:
        return self.root / "var/lib/private/trunkline"

    @property
    def state(self) -> dict[str, str]:
        """For commands that name no configuration."""
        url = storage_of(self.state_dir).url
        return {"TRUNKLINE_STATE_DIR": str(self.state_dir), "TRUNKLINE_STORAGE_URL": url}

    @property
    def url(self) -> str:
        return self.variables["URL"]

    @property
    def token(self) -> str:
        return self.variables["TOKEN"]

    @property
    def variables(self) -> Mapping[str, str]:
        """The line that the demo prints for the reader to paste first."""
        return dict(word.split("=", 1) for word in shlex.split(self.said(r"(?m)^export (.*)$")))

    def paste(self, code: str, *, below: str = "root", **variables: str) -> str:
        """Run lines in a shell and return the output. Every line has to succeed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(code, below)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._environment(variables),
            timeout=_BLOCK_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def answers(self, code: str, **variables: str) -> list[Any]:
        """The answers of REST that are shown, without an error among them."""
        found = documents(self.paste(code, **variables))
        assert not [answer for answer in found if "error" in answer], found
        return [answer.get("data", answer) for answer in found]

    @contextmanager
    def begun(self, code: str, **variables: str) -> Iterator[IO[str]]:
        """The output of a command that goes on until it is ended: here when the context ends."""
        with subprocess.Popen(
            ["bash", "-euc", self._here(code, "root")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self._environment(variables),
            start_new_session=True,
        ) as process:
            try:
                assert process.stdout is not None
                yield process.stdout
            finally:
                os.killpg(process.pid, signal.SIGINT)

    def get(self, path: str) -> Any:
        answer = httpx.get(f"{self.url}/v1.1{path}", headers=bearer(self.token), timeout=SECONDS)
        return answer.raise_for_status().json()["data"]

    def post(self, path: str, body: Any) -> Any:
        answer = httpx.post(f"{self.url}/v1.1{path}", headers=bearer(self.token), json=body, timeout=SECONDS)
        return answer.raise_for_status().json()["data"]

    def _here(self, code: str, below: str) -> str:
        """The lines with the ports of this daemon, and with absolute paths below a folder."""
        code = re.sub(r"(?<=[ =])/(etc|var|root|opt|usr)/", rf"{self.folder / below}/\1/", code)
        code = re.sub(r"(?<= )(systemd|config)/", rf"{ROOT}/\1/", code)
        code = re.sub(r"(?m)(^| )\.venv/bin/trunkline", r"\1trunkline", code)
        return code.replace("http://127.0.0.1:8080", self.url).replace("ws://127.0.0.1:8080", f"ws{self.url[4:]}")

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{TRUNKLINE.parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "GATEWAY": str(self.folder), **self.variables, **variables}


@contextmanager
def running_gateway(folder: Path) -> Iterator[Gateway]:
    state, output = folder / "root/var/lib/private/trunkline", folder / "output"
    for path in (
        "bin",
        "root/etc/trunkline",
        "root/etc/systemd/system",
        "root/root",
        "root/var/lib/private",
    ):
        (folder / path).mkdir(parents=True, exist_ok=True)
    for name, text in (("sudo", _SUDO), ("systemctl", _SYSTEMCTL)):
        (folder / "bin" / name).write_text(text, encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    command = [str(TRUNKLINE), "demo", "--state", str(state), "--store", storage_of(state).url, *DEMO_ON_ANY_PORT]
    with output.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        pid = folder / "pid"
        pid.write_text(str(process.pid), encoding="utf-8")
        try:
            printed = eventually(output.read_text, lambda text: "\nConsole: " in text, 0.1)
            gateway = Gateway(folder, printed)
            gateway.config.write_text(configuration(_CONFIGURATION.format(state=state), state), encoding="utf-8")
            with forked_program(folder / "bin"):  # in the PATH of all blocks
                yield gateway
        finally:
            process.terminate()
            _end(int(pid.read_text(encoding="utf-8")), process.pid)


def _end(pid: int, demo: int) -> None:
    """End the daemon that `systemctl start` has started, if it did."""
    if pid != demo:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        eventually(Path(f"/proc/{pid}/exe").exists, lambda alive: not alive, 0.1)
