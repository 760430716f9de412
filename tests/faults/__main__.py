"""python -m tests.faults [--only postgresql] [--seed 1]: makes every fault and prints the tables in Markdown."""

import argparse
import importlib.util
import os
import platform
import random
import sqlite3
import subprocess
import sys
import time
from typing import Final

from tests.faults import sqlite, wear
from tests.faults.world import Row
from tests.postgresql import find_programs

_HEAD = (
    "| Fault | Store | Rounds | Acknowledged | Lost | Twice | Refused | Longest stall s"
    " | Next acknowledgement s (median, worst) | Clients see meanwhile | The operator sees |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)
#: The clients by the names of what connects them.
NAMES: Final = {"mqtt": "MQTT", "rest": "REST", "making": "new devices", "websocket": "WebSocket", "coap": "CoAP"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20, help="of each fault; ten times as many kills, 25 cuts")
    parser.add_argument("--backlog", type=int, default=500_000, help="rows at the stop")
    parser.add_argument("--wear-seconds", type=float, default=125.0, help="of each rate")
    parser.add_argument("--postgresql-rounds", type=int, default=5, help="of each fault over PostgreSQL")
    parser.add_argument("--only", choices=("sqlite", "postgresql", "wear"), help="a part")
    parser.add_argument("--faults", nargs="+", default=(), help="short names of faults: the others are left out")
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - the moments are random, and the same in every run
    print(f"{_machine()}:\n\n{_HEAD}", flush=True)  # noqa: T201
    wrong = 0
    if options.only in (None, "sqlite"):
        for row in sqlite.rows(options.rounds, chance, options.faults, backlog=options.backlog):
            wrong += row.lost + row.twice
            print(line_of(row, "SQLite"), flush=True)  # noqa: T201
    if options.only in (None, "postgresql") and _has_postgresql():
        from tests.faults import postgresql

        for row in postgresql.rows(options.postgresql_rounds, chance, options.faults):
            wrong += row.twice if row.said else row.lost + row.twice
            print(line_of(row, "PostgreSQL"), flush=True)  # noqa: T201
    if options.only == "wear" or not (options.only or options.faults):
        print(wear.table(options.wear_seconds), flush=True)  # noqa: T201
    return 1 if wrong else 0


def _has_postgresql() -> bool:
    return find_programs() is not None and importlib.util.find_spec("psycopg") is not None


def _machine() -> str:
    """The day, and what the figures depend on."""
    programs = [f"SQLite {sqlite3.sqlite_version}"]
    if (found := find_programs()) is not None:
        told = subprocess.run([found / "postgres", "-V"], check=True, capture_output=True, text=True, timeout=60)
        programs.append(f"PostgreSQL {told.stdout.split()[2]}")
    machine = f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}"
    return f"{time.strftime('%Y-%m-%d')}, {machine}, {', '.join(programs)}"


def line_of(row: Row, store: str) -> str:
    """Its line of the table."""
    times = sorted(row.recovery)
    told = f"{row.lost}; the daemon says {row.said} commits, {row.said_positions} positions"
    cells = (
        row.fault,
        store,
        row.rounds,
        f"{row.acknowledged:,}",
        told if row.said else row.lost,
        row.twice,
        f"{row.refused:,}",
        f"{row.stall:.2f}",
        f"{times[len(times) // 2]:.2f}, {times[-1]:.2f}",
        _seen_by_clients(row),
        row.seen,
    )
    return f"| {' | '.join(map(str, cells))} |"


def _seen_by_clients(row: Row) -> str:
    """For each answer, the protocols that had it."""
    protocols: dict[str, list[str]] = {}
    for one, _ in row.clients.most_common():
        protocol, _, what = one.partition(": ")
        protocols.setdefault(what, []).append(NAMES[protocol])
    return "; ".join(f"{what} ({', '.join(sorted(by))})" for what, by in protocols.items()) or "later answers"


if __name__ == "__main__":
    sys.exit(main())
