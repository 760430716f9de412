"""Contenders that take MQTT QoS 1 and store it: the daemon, aedes with better-sqlite3, mosquitto with batched paho."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.benchmarks.load import publish_qos1
from tests.benchmarks.mqtt_ingest import PAYLOAD, raw_inserts
from tests.benchmarks.suite.contest import Measure, Sample, UnavailableError, running, using
from tests.benchmarks.suite.paho_store import connect_patiently
from tests.daemon import Daemon, device_id, device_token, running_daemon
from tests.free_port import free_port

_NODE: Final = Path(__file__).parent / "node"
_INSTALL_SECONDS: Final = 900.0
_WARM_UP_SECONDS: Final = 1.0

_MOSQUITTO: Final = """
listener {port} 127.0.0.1
allow_anonymous true
max_queued_messages 0
max_inflight_messages 0
user root
{persistence}
"""
_PLUGIN: Final = "mosquitto_persist_sqlite.so"
_WITH_SQLITE: Final = """
plugin {}
plugin_opt_sync full
plugin_opt_flush_period 1
persistence_location {}
"""


def _published(port: int, devices: int, window: int, *processes: int, database: int | None = None) -> Measure:
    credentials = [(device_id(number), device_token(number)) for number in range(devices)]

    def measure(seconds: float) -> Sample:
        with using(*processes, database=database) as used:
            found = publish_qos1(port, credentials, PAYLOAD, window=window, seconds=seconds, warmup=_WARM_UP_SECONDS)
        taken = found.rate * (seconds + _WARM_UP_SECONDS)
        return used.of_each(found.rate, taken, p99_ms=found.percentile(0.99) * 1000)

    return measure


@contextmanager
def ours(devices: int, window: int, *, known: int = 0) -> Iterator[Measure]:
    """The daemon: each message is authenticated, normalised and committed before its acknowledgement.

    `known`: how many devices it has, if more than the senders.
    """
    number = max(devices, known)
    with TemporaryDirectory(dir="/var/tmp") as folder, running_daemon(Path(folder), devices=number) as daemon:
        yield of_daemon(daemon, devices, window)


def of_daemon(daemon: Daemon, devices: int, window: int, *, database: int | None = None) -> Measure:
    assert daemon.process is not None
    return _published(daemon.port("mqtt"), devices, window, daemon.process.pid, database=database)


@contextmanager
def aedes(devices: int, window: int) -> Iterator[Measure]:
    """Node's aedes, which commits a group of messages to better-sqlite3 before it acknowledges them."""
    with aedes_server() as (port, process):
        yield _published(port, devices, window, process)


@contextmanager
def aedes_server() -> Iterator[tuple[int, int]]:
    """Its port and its process."""
    node, npm = which("node"), which("npm")
    if node is None or npm is None:
        raise UnavailableError("node and npm are not installed")
    installed = Path(sys.prefix) / "npm" / "benchmarks"
    if not (installed / "node_modules").exists():
        installed.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            (installed / name).write_bytes((_NODE / name).read_bytes())
        try:
            # better-sqlite3 compiles itself where there is no binary for this Node.
            subprocess.run(
                [npm, "ci", "--no-audit", "--no-fund"],
                cwd=installed,
                check=True,
                capture_output=True,
                timeout=_INSTALL_SECONDS,
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise UnavailableError("npm could not install aedes and better-sqlite3") from error
    program = installed / "aedes.mjs"
    program.write_bytes((_NODE / "aedes.mjs").read_bytes())
    with TemporaryDirectory(dir="/var/tmp") as folder:
        command = [node, str(program), f"{folder}/store.sqlite"]
        with running(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise UnavailableError("aedes did not start")
            yield json.loads(line)["port"], process.pid


@contextmanager
def mosquitto(devices: int, window: int) -> Iterator[Measure]:
    """mosquitto acknowledges, then a paho subscriber stores in batches. The rate is that of the stored rows."""
    with TemporaryDirectory(dir="/var/tmp") as folder, mosquitto_server() as (port, broker):
        store = Path(folder) / "store.sqlite"
        command = [sys.executable, "-m", "tests.benchmarks.suite.paho_store", str(port), str(store)]
        with running(command, stdout=subprocess.PIPE) as keeper:
            assert keeper.stdout is not None
            if not keeper.stdout.readline():
                raise UnavailableError("the subscriber of mosquitto did not start")
            published = _published(port, devices, window, broker, keeper.pid)
            yield _as_stored(published, store)


@contextmanager
def mosquitto_with_sqlite(devices: int, window: int) -> Iterator[Measure]:
    """mosquitto stores messages for a subscriber that is away. It acknowledges at once, and commits once a second."""
    program = _mosquitto_program()
    # Beside a program that was unpacked, there are its plugins.
    [plugin] = [*Path(program).parents[1].glob(f"lib/*/mosquitto/{_PLUGIN}"), None][:1]
    if plugin is None:
        raise UnavailableError(f"the mosquitto that is installed has no {_PLUGIN}: it came with 2.1")
    with TemporaryDirectory(dir="/var/tmp") as folder, mosquitto_server(_WITH_SQLITE.format(plugin, folder)) as started:
        port, broker = started
        _keep_for_who_is_away(port)
        yield _published(port, devices, window, broker)


def _keep_for_who_is_away(port: int) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="keeper", clean_session=False)

    def subscribe(*_said: object) -> None:
        client.subscribe("/v1.1/messages/#", qos=1)

    def leave(*_said: object) -> None:
        client.disconnect()

    client.on_connect, client.on_subscribe = subscribe, leave
    connect_patiently(client, port)
    client.loop_forever()


def _mosquitto_program() -> str:
    program = which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise UnavailableError("mosquitto is not installed")
    return program


@contextmanager
def mosquitto_server(persistence: str = "persistence false") -> Iterator[tuple[int, int]]:
    """Its port and its process. It may not listen yet."""
    program = _mosquitto_program()
    with TemporaryDirectory(dir="/var/tmp") as folder:
        port, config = free_port(), Path(folder) / "mosquitto.conf"
        config.write_text(_MOSQUITTO.format(port=port, persistence=persistence), encoding="utf-8")
        with running([program, "-c", str(config)], stderr=subprocess.DEVNULL) as broker:
            yield port, broker.pid


def _as_stored(published: Measure, store: Path) -> Measure:
    """The rate at which rows came into the store, until all that was published is there or as long again has passed."""

    def measure(seconds: float) -> Sample:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            count: Callable[[], int] = lambda: connection.execute("SELECT count(*) FROM message").fetchone()[0]  # noqa: E731
            before, begin = count(), time.perf_counter()
            sample = published(seconds)
            wanted = before + sample.rate * (seconds + _WARM_UP_SECONDS)
            stored = count()
            while stored < wanted * 0.999 and time.perf_counter() - begin < 2 * (seconds + _WARM_UP_SECONDS):
                time.sleep(0.1)
                stored = count()
            rate = (stored - before) / (time.perf_counter() - begin)
        return Sample(rate, None, sample.cpu_us, sample.resident_mib, sample.written_bytes, sample.generator_share)

    return measure


@contextmanager
def raw_sqlite() -> Iterator[Measure]:
    """One thread that inserts the same rows, a thousand to a commit, and does nothing else."""

    def measure(seconds: float) -> Sample:
        with TemporaryDirectory(dir="/var/tmp") as folder:
            return Sample(raw_inserts(Path(folder), seconds))

    yield measure
