"""Reads constraints.txt, which `make lock` writes: each package in one version, with the hashes of its files.

A pin also names the packages that need it, so the packages of an extra are found before anything is installed.
"""

import re
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
_PIN: Final = re.compile(r"^([\w.\-]+)==([^\s;]+)( ;.*?)? \\$")
_VIA: Final = re.compile(r"^    # via (.+)$")
_NAME: Final = re.compile(r"^[\w.\-]+")
#: How the project itself is named where a package is needed by it.
_PROJECT: Final = "trunkline"


@dataclass(frozen=True, slots=True)
class Pin:
    """A package: where it is needed (`marker`, which begins with ` ;`, or nothing), its hashes, and what needs it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: frozenset[str]

    def line(self, *, hashes: bool) -> str:
        """As pip reads it in a file of requirements."""
        words = [f"{self.name}=={self.version}{self.marker}", *(self.hashes if hashes else ())]
        return " ".join(words)


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path = ROOT / "constraints.txt") -> dict[str, Pin]:
    """The pins by their normalized names. Raises ValueError for a line that is not as `make lock` writes it."""
    pins: dict[str, Pin] = {}
    head: re.Match[str] | None = None
    hashes: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("#"):
            continue
        if head is None and (head := _PIN.match(line)) is not None:
            continue
        if head is not None and line.startswith("    --hash="):
            hashes.append(line.strip(" \\"))
        elif head is not None and hashes and (via := _VIA.match(line)) is not None:
            needing = (_NAME.match(one.strip()) for one in via[1].split(","))
            names = frozenset(normalized(one[0]) for one in needing if one is not None)
            pins[normalized(head[1])] = Pin(head[1], head[2], head[3] or "", tuple(hashes), names)
            head, hashes = None, []
        else:
            raise ValueError(f"{path}, line {number}: run make lock")
    return pins


def needed(pins: dict[str, Pin], roots: Collection[str]) -> list[Pin]:
    """The pins of these normalized names, and of everything that they need, directly or not."""
    needs: dict[str, list[str]] = {}
    for name, pin in pins.items():
        for other in pin.needed_by:
            needs.setdefault(other, []).append(name)
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found and name in pins:
            found.add(name)
            waiting += needs.get(name, ())
    return [pins[name] for name in sorted(found)]


def roots_of_project(extras: Collection[str]) -> set[str]:
    """The normalized names of the direct dependencies, with those of these extras. Raises KeyError for another one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return set(_names([*project["dependencies"], *(text for extra in extras for text in optional[extra])]))


def roots_of_build() -> set[str]:
    return set(_names(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]))


def _names(requirements: Collection[str]) -> Iterator[str]:
    for text in requirements:
        if (name := _NAME.match(text)) is not None:
            yield normalized(name[0])
