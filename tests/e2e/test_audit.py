"""`trunkline audit` against the real daemon, running and stopped."""

import json
import os
from pathlib import Path

import httpx

from tests.daemon import USER_TOKEN, Daemon, bearer, command_output, device_id, run_command, running_daemon
from tests.stores import configuration, place_of


def audit(daemon: Daemon, *arguments: str) -> list[dict[str, object]]:
    shown = command_output("audit", "--config", daemon.config, "--json", *arguments)
    return [json.loads(line) for line in shown.splitlines()]


def test_the_audit_log_of_a_running_and_of_a_stopped_daemon(tmp_path: Path) -> None:
    with running_daemon(tmp_path, devices=1) as daemon:
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN)) as client:
            client.put(f"/devices/{device_id(0)}/tokens").raise_for_status()
        (replaced,) = audit(daemon, "--event", "device_token_replaced", "--object", device_id(0), "--since", "1h")
        assert replaced["address"] == "127.0.0.1"
        assert str(replaced["actor"]).startswith("user ada0")
        assert audit(daemon, "--kind", "device_token_replaced", "--until", "1h") == []
        assert run_command("type", "approve", "no.such_type", "1", "--config", daemon.config).returncode == 1
        (command,) = audit(daemon, "--event", "command")
        assert (command["actor"], command["address"]) == (f"operator {os.getuid()}", "control socket")
        assert (command["outcome"], command["object"]) == ("refused", "device_type no.such_type")
        assert command["details"] == {"command": "type approve"}
        done = run_command("audit", "--config", daemon.config, "--since", "yesterday")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "'yesterday' is no time" in done.stderr
        daemon.stop()
        assert audit(daemon, "--actor", f"operator {os.getuid()}", "--outcome", "refused") == [command]
        (provisioned,) = audit(daemon, "--event", "provisioned")
        assert provisioned["address"] == "command line"
        shown = command_output("audit", "--config", daemon.config, "--limit", "1", "--event", "command")
    assert "command                refused  operator" in shown


def test_the_audit_log_of_no_store_says_so(tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text(configuration(f'state_dir = "{tmp_path / "state"}"\n', tmp_path / "state"), encoding="utf-8")
    done = run_command("audit", "--config", config)
    assert (done.returncode, done.stderr) == (4, f"trunkline: {place_of(config)}: there is no store\n")
    assert not (tmp_path / "state").exists()
