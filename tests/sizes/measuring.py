"""Seconds and memory of a process, and how long an innocent waits meanwhile."""

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread

import httpx

from tests.daemon import TRUNKLINE, Daemon, bearer, device_id, device_token

_PAUSE_SECONDS = 0.005
_LOOK_SECONDS = 0.02


def peak_mib(pid: int) -> float:
    """The most memory that a process has had since `forget_peak`, resident."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


@dataclass
class Command:
    """What a command took. `status`: its exit status."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    status: int


def run(*arguments: str | Path) -> Command:
    """Run `trunkline` to its end."""
    begin, peak, used = time.perf_counter(), 0.0, 0.0
    process = subprocess.Popen([TRUNKLINE, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            with suppress(OSError, StopIteration):  # it has just ended
                peak, used = max(peak, peak_mib(process.pid)), cpu_seconds(process.pid)
            time.sleep(_LOOK_SECONDS)
    finally:
        process.kill()
    return Command(time.perf_counter() - begin, used, peak, process.returncode)


@dataclass
class Innocent:
    """A device that sends a message over HTTP, and reads its latest ones, again and again."""

    daemon: Daemon
    number: int = 1
    times: list[float] = field(default_factory=list)  # in ms
    _ended: Event = field(default_factory=Event)

    @contextmanager
    def at_work(self) -> Iterator[list[float]]:
        """The times of what it does meanwhile."""
        self.times = []
        self._ended.clear()
        thread = Thread(target=self._work)
        thread.start()
        try:
            yield self.times
        finally:
            self._ended.set()
            thread.join()

    def _work(self) -> None:
        name, headers = device_id(self.number), bearer(device_token(self.number))
        with httpx.Client(base_url=self.daemon.base_url, headers=headers, timeout=60) as client:
            calls = (
                partial(client.post, "/messages", json={"sdid": name, "data": {"temperature": 21.5}}),
                partial(client.get, "/messages/last", params={"sdids": name, "count": 10}),
            )
            while not self._ended.wait(_PAUSE_SECONDS):
                for call in calls:
                    begin = time.perf_counter()
                    call().raise_for_status()
                    self.times.append((time.perf_counter() - begin) * 1000)

    def quiet(self, seconds: float) -> list[float]:
        """Its times while nothing else happens."""
        with self.at_work() as times:
            time.sleep(seconds)
        return times


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] if len(times) > 1 else float("nan")
