"""An import and a deletion go on after kills: each line is one message, and what is left is counted as it is."""

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx

from tests.daemon import USER_TOKEN, Daemon, bearer, device_id
from tests.properties import in_ci

_LINES = 1_000
_STEP_MS = 40_000
_START_MS = 1_500_000_000_000 - 1_500_000_000_000 % 86_400_000
_DEVICE = device_id(0)
_KILLS = 1


def _client(daemon: Daemon) -> httpx.Client:
    return httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30)


def _killed_while_it_goes_on(daemon: Daemon, path: str, member: str, chance: random.Random) -> int:
    """Kill the daemon while `member` of the status grows, and start it again, until it has ended; how many messages
    were stored in between."""
    sent = 0
    for number in range(_KILLS + 1):
        with _client(daemon) as client:
            before = None
            grow = chance.randrange(1, _LINES // (_KILLS + 2))
            for _ in range(3_000):
                state: dict[str, Any] = client.get(path).raise_for_status().json()["data"]
                if "endedOn" in state:
                    return sent
                before = state[member] if before is None else before
                if number < _KILLS and state[member] >= before + grow:
                    break
                if member == "deleted":  # the device goes on sending, with times in the range
                    body = {"sdid": _DEVICE, "ts": _START_MS + chance.randrange(86_400_000), "data": {"intensity": 7}}
                    client.post("/messages", json=body).raise_for_status()
                    sent += 1
            else:
                raise AssertionError(f"{path} does not end: {state}")
        daemon.kill()
        daemon.start()
    raise AssertionError("unreachable")


def stored_of(client: httpx.Client) -> list[tuple[int, int]]:
    """Time and value of each message."""
    found = list[tuple[int, int]]()
    parameters = {"sdid": _DEVICE, "startDate": "0", "endDate": str(1 << 60), "count": "100"}
    while True:
        page = client.get("/messages", params=parameters).raise_for_status().json()
        found += [(one["ts"], one["data"]["intensity"]) for one in page["data"]]
        if "next" not in page:
            return found
        parameters["offset"] = page["next"]


def check_counts(client: httpx.Client, stored: list[tuple[int, int]]) -> None:
    """The rollups say the same as the messages."""
    for interval, width, number in (("minute", 60_000, 60), ("hour", 3_600_000, 24), ("day", 86_400_000, 2)):
        end = _START_MS + width * number
        buckets = defaultdict[int, list[int]](list)
        for ts, value in stored:
            buckets[ts - ts % width].append(value)
        query: dict[str, str | int] = {
            "sdid": _DEVICE,
            "field": "intensity",
            "interval": interval,
            "startDate": _START_MS,
            "endDate": end,
        }
        told = client.get("/messages/analytics/histogram", params=query).raise_for_status().json()["data"]
        assert {one["ts"]: (one["count"], one["min"], one["max"], one["sum"]) for one in told} == {
            start: (len(values), min(values), max(values), sum(values))
            for start, values in buckets.items()
            if start < end
        }
    (snapshot,) = client.get("/messages/snapshots", params={"sdids": _DEVICE}).raise_for_status().json()["data"]
    assert snapshot["data"]["intensity"] == {"ts": stored[-1][0], "value": stored[-1][1]}


@in_ci
def test_an_import_and_a_deletion_go_on_after_kills(tmp_path: Path) -> None:
    chance = random.Random(20_261_127)  # noqa: S311 - the same in every run
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=1)
    times = range(_START_MS, _START_MS + _LINES * _STEP_MS, _STEP_MS)
    table = "time,intensity\n" + "".join(f"{ts},{number % 90}\n" for number, ts in enumerate(times))
    daemon.start()
    try:
        with _client(daemon) as client:
            answer = client.post(
                "/messages/import", params={"sdid": _DEVICE}, content=table, headers={"Content-Type": "text/csv"}
            ).raise_for_status()
        _killed_while_it_goes_on(daemon, f"/messages/import/{answer.json()['data']['id']}/status", "stored", chance)
        with _client(daemon) as client:
            state = client.get("/messages/import/history").json()["data"]["imports"][0]
            assert (state["status"], state["stored"] + state["present"], state["wrong"]) == ("Success", _LINES, 0)
            stored = stored_of(client)
            assert Counter(stored) == Counter((ts, number % 90) for number, ts in enumerate(times))
            check_counts(client, stored)
            first, last = _START_MS + 3_000_000, _START_MS + (_LINES - 9) * _STEP_MS
            chosen: dict[str, str | int] = {"sdid": _DEVICE, "startDate": first, "endDate": last}
            asked = client.delete("/messages", params=chosen).raise_for_status().json()["data"]
        sent = _killed_while_it_goes_on(daemon, f"/messages/deletions/{asked['id']}", "deleted", chance)
        with _client(daemon) as client:
            stored = stored_of(client)
            assert len(stored) == sent + sum(not first <= ts <= last for ts in times)
            check_counts(client, stored)
    finally:
        assert daemon.stop() == 0
