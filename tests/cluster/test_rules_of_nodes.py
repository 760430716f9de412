"""Rules of several nodes: made, changed and removed on one while another runs them; and while their lease moves."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

import httpx
import pytest

from tests.cluster.node import Node, running_nodes, wait_until
from tests.cluster.test_several_nodes import Light
from tests.daemon import USER_TOKEN, bearer, device_id

pytestmark = pytest.mark.processes

SOURCE, OTHER, SINK, CHANGED_SINK = 0, 1, 2, 3
ROUNDS: Final = 5


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    with running_nodes(tmp_path_factory.mktemp("cluster"), "a", "b") as found:
        yield found


def runs_rules(node: Node) -> bool:
    lines = [line for line in node.log().splitlines() if "lease=rules" in line]
    return bool(lines) and "lease_gained" in lines[-1]


def made(node: Node, source: int, above: int, **more: Any) -> str:
    """A rule that sends an Action for each message above a value; its id."""
    condition = {"sdid": device_id(source), "field": "intensity", "operator": ">", "operand": {"value": above}, **more}
    rule = {"if": condition, "then": {"ddid": device_id(SINK), "action": "setOn"}}
    answer = httpx.post(f"{node.base}/rules", headers=bearer(USER_TOKEN), json={"name": "R", "rule": rule}, timeout=30)
    assert answer.status_code == 200, answer.text
    found = answer.json()["data"]["id"]
    assert isinstance(found, str)
    return found


def removed(node: Node, rule: str) -> None:
    answer = httpx.delete(f"{node.base}/rules/{rule}", headers=bearer(USER_TOKEN), timeout=30)
    assert answer.status_code == 200, answer.text


def executions(node: Node, rule: str) -> int:
    answer = httpx.get(f"{node.base}/rules/{rule}/executions", headers=bearer(USER_TOKEN), timeout=30)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["data"]["countApply"])


def triggers(sink: Light, number: int) -> None:
    wait_until(lambda: len(sink.actions) >= number, "the message has triggered the rule")


def test_a_rule_applies_to_each_message_behind_its_making_and_to_none_behind_its_end(nodes: list[Node]) -> None:
    """Made, changed and removed on the node that does not run rules, where the messages come, too."""
    runner, other = nodes if runs_rules(nodes[0]) else reversed(nodes)
    with (
        closing(Light(runner, SINK)) as sink,
        closing(Light(runner, CHANGED_SINK)) as of_changed,
        closing(Light(other, SOURCE)) as source,
    ):
        for number in range(1, ROUNDS + 1):
            assert source.send(99)  # before the rule
            rule = made(other, SOURCE, 50)
            assert source.send(51)
            triggers(sink, number)
            changed = {"rule": {"if": _above(70), "then": {"ddid": device_id(CHANGED_SINK), "action": "setOn"}}}
            answer = httpx.put(f"{other.base}/rules/{rule}", headers=bearer(USER_TOKEN), json=changed, timeout=30)
            assert answer.status_code == 200, answer.text
            assert source.send(60)  # it is not above the new value
            assert source.send(71)
            triggers(of_changed, number)
            removed(other, rule)
            assert source.send(99)
        last = made(runner, SOURCE, 50)
        assert source.send(51)
        wait_until(lambda: len(sink.actions) > ROUNDS, "each message has triggered")
        removed(runner, last)
        assert (len(sink.actions), len(of_changed.actions)) == (ROUNDS + 1, ROUNDS)


def _above(value: int) -> dict[str, Any]:
    return {"sdid": device_id(SOURCE), "field": "intensity", "operator": ">", "operand": {"value": value}}


def test_a_duration_waits_for_a_message_to_another_node_that_ends_it(nodes: list[Node]) -> None:
    runner, other = nodes if runs_rules(nodes[0]) else reversed(nodes)
    with ExitStack() as stack:
        sink = stack.enter_context(closing(Light(runner, SINK)))
        source = stack.enter_context(closing(Light(other, OTHER)))
        rule = made(other, OTHER, 50, duration={"value": 1})
        try:
            for _ in range(3):
                assert source.send(51)
                began = time.monotonic()
                pause = threading.Event()
                pause.wait(0.9 - (time.monotonic() - began))
                assert source.send(49)
            assert source.send(51)
            wait_until(lambda: bool(sink.actions), "the last one holds for a second")
            wait_until(lambda: executions(other, rule) == 1, "the other node reads it in the store")
            assert len(sink.actions) == 1
        finally:
            removed(other, rule)


def test_no_effect_is_lost_or_doubled_while_the_lease_moves_to_a_node_that_lives(nodes: list[Node]) -> None:
    runner, other = nodes if runs_rules(nodes[0]) else reversed(nodes)
    with closing(Light(other, SINK)) as sink, closing(Light(other, SOURCE)) as source:
        rule = made(other, SOURCE, 0)
        number = 0

        def send_until_moved() -> bool:
            nonlocal number
            number += 1
            assert source.send(number)
            return runs_rules(other)

        assert not send_until_moved()
        runner.signal(signal.SIGTERM)  # it gives its leases away, and ends
        wait_until(send_until_moved, "the other node runs the rules")
        for _ in range(20):
            send_until_moved()
        wait_until(lambda: len(sink.actions) >= number, "each message has triggered")
        assert runner.status() == 0
        send_until_moved()
        wait_until(lambda: len(sink.actions) >= number, "the last one, too")
        assert len(sink.actions) == number
        removed(other, rule)
    assert runner.log().count("lease_given_away") >= 4
