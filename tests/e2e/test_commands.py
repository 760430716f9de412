"""Commands that ask a running daemon, against the real one."""

import os
from pathlib import Path

import httpx

from tests.daemon import USER_TOKEN, bearer, command_output, device_id, run_command, running_daemon
from tests.stores import configuration


def run(*arguments: str | Path) -> str:
    return command_output(*arguments, environment={**os.environ, "TRUNKLINE_TOKEN": USER_TOKEN})


def test_history_and_statistics_of_a_running_daemon(tmp_path: Path) -> None:
    with running_daemon(tmp_path, devices=1) as daemon:
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN)) as client:
            for number in range(3):
                body = {"sdid": device_id(0), "data": {"intensity": number}}
                client.post("/messages", json=body).raise_for_status()
        url = f"http://{daemon.addresses['http']}"
        lines = run("history", device_id(0), "--url", url).splitlines()
        assert [line.split("  ")[1] for line in lines] == [f'{{"intensity":{number}}}' for number in range(3)]
        shown = run("statistics", "--config", daemon.config)
    counters = [line.split() for line in shown.splitlines()]
    assert ["rows", "3"] in counters
    assert ["retention"] in counters
    assert any(line[:2] == ["store", "bytes"] and line[-1] == "MiB" for line in counters)


def test_statistics_without_a_daemon_says_so(tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text(configuration(f'state_dir = "{tmp_path / "state"}"\n', tmp_path / "state"), encoding="utf-8")
    done = run_command("statistics", "--config", config)
    assert (done.returncode, done.stderr) == (1, f"trunkline: no daemon runs on {tmp_path / 'state'}\n")
