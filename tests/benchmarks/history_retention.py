"""Retention on a generated store: how fast it deletes, and its cost for concurrent senders and readers.

    python -m tests.benchmarks.history_retention [--messages 10000000] [--seconds 10] [--folder DIR]

The same load and the same questions run three times: with nothing to delete, while the sweep deletes, and while it
deletes without any senders. Read the ratios of the second to the first.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import trio

from protocols.control.client import send_command
from tests.benchmarks.history import DAY_MS, Questions
from tests.benchmarks.history_store import DEVICES, build
from tests.benchmarks.load import publish_qos1
from tests.benchmarks.mqtt_ingest import PAYLOAD
from tests.daemon import Daemon, device_id, device_token

_SENDERS = 50
_WINDOW = 20
_RETENTION_DAYS = 15  # of a year of one device, a month of another, and half a day of the others


@contextmanager
def running(daemon: Daemon, *, retention_days: int) -> Iterator[Daemon]:
    daemon.settings = f"[storage]\nretention_days = {retention_days}\n"
    daemon.configure(devices=DEVICES)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


class Asker:
    """Asks two questions in turn, all the time, from a thread."""

    def __init__(self, daemon: Daemon) -> None:
        self._questions = Questions(daemon, rounds=1)
        self._ended = Event()
        self._thread = Thread(target=self._ask)
        self.times: list[float] = []

    def __enter__(self) -> "Asker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        now = self._questions.now
        month = {"startDate": now - 31 * DAY_MS + 90_000, "endDate": now}
        ask = (
            partial(self._questions.get, "/messages/analytics/aggregates", field="temperature"),
            partial(self._questions.get, "/messages", order="desc"),
        )
        while not self._ended.is_set():
            for question in ask:
                begin = time.perf_counter()
                question(sdid=device_id(0), **month)
                self.times.append((time.perf_counter() - begin) * 1000)

    def __str__(self) -> str:
        percentiles = statistics.quantiles(self.times, n=100)
        return f"answers p50 {percentiles[49]:6.1f} ms, p99 {percentiles[98]:6.1f} ms, max {max(self.times):6.1f} ms"


def deleted(daemon: Daemon) -> int:
    parts: Any = trio.run(send_command, daemon.state, "statistics", {})
    return int(parts["retention"]["deleted_messages"])


def measure(daemon: Daemon, what: str, seconds: float, *, sending: bool) -> None:
    port, before, begin = daemon.port("mqtt"), deleted(daemon), time.perf_counter()
    credentials = [(device_id(number), device_token(number)) for number in range(_SENDERS)]
    sent = "nobody sends"
    with Asker(daemon) as asker:
        if sending:
            result = publish_qos1(port, credentials, PAYLOAD, window=_WINDOW, seconds=seconds)
            sent = f"{result.rate:8,.0f} msg/s, p99 {result.percentile(0.99) * 1000:6.1f} ms"
        else:
            time.sleep(seconds)
    rate = (deleted(daemon) - before) / (time.perf_counter() - begin)
    print(f"  {what:<26} {sent:<34} {asker}   deleted {rate:8,.0f}/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, default=None, help="where the store goes; needs 3 GB for 10 M messages")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        daemon = build(folder, options.messages)
        print(f"{options.messages:,} messages")
        with running(daemon, retention_days=0):
            measure(daemon, "nothing to delete", options.seconds, sending=True)
        with running(daemon, retention_days=_RETENTION_DAYS):
            measure(daemon, "deleting", options.seconds, sending=True)
            measure(daemon, "deleting, nobody sends", options.seconds, sending=False)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
