"""Rate limits and quotas of the real daemon with real clients, and after a restart."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.daemon import USER_TOKEN, Daemon, bearer, command_output, device_id, device_token, running_daemon
from tests.e2e.test_mqtt import PATIENCE_SECONDS, PahoDevice
from tests.programs import require_program

_LIMITS = {
    "RATE_LIMITS": "on",
    "QUOTAS": "on",
    "REST_USER": "1000/3",
    "MESSAGES_USER": "1000/1000",
    "MQTT_DEVICE": "5/1000",
    "COAP_DEVICE": "3/1000",
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with narrow limits; each test counts against other ones."""
    with limited_daemon(tmp_path_factory.mktemp("limits")) as running:
        yield running


@contextmanager
def limited_daemon(folder: Path) -> Iterator[Daemon]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in _LIMITS.items():
            environment.setenv(f"TRUNKLINE_LIMITS_{name}", value)
        environment.setenv("TRUNKLINE_COAP_BIND", "127.0.0.1:0")
        with running_daemon(folder, devices=3) as running:
            yield running


def profile(daemon: Daemon) -> httpx.Response:
    return httpx.get(f"{daemon.base_url}/users/self", headers=bearer(USER_TOKEN))


def send(daemon: Daemon, number: int = 0) -> httpx.Response:
    body = {"sdid": device_id(number), "data": {"state": True}}
    return httpx.post(f"{daemon.base_url}/messages", headers=bearer(USER_TOKEN), json=body)


def test_days_and_months_survive_a_restart(tmp_path: Path) -> None:
    with limited_daemon(tmp_path) as daemon:
        assert profile(daemon).headers["X-Rate-Limit-Remaining"] == "999/2"
        assert send(daemon).headers["x-quota-organization-limits"] == "1/-1"
        assert profile(daemon).status_code == 200
        assert daemon.stop() == 0
        daemon.start()
        assert send(daemon).headers["x-quota-organization-limits"] == "2/-1"
        assert profile(daemon).headers["X-Rate-Limit-Remaining"] == "997/0"
        refused = profile(daemon)
    assert (refused.status_code, refused.json()["error"]["message"]) == (429, "DAILY rate limit exceeded")


def test_paho_gets_an_error_for_every_message_over_the_limit(daemon: Daemon) -> None:
    device = PahoDevice(0, MQTTProtocolVersion.MQTTv311)
    device.client.connect("127.0.0.1", daemon.port("mqtt"))
    device.client.loop_start()
    try:
        assert device.connacks.get(timeout=PATIENCE_SECONDS) == 0
        device.subscribe(device.topic("errors"))
        for qos in (1, 2, 0, 1, 2, 1, 2, 1):
            device.publish({"state": True}, qos=qos)
        errors = [device.hear()[1]["error"] for _ in range(3)]
    finally:
        device.client.disconnect()
        device.client.loop_stop()
    assert {error["message"] for error in errors} == {"DEVICE MINUTE rate limit exceeded"}
    assert {error["X-Rate-Limit-Limit"] for error in errors} == {"5/1000"}
    assert {error["X-Rate-Limit-Remaining"] for error in errors} == {"0/995"}


def test_libcoap_is_told_how_long_to_wait(daemon: Daemon) -> None:
    client = require_program("coap-client-notls")
    url = f"coap://127.0.0.1:{daemon.port('coap')}/v1.1/messages/{device_token(1)}"
    command = [client, "-v", "7", "-m", "post", "-t", "50", "-e", '{"data":{"state":true}}', url]
    said = [
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS) for _ in range(4)
    ]
    answers = [one.stdout + one.stderr for one in said]
    assert all("2.01" in answer for answer in answers[:3])
    assert "4.29" in answers[3]
    wait = re.search(r"Max-Age:(\d+)", answers[3])
    assert wait is not None
    assert 0 < int(wait[1]) <= 60
    assert "DEVICE MINUTE rate limit exceeded" in answers[3]


def test_statistics_show_the_counters(daemon: Daemon) -> None:
    month = send(daemon).headers["x-quota-organization-limits"]
    shown = command_output("statistics", "--config", daemon.config)
    for part in ("rate limits", "quotas", "counters", "addresses"):
        assert f"\n{part}\n" in shown
    units = re.search(r"units\s+(\d+)\n", shown)
    assert units is not None
    assert month == f"{units[1]}/-1"
