"""The unit: valid, hardened, and it starts what is installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.build_deb import unit_of_package
from tests.programs import require_program

FOLDER = Path(__file__).parent.parent / "systemd"
UNIT = FOLDER / "trunkline.service"
SERVICES = sorted(FOLDER.glob("*.service"))
MAX_EXPOSURE = 1.5


def test_units_are_valid(tmp_path: Path) -> None:
    """The program is where this machine has it: `verify` looks for it."""
    analyze = require_program("systemd-analyze")
    installed = Path(sys.executable).with_name("trunkline")
    for unit in FOLDER.iterdir():
        text = unit.read_text(encoding="utf-8").replace("/opt/trunkline/bin/trunkline", str(installed))
        (tmp_path / unit.name).write_text(text)
    units = sorted(tmp_path.iterdir())
    assert [unit.suffix for unit in units] == [".service", ".timer", ".socket", ".service"]
    run = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
@pytest.mark.parametrize("is_packaged", [False, True])
def test_services_are_hardened(service: Path, is_packaged: bool, tmp_path: Path) -> None:
    analyze = require_program("systemd-analyze")
    if is_packaged:
        text = unit_of_package(service.read_text(encoding="utf-8"))
        service = tmp_path / service.name
        service.write_text(text, encoding="utf-8")
    run = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", service],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", run.stdout)
    assert exposure is not None
    assert float(exposure[1]) <= MAX_EXPOSURE


def test_unit_notifies_and_is_watched() -> None:
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    assert "Type=notify" in lines
    assert any(line.startswith("WatchdogSec=") for line in lines)
    assert "ExecStart=/opt/trunkline/bin/trunkline serve --config /etc/trunkline/trunkline.toml" in lines
    # cffi's callbacks need memory that is written and then executed.
    assert not any(line.startswith("MemoryDenyWriteExecute=") for line in lines)
