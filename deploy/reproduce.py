"""Builds the wheel and the Debian package of the last commit twice and compares them: `make reproduce`.

Each build has a clone and an environment of its own, and another folder, umask, time zone, language and order of
hashes. The times of the clone's files differ by years. Some minutes; the packages of constraints.txt are fetched if
pip's cache does not have them.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Of a build. What it makes must not depend on them."""

    folder: str
    umask: int
    modified: int  # of all files of the clone, in seconds since the epoch
    environment: Mapping[str, str]


FIRST: Final = Circumstances("one", 0o022, 1_000_000_000, {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"})
SECOND: Final = Circumstances(
    "another/folder", 0o077, 1_700_000_000, {"TZ": "Pacific/Auckland", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}
)


def cloned(source: Path, folder: Path, of: Circumstances) -> Path:
    """A clone of the last commit of `source` as these circumstances have it."""
    clone = folder / of.folder
    subprocess.run(  # noqa: S603 - our own words
        ["git", "clone", "--quiet", "--shared", source, clone],  # noqa: S607
        check=True,
        umask=of.umask,
    )
    for folder_, folders, files in os.walk(clone):
        folders[:] = [name for name in folders if name != ".git"]
        for name in files:
            os.utime(Path(folder_, name), (of.modified, of.modified))
    return clone


def run(clone: Path, of: Circumstances, *words: str) -> None:
    left_out = {"SOURCE_DATE_EPOCH", "TRUNKLINE_COMMIT", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    subprocess.run(words, cwd=clone, env={**environment, **of.environment}, umask=of.umask, check=True)  # noqa: S603


def build_wheel(clone: Path, of: Circumstances) -> None:
    """Into the folder `dist` of the clone, with the builder of this environment."""
    run(clone, of, sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", ".")


def made(clone: Path) -> dict[str, str]:
    """The digests of what was built in a clone, by name."""
    files = [path for kind in ("dist/*.whl", "build/*.deb") for path in sorted(clone.glob(kind))]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main() -> int:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"  # so that later commits do not count
        subprocess.run(["git", "clone", "--quiet", "--bare", "--shared", ROOT, source], check=True)  # noqa: S603, S607
        for one in (FIRST, SECOND):
            clone = cloned(source, Path(folder), one)
            build_wheel(clone, one)
            run(clone, one, "make", "--silent", "deb", f"PYTHON={sys.executable}")
            results.append(made(clone))
    first, second = results
    for name in sorted(first.keys() | second.keys()):
        equal = first.get(name) == second.get(name)
        print(f"{'equal' if equal else 'DIFFERENT'}  {first.get(name)}  {name}")
    return 0 if first == second and len(first) == len(("wheel", "package")) else 1


if __name__ == "__main__":
    sys.exit(main())
