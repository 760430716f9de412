"""Alarms of several nodes: raised by one, seen, acknowledged and cleared on another; and while a node is killed."""

import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.node import Node, running_nodes, wait_until
from tests.cluster.test_rules_of_nodes import runs_rules
from tests.cluster.test_several_nodes import Light
from tests.daemon import USER_TOKEN, bearer, device_id
from tests.properties import in_ci

pytestmark = [pytest.mark.processes, in_ci]

#: Alarms that are raised and cleared around the kill.
KILLED, AFTER = 4, 4


def asked(node: Node, method: str, path: str, **more: Any) -> Any:
    answer = httpx.request(method, f"{node.base}{path}", headers=bearer(USER_TOKEN), timeout=30, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def alarms(node: Node, *states: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asked(node, "GET", "/alarms", params={"state": ",".join(states), "count": 100})
    return found


def test_an_alarm_is_the_same_on_each_node_and_a_kill_misses_and_doubles_none(tmp_path: Path) -> None:
    condition = {"sdid": device_id(0), "field": "intensity", "operator": ">", "operand": {"value": 50}}
    rule = {"name": "Bright", "rule": {"if": condition, "alarm": {"severity": "info", "text": "Bright"}}}
    with running_nodes(tmp_path, "a", "b", devices=1) as nodes:
        runner, other = nodes if runs_rules(nodes[0]) else reversed(nodes)
        asked(other, "POST", "/rules", json=rule)
        with closing(Light(other, 0)) as source:
            for taken, cleared in ((runner, other), (other, runner)):
                assert source.send(60)
                wait_until(lambda: len(alarms(other, "raised")) == 1, "the runner has raised it")
                (alarm,) = alarms(other, "raised")
                asked(taken, "PUT", f"/alarms/{alarm['id']}", json={"state": "acknowledged"})
                assert [one["id"] for one in alarms(cleared, "acknowledged")] == [alarm["id"]]
                assert source.send(61)  # it is open: it counts on
                wait_until(lambda: alarms(other, "acknowledged")[0]["count"] == 2, "it has counted")
                asked(cleared, "PUT", f"/alarms/{alarm['id']}", json={"state": "cleared"})
                assert not alarms(taken, "raised", "acknowledged")  # the next round raises another one
            before = len(alarms(other, "cleared"))
            assert before == 2
            for number in range(KILLED + AFTER):
                if number == KILLED:
                    runner.signal(signal.SIGKILL)  # in the middle of its work
                assert source.send(60)
                assert source.send(10)
            wait_until(lambda: len(alarms(other, "cleared")) >= before + KILLED + AFTER, "the other node follows")
            found = alarms(other, "raised", "acknowledged", "cleared")
    assert len(found) == before + KILLED + AFTER
    around = found[: KILLED + AFTER]
    assert {(one["state"], one["count"], one["clearedBy"]) for one in around} == {("cleared", 1, "condition")}
    assert len({one["mid"] for one in around}) == KILLED + AFTER
