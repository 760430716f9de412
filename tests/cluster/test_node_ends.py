"""Nodes that are killed, stand still, are replaced, or may not serve: the others serve on (reference 27.25)."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from broker.cluster.leases import LeaseName
from broker.secrets import Vault
from protocols.operation.key_file import KeyFile
from tests.cluster.node import PATIENCE_SECONDS, Node, new_node, running_nodes, wait_until
from tests.cluster.test_several_nodes import (
    Light,
    events_feed,
    events_of,
    is_connected,
    live_feed,
    stored_values,
    values_of,
)
from tests.daemon import device_id
from tests.properties import in_ci

pytestmark = pytest.mark.processes

NOT_OPENED, FENCED, REPLACED = 4, 5, 6
WORKERS = len(LeaseName)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    with running_nodes(tmp_path_factory.mktemp("cluster"), "a", "b", "c") as found:
        yield found


def test_a_node_that_is_killed_is_buried_and_the_other_serves_on(nodes: list[Node]) -> None:
    a, b, c = nodes
    with closing(live_feed(b, 0)) as feed, closing(events_feed(b)) as events, closing(Light(c, 4, will=98)):
        with closing(Light(a, 0)) as light, closing(Light(a, 1, will=99)):
            assert all(light.send(value) for value in range(10))
            wait_until(lambda: is_connected(b, 1), "the other node knows of the connection")
            a.signal(signal.SIGKILL)
            wait_until(light.lost.is_set, "the connection has gone with its node")
        with closing(Light(b, 0)) as again:  # it need not wait for the burial
            assert all(again.send(value) for value in range(10, 20))
        assert values_of(feed, 20) == list(range(20))
        assert stored_values(b, 0) == list(range(20))
        wait_until(lambda: "node_buried" in b.log() + c.log(), "the node is buried")
        wait_until(lambda: stored_values(b, 1) == [99], "its device's will is published")
        wait_until(lambda: len(set(re.findall("lease_gained.*lease=(.*)", b.log() + c.log()))) == WORKERS, "its work")
        assert stored_values(b, 4) == [], "the device is still there"
        assert events_of(events, 1, 2) == ["device.status.online", "device.status.offline"]
    wait_until(lambda: not is_connected(b, 1), "its devices are away")
    a.start()
    with closing(Light(a, 1)) as light:
        assert light.send(7)
    assert stored_values(b, 1) == [99, 7], "a will is published once"


def epoch_of(node: Node) -> int:
    text = httpx.get(f"http://127.0.0.1:{node.http}/metrics", timeout=30).text
    return int(float(re.findall(r"(?m)^trunkline_node_lease_epoch (\S+)$", text)[0]))


def test_a_node_that_stood_still_stores_nothing_and_ends(nodes: list[Node]) -> None:
    a, b, c = nodes

    def burials() -> int:
        return (b.log() + c.log()).count("node_buried")

    buried = burials()
    epoch = epoch_of(a)
    with closing(Light(a, 2)) as light:
        a.signal(signal.SIGSTOP)
        light.client.publish(f"/v1.1/messages/{device_id(2)}", json.dumps({"intensity": 1}), qos=1)
        with closing(Light(b, 2)) as newer:
            assert newer.send(2)
        wait_until(lambda: burials() > buried, "the node is buried")
        a.signal(signal.SIGCONT)
        assert a.status() == FENCED
        wait_until(light.lost.is_set, "its connections are closed")
    assert "cluster.lease_seconds" in a.log()
    assert stored_values(b, 2) == [2], "what came while it stood still is not stored"
    assert not light.told(), "what came while it stood still is not acknowledged"
    a.start()
    assert epoch_of(a) > epoch


def test_a_later_node_of_the_same_name_takes_the_place(
    nodes: list[Node], tmp_path_factory: pytest.TempPathFactory
) -> None:
    a, b, _ = nodes
    twin = new_node(tmp_path_factory.mktemp("twin"), "a", a)
    try:
        twin.start()
        assert a.status() == REPLACED
        assert "another daemon with the name of this node, a, serves the store now" in a.log()
        with closing(Light(twin, 3)) as light:
            assert light.send(3)
        assert stored_values(b, 3) == [3]
    finally:
        twin.close()
    a.start()


def test_a_node_with_another_key_is_refused_with_the_reason(
    nodes: list[Node], tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = new_node(tmp_path_factory.mktemp("other"), "x", nodes[0])
    (other.daemon.state / "key").unlink()
    KeyFile(other.daemon.state / "key").write(Vault.new_key())
    other.begin()
    try:
        assert other.status() == NOT_OPENED
        assert "this key opens none of the store's secrets: copy the key" in other.log()
        assert nodes[1].health("/readyz") == 200
    finally:
        other.close()


@in_ci  # an interpreter of its own
def test_a_node_of_another_version_is_refused_with_the_reason(
    nodes: list[Node], tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = new_node(tmp_path_factory.mktemp("version"), "v", nodes[0])
    program = 'import storage.migrations\nstorage.migrations.VERSION = "9.9"\nfrom protocols.cli import main\nmain()'
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "--config", other.daemon.config],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == NOT_OPENED, done.stderr
    assert "and this one is 9.9: nodes of several versions do not serve together" in done.stderr
    assert nodes[1].health("/readyz") == 200


def test_a_daemon_that_serves_alone_waits_for_the_nodes(
    nodes: list[Node], tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = new_node(tmp_path_factory.mktemp("alone"), "d", nodes[0])
    text = alone.daemon.config.read_text(encoding="utf-8").replace('nodes = "several"\n', "")
    alone.daemon.config.write_text(text, encoding="utf-8")
    alone.begin()
    try:
        wait_until(lambda: "stands_by" in alone.log(), "it stands by")
        wait_until(lambda: alone.health("/readyz") == 503, "its port is open")
    finally:
        alone.close()
