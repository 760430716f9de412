"""Kills a daemon with rules again and again, and compares what they sent with what the stored messages demand.

    python -m tests.e2e.rule_kills [--kills 200]

Each source has two rules: one sends an Action for each message with `state` true, the other one when a second has
passed without a message. Whatever was killed when: from the stored messages and their cts follows how many Actions
there must be, no fewer and no more.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, device_token

SOURCES = 3
_QUIET_MS = 1_000
_DEADLINE_SECONDS = 60


class _Source(threading.Thread):
    """A device that sends messages with pauses, until the daemon is gone."""

    def __init__(self, daemon: Daemon, number: int, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._url, self._number, self._chance = daemon.base_url, number, chance

    def run(self) -> None:
        body = {"sdid": device_id(self._number), "data": {"state": True}}
        with httpx.Client(base_url=self._url, headers=bearer(device_token(self._number)), timeout=20) as client:
            try:
                while True:
                    body["data"] = {"state": self._chance.random() < 0.5, "intensity": 1}
                    client.post("/messages", json=body).raise_for_status()
                    time.sleep(self._chance.choice((0, 0, 0, 0.01, 0.1, 1.1)))
            except httpx.HTTPError:
                return  # the daemon was killed: that is the test


def _sink(source: int, kind: int) -> str:
    return device_id(SOURCES + 2 * source + kind)


def _make_rules(client: httpx.Client) -> dict[str, str]:
    """The id of each rule by its sink."""
    rules = {}
    for source in range(SOURCES):
        of_source = {"sdid": device_id(source), "operator": "="}
        quiet = {"value": _QUIET_MS / 1000, "acceptUpdate": False}
        conditions = (
            of_source | {"field": "state", "operand": {"value": True}},
            of_source | {"field": "intensity", "operand": {"value": 1}, "duration": quiet},
        )
        for kind, condition in enumerate(conditions):
            then = {"ddid": _sink(source, kind), "action": "setOn"}
            made = client.post("/rules", json={"name": "Rule", "rule": {"if": condition, "then": then}})
            rules[_sink(source, kind)] = made.raise_for_status().json()["data"]["id"]
    return rules


def _pages(client: httpx.Client, path: str, **parameters: Any) -> Iterator[dict[str, Any]]:
    query: dict[str, Any] = {"startDate": 0, "endDate": 1 << 50, "count": 100, **parameters}
    while True:
        page = client.get(path, params=query).raise_for_status().json()
        yield from page["data"]
        if "next" not in page:
            return
        query["offset"] = page["next"]


def _expected(client: httpx.Client) -> dict[str, int]:
    """How many Actions each sink must have got when a second has passed since the last message."""
    counts = {}
    for source in range(SOURCES):
        messages = sorted(_pages(client, "/messages", sdid=device_id(source)), key=lambda message: message["mid"])
        times = [message["cts"] for message in messages]
        counts[_sink(source, 0)] = sum(message["data"]["state"] for message in messages)
        quiet = sum(after - before >= _QUIET_MS for before, after in pairwise(times))
        counts[_sink(source, 1)] = quiet + bool(times)
    return counts


def _sent(client: httpx.Client) -> dict[str, int]:
    sinks = [_sink(source, kind) for source in range(SOURCES) for kind in range(2)]
    return {sink: sum(1 for _ in _pages(client, "/actions", ddid=sink)) for sink in sinks}


def run(folder: Path, kills: int) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Expected Actions, actual Actions, and the rules' counts, by sink."""
    chance = random.Random(20_261_122)  # noqa: S311 - the moments are random
    daemon = Daemon(folder / "state")
    daemon.configure(devices=3 * SOURCES)
    rules: dict[str, str] = {}
    for _ in range(kills):
        daemon.start()
        if not rules:
            with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=20) as client:
                rules = _make_rules(client)
        sources = [_Source(daemon, number, random.Random(chance.random())) for number in range(SOURCES)]  # noqa: S311
        for source in sources:
            source.start()
        time.sleep(chance.uniform(0.1, 1.5))
        daemon.kill()
        for source in sources:
            source.join(timeout=30)
    daemon.start()
    try:
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=20) as client:
            expected = _expected(client)
            deadline = time.monotonic() + _DEADLINE_SECONDS
            while (sent := _sent(client)) != expected and time.monotonic() < deadline:
                time.sleep(0.1)
            applied = {
                sink: client.get(f"/rules/{rule}/executions").raise_for_status().json()["data"]["countApply"]
                for sink, rule in rules.items()
            }
        return expected, sent, applied
    finally:
        daemon.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        expected, sent, _ = run(Path(folder), options.kills)
    missed = sum(max(0, expected[sink] - sent[sink]) for sink in expected)
    double = sum(max(0, sent[sink] - expected[sink]) for sink in expected)
    sys.stdout.write(f"{options.kills} kills, {sum(expected.values())} Actions: {missed} missed, {double} too many\n")


if __name__ == "__main__":
    main()
