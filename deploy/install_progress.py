"""`pip install` with one line that moves: how many packages are found, how much is fetched, how long it has taken.

    python deploy/install_progress.py -c constraints.txt -e .

Arguments are those of `pip install`. Without a terminal, a line comes for every tenth package. When pip fails, its
whole output is shown, and its exit status is this program's.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

_FOUND = re.compile(r"^Collecting ([\w.\-]+)|^Processing (\S+\.whl)")
_FETCHED = re.compile(r"^\s+(?:Downloading|Using cached) \S+ \(([\d.]+) (kB|MB)\)")
_MEGABYTES = {"kB": 0.001, "MB": 1.0}


def main() -> int:
    began, packages, megabytes, output = time.monotonic(), 0, 0.0, []
    print("Installing into .venv: about a minute, longer while packages are fetched for the first time", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check"]
    words = [*command, *sys.argv[1:]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:  # noqa: S603
        assert pip.stdout is not None  # noqa: S101
        for line in pip.stdout:
            output.append(line)
            if (fetched := _FETCHED.match(line)) is not None:
                megabytes += float(fetched[1]) * _MEGABYTES[fetched[2]]
            if (found := _FOUND.match(line)) is not None:
                packages += 1
                megabytes += Path(found[2]).stat().st_size / 1e6 if found[2] else 0
                name = found[1] or Path(found[2]).name.partition("-")[0]
                _show(f"{packages} packages, {megabytes:.0f} MB: {name}", began, packages)
            elif line.startswith("Installing collected packages"):
                _show(f"{packages} packages, {megabytes:.0f} MB: copying them into place", began, 0)
    if pip.returncode:
        sys.stderr.write("".join(output))
        return pip.returncode
    _show(f"{packages} packages, {megabytes:.0f} MB: done", began, 0)
    print()
    return 0


def _show(text: str, began: float, number: int) -> None:
    line = f"  {time.monotonic() - began:3.0f} s  {text}"
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line}", end="", flush=True)
    elif number % 10 == 0:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
