"""Of several nodes one forwards; when it is killed, another one goes on, and nothing comes twice."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.cluster.node import Node, running_nodes, wait_until
from tests.daemon import Daemon, bearer, command_output, device_id, device_token
from tests.e2e.forward_kills import other_store
from tests.properties import in_ci

pytestmark = [pytest.mark.processes, in_ci]

_FORWARD = '[[forward]]\nname = "centre"\nto = "http://127.0.0.1:{port}"\ntoken_file = "{token}"\nbegin = "start"\n'


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "centre").mkdir()
    daemon = Daemon(tmp_path / "centre" / "state")
    daemon.configure(devices=0)
    other_store(daemon)
    daemon.start()
    yield daemon
    daemon.kill()


@pytest.fixture
def nodes(tmp_path: Path, centre: Daemon) -> Iterator[list[Node]]:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(command_output("edge", "add", "attic", "--owner", "ada@example.org", "--config", centre.config))
    settings = _FORWARD.format(port=centre.port("http"), token=token)
    with running_nodes(tmp_path, "a", "b", devices=1, settings=settings) as found:
        yield found


def test_another_node_forwards_when_the_one_that_did_is_killed(nodes: list[Node], centre: Daemon) -> None:
    sent = iter(range(1_000))

    def send(node: Node, count: int) -> None:
        with httpx.Client(base_url=node.base, headers=bearer(device_token(0)), timeout=30) as client:
            for _ in range(count):
                body = {"sdid": device_id(0), "data": {"intensity": next(sent)}}
                client.post("/messages", json=body).raise_for_status()

    def holder() -> Node | None:
        with closing(psycopg.connect(nodes[0].url)) as store:
            row = store.execute("SELECT node FROM lease WHERE name = 'forwards' AND until <> 0").fetchone()
        return next((one for one in nodes if row is not None and one.name == row[0]), None)

    def arrived() -> Counter[int]:
        with centre.store(read_only=True) as store:
            return Counter(json.loads(row["data"])["intensity"] for row in store.execute("SELECT data FROM message"))

    for node in nodes:  # whichever forwards has those of the other one, too
        send(node, 20)
    wait_until(lambda: arrived().total() >= 40, "all are at the centre")
    former = holder()
    assert former is not None
    other = next(one for one in nodes if one is not former)
    send(other, 20)
    former.daemon.kill()
    send(other, 20)
    wait_until(lambda: arrived().total() >= 80, "the other node forwards")
    assert arrived() == Counter(range(80))
    assert holder() is other
