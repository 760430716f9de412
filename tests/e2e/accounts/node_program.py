"""Programs from npm, installed from the lock file into a folder outside of the source tree."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.programs import require_program

_SOURCES: Final = Path(__file__).parent / "node"
_INSTALL: Final = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")


def install(folder: Path) -> Path:
    """The folder with the programs and their packages. Skips the test if npm cannot install them."""
    npm = require_program("npm")
    shutil.copytree(_SOURCES, folder, dirs_exist_ok=True)
    done = subprocess.run([npm, *_INSTALL], cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    if done.returncode != 0:
        message = f"npm could not install {_SOURCES / 'package.json'}: {done.stderr}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return folder


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
