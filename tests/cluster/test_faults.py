"""A short form of `python -m tests.cluster`: the rules hold for three nodes that are killed, paused and cut off."""

from pathlib import Path

import pytest

from tests.cluster import faults
from tests.cluster.checker import problems
from tests.cluster.node import LEASE_SECONDS
from tests.cluster.world import running
from tests.postgresql import server

pytestmark = [
    pytest.mark.processes,
    # The clients leave sockets to the garbage collector when a node does not answer.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def test_the_rules_hold_while_nodes_are_killed_paused_and_cut_off(tmp_path: Path) -> None:
    postgresql = server()
    database = postgresql.new_database(template="template0")
    with running(tmp_path, postgresql, database, seed=1) as world:
        world.goes_on()
        faults.kill(world, "kill")
        world.goes_on()
        faults.pause(world, "pause", seconds=1.0)
        faults.terminate(world, "NOTIFY is lost", which="trunkline %.listens")
        world.goes_on()
        faults.lose(world, "cut off", direction="down", seconds=LEASE_SECONDS + 1)
        world.goes_on()
        tables = world.end()
    assert world.problems == []
    assert problems(world.record, tables) == []
    assert len(world.record.of("acknowledged")) > 100
    assert sum(world.restarts.values()) >= 2, "the node that was killed, and the one that was cut off for too long"
    postgresql.drop(database)
