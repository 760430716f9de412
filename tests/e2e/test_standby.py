"""Two daemons on one database of PostgreSQL: one serves, the other stands by and takes over.

The clients are paho, websocket-client and curl. Each sends values that it never sends again, so a value that is stored
twice was stored twice by the daemons.
"""

import itertools
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import paho.mqtt.client as paho
import pytest
import websocket
from paho.mqtt.enums import CallbackAPIVersion

from broker.secrets import Vault
from protocols.operation.key_file import KeyFile
from tests.cluster.node import LEASE_SECONDS, PATIENCE_SECONDS, Node, wait_until
from tests.daemon import USER_TOKEN, bearer, command_output, device_id, device_token, run_command, write_world
from tests.e2e.test_proxies import adapted, running
from tests.free_port import free_port
from tests.postgresql import server
from tests.programs import require_program
from tests.properties import in_ci
from tests.rows import each_row

#: The clients leave sockets to the garbage collector when a node does not answer.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

#: The lease, a look at it, the start of the broker, and a busy machine.
KILL_SECONDS: Final = LEASE_SECONDS + 6
STOP_SECONDS: Final = 5.0
#: Clients try the other node after this long without an answer.
ANSWER_SECONDS: Final = 1.0
#: Between an acknowledgement and the next value, or a failure and the next try: take-overs are what counts here, and
#: not many messages.
_PAUSE_SECONDS: Final = 0.2
FENCED, REPLACED = 5, 6
LOST_METRIC: Final = "trunkline_database_connections_lost_total"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    folder = tmp_path_factory.mktemp("standby")
    postgresql = server()
    name = postgresql.new_database()
    config, file = write_world(
        folder / "provisioned", devices=4, settings=f'[storage]\nurl = "{postgresql.url(name)}"\n'
    )
    command_output("provision", file, "--config", config)
    key = folder / "provisioned" / "state" / "key"
    a, b = (Node(folder / one, one, postgresql.url(name), key) for one in ("a", "b"))
    a.start()
    b.stand_by()
    yield a, b
    for node in (a, b):
        node.close()
    postgresql.drop(name)


class Client(threading.Thread):
    """Sends values 1, 2, 3, … of a device to the node that serves, one at a time; after a failure the next value."""

    def __init__(self, nodes: tuple[Node, Node], number: int) -> None:
        super().__init__(daemon=True)
        self.nodes, self.number = nodes, number
        self.value = number * 1_000_000
        self.acknowledged: list[tuple[float, int]] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        at = 0
        while not self.is_over.is_set():
            at += 1
            with suppress(OSError, ValueError, websocket.WebSocketException, subprocess.SubprocessError):
                self.talk(self.nodes[at % 2])
            self.is_over.wait(_PAUSE_SECONDS)

    def talk(self, node: Node) -> None:
        """Send values until something fails."""
        raise NotImplementedError

    def note(self) -> None:
        self.acknowledged.append((time.monotonic(), self.value))
        self.is_over.wait(_PAUSE_SECONDS)

    def gap_after(self, moment: float) -> float:
        """The longest time without an acknowledgement since then."""
        times = [moment, *(at for at, _ in list(self.acknowledged) if at > moment)]
        return max(after - before for before, after in itertools.pairwise([*times, time.monotonic()]))

    def payload(self) -> str:
        self.value += 1
        return json.dumps({"intensity": self.value})


class Paho(Client):
    def talk(self, node: Node) -> None:
        did, told = device_id(self.number), threading.Semaphore(0)
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"p{self.number}")
        client.username_pw_set(did, device_token(self.number))
        client.on_publish = lambda *_: told.release()
        lost = threading.Event()

        def disconnected(*_: object) -> None:
            lost.set()
            told.release()

        client.on_disconnect = disconnected
        client.connect("127.0.0.1", node.mqtt, keepalive=5)
        client.loop_start()
        try:
            while not self.is_over.is_set():
                client.publish(f"/v1.1/messages/{did}", self.payload(), qos=1)
                if not told.acquire(timeout=ANSWER_SECONDS) or lost.is_set():
                    return
                self.note()
        finally:
            client.disconnect()
            client.loop_stop()


class WebSocketClient(Client):
    def talk(self, node: Node) -> None:
        did = device_id(self.number)
        url = f"ws://127.0.0.1:{node.http}/v1.1/websocket?ack=true"
        # websocket-client leaves its own socket open when the server closes first.
        with (
            socket.create_connection(("127.0.0.1", node.http), timeout=ANSWER_SECONDS) as sock,
            closing(websocket.create_connection(url, socket=sock)) as link,
        ):
            link.send(
                json.dumps({"type": "register", "sdid": did, "Authorization": f"bearer {device_token(self.number)}"})
            )
            if "200" not in link.recv():
                return
            while not self.is_over.is_set():
                link.send(f'{{"sdid":"{did}","data":{self.payload()}}}')
                answer = json.loads(link.recv())
                if "mid" not in answer.get("data", {}):
                    return
                self.note()


class Curl(Client):
    def talk(self, node: Node) -> None:
        did = device_id(self.number)
        while not self.is_over.is_set():
            done = subprocess.run(
                [
                    *("curl", "-sf", "-m", str(ANSWER_SECONDS), f"http://127.0.0.1:{node.http}/v1.1/messages"),
                    *(
                        "-H",
                        f"Authorization: bearer {device_token(self.number)}",
                        "-H",
                        "Content-Type: application/json",
                    ),
                    *("-d", f'{{"sdid":"{did}","data":{self.payload()}}}'),
                ],
                capture_output=True,
                check=True,
                timeout=2 * PATIENCE_SECONDS,
            )
            assert b'"mid"' in done.stdout
            self.note()


class Load:
    """The clients, while the block lasts; then whatever was acknowledged is looked for."""

    def __init__(self, nodes: tuple[Node, Node]) -> None:
        self.clients = [Paho(nodes, 0), WebSocketClient(nodes, 1), Curl(nodes, 2)]

    def __enter__(self) -> "Load":
        for client in self.clients:
            client.start()
        wait_until(lambda: all(len(client.acknowledged) > 5 for client in self.clients), "all clients are acknowledged")
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.is_over.set()
        for client in self.clients:
            client.join(PATIENCE_SECONDS)

    def goes_on(self, moment: float, node: Node, within: float) -> None:
        """Since then, the node takes over, and each client is acknowledged again."""
        wait_until(lambda: node.health("/readyz") == 200, f"{node.name} serves")
        ready = time.monotonic()
        wait_until(
            lambda: all(client.acknowledged[-1][0] > ready for client in self.clients),
            "all clients are acknowledged again",
        )
        gaps = [client.gap_after(moment) for client in self.clients]
        print("without an acknowledgement:", [f"{gap:.2f} s" for gap in gaps])  # noqa: T201 - with -s
        assert max(gaps) <= within

    def check(self, node: Node) -> None:
        """All that was acknowledged is stored, and nothing twice."""
        for client in self.clients:
            found = stored(node, client.number)
            lost = [value for _, value in client.acknowledged if value not in found]
            twice = [value for value, times in found.items() if times > 1]
            assert (lost, twice) == ([], [])


def stored(node: Node, number: int) -> Counter[int]:
    found: Counter[int] = Counter()
    query = {"sdid": device_id(number), "startDate": "0", "endDate": str(1 << 60), "count": "100"}
    with httpx.Client(base_url=f"http://127.0.0.1:{node.http}/v1.1", headers=bearer(USER_TOKEN), timeout=30) as client:
        while True:
            page = client.get("/messages", params=query).raise_for_status().json()
            found.update(message["data"]["intensity"] for message in page["data"])
            if "next" not in page:
                return found
            query["offset"] = page["next"]


def test_the_metrics_say_who_stands_by_and_how_the_database_is(nodes: tuple[Node, Node]) -> None:
    a, _ = nodes

    def metrics() -> str:
        return httpx.get(f"http://127.0.0.1:{a.http}/metrics", timeout=10).text

    wait_until(lambda: "trunkline_node_standbys 1.0\n" in metrics(), "the node that serves knows of the other one")
    text = metrics()
    assert 'trunkline_store_info{engine="postgresql",node="a"} 1.0\n' in text
    found = dict(re.findall(r"(?m)^trunkline_((?:node|database)_\w+) (\S+)$", text))
    assert float(found["node_lease_epoch"]) >= 1
    assert 0 < float(found["node_lease_left_seconds"]) <= LEASE_SECONDS
    assert 0 < float(found["database_latency_seconds"]) < LEASE_SECONDS
    before = float(found["database_connections_lost_total"])
    server().administration.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name ~ '^trunk'",
        [urlsplit(a.url).path[1:]],  # other tests have theirs on this server
    )
    wait_until(
        lambda: float(dict(re.findall(r"(?m)^(trunkline_\w+) (\S+)$", metrics()))[LOST_METRIC]) > before,
        "lost connections are counted",
    )


def test_prometheus_has_nothing_to_say_against_the_metrics_over_postgresql(nodes: tuple[Node, Node]) -> None:
    promtool = require_program("promtool")
    serving = next(node for node in nodes if node.health("/readyz") == 200)
    text = httpx.get(f"http://127.0.0.1:{serving.http}/metrics", timeout=10).text
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@in_ci
def test_take_overs_lose_nothing_and_store_nothing_twice(nodes: tuple[Node, Node]) -> None:
    """Kill, stop, pause and the same name, one after the other, while three clients send."""
    require_program("curl")
    a, b = nodes
    assert (a.health("/readyz"), b.health("/healthz"), b.health("/readyz")) == (200, 200, 503)
    assert httpx.get(f"http://127.0.0.1:{b.http}/v1.1/users/self", timeout=5).status_code == 503
    with pytest.raises(ConnectionRefusedError):
        paho.Client(CallbackAPIVersion.VERSION2).connect("127.0.0.1", b.mqtt)
    assert "serves=a" in b.log() or '"serves": "a"' in b.log()
    with Load(nodes) as load:
        killed = time.monotonic()
        a.daemon.kill()
        load.goes_on(killed, b, KILL_SECONDS)

        a.stand_by()
        stopped = time.monotonic()
        assert b.daemon.stop() == 0
        load.goes_on(stopped, a, STOP_SECONDS)

        b.stand_by()
        a.signal(signal.SIGSTOP)
        paused = time.monotonic()
        load.goes_on(paused, b, KILL_SECONDS)
        a.signal(signal.SIGCONT)
        assert a.status() == FENCED
        assert "node b serves the store now" in a.log()
        assert b.health("/readyz") == 200

        config = a.daemon.config.read_text(encoding="utf-8")
        a.daemon.config.write_text(config.replace('node = "a"', 'node = "b"'), encoding="utf-8")
        renamed = time.monotonic()
        a.begin()
        load.goes_on(renamed, a, KILL_SECONDS)
        assert b.status() == REPLACED
        assert "another daemon with the name of this node, b, serves the store now" in b.log()
    load.check(a)
    for node in nodes:
        assert "this node, " in doctor_about_cluster(node)
    assert "node b serves this store" in command_output_of_refused(b)


def test_haproxy_sends_clients_to_the_node_that_serves(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    haproxy, front, mqtts = require_program("haproxy"), free_port(), free_port()
    serving, other = sorted(nodes, key=lambda node: node.health("/readyz") == 200, reverse=True)
    if serving.health("/readyz") != 200:
        serving.start()
    config = other.daemon.config.read_text(encoding="utf-8")  # the two have one name since the test before
    other.daemon.config.write_text(re.sub('node = ".*"', f'node = "{other.name}2"', config), encoding="utf-8")
    other.stand_by()
    text = adapted(
        "haproxy-standby.cfg",
        {
            "maxconn 20000": "maxconn 100",
            "bind :443": f"bind 127.0.0.1:{front}",
            "bind :8883": f"bind 127.0.0.1:{mqtts}",
            "check port 8080 check-send-proxy send-proxy-v2": "check",
            "server a 192.0.2.11:8443": f"server a 127.0.0.1:{nodes[0].http}",
            "server b 192.0.2.12:8443": f"server b 127.0.0.1:{nodes[1].http}",
            "server a 192.0.2.11:8883": f"server a 127.0.0.1:{nodes[0].mqtt} port {nodes[0].http}",
            "server b 192.0.2.12:8883": f"server b 127.0.0.1:{nodes[1].mqtt} port {nodes[1].http}",
        },
    )
    (tmp_path / "haproxy.cfg").write_text(text, encoding="utf-8")

    def is_answered() -> bool:
        with suppress(httpx.TransportError):
            answer = httpx.get(f"http://127.0.0.1:{front}/v1.1/users/self", headers=bearer(USER_TOKEN), timeout=5)
            return answer.status_code == 200
        return False

    with running([haproxy, "-f", "haproxy.cfg"], [front, mqtts], tmp_path):
        wait_until(is_answered, "HAProxy has found the node that serves")
        stopped = time.monotonic()
        assert serving.daemon.stop() == 0
        wait_until(is_answered, "HAProxy has found the node that took over")
        print(f"through HAProxy, after a stop: {time.monotonic() - stopped:.2f} s")  # noqa: T201 - with -s
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.username_pw_set(device_id(3), device_token(3))
        client.connect("127.0.0.1", mqtts)
        client.loop_start()
        wait_until(client.is_connected, "HAProxy has found the MQTT server of the node that took over")
        client.publish(f"/v1.1/messages/{device_id(3)}", '{"intensity":7}', qos=1).wait_for_publish(PATIENCE_SECONDS)
        client.disconnect()
        client.loop_stop()
    assert stored(other, 3) == Counter([7])


@each_row("key", [None, Vault.new_key()], ids=["none", "another"])
def test_a_daemon_whose_key_is_wrong_does_not_stand_by(
    nodes: tuple[Node, Node], tmp_path: Path, key: bytes | None
) -> None:
    """It would serve nobody after a take-over."""
    serving = next((node for node in nodes if node.health("/readyz") == 200), nodes[0])
    if serving.health("/readyz") != 200:
        serving.start()
    wrong = Node(tmp_path / f"c{key is None}", "c", nodes[0].url, nodes[0].daemon.state / "key")
    (wrong.daemon.state / "key").unlink()
    if key is not None:
        KeyFile(wrong.daemon.state / "key").write(key)
    wrong.begin()
    try:
        assert wrong.status() == 4
    finally:
        wrong.close()
    said = "secrets that only its key opens" if key is None else "this key opens none of the store's secrets"
    assert said in wrong.log()
    assert re.search("copy (it from|the key of) the machine that serves", wrong.log())
    assert "stands_by" not in wrong.log()
    assert serving.health("/readyz") == 200


def test_the_doctor_and_commands_know_a_daemon_that_stands_by(nodes: tuple[Node, Node]) -> None:
    serving, other = sorted(nodes, key=lambda node: node.health("/readyz") == 200, reverse=True)
    if serving.health("/readyz") != 200:
        serving.start()
    if other.health("/healthz") != 200:
        other.stand_by()
    done = run_command("doctor", "--json", "--config", other.daemon.config)
    checks = [one for one in json.loads(done.stdout)["checks"] if one["check"] in {"daemon", "cluster", "port"}]
    assert all(one["ok"] for one in checks), checks
    process = other.daemon.process
    assert process is not None
    assert checks[0]["text"] == f"stands by, or begins, as process {process.pid}"
    assert next(one["text"] for one in checks if one["check"] == "cluster").endswith("stands by")
    refused = run_command("user", "list", "--config", other.daemon.config)
    assert "if it stands by, give the command on the machine that serves" in refused.stderr


def doctor_about_cluster(node: Node) -> str:
    done = run_command("doctor", "--json", "--config", node.daemon.config)
    checks = json.loads(done.stdout)["checks"]
    (text,) = (one["text"] for one in checks if one["check"] == "cluster" and one["ok"])
    assert isinstance(text, str)
    return text


def command_output_of_refused(node: Node) -> str:
    """The refusal of a command on the store of a node that does not run, while the other one serves."""
    done = run_command("user", "list", "--config", node.daemon.config)
    assert done.returncode == 4, done.stdout
    return done.stderr
