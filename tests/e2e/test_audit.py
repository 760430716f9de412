"""`trunkline audit` against the real daemon, running and stopped."""

import json
import os
import subprocess
from pathlib import Path

import httpx

from tests.daemon import TRUNKLINE, USER_TOKEN, Daemon, bearer, device_id, running_daemon


def audit(daemon: Daemon, *arguments: str) -> list[dict[str, object]]:
    command: list[str | Path] = [TRUNKLINE, "audit", "--config", daemon.config, "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_audit_log_of_a_running_and_of_a_stopped_daemon(tmp_path: Path) -> None:
    with running_daemon(tmp_path, devices=1) as daemon:
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN)) as client:
            client.put(f"/devices/{device_id(0)}/tokens").raise_for_status()
        (replaced,) = audit(daemon, "--event", "device_token_replaced", "--object", device_id(0), "--since", "1h")
        assert replaced["address"] == "127.0.0.1"
        assert str(replaced["actor"]).startswith("user ada0")
        assert audit(daemon, "--kind", "device_token_replaced", "--until", "1h") == []
        unknown: list[str | Path] = [TRUNKLINE, "type", "approve", "no.such_type", "1", "--config", daemon.config]
        assert subprocess.run(unknown, capture_output=True, timeout=60, check=False).returncode == 1
        (command,) = audit(daemon, "--event", "command")
        assert (command["actor"], command["address"]) == (f"operator {os.getuid()}", "control socket")
        assert (command["outcome"], command["object"]) == ("refused", "device_type no.such_type")
        assert command["details"] == {"command": "type approve"}
        daemon.stop()
        assert audit(daemon, "--actor", f"operator {os.getuid()}", "--outcome", "refused") == [command]
        (provisioned,) = audit(daemon, "--event", "provisioned")
        assert provisioned["address"] == "command line"
        shown = subprocess.run(
            [TRUNKLINE, "audit", "--config", daemon.config, "--limit", "1", "--event", "command"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    assert "command                refused  operator" in shown


def test_a_time_that_is_none_is_refused_with_one_line(tmp_path: Path) -> None:
    with running_daemon(tmp_path, devices=1) as daemon:
        command: list[str | Path] = [TRUNKLINE, "audit", "--config", daemon.config, "--since", "yesterday"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "'yesterday' is no time" in done.stderr


def test_the_audit_log_of_no_store_says_so(tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text(f'state_dir = "{tmp_path / "state"}"\n', encoding="utf-8")
    command: list[str | Path] = [TRUNKLINE, "audit", "--config", config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, f"trunkline: {tmp_path / 'state'}: there is no store\n")
    assert not (tmp_path / "state").exists()
