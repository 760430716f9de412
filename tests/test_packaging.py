"""The wheel holds the four packages with their data, and nothing shadows them."""

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent
PACKAGES = ("broker", "protocols", "storage", "config")


def test_all_four_packages_come_from_the_same_place() -> None:
    """A package called `config` or `storage` from elsewhere would show here."""
    roots = {Path(next(iter(importlib.import_module(name).__path__))).parent for name in PACKAGES}
    assert len(roots) == 1


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (path,) = folder.iterdir()
    return zipfile.ZipFile(path)


def test_wheel_holds_exactly_the_four_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_wheel_holds_what_the_packages_need(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= names
    assert {"config/example.toml", "broker/device_types/shipped/smart_light.json", "broker/py.typed"} <= names


def test_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    (path,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "trunkline = protocols.cli:main" in wheel.read(path).decode()


def test_constraints_pin_every_requirement() -> None:
    """CI runs the versions of constraints.txt, which has all dependencies of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {*project["dependencies"], *project["optional-dependencies"]["test"]}
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    names = {re.split("[>=]", requirement)[0].strip().lower() for requirement in wanted}
    assert {name for name in names if f"\n{name}==" not in f"\n{pins}"} == set()
