"""Connections of one user, application and device are bounded on every protocol (reference 21.8)."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.daemon import ADA, USER_TOKEN, Daemon, bearer, device_id, device_token, running_daemon
from tests.e2e.test_mqtt import PATIENCE_SECONDS, PahoDevice

LIMITS = "feeds_per_user = 3\nconnections_per_user = 6\nconnections_per_device = 2\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("connections"), devices=3, settings=LIMITS) as running:
        yield running


def live(daemon: Daemon, kind: str = "live") -> ClientConnection:
    return connect(f"{daemon.ws_url}/{kind}?Authorization=bearer+{USER_TOKEN}&sdids={device_id(0)}")


def keep_alive(daemon: Daemon, token: str, path: str) -> tuple[socket.socket, int]:
    """A connection on which a request was answered, and the status of the answer."""
    one = socket.create_connection(daemon.host_port("http"))
    one.sendall(f"GET /v1.1{path} HTTP/1.1\r\nHost: a\r\nAuthorization: bearer {token}\r\n\r\n".encode())
    one.settimeout(PATIENCE_SECONDS)
    return one, int(one.recv(65_536).split()[1])


def test_feeds_of_a_user(daemon: Daemon) -> None:
    with ExitStack() as feeds:
        for kind in ("live", "live", "live"):
            last = feeds.enter_context(live(daemon, kind))
        with pytest.raises(InvalidStatus) as refused:
            live(daemon)
        response = refused.value.response
        assert (response.status_code, response.headers["Retry-After"]) == (429, "60")
        assert json.loads(response.body or b"")["error"]["message"] == "Too many feeds of this user: at most 3"
        with httpx.Client() as client:  # other connections of the user are not feeds
            assert client.get(f"{daemon.base_url}/users/self", headers=bearer(USER_TOKEN)).status_code == 200
        last.close()
        feeds.enter_context(live(daemon))


def test_connections_of_a_user_and_a_device_over_http(daemon: Daemon) -> None:
    path = f"/devices/{device_id(0)}"
    with ExitStack() as opened:
        for token, most in ((USER_TOKEN, 6), (device_token(0), 2)):
            for _ in range(most):
                one, status = keep_alive(daemon, token, path)
                opened.enter_context(closing(one))
                assert status == 200
            one, status = keep_alive(daemon, token, path)
            assert status == 429
            one.close()
        one, status = keep_alive(daemon, device_token(1), f"/devices/{device_id(1)}")
        assert status == 200
        one.close()


def test_connections_of_a_device_over_mqtt_and_the_device_channel(daemon: Daemon) -> None:
    with ExitStack() as opened:
        for _ in range(2):
            one, status = keep_alive(daemon, device_token(2), f"/devices/{device_id(2)}")
            opened.enter_context(closing(one))
            assert status == 200
        device = PahoDevice(2, MQTTProtocolVersion.MQTTv5)
        device.client.connect("127.0.0.1", daemon.port("mqtt"))
        device.client.loop_start()
        try:
            assert device.connacks.get(timeout=PATIENCE_SECONDS) == 0x97
        finally:
            device.client.loop_stop()
        with connect(f"{daemon.ws_url}/websocket") as channel:
            channel.send(
                json.dumps({"type": "register", "sdid": device_id(2), "Authorization": f"bearer {device_token(2)}"})
            )
            answer = json.loads(channel.recv(PATIENCE_SECONDS))
        assert (answer["error"]["code"], answer["error"]["message"]) == (
            429,
            "Too many connections of this device: at most 2",
        )


def test_the_log_names_whose_connections_are_too_many_as_does_the_page_for_operators(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        daemon = Daemon(tmp_path / "state", "feeds_per_user = 1\n", log=log)
        daemon.configure(devices=1)
        daemon.start()
        try:
            with live(daemon), pytest.raises(InvalidStatus):
                live(daemon)
        finally:
            daemon.stop()
        log.seek(0)
        (line,) = [one for one in log if "connections_rate_refused" in one]
    assert "Too many feeds of this user: at most 1" in line
    assert f"user {ADA}" in line


def test_silent_connections_of_one_address_keep_no_other_address_waiting(tmp_path: Path) -> None:
    limits = "unauthenticated_connections = 20\nunauthenticated_connections_per_address = 20\n"
    with running_daemon(tmp_path, devices=1, settings=limits) as daemon, ExitStack() as opened:
        for _ in range(60):  # 20 have places, the others wait for them
            one = opened.enter_context(closing(socket.socket()))
            one.bind(("127.1.0.2", 0))
            one.connect(daemon.host_port("http"))
        began = time.monotonic()
        one, status = keep_alive(daemon, USER_TOKEN, "/users/self")
        opened.enter_context(closing(one))
        assert status == 200
        assert time.monotonic() - began < 1
