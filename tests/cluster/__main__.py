"""python -m tests.cluster [--seconds 600] [--seed 1]: three nodes under every fault, and what the checker says.

Prints the table of tests/cluster/README.md in Markdown. The status is 1 when a rule does not hold.
"""

import argparse
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster.checker import Record, Tables, lost_and_twice, problems
from tests.cluster.faults import FAULTS, ONCE, Fault, promote
from tests.cluster.world import ClusterWorld, own_servers, running
from tests.postgresql import Server, programs

_HEAD = (
    "| Fault | Rounds | Acknowledged | Lost | Twice | Take-overs | Longest stall s"
    " | All go on after s (median, worst) |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--faults", nargs="+", default=(), help="words of faults: the others are left out")
    options = parser.parse_args()
    with (
        TemporaryDirectory(prefix="trunkline-cluster-") as folder,
        own_servers(Path("/var/tmp")) as (server, standby),  # noqa: S108
    ):
        with running(Path(folder), server, "store", options.seed, skewed=True) as world:
            waits = _run(world, options.seconds, options.faults, standby)
            tables = world.end()
        return _tell(world, tables, waits, options.seed)


def _chosen(chance: random.Random, words: list[str], standby: Server) -> Iterator[tuple[str, Fault]]:
    """Each of those that are made once, in between the others."""
    once: dict[str, Fault] = {
        **ONCE,
        "the database fails, a synchronous standby is promoted": partial(promote, standby=standby),
    }
    often = {name: weight for name, (weight, _) in FAULTS.items() if not words or any(word in name for word in words)}
    rest = [(name, fault) for name, fault in once.items() if not words or any(word in name for word in words)]
    number = 0
    while often or rest:
        number += 1
        if rest and (not often or number % 8 == 0):
            yield rest.pop(0)
        elif often:
            (name,) = chance.choices(list(often), list(often.values()))
            yield name, FAULTS[name][1]


def _run(world: ClusterWorld, seconds: float, words: list[str], standby: Server) -> list[tuple[str, float]]:
    """Faults one after the other; how long each client and each node took to go on after each."""
    until, waits = time.monotonic() + seconds, []
    for name, fault in _chosen(world.chance, words, standby):
        world.goes_on()
        time.sleep(world.chance.uniform(0.2, 1.5))
        if time.monotonic() > until:
            break
        print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr, flush=True)  # noqa: T201
        fault(world, name)
        waits.append((name, world.goes_on()))
    return waits


def _tell(world: ClusterWorld, tables: Tables, waits: list[tuple[str, float]], seed: int) -> int:
    record = world.record
    counts = lost_and_twice(record, tables, record.spans)
    print(f"{_machine()}, seed {seed}:\n\n{_HEAD}")  # noqa: T201
    for name in dict.fromkeys(span.name for span in record.spans):
        spans = [span for span in record.spans if span.name == name]
        all_, lost, twice = counts[name]
        times = sorted(wait for of, wait in waits if of == name)
        stall = max(world.stall(span.begun, span.ended + 2) for span in spans)
        moved = sum(_take_overs(record, span.begun, span.ended + 5) for span in spans)
        told = f"{times[len(times) // 2]:.1f}, {times[-1]:.1f}" if times else ""
        cells = (name, len(spans), f"{all_:,}", lost, twice, moved, f"{stall:.1f}", told)
        print(f"| {' | '.join(map(str, cells))} |")  # noqa: T201
    found = [*world.problems, *problems(record, tables)]
    print(  # noqa: T201
        f"\n{len(tables.rows):,} messages, {len(record.of('acknowledged')):,} acknowledged, {len(tables.effects):,}"
        f" effects of the rule, {len(tables.facts):,} facts, {sum(world.restarts.values())} restarts of nodes"
    )
    for one in found[:40]:
        print(one)  # noqa: T201
    print(f"{len(found)} problems")  # noqa: T201
    return 1 if found else 0


def _take_overs(record: Record, begun: float, ended: float) -> int:
    """How many connections went to another node."""
    last: dict[int, str] = {}
    moved = 0
    for one in record.of("connected"):
        moved += one.device in last and last[one.device] != one.node and begun <= one.at <= ended
        last[one.device] = one.node
    return moved


def _machine() -> str:
    told = subprocess.run([programs() / "postgres", "-V"], check=True, capture_output=True, text=True, timeout=60)
    machine = f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}"
    return f"{time.strftime('%Y-%m-%d')}, {machine}, PostgreSQL {told.stdout.split()[2]}"


if __name__ == "__main__":
    sys.exit(main())
