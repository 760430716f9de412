"""The table of test cases names tests that exist."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


_HERE = Path(__file__).parent
_E2E = Path(__file__).parents[3] / "e2e"


def test_every_named_test_exists() -> None:
    folders = (_E2E, _HERE.parent, _HERE)
    files = {path.name: path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("test_*.py")}
    everything = "\n".join(files.values())
    names = re.findall(r"`((?:test_|Test)[\w.:]+)`", (_HERE / "README.md").read_text(encoding="utf-8"))
    assert len(names) > 40
    for name in names:
        first, *rest = name.split("::")
        text = files[first] if first.endswith(".py") else everything
        for part in rest if first.endswith(".py") else (first, *rest):
            assert re.search(rf"(class|def) {part}\b", text), name
