"""Cost of snapshots and rollups for the ingest of the whole daemon, and how soon all is as before after a large fleet.

    python -m tests.benchmarks.suite.projections serve --config FILE

is a daemon that makes the index of the log and adds no row to snapshots and rollups.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx

from broker.messages import room
from broker.messages.projections import Projector
from protocols.cli import main
from tests.benchmarks.load import publish_qos1
from tests.benchmarks.mqtt_ingest import PAYLOAD
from tests.benchmarks.suite import mqtt
from tests.benchmarks.suite.contest import Contender, Measure, Row, Sample
from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, device_token, running_daemon

#: Devices and messages of each in flight.
_FLEETS: Final = ((50, 20), (50, 1), (1000, 1), (5000, 1))
_ROUNDS: Final = 4
#: Each device is written every two million messages or every minute, and a turn has to have its part of that.
_TURN_SECONDS: Final = 10.0
_BUSY, _WINDOW = 50, 20
_QUIET: Final = 5_000
_BURST_SECONDS: Final = 2.0


def rows() -> Iterator[Row]:
    for devices, window in _FLEETS:
        contenders = {
            "Trunkline": partial(with_folds, devices, window),
            "without snapshots and rollups": partial(without_folds, devices, window),
        }
        yield Row(f"snapshots and rollups, {devices:,} x {window}", contenders, "0.9 of without", rounds=_ROUNDS)
    after: dict[str, Contender] = {
        f"Trunkline, right after {_QUIET:,} x 1": right_after,
        "before": partial(mqtt.ours, _BUSY, _WINDOW, known=_QUIET),
    }
    yield Row(f"{_BUSY} x {_WINDOW} right after {_QUIET:,} x 1", after, "0.8 of before, within 5 s")
    reads = {"right after 50 x 20": partial(snapshots, _BURST_SECONDS), "at rest": partial(snapshots, 0.0)}
    yield Row(f"ms until the snapshots of {_BUSY} devices are answered", reads, "20 ms")


# --- Without folds ---


class _IndexOnly(Projector):
    """The projector without snapshots and rollups. The folds of each device are loaded once, as usual."""

    async def _fold(self, rows: Any) -> None: ...

    def _expect_write(self, rows: Any) -> None: ...

    async def _note_position(self) -> None: ...


class _Daemon(Daemon):
    def start(self) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.suite.projections", "serve", "--config", str(self.config)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.wait_ready()


def _long(measure: Measure) -> Measure:
    return lambda seconds: measure(max(seconds, _TURN_SECONDS))


@contextmanager
def with_folds(devices: int, window: int) -> Iterator[Measure]:
    with mqtt.ours(devices, window) as measure:
        yield _long(measure)


@contextmanager
def without_folds(devices: int, window: int) -> Iterator[Measure]:
    with TemporaryDirectory(dir="/var/tmp") as folder:
        daemon = _Daemon(Path(folder) / "state")
        daemon.configure(devices=devices)
        daemon.start()
        try:
            yield _long(mqtt.of_daemon(daemon, devices, window))
        finally:
            daemon.stop()


# --- After a burst ---


def _publish(daemon: Daemon, devices: int, window: int, seconds: float) -> None:
    credentials = [(device_id(number), device_token(number)) for number in range(devices)]
    publish_qos1(daemon.port("mqtt"), credentials, PAYLOAD, window=window, seconds=seconds, warmup=0.0)


@contextmanager
def right_after() -> Iterator[Measure]:
    """A few busy devices, a second after the last message of thousands of others."""
    with TemporaryDirectory(dir="/var/tmp") as folder, running_daemon(Path(folder), devices=_QUIET) as daemon:
        busy = mqtt.of_daemon(daemon, _BUSY, _WINDOW)

        def measure(seconds: float) -> Sample:
            _publish(daemon, _QUIET, 1, seconds)
            return busy(seconds)

        yield measure


@contextmanager
def snapshots(burst_seconds: float) -> Iterator[Measure]:
    """The first answer, as the latency in milliseconds; the burst comes just before it."""
    with TemporaryDirectory(dir="/var/tmp") as folder, running_daemon(Path(folder), devices=_BUSY) as daemon:
        _publish(daemon, _BUSY, _WINDOW, _BURST_SECONDS)
        address = f"{daemon.base_url}/messages/snapshots"
        query = {"sdids": ",".join(device_id(number) for number in range(_BUSY))}
        with httpx.Client(headers=bearer(USER_TOKEN)) as client:

            def measure(_seconds: float) -> Sample:
                client.get(f"{daemon.base_url}/users/self").raise_for_status()  # connects, and has the token checked
                if burst_seconds:
                    _publish(daemon, _BUSY, _WINDOW, burst_seconds)
                begin = time.perf_counter()
                answer = client.get(address, params=query)
                milliseconds = (time.perf_counter() - begin) * 1000
                answer.raise_for_status()
                assert len(answer.json()["data"]) == _BUSY, answer.text[:200]
                return Sample(milliseconds)

            yield measure


if __name__ == "__main__":
    vars(room)["Projector"] = _IndexOnly
    main()
