"""The commands of docs/operate/several-nodes.md, as they are pasted into a shell: three daemons by hand."""

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.forked_program import forked_program
from tests.free_port import free_port
from tests.postgresql import server
from tests.programs import require_program
from tests.properties import in_ci

pytestmark = [pytest.mark.processes, in_ci]

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "several-nodes.md"
SECONDS = 120


def test_three_nodes_are_made_by_hand_shown_drained_and_stopped(tmp_path: Path) -> None:
    """Each node is started in a shell, as a person does."""
    commands = [block for block in re.findall(r"(?ms)^```sh\n(.+?)^```", PAGE.read_text("utf-8")) if "$FOLDER" in block]
    assert len(commands) == 3
    postgresql = server()
    database = postgresql.new_database(template="template0")
    text = "\n".join(commands)
    for before, after in (
        ("postgresql:///cluster", postgresql.url(database)),
        ("$HOME/cluster", str(tmp_path / "cluster")),
        ("HTTP=8080 MQTT=1883", f"HTTP={_three_ports()} MQTT={_three_ports()}"),
        (".venv/bin/trunkline", str(tmp_path / "trunkline")),
    ):
        assert before in text
        text = text.replace(before, after)
    bash = require_program("bash")
    try:
        with forked_program(tmp_path):
            done = subprocess.run(
                # An interactive shell has jobs, which `kill %1` means.
                [bash, "-c", f"set -m\n{text}"],
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
                env={name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
                | {"TRUNKLINE_CLUSTER_DRAIN_NOTICE_SECONDS": "0.5"},
            )
    finally:
        postgresql.drop(database)
    logs = "".join(path.read_text("utf-8") for path in (tmp_path / "cluster").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    nodes = re.findall(r"(?m)^cluster +ok: node (\w)( \(this one\))?, epoch 1, ", done.stdout)
    assert nodes == [("a", ""), ("b", " (this one)"), ("c", "")]
    assert "the node has ended\n" in done.stdout


def _three_ports() -> int:
    """The first of three neighbours that are free now."""
    while True:
        first = free_port()
        if all(_is_free(first + more) for more in (1, 2)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0
