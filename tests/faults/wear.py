"""Bytes that the daemon writes in a day, compared with equally durable raw SQLite (/proc/PID/io, write_bytes)."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from tests.daemon import Daemon, running_daemon
from tests.faults.clients import mqtt

RATES: Final = (1, 10, 100)
_DAY: Final = 86_400
_MB: Final = 1_000_000
_RAW: Final = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=WAL"); db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE message (position INTEGER PRIMARY KEY, device, ts INTEGER, cts INTEGER, mv, data TEXT)")
db.execute("CREATE INDEX message_by_time ON message (device, ts)")
written = lambda: next(int(l.split()[1]) for l in open("/proc/self/io") if l.startswith("write_bytes"))
rate, seconds = float(sys.argv[2]), float(sys.argv[3])
before, begun, n = written(), time.monotonic(), 0
while (now := time.monotonic()) - begun < seconds:
    db.execute("INSERT INTO message VALUES (NULL, 1, ?, ?, 1, ?)", (n, n, '{"intensity":%d}' % n))
    n += 1
    time.sleep(max(0, begun + n / rate - time.monotonic()))
print(written() - before)
"""


def table(seconds: float) -> str:
    """The table in Markdown; all rates are measured at once for so long, and extrapolated.

    Snapshots and rollups are written once a minute: fewer than two minutes say little.
    """
    lines = ["\n| Messages a second | MB a day | raw SQLite | ratio |", "|---|---|---|---|"]
    with ThreadPoolExecutor(2 * len(RATES)) as pool:
        ours = pool.map(partial(_mb_a_day, _of_daemon, seconds), RATES)
        raw = pool.map(partial(_mb_a_day, _of_sqlite, seconds), RATES)
    lines += [
        f"| {rate} | {mine:,.0f} | {other:,.0f} | {mine / other:.1f} |"
        for rate, mine, other in zip(RATES, ours, raw, strict=True)
    ]
    return "\n".join(lines)


def _mb_a_day(measure: Callable[[Path, int, float], int], seconds: float, rate: int) -> float:
    with tempfile.TemporaryDirectory(prefix="trunkline-wear-", dir="/var/tmp") as folder:
        return measure(Path(folder), rate, seconds) / seconds * _DAY / _MB


def written(process: int) -> int:
    """The bytes that a process has caused to be written to the disk."""
    text = Path(f"/proc/{process}/io").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("write_bytes"))


def _of_daemon(folder: Path, rate: int, seconds: float) -> int:
    with running_daemon(folder, devices=rate) as daemon:  # a number of its own: no two threads make the same world
        return _sent(daemon, rate, seconds)


def _sent(daemon: Daemon, rate: int, seconds: float) -> int:
    if daemon.process is None:
        raise RuntimeError("the daemon does not run")
    with ExitStack() as held:
        exchange = mqtt(daemon, 0, held)
        exchange(0)
        before, begun, number = written(daemon.process.pid), time.monotonic(), 1
        while time.monotonic() - begun < seconds:
            exchange(number)
            number += 1
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        return written(daemon.process.pid) - before


def _of_sqlite(folder: Path, rate: int, seconds: float) -> int:
    command = [sys.executable, "-c", _RAW, str(folder / "raw.sqlite"), str(rate), str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30)
    return int(done.stdout)
