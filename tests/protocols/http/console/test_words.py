"""The words of the pages: phrases of this project's former idiom, and plainer ones for them."""

import re
from importlib.resources import files
from typing import Final

import pytest

from tests.rows import each_row

pytestmark = pytest.mark.slow


#: Relative clauses instead of names, and words of the program for things of people.
IDIOM: Final = (
    r"[\"\'>`](What|Who) [a-z][^\"<`?]*[\"<`]",
    r"\bof any number\b",
    r"\bcounted anew\b",
    r"\bits maker\'s? this month\b",
    r"\bfolds\b[^\"]",
    r"\bwaiting rows\b",
    r"\b(is|was) taken\b",
    r"\blets nobody in\b",
    r"\bat the door\b",
)
FOLDERS: Final = (
    "protocols.http.console:static",
    "protocols.http.console:templates",
    "protocols.http.accounts:templates",
    "protocols.http.docs:templates",
    "broker.mail:templates",
)


@each_row("place", FOLDERS)
def test_pages_and_mails_speak_plainly(place: str) -> None:
    package, _, folder = place.partition(":")
    found = []
    for file in sorted(files(package).joinpath(folder).iterdir(), key=lambda one: one.name):
        if file.name.endswith((".js", ".html", ".txt")):
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                text = re.sub(r"^\s*//.*|\s//\s.*", "", line)  # comments are for programmers
                found += [f"{file.name}:{number}: {one}" for one in IDIOM if re.search(one, text, re.IGNORECASE)]
    assert found == [], "\n".join(found)
