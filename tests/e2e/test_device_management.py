"""A device that speaks LWM2M, the daemon and REST: properties, a task, a firmware update (reference 15 and 18)."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon import LIGHT_TYPE, TRUNKLINE, USER_TOKEN, Daemon, bearer, device_id, device_token, running_daemon
from tests.programs import require_dtls

DEVICE = device_id(0)
SECONDS = 60
Api = Callable[..., Any]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    require_dtls()
    folder = tmp_path_factory.mktemp("management")
    with running_daemon(folder, devices=2, settings='[lwm2m]\ndtls_bind = "127.0.0.1:0"\n') as daemon:
        yield daemon


@pytest.fixture(scope="module")
def api(daemon: Daemon) -> Iterator[Api]:
    with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:

        def call(method: str, path: str, **options: Any) -> Any:
            answer = client.request(method, f"/devicemgmt{path}", **options)
            assert answer.status_code == 200, answer.text
            return answer.json()["data"]

        call("PUT", f"/devicetypes/{LIGHT_TYPE}", json={"devicePropertiesEnabled": True})
        yield call


@pytest.fixture(scope="module")
def board(daemon: Daemon, api: Api) -> Iterator[None]:
    address = daemon.addresses["lwm2m_dtls"]
    command: list[str | Path] = [TRUNKLINE, "simulate", "--protocol", "lwm2m", "--address", address]
    environment = {**os.environ, "TRUNKLINE_TOKEN": device_token(0)}
    process = subprocess.Popen([*command, "--device", DEVICE, "--period", "1"], env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=SECONDS)


def eventually(read: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """What `read` gives once it holds; the last thing that it gave after a minute."""
    end = time.monotonic() + SECONDS
    while not holds(found := read()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def version(properties: dict[str, Any]) -> str | None:
    found: str | None = properties["deviceProperties"].get("device", {}).get("firmwareVersion")
    return found


def outcome(api: Api, task: str) -> dict[str, Any]:
    (entry,) = eventually(
        lambda: api("GET", f"/tasks/{task}/statuses")["statuses"],
        lambda entries: bool(entries) and entries[0]["status"] in {"SUCCEEDED", "FAILED"},
    )
    found: dict[str, Any] = entry
    return found


def test_properties_appear_and_the_connection_is_shown(api: Api, board: None) -> None:
    properties = eventually(
        lambda: api("GET", f"/devices/{DEVICE}/properties"), lambda found: version(found) == "1.0.0"
    )
    assert version(properties) == "1.0.0"
    connection = properties["systemProperties"]["connection"]
    assert (connection["connected"], connection["protocol"]) == (True, "LWM2M")


def test_a_property_is_written(api: Api, board: None) -> None:
    wanted = {"dtid": LIGHT_TYPE, "dids": [DEVICE], "taskType": "W", "property": "deviceProperties.device.utcOffset"}
    task = api("POST", "/tasks", json={**wanted, "taskParameters": {"value": "+01:00"}})["id"]
    assert outcome(api, task)["status"] == "SUCCEEDED"


def test_firmware_is_updated_and_the_new_version_is_read_back(api: Api, board: None) -> None:
    image = api(
        "POST", f"/devicetypes/{LIGHT_TYPE}/images", params={"version": "2.0.0"}, content=b"2.0.0\n" + bytes(5000)
    )
    wanted = {"dtid": LIGHT_TYPE, "dids": [DEVICE], "taskType": "W", "property": "akc.update"}
    update = {"update": {"updateId": image["updateId"]}}
    task = api("POST", "/tasks", json={**wanted, "taskParameters": update})["id"]
    entry = outcome(api, task)
    assert entry["status"] == "SUCCEEDED", entry
    assert version(api("GET", f"/devices/{DEVICE}/properties")) == "2.0.0"
