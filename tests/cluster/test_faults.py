"""A short form of `python -m tests.cluster`: the rules hold for three nodes that are killed, paused and cut off.

And the checker finds a rule that the daemons break when they are mutants (mutants.py), in a history of the same nodes:
another one in each run, and all of them with `--hypothesis-profile=full`.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import faults, mutants
from tests.cluster.checker import (
    BUSY_SECONDS,
    CHANGE_SECONDS,
    HELD_UP_SECONDS,
    PREDICATES,
    UNDER_WAY_SECONDS,
    Tables,
    problems,
)
from tests.cluster.clients import Paho, RefusedError, Revoked
from tests.cluster.node import LEASE_SECONDS, Node, wait_until
from tests.cluster.world import (
    PATIENCE_SECONDS,
    WAIT_SECONDS,
    ClusterWorld,
    own_servers,
    patiently,
    process_of,
    running,
    send,
)
from tests.postgresql import Server, folder_of_run, programs
from tests.properties import drawn, in_ci

pytestmark = [
    in_ci,  # test_node_ends.py has one fault after the other
    pytest.mark.processes,
    pytest.mark.timeout(300),  # the first one makes the world, too, which a busy machine takes a minute for
    # paho leaves its pair of sockets to the garbage collector, and clients their connection to a node without answers.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
#: The rules whose break is found in what clients and the table of leases have seen; R7 needs the tables of the end.
SEEN_AT_ONCE = ("R4", "R6", "R8", "R9", "R11")
#: Faults are what counts here, and not many messages.
CALM = 20.0


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    """The server of the nodes' database, and its synchronous standby."""
    programs()  # or the test is skipped
    (folder := folder_of_run()).chmod(0o755)  # the server's user has to enter
    with own_servers(folder) as found:
        yield found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, servers: tuple[Server, Server]) -> Iterator[ClusterWorld]:
    with running(tmp_path_factory.mktemp("cluster"), servers[0], "store", seed=1, calm=CALM) as found:
        yield found


def test_the_rules_hold_while_nodes_are_killed_paused_and_cut_off(
    world: ClusterWorld, servers: tuple[Server, Server]
) -> None:
    world.goes_on()
    killed, cut_off = world.chance.sample(world.nodes, 2)
    faults.kill(world, "kill", of=killed)
    faults.lose(world, "cut off", direction="down", seconds=LEASE_SECONDS + 1, of=cut_off)
    world.goes_on()
    with paused_in_a_work(world):
        until = time.monotonic() + HELD_UP_SECONDS + 1
        faults.terminate(world, "NOTIFY is lost", which="trunkline %.listens")
        threading.Event().wait(until - time.monotonic())
    world.goes_on()
    faults.promote(world, "the database fails, and its standby is promoted", standby=servers[1])
    world.goes_on()
    tables = world.end()
    assert world.problems == []
    assert not (found := problems(world.record, tables)), "\n".join(found)
    assert len(world.record.of("acknowledged")) > 100
    assert sum(world.restarts.values()) >= 2, "the node that was killed, and the one that was cut off for too long"


@contextmanager
def paused_in_a_work(world: ClusterWorld) -> Iterator[None]:
    """In the block a node stands still and holds up the works of the others."""
    node = world.nodes[0]
    with world.mutated(f"{mutants.STOPS} {node.name}"), world.fault("SIGSTOP within a work", "pause", [node]):
        wait_until(lambda: is_stopped(node), "it has stopped within a work")
        try:
            yield
        finally:
            send(node, signal.SIGCONT)


def seconds_without_a_change(world: ClusterWorld, since: float) -> float:
    """Since then or since the last work of a node that does not stand still."""
    stands_still = world.nodes[0].name
    return time.monotonic() - max([since, *(one.at for one in world.record.of("changed") if one.node != stands_still)])


def is_stopped(node: Node) -> bool:
    return Path(f"/proc/{process_of(node)}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "T"


IsFound = Callable[[str], bool]  # of a rule


def be_stale(world: ClusterWorld, is_found: IsFound) -> None:
    with world.mutated(mutants.NO_FENCE, mutants.NO_CATCH_UP, mutants.NO_NOTIFY):
        wait_until(lambda: is_found("R9"), "what is changed on a node is not read on another one")
        use_ended_tokens(world, until=lambda: is_found("R6"))


def be_early(world: ClusterWorld, is_found: IsFound) -> None:
    with world.mutated(mutants.EARLY):
        be_acknowledged_while_cut_off(world, until=lambda: is_found("R8"))


def be_unbound(world: ClusterWorld, is_found: IsFound) -> None:
    with world.mutated(mutants.NO_BOUND):
        hold_up_the_others(world, until=lambda: is_found("R11"))


def be_forgetful(world: ClusterWorld, is_found: IsFound) -> None:
    with world.mutated(mutants.SAME_EPOCH, mutants.NO_STATE, mutants.NO_NOTIFICATION):
        kill_while_callbacks_wait(world)
        wait_until(lambda: is_found("R4"), "another process has the leases")
        world.goes_on()


#: What mutants do, and how the problems begin that the checker finds then.
MUTANTS: Final = (
    (be_stale, ("R6:", "R9:")),
    (be_early, ("R8:",)),
    (be_unbound, ("R11:",)),
    (be_forgetful, ("R4:", "R7: the rule has", "R7: the callback did not get")),
)


def test_the_checker_finds_a_rule_that_mutants_of_the_daemons_break(world: ClusterWorld) -> None:
    world.begin_again()
    world.goes_on()

    def is_found(rule: str) -> bool:
        return any(PREDICATES[rule](world.record, Tables()))

    assert not any(map(is_found, SEEN_AT_ONCE))
    wanted = list[str]()
    for break_rules, begins in drawn(MUTANTS, 4):
        break_rules(world, is_found)
        world.goes_on()
        wanted += begins
    found = problems(world.record, world.end(patience_seconds=2))
    for rule in wanted:
        assert any(problem.startswith(rule) for problem in found), rule


def use_ended_tokens(world: ClusterWorld, *, until: Callable[[], bool]) -> None:
    """On a node that cannot hear yet that they have ended."""
    client = world.client(Revoked)
    client.IS_WAITED_FOR = False
    client.over.set()
    client.join(WAIT_SECONDS)

    def is_found() -> bool:
        node, other = world.chance.sample(world.nodes, 2)
        with suppress(RefusedError, OSError, HTTPException):
            client.use_ended(node, other, world.proxies[node.name].holding())
        return until()

    wait_until(is_found, "what was sent with an ended token is stored")


def be_acknowledged_while_cut_off(world: ClusterWorld, *, until: Callable[[], bool]) -> None:
    """By the node to which a client is connected that stays with it, and sends on."""
    client = world.client(Paho)

    def is_found() -> bool:
        last = next(one for one in reversed(world.record.of("acknowledged")) if one.device == client.device)
        (node,) = (one for one in world.nodes if one.name == last.node)
        with faults.cut_off(world, "cut off", node):
            late = time.monotonic() + UNDER_WAY_SECONDS
            patiently(lambda: client.last_acknowledged > late, PATIENCE_SECONDS)
        return until()

    wait_until(is_found, "a client is acknowledged while its node is cut off")


def hold_up_the_others(world: ClusterWorld, *, until: Callable[[], bool]) -> None:
    """For longer than may be. A work whose connection breaks meanwhile holds up nobody: then another one does."""
    too_long = HELD_UP_SECONDS + BUSY_SECONDS + CHANGE_SECONDS

    def is_found() -> bool:
        with paused_in_a_work(world):
            stopped = time.monotonic()  # an answer from before may come late
            patiently(lambda: seconds_without_a_change(world, stopped) > too_long, 2 * too_long)
        return until()

    wait_until(is_found, "the others are held up", WAIT_SECONDS)


def kill_while_callbacks_wait(world: ClusterWorld) -> None:
    """The nodes that run the rules and send notifications, when both are at work."""
    world.callback.hangs.set()
    effects, hung = len(world.effects()), world.callback.hung
    wait_until(lambda: len(world.effects()) > effects and world.callback.hung > hung, "a rule and a callback work")
    nodes = {world.holder(lease) for lease in ("rules", "subscriptions")}
    with world.fault("kill", "kill", list(nodes)):
        for node in nodes:
            send(node, signal.SIGKILL)
    world.callback.hangs.clear()
    world.callback.goes_on.set()
