"""Effect of an attack on an innocent client and on the daemon's memory: before, during, and five seconds after."""

import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from tests.benchmarks.websocket import resident_kib
from tests.daemon import USER_TOKEN, Daemon, device_id

#: One exchange of an innocent client on its own connection: returns when the answer has come, raises when none comes.
Exchange = Callable[[], None]

SLOWDOWN_ALLOWED = 3.0
GROWTH_ALLOWED_MIB = 64.0
RECOVERY_SECONDS = 5.0
PAUSE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Waits:
    """How long an innocent client waited for its answers, in seconds."""

    waits: tuple[float, ...]

    def percentile(self, share: float) -> float:
        """In milliseconds."""
        ordered = sorted(self.waits)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def __str__(self) -> str:
        return (
            f"{len(self.waits):>6} answers   p50 {1000 * statistics.median(self.waits):7.1f} ms"
            f"   p99 {self.percentile(0.99):7.1f} ms   max {1000 * max(self.waits):7.1f} ms"
        )


@dataclass(frozen=True, slots=True)
class Damage:
    """Effect of an attack. `beside`: the same attack on another process of this machine."""

    alone: Waits
    during: Waits
    after: Waits
    grown_mib: float
    kept_mib: float
    beside: Waits | None = None

    @property
    def slowdown(self) -> float:
        """p99 during the attack, divided by p99 before it."""
        return self.during.percentile(0.99) / self.alone.percentile(0.99)

    @property
    def is_bounded(self) -> bool:
        return (
            self.slowdown <= SLOWDOWN_ALLOWED
            and self.grown_mib <= GROWTH_ALLOWED_MIB
            and self.after.percentile(0.99) <= SLOWDOWN_ALLOWED * self.alone.percentile(0.99)
        )

    def show(self, name: str) -> None:
        print(f"{name}\n  alone  {self.alone}\n  during {self.during}\n  after  {self.after}")
        if self.beside is not None:
            share = self.during.percentile(0.99) / self.beside.percentile(0.99)
            print(f"  beside {self.beside}\n  p99 {share:.1f} times that while another process is attacked")
        verdict = "within bounds" if self.is_bounded else "OUT OF BOUNDS"
        print(
            f"  p99 {self.slowdown:.1f} times that alone, memory grew by {self.grown_mib:.0f} MiB and kept"
            f" {self.kept_mib:.0f} MiB: {verdict}",
            flush=True,
        )


def damage_of(
    daemon: Daemon,
    attack: Callable[[], None],
    *,
    seconds: float,
    attackers: int = 1,
    innocent: Callable[[Daemon], Exchange] | None = None,
    on_another: Callable[[], None] | None = None,
    pause: float = PAUSE_SECONDS,
) -> Damage:
    """Measure an innocent client before, during and `RECOVERY_SECONDS` after an attack.

    Args:
        attack: runs in a process of its own until it is ended from outside.
        seconds: how long to measure before and during the attack.
        attackers: how many processes run `attack`.
        innocent: opens the innocent client's connection; without it, one that reads a device over REST.
        on_another: the attack on another process, whose share of the processors an innocent client feels, too.
        pause: seconds from an answer to the next exchange.
    """
    connect = reads_a_device if innocent is None else innocent
    alone = waits_of(connect, daemon, seconds, pause)
    beside = None
    if on_another is not None:
        with running(on_another, attackers):
            beside = waits_of(connect, daemon, seconds, pause)
    memory = Memory(daemon)
    with memory.watched():
        with running(attack, attackers):
            during = waits_of(connect, daemon, seconds, pause)
        time.sleep(RECOVERY_SECONDS)
    after = waits_of(connect, daemon, seconds / 2, pause)
    return Damage(
        alone, during, after, memory.highest_mib - memory.first_mib, memory.now_mib() - memory.first_mib, beside
    )


@contextmanager
def running(attack: Callable[[], None], attackers: int) -> Iterator[None]:
    """Runs `attack` in processes of its own, and ends them."""
    processes = [multiprocessing.Process(target=_from_elsewhere, args=(attack,), daemon=True) for _ in range(attackers)]
    for process in processes:
        process.start()
    try:
        time.sleep(0.5)  # the attack gathers pace before the innocent client is measured
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _from_elsewhere(attack: Callable[[], None]) -> None:
    """Attackers have machines of their own: here they take what processors the daemon and its client leave."""
    os.nice(19)
    attack()


def reads_a_device(daemon: Daemon) -> Exchange:
    """GET /devices/{did} on one connection that is kept."""
    request = (
        f"GET /v1.1/devices/{device_id(0)} HTTP/1.1\r\nHost: localhost\r\nAuthorization: bearer {USER_TOKEN}\r\n\r\n"
    ).encode()
    connection = socket.create_connection(daemon.host_port("http"), timeout=30)

    def exchange() -> None:
        connection.sendall(request)
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]

    return exchange


def waits_of(
    connect: Callable[[Daemon], Exchange], daemon: Daemon, seconds: float, pause: float = PAUSE_SECONDS
) -> Waits:
    """The innocent client runs in a process of its own, so that it does not wait for Python code of the test."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_measure, args=(connect, daemon, seconds, pause, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        waits: list[float] = ours.recv()
    finally:
        process.join()
    return Waits(tuple(waits))


def _measure(
    connect: Callable[[Daemon], Exchange], daemon: Daemon, seconds: float, pause: float, report: Connection
) -> None:
    exchange, waits = connect(daemon), list[float]()
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        exchange()
        waits.append(time.perf_counter() - begin)
        time.sleep(pause)
    report.send(waits)


@dataclass
class Memory:
    """The daemon's resident memory, read twenty times a second."""

    daemon: Daemon
    first_mib: float = field(init=False)
    highest_mib: float = field(init=False)

    def __post_init__(self) -> None:
        self.first_mib = self.highest_mib = self.now_mib()

    def now_mib(self) -> float:
        assert self.daemon.process is not None
        return resident_kib(self.daemon.process.pid) / 1024

    @contextmanager
    def watched(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                self.highest_mib = max(self.highest_mib, self.now_mib())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
