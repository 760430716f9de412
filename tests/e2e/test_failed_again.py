"""Failed messages that are read again with a new Manifest are stored once, when the daemon is killed at it."""

import json
import time
from pathlib import Path

import httpx

from tests.daemon import LIGHT_TYPE, USER_TOKEN, Daemon, bearer, command_output, device_id
from tests.e2e.test_kill import stored_counts
from tests.properties import in_ci

BATCHES, BATCH = 2, 1_000
SECONDS = 30


def failures(client: httpx.Client) -> int:
    page = client.get(f"/devices/{device_id(0)}/failures", params={"count": "1"}).raise_for_status().json()
    return int(page["total"])


def wait_for_fewer(client: httpx.Client, number: int) -> None:
    ends = time.monotonic() + SECONDS
    while failures(client) >= number:
        assert time.monotonic() < ends, "nothing was read again"


@in_ci
def test_each_is_stored_once_after_kills(tmp_path: Path) -> None:
    daemon, number = Daemon(tmp_path / "state"), BATCHES * BATCH
    daemon.configure(devices=1)
    daemon.start()
    manifest = tmp_path / "manifest.json"
    lux = [{"name": name, "valueClass": "Integer"} for name in ("intensity", "lux")]
    manifest.write_text(
        json.dumps({"fields": lux[:1], "transform": {"format": "json", "expression": "{intensity: lux}"}})
    )
    with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=SECONDS) as client:
        for first in range(0, number, BATCH):
            entries = [
                {"sdid": device_id(0), "ts": at, "data": {"lux": at}} for at in range(first + 1, first + BATCH + 1)
            ]
            done = client.post("/messages/batch", json={"messages": entries}).raise_for_status().json()["data"]
            assert (done["stored"], done["refused"]) == (BATCH, 0)
        assert failures(client) == number
        command_output("type", "upload", LIGHT_TYPE, manifest, "--approve", "--config", daemon.config)
        wait_for_fewer(client, number)
    daemon.kill()
    daemon.start()
    try:
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=SECONDS) as client:
            wait_for_fewer(client, 1)
            assert set(stored_counts(daemon, 0).items()) == {(at, 1) for at in range(1, number + 1)}
            query = {"sdid": device_id(0), "startDate": "5", "endDate": "7"}
            found = client.get("/messages", params=query).raise_for_status().json()["data"]
            assert [(one["ts"], one["data"]["intensity"]) for one in found] == [(5, 5), (6, 6), (7, 7)]
        line = f"Manifest 2: {number} of {number} failed messages of the type fit now"
        assert command_output("type", "failures", LIGHT_TYPE, "--config", daemon.config).startswith(line)
    finally:
        daemon.stop()
