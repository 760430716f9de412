"""The machine with the database and the daemon that serves fails: on the other one both take over."""

import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from tests.cluster.node import Node
from tests.daemon import command_output, write_world
from tests.e2e.test_standby import KILL_SECONDS, Load
from tests.postgresql import server
from tests.programs import require_program
from tests.properties import in_ci
from tests.storage.test_failover import Pair

#: As in test_standby.py.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture
def pair() -> Iterator[Pair]:
    folder = Path(mkdtemp(prefix="both.", dir=server().folder))
    folder.chmod(0o755)
    made = Pair(folder)
    yield made
    made.end()
    rmtree(folder)


@pytest.fixture
def nodes(pair: Pair, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    url = pair.first.urls("store", pair.second)
    config, file = write_world(tmp_path / "world", devices=3, settings=f'[storage]\nurl = "{url}"\n')
    command_output("provision", file, "--config", config)
    key = tmp_path / "world" / "state" / "key"
    a, b = (Node(tmp_path / name, name, url, key) for name in ("a", "b"))
    yield a, b
    for node in (a, b):
        node.close()


@in_ci
def test_nothing_is_lost_when_the_database_and_the_daemon_fail_together(pair: Pair, nodes: tuple[Node, Node]) -> None:
    """The standby is synchronous. paho, websocket-client and curl send all the time."""
    require_program("curl")
    a, b = nodes
    pair.be_synchronous()
    a.start()
    b.stand_by()
    with Load(nodes) as load:
        failed = time.monotonic()
        pair.first.stop("immediate")
        a.daemon.kill()
        pair.second.promote()
        load.goes_on(failed, b, KILL_SECONDS)
        a.stand_by()
    load.check(b)
    assert a.health("/readyz") == 503
