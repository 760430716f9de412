"""python -m tests.cluster.bench [--only action move processor snapshot]: what several nodes cost beside one.

Prints a table in Markdown, with the goals of issue 49. Times move with the load of the machine; processor times less.
"""

import argparse
import os
import resource
import select
import signal
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
import trio

from storage.keys import DeviceKey, Milliseconds
from tests.benchmarks.load import Publisher, mqtt_publisher, publish
from tests.benchmarks.mqtt_ingest import PAYLOAD
from tests.benchmarks.suite.contest import using
from tests.cluster.history import Part
from tests.cluster.node import Node
from tests.cluster.test_several_nodes import Light
from tests.cluster.world import own_server
from tests.daemon import (
    MANY_CONNECTIONS,
    USER_TOKEN,
    bearer,
    command_output,
    device_id,
    device_token,
    running_daemon,
    write_world,
)
from tests.postgresql import Server

_MANY: Final = 5_000
_DEVICES: Final = 51
_WINDOW: Final = 20
_ROUNDS: Final = 5
_ACTIONS: Final = 400
_ACTION: Final = {"actions": [{"name": "setOn", "parameters": {}}]}
_ROWS: Final = 100  # of a commit
_COMMITS: Final = 400


@contextmanager
def nodes_of(server: Server, names: Sequence[str], *, devices: int) -> Iterator[list[Node]]:
    with TemporaryDirectory(prefix="trunkline-bench-") as name:
        folder = Path(name)
        url = server.url("store")
        config, file = write_world(folder / "provisioned", devices=devices, settings=f'[storage]\nurl = "{url}"\n')
        command_output("provision", file, "--config", config)
        key = folder / "provisioned" / "state" / "key"
        nodes = [
            Node(
                folder / name,
                name,
                url,
                key,
                nodes="several",
                settings=MANY_CONNECTIONS,
                cluster="patience_seconds = 10\n",
                lease_seconds=10,
            )
            for name in names
        ]
        try:
            for node in nodes:
                node.start()
            yield nodes
        finally:
            for node in nodes:
                node.close()


def _pid(node: Node) -> int:
    assert node.daemon.process is not None
    return node.daemon.process.pid


def _tell(what: str, found: str, goal: str) -> None:
    print(f"| {what} | {found} | {goal} |", flush=True)  # noqa: T201


def action() -> None:
    """From the request to the device, which is connected to another node."""
    with own_server(Path("/var/tmp")) as server, nodes_of(server, "ab", devices=2) as (a, b):  # noqa: S108
        came = threading.Semaphore(0)
        with closing(Light(a, 0)) as light, httpx.Client(headers=bearer(USER_TOKEN), timeout=30) as client:
            light.client.on_message = lambda *_: came.release()
            body = {"ddid": device_id(0), "type": "action", "data": _ACTION}
            times = []
            for _ in range(_ACTIONS):
                begun = time.perf_counter()
                client.post(f"{b.base}/actions", json=body).raise_for_status()
                if not came.acquire(timeout=30):
                    raise TimeoutError("an Action has not come")
                times.append(time.perf_counter() - begun)
                time.sleep(0.01)
    times.sort()
    p50, p95 = times[len(times) // 2] * 1000, times[len(times) * 95 // 100] * 1000
    _tell("Action to a device on another node", f"p50 {p50:.1f} ms, p95 {p95:.1f} ms", "5 and 20 ms")


class _Crowd:
    """Devices that are connected, and connect to another node when their connection ends."""

    def __init__(self, number: int) -> None:
        self._poll = select.epoll()
        self._number = number
        self._open: dict[int, socket.socket] = {}

    def connect(self, port: int) -> float:
        """All at once, as devices do whose node is gone; the seconds until the last one has its CONNACK."""
        begun, waiting, left = time.perf_counter(), dict[int, int](), list(range(self._number))
        done = 0
        while done < self._number:
            while left and len(waiting) < 500:  # what a listener holds of those that nobody has accepted yet
                number = left.pop()
                one = socket.create_connection(("127.0.0.1", port), timeout=60)
                body = struct.pack("!H4sBBH", 4, b"MQTT", 4, 0xC2, 0)
                for text in (device_id(number), device_id(number), device_token(number)):
                    body += struct.pack("!H", len(text)) + text.encode()
                one.sendall(b"\x10" + bytes((len(body) & 0x7F | (0x80 if len(body) > 127 else 0),)) + body)
                self._open[one.fileno()] = one
                waiting[one.fileno()] = number
                self._poll.register(one.fileno(), select.EPOLLIN)
            for fd, _ in self._poll.poll(60):
                number = waiting.pop(fd, -1)
                answer = self._open[fd].recv(4)
                self._poll.unregister(fd)
                if answer != b"\x20\x02\x00\x00":
                    raise RuntimeError(f"device {number}: {answer!r}")
                done += 1
        return time.perf_counter() - begun

    def forget(self) -> None:
        for one in self._open.values():
            one.close()
        self._open.clear()


def move() -> None:
    """The node of 5,000 devices is killed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        own_server(Path("/var/tmp")) as server,  # noqa: S108
        nodes_of(server, "ab", devices=_MANY) as (a, b),
    ):
        crowd = _Crowd(_MANY)
        first = crowd.connect(a.mqtt)
        os.kill(_pid(a), signal.SIGKILL)
        crowd.forget()
        second = crowd.connect(b.mqtt)
        crowd.forget()
    _tell(f"{_MANY:,} devices of a node that is killed connect to another one", f"{second:.1f} s", "10 s")
    _tell(f"{_MANY:,} devices connect to the first one", f"{first:.1f} s", "")


def _publishers(ports: Sequence[int]) -> list[Publisher]:
    return [
        mqtt_publisher(ports[number % len(ports)], device_id(number), device_token(number), PAYLOAD, _WINDOW)
        for number in range(_DEVICES)
    ]


def processor() -> None:
    """Messages of 51 devices, 20 in flight each, to three nodes and to one on SQLite, in turn."""
    of_three, with_server, of_one, of_single = [], [], [], []
    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory(dir="/var/tmp")))
        one = held.enter_context(running_daemon(folder, devices=_DEVICES))
        server = held.enter_context(own_server(Path("/var/tmp")))  # noqa: S108
        nodes = held.enter_context(nodes_of(server, "abc", devices=_DEVICES))
        assert one.process is not None
        first = int((server.data / "postmaster.pid").read_text(encoding="ascii").split()[0])

        def measure(ports: Sequence[int], *processes: int, database: int | None = None) -> tuple[float, float]:
            with using(*processes, database=database) as used:
                found = publish(_publishers(ports), seconds=4, warmup=1)
            sample = used.of_each(found.rate, found.rate * 5)
            return sample.cpu_us or 0.0, sample.database_us or 0.0

        for _ in range(_ROUNDS):
            of_one.append(measure([one.port("mqtt")], one.process.pid)[0])
            ours, database = measure([node.mqtt for node in nodes], *map(_pid, nodes), database=first)
            of_three.append(ours)
            with_server.append(ours + database)
            ours, database = measure([nodes[0].mqtt], *map(_pid, nodes), database=first)
            of_single.append(ours + database)
    median = statistics.median
    _tell("processor time of a message, one daemon on SQLite", f"{median(of_one):.1f} µs", "")
    ratio = median(of_three) / median(of_one)
    _tell("of three nodes together", f"{median(of_three):.1f} µs, {ratio:.2f} of one", "1.6")
    ratio = median(with_server) / median(of_one)
    _tell("of three nodes and the database's server", f"{median(with_server):.1f} µs, {ratio:.2f} of one", "")
    ratio = median(of_single) / median(of_one)
    _tell("the same when all messages come to one of the three", f"{median(of_single):.1f} µs, {ratio:.2f} of one", "")


def snapshot(seconds: float) -> None:
    """Commits of rows, with facts between them, while somebody's transaction stays open; then without it."""
    with own_server(Path("/var/tmp")) as server:  # noqa: S108
        trio.run(_with_snapshot, server, seconds)


async def _with_snapshot(server: Server, seconds: float) -> None:
    part = Part("a", "store", server)
    await part.database.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(part.database.commit_forever)

        async def commits(number: int = _COMMITS) -> float:
            times = []
            for _ in range(number):
                begun = time.perf_counter()
                for row in range(_ROWS):
                    part.journal.append_message(DeviceKey(row), Milliseconds(1), Milliseconds(1), 1, '{"a":1}')
                await part.journal.wait_committed()
                times.append(time.perf_counter() - begun)
            return statistics.median(times) * 1000

        await commits()
        without = [await commits()]
        with server.target("store").connect(name="tests") as reader:
            reader.execute("SET idle_in_transaction_session_timeout = 0")
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            reader.execute("SELECT count(*) FROM message")
            until, number = time.monotonic() + seconds, 0
            while time.monotonic() < until:
                await commits(20)
                number += 20
                await trio.sleep(0.1)
            found = await commits()
            reader.execute("COMMIT")
        without.append(await commits())
        nursery.cancel_scope.cancel()
    part.listening.close()
    ratio = found / statistics.mean(without)
    _tell(
        f"commit of {_ROWS} rows, with a snapshot open for {seconds / 60:.0f} minutes and {number:,} commits",
        f"{found:.2f} ms, {ratio:.2f} of without",
        "1.2",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=("action", "move", "processor", "snapshot"), default=())
    parser.add_argument("--snapshot-seconds", type=float, default=600.0)
    options = parser.parse_args()
    print("| Measured | Result | Goal |\n|---|---|---|", flush=True)  # noqa: T201
    rows: dict[str, Callable[[], None]] = {
        "action": action,
        "move": move,
        "processor": processor,
        "snapshot": lambda: snapshot(options.snapshot_seconds),
    }
    for name, measure in rows.items():
        if not options.only or name in options.only:
            measure()


if __name__ == "__main__":
    main()
