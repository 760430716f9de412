"""The unit: valid, hardened, and it starts what is installed."""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from config.loading import load_settings
from deploy.build_deb import unit_of_package
from tests.programs import require_program
from tests.rows import each_row

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
    add_to_service(tmp_path, tmp_path / "postgresql.conf")
    units = sorted(path for path in tmp_path.iterdir() if path.is_file())
    assert [unit.suffix for unit in units] == [".service", ".timer", ".socket", ".service"]
    run = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")


def add_to_service(folder: Path, part: Path) -> None:
    (folder / "trunkline.service.d").mkdir()
    part.rename(folder / "trunkline.service.d" / part.name)


@each_row(
    ("old", "new", "said"),
    [
        ("StartLimitIntervalSec=0", "StartLimitIntervalSec=often", "Failed to parse"),
        ("#After=postgresql.service", "After=postgresql", "postgresql"),
        ("[Service]", "[Services]", "Unknown section 'Services'"),
    ],
)
def test_a_mistake_in_the_part_for_postgresql_is_found(tmp_path: Path, old: str, new: str, said: str) -> None:
    """So `verify` looks at it, too."""
    analyze = require_program("systemd-analyze")
    installed = Path(sys.executable).with_name("trunkline")
    with TemporaryDirectory(dir=tmp_path) as name:
        folder = Path(name)
        text = UNIT.read_text(encoding="utf-8").replace("/opt/trunkline/bin/trunkline", str(installed))
        (folder / UNIT.name).write_text(text, encoding="utf-8")
        text = (FOLDER / "postgresql.conf").read_text(encoding="utf-8")
        assert old in text
        (folder / "postgresql.conf").write_text(text.replace(old, new), encoding="utf-8")
        add_to_service(folder, folder / "postgresql.conf")
        run = subprocess.run(
            [analyze, "verify", folder / UNIT.name], capture_output=True, text=True, check=False, timeout=60
        )
        assert said in run.stderr


def test_the_part_for_postgresql_suits_every_machine() -> None:
    """The daemon waits for a database that is away, so nothing orders it behind one of this machine; it never gives up;
    and what it sets is a setting."""
    lines = (FOLDER / "postgresql.conf").read_text(encoding="utf-8").splitlines()
    assert "StartLimitIntervalSec=0" in lines
    assert not any(line.startswith(("After=", "Requires=", "Wants=", "BindsTo=")) for line in lines)
    (setting,) = (line.partition("=")[2] for line in lines if line.startswith("Environment="))
    name, _, value = setting.partition("=")
    found = load_settings(None, {"TRUNKLINE_STATE_DIR": "/var/lib/trunkline", name: value.replace("%l", "machine")})
    assert found.cluster.name == "machine"


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
