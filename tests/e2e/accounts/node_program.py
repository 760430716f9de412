"""Programs from npm, installed from the lock file into the virtual environment."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.programs import require_program, skip_without

_SOURCES: Final = Path(__file__).parent / "node"
_INSTALL: Final = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")


def installed_programs(sources: Path = _SOURCES) -> Path:
    """The folder with the programs of `sources` and their packages. Skips the test if npm cannot install them.

    The folder is in the virtual environment, so that a later run finds it, also in another process.
    """
    npm = require_program("npm")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources.iterdir()))).hexdigest()
    folder = Path(sys.prefix) / "npm" / digest[:16]
    if folder.exists():
        return folder
    folder.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as temporary:
        fresh = shutil.copytree(sources, Path(temporary) / "node")
        done = subprocess.run([npm, *_INSTALL], cwd=fresh, capture_output=True, text=True, check=False, timeout=100)
        if done.returncode != 0:
            skip_without(str(sources / "package.json"), f"npm could not install it: {done.stderr}")
        with suppress(OSError):  # another process installed them
            fresh.rename(folder)
    return folder


@cache
def axe_script(programs: Path) -> str:
    """What looks for faults of accessibility in a page."""
    return (programs / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


class NodeProgram:
    """A running program that writes one JSON object on each line and reads lines."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def hear(self) -> dict[str, Any]:
        line = self._stdout.readline()
        assert line, "the program ended without output; see its errors above"
        heard: dict[str, Any] = json.loads(line)
        return heard

    def tell(self, line: str) -> None:
        self._stdin.write(f"{line}\n")
        self._stdin.flush()


@contextmanager
def running_node(folder: Path, *arguments: str, trusted: Path) -> Iterator[NodeProgram]:
    """Run a program of this folder that trusts this certificate."""
    with subprocess.Popen(
        [require_program("node"), *arguments],
        cwd=folder,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(trusted)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield NodeProgram(process)
        finally:
            process.kill()
