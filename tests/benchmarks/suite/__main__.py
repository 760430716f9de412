"""Every throughput of the daemon beside what others reach on the same machine in the same minutes: make bench.

    python -m tests.benchmarks.suite [--rounds 3] [--seconds 4] [--only WORD] [--growth MESSAGES ...]

Each row has the daemon and its references. All of a row take turns, so ratios hold where rates move. `--growth` adds
rows for stores of these sizes in messages, which take a minute to build for each ten million, and for more types, users
and subscribers.
"""

import argparse
import os
import platform
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from tests.benchmarks.suite import connections, engines, mqtt, nats, others, projections
from tests.benchmarks.suite import growth as grown
from tests.benchmarks.suite.contest import Contender, Outcome, Row, compete, table
from tests.faults import wear

#: Devices, messages of each in flight, and the goal beside aedes.
_FLEETS: Final = ((50, 20, "1.5"), (50, 1, "0.9"), (1000, 1, "0.9"), (5000, 1, "0.6"))
_LONG_WAY: Final = "the same by Hypercorn and Quart"
#: Requests of tests/benchmarks/rest.py with their goals. Searches find what `post` has stored.
_REQUESTS: Final = {
    "post": ("POST /messages", "8 k/s"),
    "show": ("GET /devices/{did}", ""),
    "range": ("GET /messages, ten of a range", f"3 of {_LONG_WAY}"),
    "last": ("GET /messages/last, ten", f"3 of {_LONG_WAY}"),
    "snapshots": ("GET /messages/snapshots", f"3 of {_LONG_WAY}"),
}


def rows(growth: Sequence[int]) -> Iterator[Row]:
    for devices, window, goal in _FLEETS:
        contenders: dict[str, Contender] = {
            "Trunkline": partial(mqtt.ours, devices, window),
            "aedes and better-sqlite3": partial(mqtt.aedes, devices, window),
            "mosquitto and paho in batches (stored)": partial(mqtt.mosquitto, devices, window),
            "mosquitto 2.1 and its SQLite persistence": partial(mqtt.mosquitto_with_sqlite, devices, window),
            "NATS JetStream, sync_interval: always": partial(nats.jetstream, devices, window),
        }
        if window > 1:
            contenders |= {"raw SQLite": mqtt.raw_sqlite}
        yield Row(f"MQTT QoS 1, {devices:,} devices, {window} in flight", contenders, f"{goal} of aedes")
    yield Row(
        "WebSocket, 50 devices, 20 in flight",
        {"Trunkline": others.websocket_of_ours, "trio echo (stores nothing)": others.trio_echo},
        "60 k/s",
    )
    yield Row("frames to each of 10 subscribers", {"Trunkline": others.fan_out}, "80 k/s")
    for what, (name, goal) in _REQUESTS.items():
        contenders = {
            "Trunkline": partial(others.rest_of_ours, what),
            _LONG_WAY: partial(others.rest_the_long_way, what),
        }
        if what in {"post", "show"}:  # it answers as many bytes as these calls
            contenders |= {"Hypercorn and Quart (store nothing)": partial(others.bare_hypercorn, what)}
        yield Row(name, contenders, goal)
    for window in (1, 20):
        yield Row(
            f"CoAP, 50 devices, {window} in flight",
            {
                "Trunkline": partial(others.coap_of_ours, window),
                "aiocoap (stores nothing)": partial(others.aiocoap_server, window),
            },
            "5 of aiocoap, p99 15 ms",
        )
    yield from connections.rows()
    yield from projections.rows()
    yield from engines.rows()
    if growth:
        yield from grown.rows(growth)


def _machine() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {commit.stdout.strip() or 'no repository'},"
        f" {os.cpu_count()} processors, {platform.machine()}, Linux {platform.release()},"
        f" Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
        f" load {os.getloadavg()[0]:.1f} at the start"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--only", default="", help="only rows whose names have this text")
    parser.add_argument(
        "--wear-seconds",
        type=float,
        default=0.0,
        help="also measure for so long what a day writes to the disk; snapshots are written once a minute",
    )
    parser.add_argument(
        "--growth", type=int, nargs="*", default=[], help="rows for these numbers of stored messages, and more"
    )
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    machine, outcomes = _machine(), list[Outcome]()
    for row in rows(options.growth):
        if options.only.lower() in row.name.lower():
            outcome = compete(row, rounds=options.rounds, seconds=options.seconds, told=_tell)
            outcomes.append(outcome)
    print(f"{machine}; {options.rounds} rounds of {options.seconds:g} s\n\n{table(outcomes)}")
    if options.wear_seconds:
        print(wear.table(options.wear_seconds))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
