"""SECURITY.md is true as far as a test can tell, and the bill of materials is complete."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.test_reference import tracked_files

ROOT = Path(__file__).parent.parent
SECURITY = ROOT / "SECURITY.md"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| (OSPS-[A-Z]{2}-\d\d\.\d\d) [^|]+\| (met|not met|owner) \| (.+) \|$", re.MULTILINE)

#: Level 1 of version 2026.08.28.
LEVEL_1 = """
AC-01.01 AC-02.01 AC-03.01 AC-03.02 BR-01.01 BR-01.03 BR-03.01 BR-03.02 BR-07.01 DO-01.01 DO-02.01 GV-02.01 GV-03.01
LE-02.01 LE-02.02 LE-03.01 LE-03.02 QA-01.01 QA-01.02 QA-02.01 QA-04.01 QA-05.01 QA-05.02 VM-02.01
"""


def anchor(heading: str) -> str:
    """As hosts of repositories make it: lower case, blanks as dashes, without punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_links(path: Path, text: str) -> Iterator[str]:
    """Links of a Markdown file to files and headings that do not exist; links to other sites are not looked at."""
    for link in _LINK.findall(text):
        file, _, wanted = link.partition("#")
        target = path.parent / file if file else path
        if link.startswith("https://"):
            continue
        if not target.exists() or (wanted and wanted not in anchors_of(target)):
            yield link


def anchors_of(path: Path) -> set[str]:
    return set(map(anchor, _HEADING.findall(path.read_text(encoding="utf-8"))))


def test_links_lead_to_files_and_headings() -> None:
    text = SECURITY.read_text(encoding="utf-8")
    assert len(_LINK.findall(text)) > 30
    assert list(broken_links(SECURITY, text)) == []


@pytest.mark.parametrize("link", ["nothing", "README.md#no", "#no", "http://example.org"])
def test_a_broken_link_would_be_found(link: str) -> None:
    assert list(broken_links(SECURITY, f"[x]({link})")) == [link]


def test_each_requirement_of_level_1_is_in_the_table_once() -> None:
    rows = _ROW.findall(SECURITY.read_text(encoding="utf-8"))
    assert [name.removeprefix("OSPS-") for name, _, _ in rows] == LEVEL_1.split()


def test_what_is_met_says_where() -> None:
    """QA-04.01 is met by there being nothing else."""
    rows = _ROW.findall(SECURITY.read_text(encoding="utf-8"))
    without = {name for name, state, where in rows if state == "met" and not _LINK.search(where)}
    assert without == {"OSPS-QA-04.01"}


def test_the_repository_has_no_binary_file() -> None:
    """But pictures of the documents, which a reviewer can look at."""
    binary = [path for path in tracked_files() if b"\0" in (ROOT / path).read_bytes()]
    assert [path for path in binary if not re.fullmatch(r"docs/images/[\w-]+\.png", path)] == []


def runtime_dependencies(name: str, known: set[str]) -> set[str]:
    """The normalized names of what an installed package needs, directly or not."""
    for text in requires(name) or ():
        requirement = Requirement(text)
        needed = requirement.name.lower().replace("_", "-")
        if needed not in known and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            known.add(needed)
            runtime_dependencies(needed, known)
    return known


@pytest.mark.processes
def test_the_bill_of_materials_names_every_runtime_dependency(tmp_path: Path) -> None:
    """As `make sbom` makes it, but of this environment, so that no network is needed."""
    bill = tmp_path / "bill.json"
    tool = Path(sys.executable).with_name("cyclonedx-py")
    command: list[str | Path] = [tool, "environment", sys.executable, "--pyproject", ROOT / "pyproject.toml"]
    # Validating takes ten times as long as making it; `make sbom` does it.
    command += ["--mc-type", "application", "--no-validate", "--output-reproducible", "--of", "JSON", "-o", bill]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    made = json.loads(bill.read_text(encoding="utf-8"))
    assert made["bomFormat"] == "CycloneDX"
    assert made["metadata"]["component"]["name"] == "trunkline"
    named = {one["name"].lower().replace("_", "-"): one for one in made["components"]}
    wanted = runtime_dependencies("trunkline", set())
    assert {"trio", "cryptography", "pyotp", "segno", "werkzeug", "cffi"} <= wanted
    assert wanted - named.keys() == set()
    assert [name for name in wanted if not named[name].get("version")] == []
