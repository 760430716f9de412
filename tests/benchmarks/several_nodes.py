"""Processor time of a message with several nodes: at its node, at each other one, at the server of PostgreSQL.

    python -m tests.benchmarks.several_nodes [--rounds 5] [--seconds 3] [--feeds 20]

Three nodes serve, and all messages come to the first one: of 50 devices with 20 in flight each, and of 5 with one, when
the third node has live feeds of them all, and when it has none. Rates move with the load of the machine; processor
times less. docs/operate/several-nodes.md goes on from here.
"""

import argparse
import re
import resource
import select
import statistics
import threading
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
from tests.cluster.node import PATIENCE_SECONDS, Node, wait_until
from tests.cluster.test_several_nodes import live_feed
from tests.cluster.world import own_server
from tests.daemon import MANY_CONNECTIONS, command_output, device_id, device_token, write_world

_DEVICES: Final = 50
_WINDOW: Final = 20
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
        processes = [node.daemon.process.pid for node in nodes if node.daemon.process is not None]
        publishers = [(device_id(number), device_token(number)) for number in range(_DEVICES)]

        def measure(prefix: str, devices: int = _DEVICES, window: int = _WINDOW) -> float:
            with ExitStack() as used:
                of_nodes = [used.enter_context(using(one)) for one in processes]
                of_server = used.enter_context(using(database=first))
                result = publish_qos1(
                    nodes[0].mqtt, publishers[:devices], PAYLOAD, window=window, seconds=options.seconds
                )
                wait_until(lambda: all(_is_up_to_date(node) for node in nodes), "the others have followed")
            messages: float = result.rate * (options.seconds + 1)  # it warms up for one
            for name, one in zip("abc", of_nodes, strict=True):
                found.setdefault(f"{prefix}{name}", []).append(one.seconds / messages * 1e6)
            found.setdefault(f"{prefix}server", []).append(of_server.database_seconds / messages * 1e6)
            found.setdefault(f"{prefix}rate", []).append(result.rate)
            return messages

        measure("warm ")
        for _ in range(options.rounds):
            measure("")
            measure("few ", _FEW, 1)
            with ExitStack() as held:
                feeds = [held.enter_context(closing(live_feed(nodes[2], *range(_FEW)))) for _ in range(options.feeds)]
                with _reading(feeds) as read:
                    messages = measure("feeds ", _FEW, 1)
                if read[0] < messages * options.feeds * len(PAYLOAD):
                    raise RuntimeError("the feeds did not get everything")
    median = {name: statistics.median(values) for name, values in found.items()}
    print(f"{median['rate']:,.0f} messages/s to the first node\n")
    print("| Processor time of a message | µs |\n|---|---|")
    print(f"| at its node | {median['a']:.1f} |")
    print(f"| at each other node | {(median['b'] + median['c']) / 2:.1f} |")
    print(f"| at the server, with two nodes that follow | {median['server']:.1f} |")
    each = (median["feeds c"] - median["few c"]) / options.feeds
    print(f"| of a live feed on another node | {each:.1f} |")


def _is_up_to_date(node: Node) -> bool:
    text = httpx.get(f"http://127.0.0.1:{node.http}/metrics", timeout=PATIENCE_SECONDS).text
    return re.search(r"(?m)^trunkline_node_behind_rows 0\.0$", text) is not None


if __name__ == "__main__":
    main()
