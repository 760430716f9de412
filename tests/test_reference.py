"""Citations lead somewhere: to sections of broker/reference/, and to documents of this repository."""

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from config.settings import Settings
from tests.protocols.http.test_path_table import ACCOUNTS, REST
from tests.rows import each_row

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "broker" / "reference"
CHECKED = {".py", ".md", ".toml", ".service", ".sql", ".html", ".mjs"}

_HEADING = re.compile(r"^##? (\d+(?:\.\d+)?) \S", re.MULTILINE)
_NUMBER = r"\d+(?:\.\d+)?(?![\w.]*\d)"
_GAP = r"(?:\s|\#:?|--|>)+"  # a line break inside a comment has the comment's sign behind it
_LIST = rf"{_NUMBER}(?:(?:,|,?{_GAP}and){_GAP}{_NUMBER})*"
_CITATION = re.compile(rf"\breference{_GAP}(?:sections?{_GAP})?({_LIST})", re.IGNORECASE)
#: Within the reference a section is named without the word: in brackets, and in the last column of the tables of paths.
_BRACKETS = re.compile(r"\((\d{1,2}(?:\.[1-9]\d?)?(?:(?:,| and) \d{1,2}(?:\.[1-9]\d?)?)*)\)")
_LAST_COLUMN = re.compile(r"\| ([\d., ]+) \|$", re.MULTILINE)
_DOCUMENT = re.compile(r"(?<![\w./-])[\w./-]+\.md\b")
_FOREIGN = re.compile(r"\bspecification,\s+[\w/]|(?<!by )\bdesign[:/]\s*\w|\bcompatibility,?\s+\d", re.IGNORECASE)
_FOREIGN_WORDS = ("specification", "design", "compatibility")
_CALL = re.compile(r"(?:^\||,) ((?:(?:GET|POST|PUT|DELETE)(?:, )?)+) (/[^\s,|]*)", re.MULTILINE)
#: They need a client certificate, a browser that signs in, or the payment processor's signature.
TESTED_ELSEWHERE = {
    "POST /cert/devices/registrations",
    "GET /cert/devices/registrations/*/status",
    "PUT /cert/devices/registrations/*",
    "GET /external",
    "GET /external/callback",
    "GET /reset",
    "POST /reset",
    "POST /accept/label",
    "POST /accept/share",
    "POST /pricing/notifications",
}


def section_numbers(chapters: Mapping[str, str]) -> Counter[str]:
    """How often each section number stands in a heading of the chapters."""
    return Counter(number for text in chapters.values() for number in _HEADING.findall(text))


def problems_in(text: str, *, sections: Collection[str], documents: Collection[str]) -> Iterator[tuple[int, str]]:
    """Line number and text of every citation that leads nowhere.

    Args:
        text: of one file.
        sections: the numbers of the sections that exist.
        documents: the paths of the documents that exist.
    """
    for match in _CITATION.finditer(text):
        for number in re.findall(_NUMBER, match[1]):
            if number not in sections:
                yield _line(text, match), f"there is no section {number} in the reference"
    for match in _DOCUMENT.finditer(text) if ".md" in text else ():  # to look for it first is ten times as fast
        name = match[0].lstrip("./")
        is_address = match[0].startswith("//")
        if not is_address and not any(f"/{path}".endswith(f"/{name}") for path in documents):
            yield _line(text, match), f"there is no document {match[0]} in the repository"
    lower = text.lower()
    for match in _FOREIGN.finditer(text) if any(word in lower for word in _FOREIGN_WORDS) else ():
        yield _line(text, match), f"{match[0]!r} cites a document outside the repository"


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def tracked_files() -> list[str]:
    """Paths of the repository's files, also of files that will be committed next."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for path in listed if (ROOT / path).is_file()]


@pytest.fixture(scope="module")
def chapters() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("[0-9]*.md"))}


def test_every_citation_leads_somewhere(chapters: dict[str, str]) -> None:
    files, sections = tracked_files(), section_numbers(chapters)
    documents = [path for path in files if path.endswith(".md")]
    wrong = [
        f"{path}:{line}: {problem}"
        for path in files
        if Path(path).suffix in CHECKED
        for line, problem in problems_in(
            (ROOT / path).read_text(encoding="utf-8"), sections=sections, documents=documents
        )
    ]
    assert wrong == []


def test_section_numbers_are_unique_and_stand_in_their_chapter(chapters: dict[str, str]) -> None:
    assert [number for number, times in section_numbers(chapters).items() if times > 1] == []
    for name, text in chapters.items():
        numbers = _HEADING.findall(text)
        assert numbers[0] == name.split("-")[0].lstrip("0")
        assert {number.partition(".")[0] for number in numbers} == {numbers[0]}


def test_chapters_name_only_sections_that_exist(chapters: dict[str, str]) -> None:
    sections = section_numbers(chapters)
    named = [(name, cited) for name, text in chapters.items() for cited in _BRACKETS.findall(text)]
    named += [("02-paths", cited) for cited in _LAST_COLUMN.findall(chapters["02-paths.md"])]
    assert len(named) > 200
    assert [one for one in named if not sections.keys() >= set(re.findall(_NUMBER, one[1]))] == []


def test_the_index_names_every_chapter(chapters: dict[str, str]) -> None:
    assert re.findall(r"\]\((\S+?)\)", (REFERENCE / "README.md").read_text(encoding="utf-8")) == list(chapters)


def test_the_tables_of_paths_are_those_that_are_tested(chapters: dict[str, str]) -> None:
    """tests/protocols/http/test_path_table.py sends a request to each of its paths."""
    tested = {re.sub(r"\{\}|\b1\b", "*", line) for line in (ACCOUNTS + REST).splitlines() if line}
    written = {
        f"{method} {re.sub(r'{[^}]*}', '*', path)}"
        for methods, path in _CALL.findall(chapters["02-paths.md"])
        for method in methods.split(", ")
    }
    assert written - tested == TESTED_ELSEWHERE
    assert tested - written == set()


def test_the_chapter_about_configuration_has_every_key(chapters: dict[str, str]) -> None:
    columns = re.findall(r"(?m)^\| (`[^|]*`) \|", chapters["25-configuration.md"])
    keys = set()
    for name, kind in get_type_hints(Settings).items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            keys |= {f"{name}.{inner}" for inner in kind.__struct_fields__}
        else:
            keys.add(name)
    assert set(re.findall(r"`([\w.]+)`", " ".join(columns))) == keys


# --- The checker itself --------------------------------------------------------------------------------------------

WORD = "reference"  # written so, because this file is checked like any other
SECTIONS = {"6", "6.3", "21"}
KNOWN = "README.md"
NOWHERE = "elsewhere." + "md"


def found(text: str) -> list[tuple[int, str]]:
    return list(problems_in(text, sections=SECTIONS, documents=["README.md", "broker/ARCHITECTURE.md"]))


@each_row(
    ("cited", "unknown"),
    [
        ("6.3", []),
        ("6.4", ["6.4"]),
        ("9", ["9"]),
        ("6.3, 9.1 and 7", ["9.1", "7"]),
        ("6, 6.3, and 8.2.", ["8.2"]),
        ("21: 5 per minute", []),
        ("6.33", ["6.33"]),
        ("section 7.1", ["7.1"]),
    ],
)
def test_unknown_sections_are_found(cited: str, unknown: list[str]) -> None:
    assert found(f"({WORD} {cited})") == [(1, f"there is no section {number} in the reference") for number in unknown]


@pytest.mark.parametrize("gap", ["\n", "\n    ", "\n    # ", "\n#: ", "\n-- "])
def test_citations_are_found_over_line_breaks(gap: str) -> None:
    assert found(f"one\n{WORD}{gap}6.3 and{gap}7.7") == [(2, "there is no section 7.7 in the reference")]


@each_row(
    ("text", "is_refused"),
    [
        (f"`{KNOWN}`", False),
        (f"[map](../{KNOWN})", False),
        ("broker/ARCHITECTURE.md", False),
        ("ARCHITECTURE.md", False),
        (f"https://example.org/{NOWHERE}", False),
        (f"`/{KNOWN}`", False),
        (NOWHERE, True),
        (f"`docs/{NOWHERE}`", True),
        (f"storage/{KNOWN}", True),
    ],
)
def test_unknown_documents_are_found(text: str, is_refused: bool) -> None:
    assert bool(found(text)) is is_refused


@pytest.mark.parametrize("text", ["Specification{} Limits", "design{} two nurseries", "compatibility{} 4.1"])
def test_citations_of_documents_outside_are_found(text: str) -> None:
    sign = {"S": ",", "d": ":", "c": ""}[text[0]]
    assert len(found(f"see {text.format(sign)}")) == 1


def test_a_number_that_two_headings_have_is_found() -> None:
    twice = section_numbers({"6": "# 6 A\n\n## 6.1 B\n", "7": "# 7 B\n\n## 6.1 C\n"})
    assert [number for number, times in twice.items() if times > 1] == ["6.1"]
