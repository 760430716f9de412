"""A short form of `python -m tests.soak`: too short for a slope of the memory, long enough for everything to happen."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.properties import in_ci
from tests.soak.watching import unexplained

pytestmark = pytest.mark.processes


@in_ci
@pytest.mark.timeout(300)  # its clients wait up to a minute for each answer, on a machine with other work
def test_everything_at_once_is_answered_stored_and_explained(tmp_path: Path) -> None:
    command = (
        sys.executable,
        "-m",
        "tests.soak",
        "--seconds",
        "4",
        "--often",
        "0.6",
        "--every",
        "0.5",
        "--pause",
        "0.3",
    )
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout


def test_a_line_above_info_is_told() -> None:
    known = '{"level": "info", "event": "ready"}\n'
    for line in ('{"level": "warning", "event": "out_of_order"}', '{"event": "no level"}', "Traceback"):
        assert unexplained(known + line)[0] == [line]
    assert unexplained(known) == ([], {})
