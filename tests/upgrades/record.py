"""Make the store of an older version, and write down what that version answers about it.

    python -m tests.upgrades.record COMMIT...

Each commit is checked out beside this tree, and runs with this tree's environment. The store and the answers become
tests/upgrades/stores/STEP-COMMIT.tar.xz, where STEP is the number of the version's latest schema step.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.upgrades.world import FILLING, MANIFEST, PROVISION, QUESTIONS, ask

STORES: Final = Path(__file__).parent / "stores"
_RUN: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from protocols.cli import main; sys.exit(main())"
_CONFIG: Final = """
state_dir = "{state}"
[http]
bind = "127.0.0.1:0"
[limits]
rate_limits = "off"
quotas = "off"
"""


def record(commit: str, folder: Path) -> Path:
    """Returns the archive."""
    tree, config, state = folder / "tree", folder / "trunkline.toml", folder / "state"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
    try:
        config.write_text(_CONFIG.format(state=state), encoding="utf-8")
        (folder / "provision.toml").write_text(PROVISION, encoding="utf-8")
        (folder / "light.json").write_text(json.dumps(MANIFEST), encoding="utf-8")
        _run(tree, "provision", folder / "provision.toml", "--config", config)
        with _serving(tree, config) as base:
            made = [ask(base, *request)[0] for request in FILLING]
        assert made[0] == 200, made
        with _serving(tree, config) as base:  # the answers of a daemon that has read them from its store
            answers = {path: ask(base, "GET", path, token) for path, token in QUESTIONS}
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", tree], check=True)
    with closing(sqlite3.connect(state / "store.sqlite")) as store:
        store.execute("PRAGMA journal_mode = DELETE")
        store.execute("VACUUM")
        step = store.execute("SELECT max(name) FROM _sqlite_migrations").fetchone()[0][:4]
    given = {path: body for path, (status, body) in answers.items() if status == 200}
    (state / "answers.json").write_text(json.dumps(given, indent=1), encoding="utf-8")
    archive = STORES / f"{step}-{commit[:8]}.tar.xz"
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for file in sorted(state.rglob("*")):
            if file.is_file() and not file.name.endswith((".lock", "ballast")):
                packed.add(file, file.relative_to(state))
    refused = {FILLING[n][1] for n, status in enumerate(made) if status != 200} | (answers.keys() - given.keys())
    print(f"{archive.name}: {archive.stat().st_size} bytes, refused: {' '.join(sorted(refused))}")  # noqa: T201 - a command
    return archive


def _command(tree: Path, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", _RUN, str(tree), *map(str, arguments)]


def _run(tree: Path, *arguments: str | Path) -> None:
    subprocess.run(_command(tree, *arguments), cwd=tree, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _serving(tree: Path, config: Path) -> Iterator[str]:
    """Run the version's daemon; the address of its REST."""
    log = config.with_name("log")
    with log.open("w") as errors:
        daemon = subprocess.Popen(
            _command(tree, "serve", "--config", config), cwd=tree, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert daemon.stdout is not None
        with daemon.stdout:
            line = daemon.stdout.readline()
            assert line.startswith("trunkline ready"), log.read_text()
            yield f"http://{dict(pair.split('=', 1) for pair in line.split()[2:])['http']}/v1.1"
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)


def main() -> None:
    os.chdir(Path(__file__).parents[2])
    for named in sys.argv[1:]:
        command = ["git", "rev-parse", "--verify", f"{named}^{{commit}}"]
        commit = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        with TemporaryDirectory() as folder:
            record(commit, Path(folder))


if __name__ == "__main__":
    main()
