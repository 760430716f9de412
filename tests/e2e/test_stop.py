"""How the real daemon stops while a client keeps it waiting."""

import socket
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, running_daemon

pytestmark = pytest.mark.both_engines


def test_a_second_interrupt_ends_the_grace_period_and_everything_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUNKLINE_GRACE_SECONDS", "600")
    monkeypatch.setenv("TRUNKLINE_LIMITS_RATE_LIMITS", "on")
    monkeypatch.setenv("TRUNKLINE_LIMITS_MESSAGES_USER", "100/1000")
    with running_daemon(tmp_path, devices=1) as daemon, closing(a_request_in_flight(daemon)) as client:
        sent = send_until_the_one_in_flight_counts(daemon)
        daemon.begin_to_stop()
        wait_until_no_listener(daemon)
        daemon.begin_to_stop()  # as a supervisor that repeats its signal
        client.setblocking(False)
        with pytest.raises(BlockingIOError):  # open, and without an answer
            client.recv(1)
        assert daemon.interrupt() == 0  # waits for 30 seconds, not for 600
        daemon.start()
        assert left_today(send(daemon)) == 1000 - (sent + 1) - 1
        found = httpx.get(f"{daemon.base_url}/messages/last?sdids={device_id(0)}&count=100", headers=bearer(USER_TOKEN))
        assert len(found.json()["data"]) == sent + 1


def a_request_in_flight(daemon: Daemon) -> socket.socket:
    """A request whose body never comes; the daemon has read its head."""
    client = socket.create_connection(daemon.host_port("http"), timeout=30)
    client.sendall(
        f"POST /v1.1/messages HTTP/1.1\r\nHost: a\r\nAuthorization: bearer {USER_TOKEN}\r\n"
        "Content-Length: 10\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert client.recv(100).startswith(b"HTTP/1.1 100 ")
    return client


def send_until_the_one_in_flight_counts(daemon: Daemon) -> int:
    """The number of messages sent. "100 Continue" comes before the daemon has read the token of the request."""
    sent = 0
    while sent < 50:
        sent += 1
        if left_today(send(daemon)) == 1000 - sent - 1:
            return sent
    pytest.fail("the request in flight is not counted")


def left_today(answer: httpx.Response) -> int:
    return int(answer.headers["X-Rate-Limit-Remaining"].partition("/")[2])


def send(daemon: Daemon) -> httpx.Response:
    body = {"sdid": device_id(0), "data": {"state": True}}
    return httpx.post(f"{daemon.base_url}/messages", headers=bearer(USER_TOKEN), json=body).raise_for_status()


def wait_until_no_listener(daemon: Daemon) -> None:
    while True:
        with suppress(ConnectionResetError):  # a connection that the closing listener has not accepted
            try:
                socket.create_connection(daemon.host_port("http"), timeout=30).close()
            except ConnectionRefusedError:
                return
