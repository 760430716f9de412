"""A node among several that is taken out: its clients go on at the others, and none of their requests is refused."""

import http.client
import json
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import paho.mqtt.client as paho
import psycopg
import pytest
import websocket
from paho.mqtt.enums import CallbackAPIVersion

from broker.cluster.keeper import DAEMON
from broker.cluster.membership import SEVERAL
from tests.cluster.node import PATIENCE_SECONDS, Node, running_nodes, wait_until
from tests.cluster.test_several_nodes import live_feed, stored_values
from tests.daemon import command_output, device_id, device_token, run_command, running_daemon, start_command
from tests.e2e.test_proxies import adapted, running
from tests.free_port import free_port
from tests.programs import require_program
from tests.properties import in_ci
from tests.protocols.mqtt.peers import connect as mqtt_connect

pytestmark = pytest.mark.processes

NOTICE_SECONDS: Final = 0.8
MOVE_SECONDS: Final = 2.0
SERVER_SHUTTING_DOWN: Final = 0x8B
SERVICE_RESTART: Final = 1012
MANY: Final = range(20, 60)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUNKLINE_CLUSTER_DRAIN_NOTICE_SECONDS", str(NOTICE_SECONDS))
        patch.setenv("TRUNKLINE_CLUSTER_DRAIN_SECONDS", str(MOVE_SECONDS))
        with running_nodes(tmp_path_factory.mktemp("cluster"), "a", "b", "c", devices=MANY.stop) as found:
            yield found


class Sender(threading.Thread):
    """Sends values of a device through the balancer, one after the other, until it is to end."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(daemon=True)
        self.port, self.number = port, number
        self.acknowledged, self.refused = list[int](), list[str]()
        self.is_over = threading.Event()

    def run(self) -> None:
        value = 0
        while not self.is_over.is_set():
            value += 1
            body = json.dumps({"sdid": device_id(self.number), "type": "message", "data": {"intensity": value}})
            try:
                if (answer := self.send(body)) == "200":
                    self.acknowledged.append(value)
                else:
                    self.refused.append(answer)
            except (OSError, http.client.HTTPException) as error:
                self.refused.append(repr(error))
            self.is_over.wait(0.1)
        self.leave()

    def send(self, body: str) -> str:
        raise NotImplementedError

    def leave(self) -> None:
        """It sends nothing more."""


class KeepsAlive(Sender):
    """On one connection, for as long as the answers allow it."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port, number)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)

    def send(self, body: str) -> str:
        headers = {"Authorization": f"bearer {device_token(self.number)}", "Content-Type": "application/json"}
        self.connection.request("POST", "/v1.1/messages", body, headers)
        answer = self.connection.getresponse()
        answer.read()
        return str(answer.status)

    def leave(self) -> None:
        self.connection.close()


class Curl(Sender):
    """On a connection for each."""

    def send(self, body: str) -> str:
        sent = subprocess.run(
            [
                *(require_program("curl"), "-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", body),
                *("-H", f"Authorization: bearer {device_token(self.number)}", "-H", "Content-Type: application/json"),
                f"http://127.0.0.1:{self.port}/v1.1/messages",
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        self.is_over.wait(0.2)
        return sent.stdout if sent.returncode == 0 else f"curl {sent.returncode}"


@pytest.fixture
def balancer(nodes: list[Node], tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The ports of HTTP and MQTT at HAProxy, which has the example's way to look at the nodes."""
    program, port, mqtt_port = require_program("haproxy"), free_port(), free_port()
    changes = {
        "bind :443": f"bind 127.0.0.1:{port}",
        "bind :8883": f"bind 127.0.0.1:{mqtt_port}",
        "maxconn 20000": "maxconn 200",
        "check port 8080 check-send-proxy send-proxy-v2 inter 1s": "check inter 200ms",
    }
    for at, node in enumerate(nodes, 11):
        changes |= {
            f"192.0.2.{at}:8443": f"127.0.0.1:{node.http}",
            f"192.0.2.{at}:8883": f"127.0.0.1:{node.mqtt} port {node.http}",
        }
    (tmp_path / "haproxy.cfg").write_text(adapted("haproxy-several.cfg", changes), encoding="utf-8")
    with running([program, "-db", "-f", "haproxy.cfg"], [port, mqtt_port], tmp_path):
        yield port, mqtt_port


class Reconnecting:
    """A device at the balancer, which connects again by itself as paho does."""

    def __init__(self, port: int, number: int) -> None:
        self.number, self.acknowledged, self.connects = number, 0, 0
        self.reasons = list[int]()
        self.client = client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.reconnect_delay_set(1, 1)
        client.username_pw_set(device_id(number), device_token(number))
        client.on_connect = self._connected
        client.on_disconnect = lambda _client, _data, _flags, reason, _properties: self.reasons.append(reason.value)
        client.connect("127.0.0.1", port)
        client.loop_start()
        wait_until(self.is_connected, "the device is connected")

    def is_connected(self) -> bool:
        """Paho's own is true from a DISCONNECT of the node until it connects again, and what is sent then fails."""
        return self.client.socket() is not None and self.client.is_connected()

    def _connected(self, *_: object) -> None:
        self.connects += 1

    def send(self, value: int) -> None:
        topic, payload = f"/v1.1/messages/{device_id(self.number)}", json.dumps({"intensity": value})
        self.client.publish(topic, payload, qos=1).wait_for_publish(PATIENCE_SECONDS)

    def close(self) -> None:
        self.client.loop_stop()
        self.client.disconnect()


@in_ci
def test_three_nodes_are_restarted_one_after_the_other_without_a_refused_request(
    nodes: list[Node], balancer: tuple[int, int]
) -> None:
    port, mqtt_port = balancer
    senders = [KeepsAlive(port, 0), KeepsAlive(port, 1), KeepsAlive(port, 2), Curl(port, 3)]
    with closing(Reconnecting(mqtt_port, 4)) as device:
        for sender in senders:
            sender.start()
        for sent, node in enumerate(nodes):
            assert run_command("drain", "--config", node.daemon.config).stdout.endswith("the node has ended\n")
            assert node.status() == 0
            if node is nodes[0]:
                log = node.log()
                assert log.index("lease_given_away") < log.index("drained")
            node.start()
            # HAProxy sends somebody to it before the next one goes.
            wait_until(lambda node=node: node.health("/readyz") == 200, "it serves again")  # type: ignore[misc]
            wait_until(device.is_connected, "the device has connected again")
            device.send(sent)
        for sender in senders:
            sender.is_over.set()
            sender.join(PATIENCE_SECONDS)
        assert [sender.refused for sender in senders] == [[], [], [], []]
        assert set(device.reasons) == {SERVER_SHUTTING_DOWN}
        assert device.connects == len(device.reasons) + 1 >= 2
    for sender in senders:
        assert len(sender.acknowledged) > 10
        assert stored_values(nodes[0], sender.number) == sender.acknowledged
    assert stored_values(nodes[0], 4) == [0, 1, 2]


def test_connections_are_moved_over_seconds_each_in_the_way_of_its_protocol(nodes: list[Node]) -> None:
    _, b, c = nodes
    with ExitStack() as stack:
        feed = stack.enter_context(closing(live_feed(b, 0)))
        idle = stack.enter_context(closing(socket.create_connection(("127.0.0.1", b.http), PATIENCE_SECONDS)))
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        devices = []
        for number in MANY:
            one = stack.enter_context(closing(socket.create_connection(("127.0.0.1", b.mqtt), PATIENCE_SECONDS)))
            one.sendall(mqtt_connect(device_id(number), device_token(number), level=5))
            assert one.recv(100)[0] == 0x20
            devices.append(one)
        first = command_output("drain", "--no-wait", "--config", b.daemon.config)
        assert first == "tells balancers by /readyz that it leaves, 1 s more; a, c serve on\n"
        again = start_command("drain", "--config", b.daemon.config)
        wait_until(lambda: b.health("/readyz") == 503, "it tells balancers")
        # Until then it serves as before.
        socket.create_connection(("127.0.0.1", b.mqtt), PATIENCE_SECONDS).close()
        moved, waiting = [], set(devices)
        while waiting:
            for one in select.select(list(waiting), [], [], PATIENCE_SECONDS)[0]:
                said = one.recv(100)
                assert said[:1] + said[2:3] == bytes((0xE0, SERVER_SHUTTING_DOWN))
                moved.append(time.monotonic())
                waiting.remove(one)
        assert max(moved) - min(moved) > MOVE_SECONDS / 3
        assert code_at_the_end(feed) == SERVICE_RESTART
        assert idle.recv(100) == b""
    assert b.status() == 0
    assert again.stdout is not None
    with again.stdout:
        told = again.stdout.read()
    assert again.wait(PATIENCE_SECONDS) == 0
    assert told.startswith("this node drains already\n")
    assert told.endswith("the node has ended\n")
    assert '"reason"' not in b.log()
    assert c.health("/readyz") == 200
    b.start()


def code_at_the_end(feed: websocket.WebSocket) -> int:
    while True:
        opcode, data = feed.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            return int.from_bytes(data[:2], "big")


def test_the_last_node_does_not_drain_and_ends_at_once(nodes: list[Node]) -> None:
    a, b, c = nodes
    for node in (c, a):
        node.signal(signal.SIGTERM)
        assert node.status() == 0
    done = run_command("drain", "--config", b.daemon.config)
    assert done.returncode == 1
    assert "No other node serves" in done.stderr
    began = time.monotonic()
    b.signal(signal.SIGTERM)
    assert b.status() == 0
    assert time.monotonic() - began < NOTICE_SECONDS + MOVE_SECONDS
    assert "drained" not in b.log().rpartition("serves_together")[2]


@in_ci
def test_nodes_that_are_stopped_together_do_not_wait_for_each_other(nodes: list[Node]) -> None:
    a, b, _ = nodes
    a.start()
    b.start()
    for node in (a, b):
        wait_until(lambda node=node: nodes_as_seen_by(node) == ["a", "b"], "they know each other")  # type: ignore[misc]
    for node in (a, b):
        node.signal(signal.SIGTERM)
    assert a.status() == b.status() == 0


@in_ci
def test_nodes_of_a_newer_schema_wait_for_the_last_one_of_the_former(nodes: list[Node]) -> None:
    a, b, _ = nodes
    with psycopg.connect(a.url, autocommit=True) as store:
        store.execute("ALTER TABLE lease DROP COLUMN report")
        store.execute("DELETE FROM schema_step WHERE name = '0099_reports_of_nodes'")
        # A node of the former version serves for some seconds more.
        store.execute(
            "UPDATE lease SET until = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 2500"
            " WHERE name = %s AND node = %s",
            [DAEMON, SEVERAL],
        )
    for node in (a, b):
        node.begin()
    for node in (a, b):
        wait_until(lambda node=node: node.health("/readyz") == 503, "it waits")  # type: ignore[misc]
        assert "stands_by" in node.log()
    for node in (a, b):
        node.daemon.wait_ready()
        node.signal(signal.SIGTERM)
        assert node.status() == 0


def nodes_as_seen_by(node: Node) -> list[str]:
    found = json.loads(command_output("statistics", "--json", "--config", node.daemon.config))["node"]["nodes"]
    assert isinstance(found, list)
    return found


def test_a_daemon_alone_says_that_nobody_takes_its_connections(tmp_path: Path) -> None:
    with running_daemon(tmp_path, devices=1) as daemon:
        done = run_command("drain", "--config", daemon.config)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("trunkline: No other node serves")
    done = run_command("drain", "--config", daemon.config)
    assert (done.returncode, done.stderr.split(":")[1]) == (1, " no daemon runs on " + str(daemon.state) + "\n")
