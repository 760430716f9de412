"""Rules of the real daemon: exactly once inside the service, whatever is killed when; and the commands about them."""

from collections.abc import Callable
from pathlib import Path

import httpx

from tests.daemon import USER_TOKEN, Daemon, bearer, command_output, device_id
from tests.e2e.rule_kills import run
from tests.properties import in_ci


@in_ci
def test_no_kill_makes_a_rule_miss_or_repeat_an_action(tmp_path: Path) -> None:
    expected, sent, applied, expected_alarms, alarms = run(tmp_path, kills=2)
    assert sent == expected
    assert applied == expected
    assert alarms == expected_alarms
    assert sum(expected.values()) > 10, "there was something to miss"


def test_trunkline_rule_explains_and_replays(daemon: Daemon, new_device: Callable[[], int]) -> None:
    source, sink = device_id(new_device()), device_id(new_device())
    condition = {"sdid": source, "field": "intensity", "operator": ">", "operand": {"value": 50}}
    rule = {"if": condition, "then": {"ddid": sink, "action": "setOn"}}
    with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
        made = client.post("/rules", json={"name": "Bright", "rule": rule}).raise_for_status().json()["data"]
        body = {"sdid": source, "data": {"intensity": 40}}
        mid = client.post("/messages", json=body).raise_for_status().json()["data"]["mid"]
    explained = _said(daemon, "explain", made["id"], "--message", mid)
    assert f"{mid}  does not trigger\n" in explained
    assert f"rule.if  intensity > 50 does not hold: intensity of {source} is 40\n" in explained
    assert _said(daemon, "replay", made["id"], "--since", "1h") == "1 messages, triggered 0 times\n"


def _said(daemon: Daemon, *arguments: str) -> str:
    return command_output("rule", *arguments, "--config", daemon.config)
