"""Installs this tree into the environment whose Python runs it, with the packages of constraints.txt and no others.

    .venv/bin/python -m deploy.install --extras learning,streams,test --editable

It runs in the root of the tree. Each package is checked against its hashes; nothing else is downloaded, also not for
building the tree itself. One line moves during it: how many packages are found, how much is fetched, how long it has
taken. Without a terminal, a line comes for every tenth package. When pip fails, its whole output is shown, and its exit
status is this program's.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from deploy.pins import ROOT, Pin, needed, read_pins, roots_of_build, roots_of_project

_FOUND = re.compile(r"^Collecting ([\w.\-]+)|^Processing (\S+\.whl)")
_FETCHED = re.compile(r"^\s+(?:Downloading|Using cached) \S+ \(([\d.]+) (kB|MB)\)")
_MEGABYTES = {"kB": 0.001, "MB": 1.0}
_PIP = (sys.executable, "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check", "--no-deps")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default="", help="optional parts of pyproject.toml: a list with commas")
    parser.add_argument("--editable", action="store_true", help="the installation reads the modules of this tree")
    parser.add_argument(
        "--without-hashes",
        action="store_true",
        help="take the same versions from anywhere, such as wheels that were built for this kind of machine",
    )
    parser.add_argument("--only-packages", action="store_true", help="leave the tree itself out")
    options = parser.parse_args()
    pins = read_pins()
    try:
        wanted = needed(pins, roots_of_project([*filter(None, options.extras.split(","))]))
    except KeyError as error:
        print(f"pyproject.toml has no extra {error.args[0]}", file=sys.stderr)
        return 2
    hashes = not options.without_hashes
    # Most files of the packages are never imported; the first start compiles the others.
    how = ["--no-compile"] if options.editable else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if (status := _Progress().run(*how, *_from_file(folder / "wanted.txt", wanted, hashes=hashes))) or (
            options.only_packages
        ):
            return status
        build = needed(pins, roots_of_build())
        if options.editable and not {pin.name for pin in build} - {pin.name for pin in wanted}:
            return _tree("--editable", str(ROOT))
        # Apart, so that the environment has no packages that only the building needs.
        fetched = _quiet(*_from_file(folder / "build.txt", build, hashes=hashes), "--target", str(folder / "build"))
        return fetched or _tree(*(["--editable"] if options.editable else []), str(ROOT), path=folder / "build")


def _from_file(path: Path, pins: Iterable[Pin], *, hashes: bool) -> list[str]:
    path.write_text("".join(f"{pin.line(hashes=hashes)}\n" for pin in pins), encoding="utf-8")
    return [*(["--require-hashes"] if hashes else []), "-r", str(path)]


def _tree(*words: str, path: Path | None = None) -> int:
    """Install the tree itself with the builder of the environment, or with that of the folder `path`."""
    return _quiet("--no-build-isolation", *words, environment={} if path is None else {"PYTHONPATH": str(path)})


def _quiet(*words: str, environment: dict[str, str] | None = None) -> int:
    run = subprocess.run(  # noqa: S603 - our own words
        [*_PIP, "--quiet", *words], env={**os.environ, **(environment or {})}, check=False
    )
    return run.returncode


class _Progress:
    def __init__(self) -> None:
        self._began = time.monotonic()

    def run(self, *words: str) -> int:
        packages, megabytes, output = 0, 0.0, []
        print("Installing: about a minute, longer while packages are fetched for the first time", flush=True)
        with subprocess.Popen(  # noqa: S603 - our own words
            [*_PIP, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as pip:
            assert pip.stdout is not None  # noqa: S101
            for line in pip.stdout:
                output.append(line)
                if (fetched := _FETCHED.match(line)) is not None:
                    megabytes += float(fetched[1]) * _MEGABYTES[fetched[2]]
                if (found := _FOUND.match(line)) is not None:
                    packages += 1
                    megabytes += Path(found[2]).stat().st_size / 1e6 if found[2] else 0
                    name = found[1] or Path(found[2]).name.partition("-")[0]
                    self._show(f"{packages} packages, {megabytes:.0f} MB: {name}", packages)
                elif line.startswith("Installing collected packages"):
                    self._show(f"{packages} packages, {megabytes:.0f} MB: copying them into place", 0)
        if pip.returncode:
            sys.stderr.write("".join(output))
            return pip.returncode
        self._show(f"{packages} packages, {megabytes:.0f} MB: done", 0)
        print()
        return 0

    def _show(self, text: str, number: int) -> None:
        line = f"  {time.monotonic() - self._began:3.0f} s  {text}"
        if sys.stdout.isatty():
            print(f"\r\x1b[K{line}", end="", flush=True)
        elif number % 10 == 0:
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
