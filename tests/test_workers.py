"""Tests run in workers are run, shown and counted as in one process, also when a worker ends in one of them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

_FIXTURES = """
import os, signal
from pathlib import Path
import pytest

@pytest.fixture(scope="session", autouse=True)
def whole():
    yield
    (Path(__file__).parent / f"{os.getpid()}.ended").touch()

@pytest.fixture(scope="module")
def module(request):
    yield
    assert request.node.name == "test_a.py", "end of the module"
"""
_FIRST = """
def test_passes(module):
    pass

def test_fails(module):
    print("written by the test")
    assert not os.getpid()
"""
_SECOND = """
def test_ends_its_worker():
    os.kill(os.getpid(), signal.SIGKILL)

def test_goes_on_behind_it(module):
    pass
"""


@pytest.mark.processes
def test_reports_ends_and_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(_FIXTURES + _FIRST, encoding="utf-8")
    (tmp_path / "test_b.py").write_text(_FIXTURES + _SECOND, encoding="utf-8")
    how = ("-p", "tests.conftest", "--rootdir", tmp_path, "-c", ROOT / "pyproject.toml")
    options = ("-q", "-rfE", "--workers", "2", *how)
    command: list[str | Path] = [sys.executable, "-m", "pytest", *options, tmp_path]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "2 failed, 2 passed, 1 error" in run.stdout, run.stdout
    assert "the worker ended with status -9" in run.stdout
    assert "written by the test" in run.stdout
    assert "AssertionError: end of the module" in run.stdout
    assert len([*tmp_path.glob("*.ended")]) == 2
