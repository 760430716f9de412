"""Devices of others get what is wanted of them, and a report is not lost with the daemon."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.daemon import LIGHT_TYPE, USER_TOKEN, Daemon, bearer, command_output, device_id, device_token
from tests.e2e.test_mosquitto import heard, listening, who
from tests.programs import require_program
from tests.properties import in_ci

SECONDS = 30
FIELDS = [{"name": name, "valueClass": "Integer", "settable": True} for name in ("intensity", "speed")]
KILLS = 4


@pytest.fixture(scope="module")
def own_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """It is killed, and its lights are settable."""
    folder = tmp_path_factory.mktemp("wanted")
    daemon = Daemon(folder / "state", '[coap]\nbind = "127.0.0.1:0"\n')
    daemon.configure(devices=4)
    daemon.start()
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"fields": FIELDS}))
    command_output("type", "upload", LIGHT_TYPE, manifest, "--approve", "--config", daemon.config)
    yield daemon
    daemon.stop()


def want(daemon: Daemon, number: int, **values: int) -> None:
    path = f"{daemon.base_url}/devices/{device_id(number)}/wanted"
    answer = httpx.put(path, headers=bearer(USER_TOKEN), json={"data": values}, timeout=SECONDS)
    assert answer.status_code == 200, answer.text


def wanted(daemon: Daemon, number: int, token: str = USER_TOKEN) -> dict[str, Any]:
    path = f"{daemon.base_url}/devices/{device_id(number)}/wanted"
    found: dict[str, Any] = httpx.get(path, headers=bearer(token), timeout=SECONDS).raise_for_status().json()["data"]
    return found


def report(daemon: Daemon, number: int, query: str = "", **values: int) -> dict[str, Any]:
    path = f"{daemon.base_url}/messages{query}"
    answer = httpx.post(path, headers=bearer(device_token(number)), json={"data": values}, timeout=SECONDS)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def wait_for(daemon: Daemon, number: int, state: str) -> None:
    ends = time.monotonic() + SECONDS
    while {one["state"] for one in wanted(daemon, number)["fields"].values()} != {state}:
        assert time.monotonic() < ends


def test_mosquitto_sub_gets_it_at_once_and_with_each_change(own_daemon: Daemon) -> None:
    program = require_program("mosquitto_sub")
    topic = f"/v1.1/wanted/{device_id(0)}"
    want(own_daemon, 0, intensity=40)
    with listening([program, *who(own_daemon, 0, "mqttv5")], [topic], 3) as process:
        wait_for(own_daemon, 0, "sent")
        want(own_daemon, 0, speed=2)
        report(own_daemon, 0, intensity=40)
        assert [payload for _, payload in heard(process)] == [
            {"data": {"intensity": 40}},
            {"data": {"intensity": 40, "speed": 2}},
            {"data": {"speed": 2}},
        ]


def test_coap_client_observes_it(own_daemon: Daemon) -> None:
    program = require_program("coap-client-notls")
    url = f"coap://127.0.0.1:{own_daemon.port('coap')}/v1.1/wanted/{device_token(1)}"
    want(own_daemon, 1, intensity=40)
    with subprocess.Popen(
        ["stdbuf", "-oL", program, "-w", "-s", "20", "-m", "get", url], stdout=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout is not None
            assert json.loads(client.stdout.readline()) == {"data": {"intensity": 40}}
            wait_for(own_daemon, 1, "sent")
            want(own_daemon, 1, speed=2)
            assert json.loads(client.stdout.readline()) == {"data": {"intensity": 40, "speed": 2}}
            report(own_daemon, 1, intensity=40, speed=2)
            assert json.loads(client.stdout.readline()) == {"data": {}}
        finally:
            client.kill()
    wait_for(own_daemon, 1, "reached")  # it is stored after the client was told


def test_a_device_that_sleeps_gets_it_with_its_message(own_daemon: Daemon) -> None:
    assert report(own_daemon, 2, "?wanted", intensity=1)["wanted"] == {}
    want(own_daemon, 2, intensity=40, speed=2)
    assert "wanted" not in report(own_daemon, 2, intensity=1)
    assert report(own_daemon, 2, "?wanted", intensity=40)["wanted"] == {"speed": 2}
    assert report(own_daemon, 2, "?wanted=true", intensity=1)["wanted"] == {"speed": 2}
    assert "wanted" not in report(own_daemon, 2, "?wanted=false", intensity=1)
    assert wanted(own_daemon, 2, device_token(2))["data"] == {"speed": 2}
    wrong = httpx.post(
        f"{own_daemon.base_url}/messages?wanted=perhaps",
        headers=bearer(device_token(2)),
        json={"data": {"speed": 1}},
        timeout=SECONDS,
    )
    assert wrong.status_code == 400
    assert wrong.json()["error"]["errors"][0][0]["field"] == "wanted"


@in_ci
def test_a_report_is_not_lost_when_the_daemon_is_killed_before_its_answer(own_daemon: Daemon) -> None:
    stored = 0
    for value in range(1, KILLS + 1):
        want(own_daemon, 3, intensity=value)
        body = json.dumps({"data": {"intensity": value}})
        request = (
            f"POST /v1.1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {device_token(3)}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
        with socket.create_connection(("127.0.0.1", own_daemon.port("http")), timeout=SECONDS) as link:
            link.sendall(request.encode())
            if value % 2:
                link.recv(1)  # the answer is on its way, and the end of the value may not be stored
            own_daemon.kill()
        own_daemon.start()
        query = {"sdids": device_id(3), "count": "1"}
        last = httpx.get(
            f"{own_daemon.base_url}/messages/last", params=query, headers=bearer(USER_TOKEN), timeout=SECONDS
        )
        found = [one["data"]["intensity"] for one in last.raise_for_status().json()["data"]]
        is_stored = found[:1] == [value]
        stored += is_stored
        if is_stored:
            wait_for(own_daemon, 3, "reached")
        else:
            assert wanted(own_daemon, 3)["data"] == {"intensity": value}
    assert stored >= KILLS // 2
