"""An edge forwards to several nodes behind a balancer, one of which is killed: each message and each Action once."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.cluster.node import Node, running_nodes, wait_until
from tests.daemon import ADA, USER_TOKEN, Daemon, bearer, command_output, device_id, device_token
from tests.e2e.forward_kills import other_store
from tests.e2e.test_proxies import running
from tests.free_port import free_port
from tests.programs import require_program
from tests.properties import in_ci

pytestmark = [pytest.mark.processes, in_ci]

_BALANCER = """\
defaults
  mode tcp
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  option redispatch
listen centre
  bind 127.0.0.1:{port}
  balance roundrobin
  server a 127.0.0.1:{a} check inter 200
  server b 127.0.0.1:{b} check inter 200
"""
_FORWARD = '[[forward]]\nname = "centre"\nto = "http://127.0.0.1:{port}"\ntoken_file = "{token}"\nbegin = "start"\n'


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    with running_nodes(tmp_path, "a", "b", devices=0) as found:
        yield found


@pytest.fixture
def balancer(tmp_path: Path, nodes: list[Node]) -> Iterator[int]:
    program, port = require_program("haproxy"), free_port()
    (tmp_path / "haproxy.cfg").write_text(_BALANCER.format(port=port, a=nodes[0].http, b=nodes[1].http))
    with running([program, "-db", "-f", "haproxy.cfg"], [port], tmp_path):
        yield port


@pytest.fixture
def edge(tmp_path: Path, nodes: list[Node], balancer: int) -> Iterator[Daemon]:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    added = command_output("edge", "add", "attic", "--owner", "ada@example.org", "--config", nodes[0].daemon.config)
    token.write_text(added)
    (tmp_path / "edge").mkdir()
    daemon = Daemon(tmp_path / "edge" / "state")
    daemon.configure(devices=1)
    settings = daemon.config.read_text(encoding="utf-8") + _FORWARD.format(port=balancer, token=token)
    daemon.config.write_text(settings, encoding="utf-8")
    other_store(daemon)
    daemon.start()
    yield daemon
    daemon.kill()


def test_an_edge_goes_on_when_a_node_of_its_upstream_is_killed(nodes: list[Node], edge: Daemon) -> None:
    numbers, wanted = iter(range(1_000)), Counter[int]()

    def send(count: int) -> None:
        with httpx.Client(base_url=edge.base_url, headers=bearer(device_token(0)), timeout=30) as client:
            for _ in range(count):
                body = {"sdid": device_id(0), "data": {"intensity": next(numbers)}}
                client.post("/messages", json=body).raise_for_status()

    def arrived() -> Counter[int]:
        with closing(psycopg.connect(nodes[0].url)) as store:
            return Counter(json.loads(data)["intensity"] for (data,) in store.execute("SELECT data FROM message"))

    def act(node: Node, number: int) -> None:
        with httpx.Client(base_url=node.base, headers=bearer(USER_TOKEN), timeout=30) as api:
            found = api.get(f"/users/{ADA}/devices").raise_for_status().json()["data"]["devices"]
            actions = {"actions": [{"name": "setOn", "parameters": {"n": number}}]}
            api.post("/actions", json={"ddid": found[0]["id"], "data": actions}).raise_for_status()
        wanted[number] += 1

    def came_down() -> Counter[int]:
        with edge.store(read_only=True) as store:
            rows = [json.loads(row["data"]) for row in store.execute("SELECT data FROM action")]
        return Counter(row["actions"][0]["parameters"]["n"] for row in rows)

    send(20)
    wait_until(lambda: arrived().total() >= 20, "all are at the centre")
    for number, node in enumerate(nodes):  # also of the node that the edge has not asked
        act(node, number)
    wait_until(lambda: came_down() == wanted, "Actions of either node come down")
    for killed, living in (nodes, nodes[::-1]):
        send(10)
        killed.daemon.kill()
        send(20)
        act(living, len(wanted))
        wait_until(lambda: came_down() == wanted, "an Action comes down", 60)
        wait_until(lambda: arrived().total() >= 20 + 30 * (1 + (killed is nodes[1])), "the other node takes them", 60)  # noqa: B023
        killed.start()
    assert arrived() == Counter(range(80))
