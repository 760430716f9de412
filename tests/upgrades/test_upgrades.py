"""A store that any older version has made is opened, and its answers stay the same."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from storage import migrations
from tests.daemon import Daemon
from tests.properties import IS_CI, drawn
from tests.rows import each_row
from tests.unpacking import unpack
from tests.upgrades.record import STORES
from tests.upgrades.world import ask, asked_by

pytestmark = [pytest.mark.processes, pytest.mark.sqlite("files of older versions")]

ARCHIVES = sorted(STORES.glob("*.tar.xz"))
#: The stores with rows, or values in a column, that no older one has. All have the same devices and messages, and
#: the oldest one goes through every step with those: `test_an_upgrade_that_is_killed_again_and_again_goes_on`.
FIRST_OF_THEIR_KIND: Final = {
    "0020-22997126": "audit entries",
    "0028-0d23fc9b": "scenes, and secrets that are sealed",
    "0028-5765d42a": "rules",
    "0038-efbafbf2": "marks of provision files, and the places in snapshots",
    "0040-5427e2e2": "an index of messages and of actions",
    "0065-f264c4d2": "keys of addresses",
    "0106-a261a7bb": "times of failed messages",
    "0141-fcecf58f": "readers of data",
}
#: How many schema steps may be newer than the newest store here.
_STEPS_WITHOUT_A_STORE = 5

#: Migrates the store in a fork that kills itself at a number of signs of progress, which are between the steps and
#: within them: 1, 2, 4 and so on, until one comes to the end. Prints how many were killed. To start a program for each
#: would take 0.4 s of processor time.
_UPGRADE_AND_DIE = """
import os, pathlib, signal, sys
from storage.engines import sqlite_upgrade
from storage.engines.sqlite import SqliteEngine
sqlite_upgrade._TELL_SECONDS, sqlite_upgrade._OPERATIONS = 0.0, 50
killed = -1
status = -signal.SIGKILL
while status == -signal.SIGKILL:
    killed += 1
    if (child := os.fork()) == 0:
        left = 2 << killed
        def told(text):
            global left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        SqliteEngine(pathlib.Path(sys.argv[1]), progress=told).migrate()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(killed)
sys.exit(status)
"""


def changed(former: Any, now: Any, at: str = "") -> list[str]:
    """Where the two differ. A newer version may add members to an object, and nothing else."""
    if isinstance(former, dict) and isinstance(now, dict):
        pairs = [(former[name], now.get(name, "(gone)"), f"{at}.{name}") for name in former]
    elif isinstance(former, list) and isinstance(now, list) and len(former) == len(now):
        pairs = [(a, b, f"{at}[{n}]") for n, (a, b) in enumerate(zip(former, now, strict=True))]
    else:
        return [] if former == now else [f"{at}: {former!r} became {now!r}"]
    return [text for pair in pairs for text in changed(*pair)]


def unpacked(archive: Path, folder: Path) -> tuple[Daemon, dict[str, Any]]:
    """The daemon of the store, which is not started, and the answers that the older version gave."""
    daemon = Daemon(folder / "state")
    unpack(archive, daemon.state)
    daemon.write_config()
    return daemon, json.loads((daemon.state / "answers.json").read_text())


def _name(archive: Path) -> str:
    return archive.name.partition(".")[0]


def differences(daemon: Daemon, answers: dict[str, Any]) -> list[str]:
    daemon.start()
    try:
        now = {path: ask(daemon.base_url, "GET", path, asked_by(path)) for path in answers}
    finally:
        daemon.stop()
    return [text for path, former in answers.items() for text in changed([200, former], list(now[path]), path)]


def chosen() -> list[Path]:
    """Of the other stores another one in each run, or all with `--hypothesis-profile=full`."""
    others = [path for path in ARCHIVES[1:-1] if _name(path) not in FIRST_OF_THEIR_KIND]
    first = [path for path in ARCHIVES if _name(path) in FIRST_OF_THEIR_KIND]
    return [ARCHIVES[-1], *(first if IS_CI else []), *drawn(others, len(others))]


@each_row("archive", chosen())
def test_answers_of_older_stores_stay_the_same(archive: Path, tmp_path: Path) -> None:
    assert differences(*unpacked(archive, tmp_path / _name(archive))) == []


def test_an_upgrade_that_is_killed_again_and_again_goes_on(tmp_path: Path) -> None:
    daemon, answers = unpacked(ARCHIVES[0], tmp_path)
    command = [sys.executable, "-c", _UPGRADE_AND_DIE, str(daemon.state / "store.sqlite")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # its log, and the number
    killed = int(done.stdout.split()[-1])
    assert killed > 2
    assert differences(daemon, answers) == []


def test_steps_have_stores() -> None:
    """Else record one of main: README.md."""
    newest = max(path.name[:4] for path in ARCHIVES)
    assert len([name for name in migrations.names() if name[:4] > newest]) <= _STEPS_WITHOUT_A_STORE
