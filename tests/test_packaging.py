"""The wheel holds the four packages with their data, and nothing shadows them."""

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.build_deb import installed_closure
from deploy.pins import needed, normalized, read_pins, roots_of_project
from deploy.reproduce import FIRST, SECOND, build_wheel, cloned, made
from tests.properties import in_ci

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


@in_ci
def test_two_builds_of_a_commit_are_equal(tmp_path: Path) -> None:
    """`make reproduce` builds the Debian package twice, too."""
    digests = []
    for circumstances in (FIRST, SECOND):
        clone = cloned(ROOT, tmp_path, circumstances)
        build_wheel(clone, circumstances)
        digests.append(made(clone))
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1


def test_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    (path,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "trunkline = protocols.cli:main" in wheel.read(path).decode()


def test_constraints_pin_every_requirement() -> None:
    """CI runs the versions of constraints.txt, which has all dependencies of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    pins = read_pins()
    for text in wanted:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[normalized(requirement.name)].version), text


@pytest.mark.parametrize("extras", [(), ("learning", "streams"), ("learning", "streams", "test")])
def test_the_pins_of_an_extra_are_all_that_its_packages_need(extras: tuple[str, ...]) -> None:
    """The metadata of the installed packages say what they need; pip installs the pins and nothing else."""
    chosen = needed(read_pins(), roots_of_project(extras))
    installed = {canonicalize_name(dist.name) for dist in installed_closure("trunkline", extras)}
    assert installed - {normalized(pin.name) for pin in chosen} == set()
    assert all(pin.hashes for pin in chosen)


def test_a_package_for_tests_is_not_installed_with_the_service() -> None:
    names = {pin.name for pin in needed(read_pins(), roots_of_project(("learning", "streams")))}
    assert {"trio", "cffi", "river", "boto3"} <= names
    assert names & {"pytest", "hatchling", "hypothesis", "moto"} == set()


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """A tree with one dependency, which lies in its folder `files`."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "deploy", tree / "deploy")
    (tree / "files").mkdir()
    with zipfile.ZipFile(tree / "files/brick-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brick.py", "")
        wheel.writestr("brick-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: brick\nVersion: 1.0\n")
        wheel.writestr("brick-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("brick-1.0.dist-info/RECORD", "brick.py,,\n")
    (tree / "pyproject.toml").write_text(
        '[project]\ndependencies = ["brick>=1"]\noptional-dependencies = {}\n', encoding="utf-8"
    )
    return tree


def install_small(tree: Path, digest: str, *words: str) -> subprocess.CompletedProcess[str]:
    (tree / "constraints.txt").write_text(
        f"brick==1.0 \\\n    --hash=sha256:{digest}\n    # via trunkline (pyproject.toml)\n", encoding="utf-8"
    )
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tree / "files"), "PIP_TARGET": str(tree / "site")}
    return subprocess.run(
        [sys.executable, "-m", "deploy.install", "--only-packages", *words],
        cwd=tree,
        env={**os.environ, **pip},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_another_file_than_the_pinned_one_is_not_installed(small_tree: Path) -> None:
    run = install_small(small_tree, 64 * "0")
    assert run.returncode == 1
    assert "HASHES" in run.stderr
    assert not (small_tree / "site").exists()
    assert install_small(small_tree, 64 * "0", "--without-hashes").returncode == 0
    assert (small_tree / "site/brick.py").exists()


def test_the_pinned_file_is_installed(small_tree: Path) -> None:
    (file,) = (small_tree / "files").iterdir()
    run = install_small(small_tree, hashlib.sha256(file.read_bytes()).hexdigest())
    assert run.returncode == 0, run.stderr
    assert (small_tree / "site/brick.py").exists()


def test_an_extra_that_is_not_there_is_named(small_tree: Path) -> None:
    run = install_small(small_tree, 64 * "0", "--extras", "dishes")
    assert (run.returncode, run.stderr) == (2, "pyproject.toml has no extra dishes\n")


def test_a_line_that_was_written_by_hand_is_named(tmp_path: Path) -> None:
    path = tmp_path / "constraints.txt"
    path.write_text("# made\nbrick==1.0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: run make lock"):
        read_pins(path)
