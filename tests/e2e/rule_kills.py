"""Kills a daemon with rules again and again, and compares what they sent with what the stored messages demand.

    python -m tests.e2e.rule_kills [--kills 200]

Each source has two rules: one sends an Action for each message with `state` true, the other one when a second has
passed without a message. Whatever was killed when: from the stored messages and their cts follows how many Actions
there must be, no fewer and no more. Both have alarms: that of the first one is cleared after two seconds without a
trigger, that of the second one by the next message. From the same messages follows when each was raised and cleared,
and how often the rule triggered in between.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, device_token

SOURCES = 3
_QUIET_MS = 1_000
_CLEAR_MS = 2_000
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
            alarm = {"severity": "info", "text": "Alarm"} | ({"clearAfter": _CLEAR_MS // 1000} if kind == 0 else {})
            rule = {"if": condition, "then": then, "alarm": alarm}
            made = client.post("/rules", json={"name": "Rule", "rule": rule})
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


#: When an alarm was raised and cleared, and how often its rule triggered in between.
_Alarm = tuple[int, int | None, int]


def _expected_alarms(client: httpx.Client) -> dict[str, list[_Alarm]]:
    """The alarms of each sink's rule, when two seconds have passed since the last message."""
    found = {}
    for source in range(SOURCES):
        messages = sorted(_pages(client, "/messages", sdid=device_id(source)), key=lambda message: message["mid"])
        rung: list[_Alarm] = []
        for at_ms in (message["cts"] for message in messages if message["data"]["state"]):
            if rung and at_ms < rung[-1][1]:
                rung[-1] = (rung[-1][0], at_ms + _CLEAR_MS, rung[-1][2] + 1)
            else:
                rung.append((at_ms, at_ms + _CLEAR_MS, 1))
        found[_sink(source, 0)] = rung
        times = [message["cts"] for message in messages]
        quiet: list[_Alarm] = [
            (before + _QUIET_MS, after, 1) for before, after in pairwise(times) if after - before >= _QUIET_MS
        ]
        found[_sink(source, 1)] = [*quiet, *((at_ms + _QUIET_MS, None, 1) for at_ms in times[-1:])]
    return found


def _found_alarms(client: httpx.Client, rules: dict[str, str]) -> dict[str, list[_Alarm]]:
    found = {}
    for sink, rule in rules.items():
        of_rule: list[_Alarm] = []
        offset, total = 0, 1
        while offset < total:
            query: dict[str, Any] = {"rid": rule, "offset": offset, "count": 100}
            page = client.get("/alarms", params=query).raise_for_status().json()
            of_rule += [(one["raisedOn"], one.get("clearedOn"), one["count"]) for one in page["data"]]
            offset, total = offset + 100, page["total"]
        found[sink] = sorted(of_rule, key=lambda one: one[0])
    return found


class Outcome(NamedTuple):
    """By sink: expected Actions, actual Actions, the rules' counts, and the alarms."""

    expected: dict[str, int]
    sent: dict[str, int]
    applied: dict[str, int]
    expected_alarms: dict[str, list[_Alarm]]
    alarms: dict[str, list[_Alarm]]


def run(folder: Path, kills: int) -> Outcome:
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
            expected_alarms = _expected_alarms(client)
            while (alarms := _found_alarms(client, rules)) != expected_alarms and time.monotonic() < deadline:
                time.sleep(0.1)
            applied = {
                sink: client.get(f"/rules/{rule}/executions").raise_for_status().json()["data"]["countApply"]
                for sink, rule in rules.items()
            }
        return Outcome(expected, sent, applied, expected_alarms, alarms)
    finally:
        daemon.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        expected, sent, _, expected_alarms, alarms = run(Path(folder), options.kills)
    missed = sum(max(0, expected[sink] - sent[sink]) for sink in expected)
    double = sum(max(0, sent[sink] - expected[sink]) for sink in expected)
    sys.stdout.write(f"{options.kills} kills, {sum(expected.values())} Actions: {missed} missed, {double} too many\n")
    wanted, found = (Counter((sink, one) for sink in of for one in of[sink]) for of in (expected_alarms, alarms))
    sys.stdout.write(
        f"{wanted.total()} alarms, each with its times and count: {(wanted - found).total()} missed,"
        f" {(found - wanted).total()} too many\n"
    )


if __name__ == "__main__":
    main()
