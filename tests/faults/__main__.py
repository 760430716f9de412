"""python -m tests.faults [--only postgresql] [--seed 1]: makes every fault and prints the tables in Markdown."""

import argparse
import importlib.util
import os
import platform
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults import rounds, wear
from tests.faults.rounds import Row
from tests.postgresql import find_programs

_HEAD = (
    "| Fault | Rounds | Acknowledged | Lost | Twice | Recovery s (median, worst) | What the operator sees |\n"
    "|---|---|---|---|---|---|---|"
)
_HEAD_OF_POSTGRESQL = (
    "| Fault | Rounds | Acknowledged | Lost | Twice | Refused | Longest stall s"
    " | First acknowledgement s (median, worst) | What the operator sees |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20, help="of each fault; ten times as many power cuts")
    parser.add_argument("--backlog", type=int, default=500_000, help="rows at the stop")
    parser.add_argument("--wear-seconds", type=float, default=125.0, help="of each rate")
    parser.add_argument("--postgresql-rounds", type=int, default=5, help="of each fault over PostgreSQL")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="the faults over one engine")
    parser.add_argument("--faults", nargs="+", default=(), help="the short names of those over PostgreSQL")
    options = parser.parse_args()
    wrong = 0
    if options.only != "postgresql":
        wrong += _over_sqlite(options)
    if options.only != "sqlite":
        wrong += _over_postgresql(options)
    return 1 if wrong else 0


def _over_sqlite(options: argparse.Namespace) -> int:
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
    print(f"{_machine()}, SQLite {sqlite3.sqlite_version}:\n\n{_HEAD}", flush=True)  # noqa: T201
    wrong = 0
    for fault in faults:
        with tempfile.TemporaryDirectory(prefix="trunkline-faults-") as folder:
            row = fault(Path(folder))
        wrong += row.lost + row.twice
        print(line_of(row), flush=True)  # noqa: T201
    print(wear.table(options.wear_seconds), flush=True)  # noqa: T201
    return wrong


def _over_postgresql(options: argparse.Namespace) -> int:
    if (programs := find_programs()) is None or importlib.util.find_spec("psycopg") is None:
        print("\nPostgreSQL: its server or psycopg is not installed", flush=True)  # noqa: T201
        return 0
    from tests.faults import postgresql

    version = subprocess.run([programs / "postgres", "-V"], check=True, capture_output=True, text=True, timeout=60)
    print(f"\n{_machine()}, {version.stdout.strip()}:\n\n{_HEAD_OF_POSTGRESQL}", flush=True)  # noqa: T201
    wrong = 0
    chance = random.Random(options.seed)  # noqa: S311 - as above
    for row in postgresql.rows(options.postgresql_rounds, chance, options.faults):
        wrong += row.twice if row.said else row.lost + row.twice
        told = f"{row.lost}; the daemon says {row.said} commits, {row.said_positions} positions"
        lost = told if row.said else row.lost
        cells = (row.fault, row.rounds, f"{row.acknowledged:,}", lost, row.twice, f"{row.refused:,}")
        print(f"| {' | '.join(map(str, cells))} | {row.stall:.2f} | {_recovery(row)} | {row.seen} |", flush=True)  # noqa: T201
    return wrong


def _machine() -> str:
    machine = f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}"
    return f"{time.strftime('%Y-%m-%d')}, {machine}"


def _recovery(row: Row) -> str:
    times = sorted(row.recovery)
    return f"{times[len(times) // 2]:.2f}, {times[-1]:.2f}"


def line_of(row: Row) -> str:
    recovery = _recovery(row)
    cells = (row.fault, row.rounds, f"{row.acknowledged:,}", row.lost, row.twice, recovery, row.seen)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
