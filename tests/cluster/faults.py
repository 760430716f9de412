"""Faults of several nodes: of a node, of its way to the database, of the database, and of clocks."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

from tests.cluster.node import LEASE_SECONDS, Node
from tests.cluster.world import ClusterWorld, send
from tests.postgresql import Server

_REPLACED: Final = 6
#: Longer than the lease.
LONG_SECONDS: Final = 2 * LEASE_SECONDS
_SKEW_SECONDS: Final = 6.0

Fault = Callable[[ClusterWorld, str], None]


def kill(world: ClusterWorld, name: str, *, of: Node | None = None) -> None:
    node = of or world.node()
    with world.fault(name, "kill", [node]):
        send(node, signal.SIGKILL)


def pause(world: ClusterWorld, name: str, *, seconds: float) -> None:
    """SIGSTOP, and SIGCONT."""
    node = world.node()
    with world.fault(name, "pause", [node]):
        send(node, signal.SIGSTOP)
        time.sleep(seconds)
        send(node, signal.SIGCONT)


def cut(world: ClusterWorld, name: str, *, seconds: float) -> None:
    """The way to the database ends, and there is no new one."""
    with cut_off(world, name, world.node()):
        time.sleep(seconds)


@contextmanager
def cut_off(world: ClusterWorld, name: str, node: Node) -> Iterator[None]:
    """The same while the block lasts."""
    proxy = world.proxies[node.name]
    try:
        with world.fault(name, "cut", [node]):
            proxy.is_closed = True
            proxy.cut()
            yield
    finally:
        proxy.is_closed = False


def cut_all(world: ClusterWorld, name: str, *, seconds: float) -> None:
    """No node reaches the database, as while it restarts."""
    with world.fault(name, "cut", world.nodes):
        for proxy in world.proxies.values():
            proxy.is_closed = True
            proxy.cut()
        time.sleep(seconds)
    for proxy in world.proxies.values():
        proxy.is_closed = False


def lose(world: ClusterWorld, name: str, *, direction: str, seconds: float, of: Node | None = None) -> None:
    """What goes to the database, or comes from it, gets lost; connections stay open."""
    node = of or world.node()
    proxy = world.proxies[node.name]
    with world.fault(name, "cut", [node]):
        proxy.loses = direction
        time.sleep(seconds)
    proxy.loses = ""


def terminate(world: ClusterWorld, name: str, *, which: str = "trunkline ") -> None:
    """The server ends sessions of nodes."""
    with world.fault(name, "sessions"), world.server.target("postgres").connect(name="tests") as connection:
        for _ in range(10):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE datname = %s"
                " AND application_name LIKE %s ORDER BY random() LIMIT 3) AS chosen",
                [world.database, f"{which}%"],
            )
            time.sleep(world.chance.uniform(0.02, 0.3))


def snapshot(world: ClusterWorld, name: str, *, seconds: float) -> None:
    """Somebody reads the database in one transaction, as pg_dump does."""
    with world.fault(name, "snapshot"), world.target.connect(name="tests") as connection:
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute("SELECT count(*) FROM message")
        time.sleep(seconds)
        connection.execute("COMMIT")


def restart(world: ClusterWorld, name: str, *, seconds: float = 0.0) -> None:
    """The server ends at once, without a checkpoint, and comes back."""
    with world.fault(name, "away", world.nodes):
        world.server.stop("immediate")
        time.sleep(seconds)
        world.server.start()


def promote(world: ClusterWorld, name: str, *, standby: Server) -> None:
    """The server fails, and its synchronous standby takes its place."""
    former = world.server
    with world.fault(name, "away", world.nodes):
        former.stop("immediate")
        for proxy in world.proxies.values():
            proxy.cut()
            proxy.connect_to(standby.folder / ".s.PGSQL.5432")
        standby.promote()
        world.server = standby


def skew(world: ClusterWorld, name: str, *, offset: float) -> None:
    """The clock of a node is wrong for a while."""
    node = world.node()
    clock = world.clocks[node.name]
    with world.fault(name, "clock", [node]):
        clock.jump(offset)
        time.sleep(_SKEW_SECONDS)
    clock.jump(0)


def same_name(world: ClusterWorld, name: str) -> None:
    """Another daemon with the name of a node takes its place; then that one serves again."""
    node = world.node()
    world.unwanted.add(node.name)
    with world.fault(name, "name", [node]), closing(world.new_node(node.name, f"twin-{time.monotonic()}")) as twin:
        twin.begin()
        if (status := node.status()) != _REPLACED:
            world.problems.append(f"a node whose name another one has ended with status {status}")
        twin.daemon.wait_ready()
        twin.daemon.stop()
    node.begin()
    world.unwanted.discard(node.name)


#: Each fault by its name in the table, and how many of a hundred are of it.
FAULTS: Final[dict[str, tuple[int, Fault]]] = {
    "SIGKILL of a node": (16, kill),
    "SIGSTOP for 0.05 s": (8, partial(pause, seconds=0.05)),
    "SIGSTOP for 1 s": (8, partial(pause, seconds=1.0)),
    f"SIGSTOP for {LONG_SECONDS:.0f} s, longer than the lease": (8, partial(pause, seconds=LONG_SECONDS)),
    "a node is cut off from the database for 1 s": (8, partial(cut, seconds=1.0)),
    f"a node is cut off from the database for {LONG_SECONDS:.0f} s": (8, partial(cut, seconds=LONG_SECONDS)),
    "what a node sends to the database is lost for 2 s": (6, partial(lose, direction="up", seconds=2.0)),
    "what the database answers a node is lost for 2 s": (6, partial(lose, direction="down", seconds=2.0)),
    f"what the database answers a node is lost for {LONG_SECONDS:.0f} s": (
        4,
        partial(lose, direction="down", seconds=LONG_SECONDS),
    ),
    "`pg_terminate_backend` of 3 sessions, 10 times": (6, terminate),
    "NOTIFY is lost: the sessions that listen end, 10 times": (6, partial(terminate, which="trunkline %.listens")),
    "a snapshot is open for 10 s": (2, partial(snapshot, seconds=10.0)),
    "a clock is 30 s fast": (3, partial(skew, offset=30)),
    "a clock is 30 s slow": (3, partial(skew, offset=-30)),
    "another daemon with the name of a node": (4, same_name),
    "immediate restart of PostgreSQL": (4, restart),
}
#: At most one of each, since they take long.
ONCE: Final[dict[str, Fault]] = {
    "SIGSTOP for 60 s": partial(pause, seconds=60.0),
    "PostgreSQL is away for 15 s": partial(restart, seconds=15.0),
}
