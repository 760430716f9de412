"""The arrows between the packages point the way the design says: pyproject.toml has the contracts."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_import_contracts_are_kept() -> None:
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " 0 broken" in run.stdout


def test_systemd_folder_holds_no_python() -> None:
    """It would shadow the binding of that name."""
    assert list((ROOT / "systemd").rglob("*.py")) == []
