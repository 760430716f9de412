"""The faults: each makes rounds on a daemon of its own and returns one line of the table."""

import os
import random
import shutil
import sqlite3
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Final

from storage.engines import engine_at
from tests.daemon import Daemon, device_id
from tests.faults.clients import PROTOCOLS, Counting, rest
from tests.stores import make_index

_SHIM: Final = Path(__file__).with_name("shim.c")
_DEVICES: Final = len(PROTOCOLS) * 2
_COAP: Final = '[coap]\nbind = "127.0.0.1:0"\n'


@dataclass
class Row:
    """One line of the table."""

    fault: str
    seen: str  # what the operator sees
    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0
    twice: int = 0
    recovery: list[float] = field(default_factory=list)
    stall: float = 0.0  # the longest, in seconds, of the faults over PostgreSQL
    refused: int = 0
    #: Of a server that has lost commits: how many of them, and how many positions, the daemon says. It is not at fault.
    said: int = 0
    said_positions: int = 0


class Fleet:
    """Devices on every protocol, over many starts of one daemon, and what they know to be acknowledged."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.acknowledged: set[tuple[int, int]] = set()
        self._last = [0] * _DEVICES
        self._clients: list[Counting] = []
        self.noted: Callable[[int, int], None] = lambda _device, _number: None

    def begin(self) -> None:
        self._clients = [
            Counting(self.daemon, device, self._last[device], noted=self._note) for device in range(_DEVICES)
        ]
        for client in self._clients:
            client.start()

    def _note(self, device: int, number: int) -> None:
        self.acknowledged.add((device, number))
        self.noted(device, number)

    def wait_for(self, more: int) -> None:
        """Wait until `more` further messages are acknowledged."""
        until, deadline = len(self.acknowledged) + more, time.monotonic() + 30
        while len(self.acknowledged) < until:
            if time.monotonic() > deadline:
                raise TimeoutError("no acknowledgements")
            time.sleep(0.002)

    def end(self) -> int:
        """Wait for the devices; return how many were refused or lost their connection."""
        for client in self._clients:
            client.stop = True
        for client in self._clients:
            client.join(timeout=30)
        self._last = [client.last for client in self._clients]
        return sum(client.last not in client.acknowledged for client in self._clients)


def stored(database: Path) -> Counter[tuple[int, int]]:
    """How often each message of the fleet is in a store that no daemon uses."""
    with closing(sqlite3.connect(database)) as db:
        found = db.execute(
            "SELECT d.id, json_extract(m.data, '$.intensity') FROM message AS m JOIN device AS d ON d.key = m.device"
        ).fetchall()
    numbers = {device_id(number): number for number in range(_DEVICES)}
    return Counter((numbers[id_], number) for id_, number in found)


def compare(row: Row, acknowledged: set[tuple[int, int]], database: Path) -> None:
    found = stored(database)
    row.lost += len(acknowledged - found.keys())
    row.twice += sum(count > 1 for (_, number), count in found.items() if number)  # 0: see _stores_again


@contextmanager
def fleet_of(folder: Path, settings: str = "") -> Iterator[Fleet]:
    with (folder / "log").open("a", encoding="utf-8") as log:
        daemon = Daemon(folder / "state", settings + _COAP, log=log)
        daemon.configure(devices=_DEVICES)
        try:
            yield Fleet(daemon)
        finally:
            daemon.stop()


def killed(folder: Path, rounds: int, chance: random.Random) -> Row:
    row = Row("kill -9 under load, MQTT, REST, WebSocket, CoAP", "systemd restarts the daemon", rounds)
    with fleet_of(folder) as fleet:
        fleet.daemon.start()
        for _ in range(rounds):
            fleet.begin()
            fleet.wait_for(chance.randint(20, 400))
            fleet.daemon.kill()
            fleet.end()
            row.recovery.append(_started(fleet.daemon))
        fleet.daemon.stop()
        row.acknowledged = len(fleet.acknowledged)
        compare(row, fleet.acknowledged, fleet.daemon.state / "store.sqlite")
    return row


def _started(daemon: Daemon) -> float:
    before = time.monotonic()
    daemon.start()
    return time.monotonic() - before


def _stores_again(daemon: Daemon) -> float:
    """The seconds until a message is acknowledged. Device 1 of the fleet uses REST, too: it sends a 0 more."""
    begun = time.monotonic()
    while time.monotonic() - begun < 30:
        with suppress(OSError, HTTPException), ExitStack() as held:
            if rest(daemon, 1, held)(0):
                return time.monotonic() - begun
    raise TimeoutError("nothing is stored")


@contextmanager
def shimmed(folder: Path, **variables: str) -> Iterator[None]:
    """Daemons that start within the block have the shim; the variables configure it."""
    library = folder / "shim.so"
    compiler = shutil.which("cc") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SHIM, "-ldl"], check=True, timeout=60)
    given = {"LD_PRELOAD": str(library), **variables}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def failing(folder: Path, rounds: int, chance: random.Random, *, what: str, fault: str, seen: str) -> Row:
    """The disk refuses what `what` names, then takes it again, while the daemon runs."""
    row = Row(fault, seen, rounds)
    control = folder / "control"
    control.write_text(" ")
    with fleet_of(folder) as fleet:
        with shimmed(folder, FAULTS_CONTROL=str(control)):
            fleet.daemon.start()
        for _ in range(rounds):
            fleet.begin()
            fleet.wait_for(chance.randint(20, 200))
            control.write_text(what)
            time.sleep(chance.uniform(0.05, 0.3))
            control.write_text(" ")
            row.recovery.append(_stores_again(fleet.daemon))
            fleet.end()
        fleet.daemon.stop()
        row.acknowledged = len(fleet.acknowledged)
        compare(row, fleet.acknowledged, fleet.daemon.state / "store.sqlite")
    return row


@dataclass(frozen=True, slots=True)
class _Step:
    kind: str
    file: str
    offset: int
    content: bytes


def power_cuts(folder: Path, rounds: int, chance: random.Random, *, messages: int = 3_000) -> Row:
    """Replay what the daemon wrote up to a random moment. Of what was not synced, a random part is on the disk."""
    row = Row("power cut, replayed from the order of writes and syncs", "one line when the log was cut", rounds)
    record = folder / "record"
    marks: list[tuple[int, tuple[int, int]]] = []
    with fleet_of(folder) as fleet:
        shutil.copytree(fleet.daemon.state, folder / "before")
        fleet.noted = lambda device, number: marks.append((record.stat().st_size, (device, number)))
        with shimmed(folder, FAULTS_RECORD=str(record)):
            fleet.daemon.start()
        fleet.begin()
        fleet.wait_for(messages)
        fleet.end()
        fleet.daemon.kill()
    steps = list(_steps(record.read_bytes()))
    row.acknowledged = len(marks)
    for _ in range(rounds):
        cut = chance.randrange(steps[-1][0])
        image = folder / "image"
        shutil.rmtree(image, ignore_errors=True)
        shutil.copytree(folder / "before", image)
        _replay([step for end, step in steps if end <= cut], image, chance)
        before = time.monotonic()
        compare(row, {one for end, one in marks if end <= cut}, image / "store.sqlite")
        row.recovery.append(time.monotonic() - before)
    return row


def _steps(data: bytes) -> Iterator[tuple[int, _Step]]:
    at = 0
    while at + 18 <= len(data):
        offset, size = struct.unpack("=qq", data[at + 2 : at + 18])
        end = at + 18 + size
        yield end, _Step(chr(data[at]), chr(data[at + 1]), offset, data[at + 18 : end])
        at = end


def _replay(steps: list[_Step], image: Path, chance: random.Random) -> None:
    paths = {"d": image / "store.sqlite", "l": image / "store.sqlite-wal"}
    synced = {
        name: max((i for i, s in enumerate(steps) if (s.kind, s.file) == ("S", name)), default=-1) for name in paths
    }
    for path in paths.values():
        path.touch()
    with paths["d"].open("r+b") as store, paths["l"].open("r+b") as log:
        files = {"d": store, "l": log}
        for index, step in enumerate(steps):
            if step.kind == "S" or (index > synced[step.file] and chance.random() < 0.5):
                continue
            if step.kind == "T":
                files[step.file].truncate(step.offset)
                continue
            content = step.content
            if index > synced[step.file] and chance.random() < 0.2:  # a part of the write: whole sectors
                content = content[: chance.randrange(len(content) // 512 + 1) * 512]
            files[step.file].seek(step.offset)
            files[step.file].write(content)


def stopped_with_backlog(folder: Path, rows: int) -> Row:
    """SIGTERM while `rows` rows wait for the snapshots and rollups."""
    row = Row(f"SIGTERM with a backlog of {rows:,} rows", "nothing; the next start goes on", 1)
    with fleet_of(folder) as fleet:
        fleet.daemon.start()
        fleet.daemon.stop()
        _fill(fleet.daemon.state / "store.sqlite", rows)
        fleet.daemon.start()
        time.sleep(1)
        before = time.monotonic()
        if fleet.daemon.stop() != 0:
            raise RuntimeError("the daemon did not stop by itself")
        row.recovery.append(time.monotonic() - before)
    return row


def _fill(database: Path, rows: int) -> None:
    with closing(sqlite3.connect(database)) as db, db:
        keys = [key for (key,) in db.execute("SELECT key FROM device ORDER BY key")]
        now_ms = time.time_ns() // 1_000_000
        db.executemany(
            "INSERT INTO message (position, device, ts, cts, mv, data) VALUES (?, ?, ?, ?, 1, ?)",
            (
                (n, keys[n % len(keys)], now_ms - rows + n, now_ms - rows + n, f'{{"intensity":{n}}}')
                for n in range(1, rows + 1)
            ),
        )
        db.execute("INSERT OR REPLACE INTO counter (name, value) VALUES ('head', ?)", (rows,))
    make_index(engine_at(str(database)))
