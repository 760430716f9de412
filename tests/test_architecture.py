"""ARCHITECTURE.md names what exists, no folder hides a library, and a class name means one thing."""

import ast
import re
import tomllib
from inspect import signature
from pathlib import Path

import pytest

from storage.database import Database
from tests.conftest import LONGEST
from tests.rows import each_row

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parent.parent
ARCHITECTURE = ROOT / "broker" / "ARCHITECTURE.md"

#: `path`, or `path: name` with the name of a function, class or method in that file.
_NAMED = re.compile(r"`([\w.-]*/[\w./-]*|[\w-]+\.(?:py|md|toml))(?:: ([\w.]+))?`")
#: "Add a capability" uses these for the new capability's number and noun.
_PLACEHOLDERS = {"NNNN_x.": "[0-9]*_*.", "_x.": "_*.", "/x.": "/*.", "/x/": "/*/"}


def test_systemd_folder_holds_no_python() -> None:
    """It would shadow the binding of that name."""
    assert list((ROOT / "systemd").rglob("*.py")) == []


def test_the_files_that_come_first_are_there() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).exists()] == []


def test_each_protocol_is_in_the_contracts_of_protocols() -> None:
    """A package of `protocols/` that has a listener; "Add a protocol" says so."""
    serving = {
        f"protocols.{path.relative_to(ROOT / 'protocols').parts[0]}"
        for path in (ROOT / "protocols").rglob("*.py")
        if re.search(r"(?m)^from protocols\.streams\.(connection|listeners) import ", path.read_text(encoding="utf-8"))
    } - {"protocols.streams"}
    assert len(serving) >= 4
    contracts = {
        contract["name"]: {
            *contract.get("modules", ()),
            *contract.get("source_modules", ()),
            *contract.get("forbidden_modules", ()),
        }
        for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
            "contracts"
        ]
    }
    names = (
        "Protocols do not know each other",
        "Connections know no protocol",
        "Protocols reach data through the broker",
    )
    assert {name: serving - contracts[name] for name in names} == {name: set() for name in names}


def test_nobody_hears_of_a_commit_by_a_closure() -> None:
    """A work tells what changed (`storage/told.py`): who hears of it is in one table (tests/broker/test_news.py)."""
    assert list(signature(Database.write).parameters) == ["self", "work"]
    assert list(signature(Database.write_own).parameters) == ["self", "holder", "work", "with_rows"]
    passing = re.compile(r"\bannounce=|\bissuance\.(then|facts)\b")
    files = [path for floor in ("broker", "protocols", "storage") for path in (ROOT / floor).rglob("*.py")]
    assert len(files) > 500
    assert [str(path) for path in files if passing.search(path.read_text(encoding="utf-8"))] == []


def test_each_test_that_is_left_out_over_postgresql_says_why() -> None:
    """By one marker, with a reason in words; no test skips itself by the engine of the run."""
    marks, reasons, others = list[str](), list[str](), list[str]()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "pytest.mark.sqlite" not in text and "pytest.skip" not in text and "pytest.mark.skipif" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr == "sqlite" and ast.unparse(node) == "pytest.mark.sqlite":
                marks.append(f"{path}:{node.lineno}")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                if called == "pytest.mark.sqlite":
                    reasons += [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
                elif called in {"pytest.skip", "pytest.mark.skipif"} and re.search(r"\bENGINE\b", ast.unparse(node)):
                    others.append(f"{path}:{node.lineno}")
    assert len(reasons) > 20
    assert len(reasons) == len(marks)  # none stands without
    assert [reason for reason in reasons if len(reason.split()) < 2] == []
    assert others == []


def test_what_the_architecture_names_exists() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    named = _NAMED.findall(text)
    assert len([name for _, name in named if name]) > 30
    assert [problem for path, name in named if (problem := missing(path, name))] == []


def test_both_walks_and_the_map_are_there() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    for title in ("QoS 1", "QoS 2", "Map of the capabilities", "Add a capability"):
        assert re.search(rf"(?m)^## .*{title}$", text), title
    capabilities = {path.name for path in (ROOT / "broker").iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"\| `broker/(\w+)/` \|", text)) == capabilities


@each_row(
    ("path", "name", "is_there"),
    [
        ("broker/facts.py", "", True),
        ("broker/facts.py", "Router.publish", True),
        ("broker/facts.py", "Router.shout", False),
        ("broker/facts.py", "publish", False),
        ("broker/fiction.py", "", False),
        ("broker/routing", "", False),
        ("broker/routing/", "", True),
        ("storage/schema/NNNN_x.sql", "", True),
        ("protocols/http/rest/x.py", "", True),
        ("broker/x/fiction.py", "", False),
    ],
)
def test_what_is_missing_is_found(path: str, name: str, is_there: bool) -> None:
    assert (missing(path, name) == "") is is_there


def missing(path: str, name: str) -> str:
    """The missing part of a reference to a file, or to a function, class or method in it; empty if it exists.

    Args:
        path: from the root of the repository; a folder ends with a slash.
        name: dotted, or empty.
    """
    pattern = path
    for placeholder, wildcard in _PLACEHOLDERS.items():
        pattern = pattern.replace(placeholder, wildcard)
    files = sorted(ROOT.glob(pattern))
    if not any(file.is_dir() is path.endswith("/") for file in files):
        return f"there is no {path}"
    nodes: list[ast.stmt] = ast.parse(files[0].read_text(encoding="utf-8")).body if name else []
    for part in filter(None, name.split(".")):
        inside = [
            node.body
            for node in nodes
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
        ]
        if not inside:
            return f"there is no {name} in {path}"
        nodes = inside[0]
    return ""


#: Public classes that two rooms call by the same name, and why both keep it. At most ten.
_SHARED_NAMES = {"Subscriptions": "the capability; its table in the configuration file"}
#: Functions, such as `main` of each process and `run` of each simulated client. Never raise the number.
_SHARED_FUNCTIONS_MAX = 10


def test_a_public_name_means_one_thing() -> None:
    assert len(_SHARED_NAMES) <= 10
    classes: dict[str, list[str]] = {}
    functions: dict[str, list[str]] = {}
    for folder in ("broker", "config", "protocols", "storage"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                    places = classes if isinstance(node, ast.ClassDef) else functions
                    places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    shared = {name: found for name, found in classes.items() if len(found) > 1}
    assert {name: found for name, found in shared.items() if name not in _SHARED_NAMES} == {}
    assert _SHARED_NAMES.keys() <= shared.keys(), "a name that is defined once needs no reason"
    twice = {name: found for name, found in functions.items() if len(found) > 1}
    assert len(twice) <= _SHARED_FUNCTIONS_MAX, twice
