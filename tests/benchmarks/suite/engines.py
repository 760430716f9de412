"""One node over PostgreSQL beside one over SQLite. Both wait for the same disk, and the server has durable settings.

Rows of messages say on which processor cores the daemon and the server are. The load generator is on the other one.
"""

import os
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final

from tests.benchmarks.load import publish_qos1
from tests.benchmarks.mqtt_ingest import PAYLOAD
from tests.benchmarks.mqtt_qos import connecting
from tests.benchmarks.suite import mqtt
from tests.benchmarks.suite.contest import Contender, Measure, Row, Sample, UnavailableError, using
from tests.benchmarks.suite.others import called
from tests.daemon import Daemon, command_output, device_id, device_token, running_daemon, write_world
from tests.postgresql import Server, find_programs

_DEVICES: Final = 50
_WINDOW: Final = 20
_WARM_UP_SECONDS: Final = 0.5
#: As operators have it: a commit waits for the disk.
_DURABLE: Final = ("fsync=on", "synchronous_commit=on", "full_page_writes=on", "shared_buffers=256MB")
_BESIDE: Final = "of over SQLite"
#: Requests of tests/benchmarks/rest.py.
_REQUESTS: Final = {
    "token": "PUT /devices/{did}/tokens",
    "post": "POST /messages",
    "show": "GET /devices/{did}",
    "range": "GET /messages, ten of a range",
    "last": "GET /messages/last, ten",
    "snapshots": "GET /messages/snapshots",
}

#: What is measured of a daemon and the first process of its server.
What = Callable[[Daemon, int | None], Measure]


def rows() -> Iterator[Row]:
    apart, together = ({0}, {1}), ({0}, {0})
    fleet = partial(_fleet, _DEVICES, _WINDOW)
    yield _row(f"{_DEVICES} x {_WINDOW}, PostgreSQL on the other core", fleet, f"0.8 {_BESIDE}", *apart)
    yield _row(f"{_DEVICES} x {_WINDOW}, PostgreSQL on the core of the daemon", fleet, f"0.6 {_BESIDE}", *together)
    yield _row("ms of a message, 1 in flight, PostgreSQL on the other core", _latency, f"at most 2 {_BESIDE}", *apart)
    yield _row("MQTT connects, over PostgreSQL", _connects)
    for what, name in _REQUESTS.items():
        yield _row(f"{name}, over PostgreSQL", partial(_requests, what))


def _row(
    name: str, what: What, goal: str = "", of_daemon: Set[int] = frozenset(), of_server: Set[int] = frozenset()
) -> Row:
    contenders: dict[str, Contender] = {
        "over PostgreSQL": partial(_over_postgresql, what, of_daemon, of_server),
        "over SQLite": partial(_over_sqlite, what, of_daemon),
    }
    return Row(name, contenders, goal)


@contextmanager
def _over_sqlite(what: What, cores: Set[int]) -> Iterator[Measure]:
    with TemporaryDirectory(dir="/var/tmp") as folder, ExitStack() as held:
        with _on(cores):
            daemon = held.enter_context(running_daemon(Path(folder), devices=_DEVICES))
        yield _beside(cores, what(daemon, None))


@contextmanager
def _over_postgresql(what: What, of_daemon: Set[int], of_server: Set[int]) -> Iterator[Measure]:
    if find_programs() is None:
        raise UnavailableError("PostgreSQL's server is not installed")
    with TemporaryDirectory(dir="/var/tmp") as folder, ExitStack() as held:
        with _on(of_server):
            server = held.enter_context(_server())
        settings = f'[storage]\nurl = "{server.url("store")}"\n'
        config, file = write_world(Path(folder) / "world", devices=_DEVICES, settings=settings)
        command_output("provision", file, "--config", config)
        daemon = Daemon(config.parent / "state", settings)
        with _on(of_daemon):
            daemon.start()
        held.callback(daemon.stop)
        process = int((server.data / "postmaster.pid").read_text(encoding="ascii").split()[0])
        yield _beside(of_daemon, what(daemon, process))


@contextmanager
def _server() -> Iterator[Server]:
    folder = Path(mkdtemp(prefix="trunkline-pg.", dir="/var/tmp"))
    with ExitStack() as held:
        held.callback(rmtree, folder, ignore_errors=True)
        server = Server(folder)
        server.make(*_DURABLE)
        server.start()
        held.callback(server.stop, "immediate")
        server.administration.execute("CREATE DATABASE store TEMPLATE template0")
        yield server


@contextmanager
def _on(cores: Set[int]) -> Iterator[None]:
    """What is started in the block stays on these processor cores; on all of them if none is named."""
    before = os.sched_getaffinity(0)
    if cores and len(before) < 2:
        raise UnavailableError("this machine has one processor core")
    os.sched_setaffinity(0, {sorted(before)[core] for core in cores} or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _beside(cores: Set[int], measure: Measure) -> Measure:
    """The load generator is on the core that the daemon is not on."""

    def measured(seconds: float) -> Sample:
        with _on({0, 1} - cores if cores else cores):
            return measure(seconds)

    return measured


def _fleet(devices: int, window: int, daemon: Daemon, database: int | None) -> Measure:
    return mqtt.of_daemon(daemon, devices, window, database=database)


def _latency(daemon: Daemon, database: int | None) -> Measure:
    """The median time until a message is acknowledged, of a device that sends one after the other."""
    assert daemon.process is not None
    process = daemon.process.pid

    def measure(seconds: float) -> Sample:
        with using(process, database=database) as used:
            found = publish_qos1(
                daemon.port("mqtt"),
                [(device_id(0), device_token(0))],
                PAYLOAD,
                window=1,
                seconds=seconds,
                warmup=_WARM_UP_SECONDS,
            )
        number = found.rate * (seconds + _WARM_UP_SECONDS)
        return used.of_each(found.percentile(0.5) * 1000, number, p99_ms=found.percentile(0.99) * 1000)

    return measure


def _connects(daemon: Daemon, database: int | None) -> Measure:
    assert daemon.process is not None
    return connecting(daemon.port("mqtt"), daemon.process.pid, database=database)


def _requests(what: str, daemon: Daemon, database: int | None) -> Measure:
    """Searches find the messages that the first turn has stored."""
    assert daemon.process is not None
    port, process = daemon.port("http"), daemon.process.pid
    called(port, process, "post")(_WARM_UP_SECONDS)
    return called(port, process, what, database=database)
