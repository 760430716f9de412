"""MQTT sessions outlive kills of the daemon: nothing that it acknowledged is lost, and QoS 2 is stored once."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from protocols.mqtt.encoding import encode_publish
from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, device_token
from tests.e2e.conftest import Rest
from tests.protocols.mqtt.peers import connect, pubcomp, publish, pubrec, pubrel, suback, subscribe

NEW, AGAIN = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"
ACTIONS, MESSAGES = (f"/v1.1/{kind}/{device_id(0)}".encode() for kind in ("actions", "messages"))


@contextmanager
def connected(daemon: Daemon, answer: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", daemon.port("mqtt")), timeout=20) as link:
        link.sendall(connect(device_id(0), device_token(0), client_id=b"c", clean=False))
        expect(link, answer)
        yield link


def expect(link: socket.socket, *packets: bytes) -> None:
    expected, received = b"".join(packets), b""
    while len(received) < len(expected):
        more = link.recv(len(expected) - len(received))
        assert more, "the daemon hung up"
        received += more
    assert received == expected


def act(daemon: Daemon, name: str) -> None:
    with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
        Rest(client).act(0, {"name": name})


def delivered(number: int, name: str, *, dup: bool = False) -> bytes:
    payload = f'{{"actions":[{{"name":"{name}"}}]}}'.encode()
    return encode_publish(ACTIONS, payload, qos=1, packet_id=(number + 1).to_bytes(2), dup=dup)


def test_a_session_outlives_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_MQTT_PERSISTENT_SESSIONS", "on")
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=1)
    daemon.start()
    with connected(daemon, NEW) as link:
        link.sendall(subscribe(ACTIONS, qos=1) + publish(7, qos=2, topic=MESSAGES))
        expect(link, suback(1), pubrec(7))
        act(daemon, "first")
        expect(link, delivered(1, "first"))
        daemon.kill()
    daemon.start()
    try:
        act(daemon, "second")
        with connected(daemon, AGAIN) as link:
            expect(link, delivered(1, "first", dup=True), delivered(2, "second"))
            link.sendall(publish(7, qos=2, topic=MESSAGES, dup=True) + pubrel(7))
            expect(link, pubrec(7), pubcomp(7))
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
            assert [message["data"] for message in Rest(client).last(0)] == [{"state": True}]
    finally:
        assert daemon.stop() == 0
