"""The alerts about several nodes and their database ring when they should, and are quiet while all is well."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import require_program
from tests.properties import in_ci

ALERTS = Path(__file__).parents[3] / "config" / "prometheus" / "alerts.yml"
TESTS = Path(__file__).parent / "alerts_of_nodes.yml"


@in_ci
@pytest.mark.processes
def test_each_alert_about_nodes_rings_and_none_while_all_is_well(tmp_path: Path) -> None:
    promtool = require_program("promtool")
    for path in (ALERTS, TESTS):
        shutil.copy(path, tmp_path)
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / TESTS.name], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_that_needs_postgresql_is_tested() -> None:
    rules = re.findall(r"- alert: (\w+)\n\s+expr: '(.+?)'\n", ALERTS.read_text(encoding="utf-8"))
    wanted = {name for name, expression in rules if re.search(r"_(?:nodes?|lease|database)_", expression)}
    assert len(wanted) > 8
    assert wanted == set(re.findall(r"alertname: (\w+)", TESTS.read_text(encoding="utf-8")))
