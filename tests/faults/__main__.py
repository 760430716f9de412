"""python -m tests.faults [--minutes 4] [--seed 1]: makes every fault and prints the table in Markdown."""

import argparse
import os
import platform
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults import rounds, wear
from tests.faults.rounds import Row

_HEAD = (
    "| Fault | Rounds | Acknowledged | Lost | Twice | Recovery s (median, worst) | What the operator sees |\n"
    "|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20, help="of each fault; ten times as many power cuts")
    parser.add_argument("--backlog", type=int, default=500_000, help="rows at the stop")
    parser.add_argument("--wear-seconds", type=float, default=125.0, help="of each rate")
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - the moments are random, and the same in every run
    some = options.rounds
    full = "`nothing_is_stored` once a minute, with what helps; 503; the status in systemd"
    broken = "`nothing_is_stored` once a minute; the watchdog restarts the daemon when it lasts"
    damaged = "`store_damaged` once an hour for each table"
    faults: list[Callable[[Path], Row]] = [
        lambda folder: rounds.killed(folder, some, chance),
        lambda folder: rounds.power_cuts(folder, some * 10, chance),
        lambda folder: rounds.failing(folder, some, chance, what="w", fault="full disk, then room again", seen=full),
        lambda folder: rounds.failing(folder, some, chance, what="s", fault="syncs that fail", seen=broken),
        lambda folder: rounds.failing(folder, some, chance, what="r", fault="reads that fail", seen=damaged),
        lambda folder: rounds.stopped_with_backlog(folder, options.backlog),
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}"
    machine += f", SQLite {sqlite3.sqlite_version}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}:\n\n{_HEAD}", flush=True)  # noqa: T201
    lost = 0
    for fault in faults:
        with tempfile.TemporaryDirectory(prefix="trunkline-faults-") as folder:
            row = fault(Path(folder))
        lost += row.lost + row.twice
        print(line_of(row), flush=True)  # noqa: T201
    print(wear.table(options.wear_seconds), flush=True)  # noqa: T201
    return 1 if lost else 0


def line_of(row: Row) -> str:
    times = sorted(row.recovery)
    recovery = f"{times[len(times) // 2]:.2f}, {times[-1]:.2f}"
    cells = (row.fault, row.rounds, f"{row.acknowledged:,}", row.lost, row.twice, recovery, row.seen)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
