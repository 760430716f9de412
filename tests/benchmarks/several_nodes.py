"""Processor time of a message with several nodes: at its node, at the others, at the server of PostgreSQL.

    python -m tests.benchmarks.several_nodes [--rounds 5] [--seconds 3] [--feeds 20]

Three nodes serve. One has the lease of the folds, and all messages come to another one: of 49 devices with 20 in flight
each, with and without a live feed on the third node, to which nothing of them goes; and of 5 devices with one in
flight, when the third node has live feeds of them all, and when it has none. The processor time of a node to which
nothing comes is left out. Rates move with the load of the machine; processor times less. docs/operate/several-nodes.md
goes on from here.
"""

import argparse
import resource
import select
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
import websocket

from tests.benchmarks.load import publish_qos1
from tests.benchmarks.mqtt_ingest import PAYLOAD
from tests.benchmarks.suite.contest import using
from tests.cluster.node import PATIENCE_SECONDS, Node
from tests.cluster.test_several_nodes import live_feed
from tests.cluster.world import own_server
from tests.daemon import MANY_CONNECTIONS, command_output, device_id, device_token, write_world

_DEVICES: Final = 50
_WINDOW: Final = 20
_IDLE_SECONDS: Final = 10.0
_FOLLOW_SECONDS: Final = 3.0
_FEW: Final = 5  # a feed that does not read is closed


@contextmanager
def _nodes(url: str, names: str, folder: Path) -> Iterator[list[Node]]:
    config, file = write_world(folder / "provisioned", devices=_DEVICES, settings=f'[storage]\nurl = "{url}"\n')
    command_output("provision", file, "--config", config)
    key = folder / "provisioned" / "state" / "key"
    nodes = [Node(folder / name, name, url, key, nodes="several", settings=MANY_CONNECTIONS) for name in names]
    try:
        for node in nodes:
            node.start()
        yield nodes
    finally:
        for node in nodes:
            node.close()


@contextmanager
def _reading(feeds: Sequence[websocket.WebSocket]) -> Iterator[list[int]]:
    """Read and forget what the feeds get; the bytes so far."""
    is_over, read = threading.Event(), [0]

    def work() -> None:
        sockets = [one.sock for one in feeds if one.sock is not None]
        while not is_over.is_set():
            for one in select.select(sockets, [], [], 0.1)[0]:
                read[0] += len(one.recv(1 << 20))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield read
    finally:
        is_over.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--feeds", type=int, default=20)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir="/var/tmp")))
        server = stack.enter_context(own_server(Path("/var/tmp")))  # noqa: S108
        nodes = stack.enter_context(_nodes(server.url("store"), "abc", folder))
        first = int((server.data / "postmaster.pid").read_text(encoding="ascii").split()[0])
        nodes.sort(key=lambda node: not _folds(node))
        _, taker, third = nodes
        processes = [node.daemon.process.pid for node in nodes if node.daemon.process is not None]
        publishers = [(device_id(number), device_token(number)) for number in range(_DEVICES)]

        def measure(prefix: str, devices: int = _DEVICES - 1, window: int = _WINDOW) -> float:
            begun = time.perf_counter()
            with ExitStack() as used:
                of_nodes = [used.enter_context(using(one)) for one in processes]
                of_server = used.enter_context(using(database=first))
                result = publish_qos1(taker.mqtt, publishers[:devices], PAYLOAD, window=window, seconds=options.seconds)
                time.sleep(_FOLLOW_SECONDS)  # to ask the nodes would cost them more than the messages
            messages: float = result.rate * (options.seconds + 1)  # it warms up for one
            idle = idle_part * (time.perf_counter() - begun)
            for name, one in zip(("folds", "taker", "third"), of_nodes, strict=True):
                found.setdefault(f"{prefix}{name}", []).append((one.seconds - idle) / messages * 1e6)
            found.setdefault(f"{prefix}server", []).append(of_server.database_seconds / messages * 1e6)
            found.setdefault(f"{prefix}rate", []).append(result.rate)
            return messages

        idle_part = 0.0
        measure("warm ")
        with using(processes[2]) as idle:
            time.sleep(_IDLE_SECONDS)
        idle_part = idle.seconds / _IDLE_SECONDS
        for _ in range(options.rounds):
            measure("")
            with closing(live_feed(third, _DEVICES - 1)):
                measure("read ")
            measure("few ", _FEW, 1)
            with ExitStack() as held:
                feeds = [held.enter_context(closing(live_feed(third, *range(_FEW)))) for _ in range(options.feeds)]
                with _reading(feeds) as read:
                    messages = measure("feeds ", _FEW, 1)
                if read[0] < messages * options.feeds * len(PAYLOAD):
                    raise RuntimeError("the feeds did not get everything")
    median = {name: statistics.median(values) for name, values in found.items()}
    print(f"{median['rate']:,.0f} messages/s; {idle_part:.1%} of a core of a node to which nothing comes\n")
    print("| Processor time of a message | µs |\n|---|---|")
    print(f"| at its node | {median['taker']:.1f} |")
    print(f"| at the node that folds | {median['folds']:.1f} |")
    print(f"| at each other node | {median['third']:.1f} |")
    print(f"| at one with a live feed | {median['read third']:.1f} |")
    print(f"| at the server, with the node that folds | {median['server']:.1f} |")
    print(f"| at the server, for each node with a live feed | {median['read server'] - median['server']:.1f} |")
    each = (median["feeds third"] - median["few third"] - median["read third"]) / options.feeds
    print(f"| of a live feed on another node | {each:.1f} |")


def _folds(node: Node) -> bool:
    return 'trunkline_lease_held{lease="folds"} 1' in _metrics(node)


def _metrics(node: Node) -> str:
    return httpx.get(f"http://127.0.0.1:{node.http}/metrics", timeout=PATIENCE_SECONDS).text


if __name__ == "__main__":
    main()
