"""Wills outlive the daemon: each is published once, when it is due, unless its device is back (reference 16.2)."""

import queue
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from protocols.mqtt.packets import Will
from protocols.mqtt.values import NO_PROPERTIES, Properties
from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, device_token
from tests.e2e.conftest import Rest
from tests.properties import in_ci
from tests.protocols.mqtt.peers import DISCONNECT, connect, disconnect_5, puback, publish, publish_5

PATIENCE_SECONDS = 30
WATCHER = 0
OFF = b'{"state":false}'


def void(_: object) -> None:
    """Callbacks of paho return nothing."""


def messages_of(number: int) -> bytes:
    return f"/v1.1/messages/{device_id(number)}".encode()


def offline(number: int, properties: Properties = NO_PROPERTIES) -> Will:
    return Will(b"state/%d" % number, b"Offline", 1, True, properties)


class Device:
    """A device that says that it is there, and has a will."""

    def __init__(self, daemon: Daemon, number: int, will: Will, *, expiry: int | None = None) -> None:
        level = 4 if expiry is None else 5
        self.number = number
        self.link = socket.create_connection(("127.0.0.1", daemon.port("mqtt")), timeout=PATIENCE_SECONDS)
        self.connack = self._say(
            connect(
                device_id(number),
                device_token(number),
                level=level,
                client_id=b"c",
                clean=level == 4,
                will=will,
                properties=Properties(session_expiry=expiry) if expiry else NO_PROPERTIES,
            )
        )
        say = publish if level == 4 else publish_5
        topic = b"state/%d" % number
        assert self._say(say(1, b"Online", topic=topic, retain=True)) == puback(1)

    def leave(self, last: bytes) -> None:
        """Say good-bye, and wait until the daemon has heard it."""
        with self.link:
            self.link.sendall(last)
            assert self.link.recv(1) == b""

    def _say(self, packet: bytes) -> bytes:
        """The answer, which comes alone."""
        self.link.sendall(packet)
        return self.link.recv(1000)


@contextmanager
def watching(daemon: Daemon) -> Iterator["queue.Queue[tuple[str, str]]"]:
    """The messages of all devices that paho gets, also ones that waited for it."""
    heard: queue.Queue[tuple[str, str]] = queue.Queue()
    client = Client(CallbackAPIVersion.VERSION2, "watcher", clean_session=False, protocol=MQTTProtocolVersion.MQTTv311)
    client.username_pw_set(device_id(WATCHER), device_token(WATCHER))
    subscribed: queue.Queue[object] = queue.Queue()
    client.on_connect = lambda *_: void(client.subscribe([("state/#", 1)]))
    client.on_subscribe = lambda *_: subscribed.put(None)
    client.on_message = lambda _client, _data, message: (
        None if message.retain else heard.put((message.topic, message.payload.decode()))
    )
    client.connect("127.0.0.1", daemon.port("mqtt"))
    client.loop_start()
    try:
        subscribed.get(timeout=PATIENCE_SECONDS)
        yield heard
    finally:
        client.disconnect()
        client.loop_stop()


def retained(daemon: Daemon) -> dict[str, str]:
    """The retained messages, by topic. The last one is published here, so that all have come before it."""
    found: dict[str, str] = {}
    done: queue.Queue[object] = queue.Queue()
    client = Client(CallbackAPIVersion.VERSION2, "reader", protocol=MQTTProtocolVersion.MQTTv311)
    client.username_pw_set(device_id(1), device_token(1))
    client.on_connect = lambda *_: void(client.subscribe([("state/#", 0), ("end", 0)]))
    client.on_subscribe = lambda *_: void(client.publish("end", ""))

    def on_message(_client: Client, _data: object, message: MQTTMessage) -> None:
        topic, payload = message.topic, message.payload.decode()
        if topic == "end":
            done.put(None)
        found[topic] = payload

    client.on_message = on_message
    client.connect("127.0.0.1", daemon.port("mqtt"))
    client.loop_start()
    try:
        done.get(timeout=PATIENCE_SECONDS)
    finally:
        client.disconnect()
        client.loop_stop()
    return found


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("TRUNKLINE_MQTT_TOPICS", "open")
    monkeypatch.setenv("TRUNKLINE_MQTT_PERSISTENT_SESSIONS", "on")
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=12)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=in_ci)])
def test_wills_outlive_the_daemon(daemon: Daemon, how: str) -> None:
    soon, late = Properties(will_delay=2), Properties(will_delay=3_600)
    with watching(daemon):
        pass  # its session hears everything from now on
    with ExitStack() as stack:
        devices = {
            2: Device(daemon, 2, offline(2)),  # 3.1.1, connected
            3: Device(daemon, 3, offline(3), expiry=0),
            4: Device(daemon, 4, offline(4, soon), expiry=120),  # connected
            5: Device(daemon, 5, offline(5, soon), expiry=120),  # gone before
            6: Device(daemon, 6, offline(6, late), expiry=7_200),  # comes back
            7: Device(daemon, 7, offline(7, late), expiry=7_200),  # gone before, and comes back
            8: Device(daemon, 8, offline(8, late), expiry=1),  # its session ends while the daemon is down, or soon
            9: Device(daemon, 9, Will(messages_of(9), OFF, 1, False)),
            10: Device(daemon, 10, offline(10)),  # says good-bye
            11: Device(daemon, 11, offline(11, soon), expiry=120),  # says good-bye
        }
        for device in devices.values():
            stack.enter_context(device.link)
        for number in (5, 7, 8):
            devices[number].link.close()
        devices[10].leave(DISCONNECT)
        devices[11].leave(disconnect_5())
        (daemon.kill if how == "kill" else daemon.stop)()
    daemon.start()
    for number in (6, 7):
        back = Device(daemon, number, offline(number, late), expiry=7_200)
        assert back.connack[2:4] == b"\1\0"  # its session goes on
        back.leave(disconnect_5())
    gone = {f"state/{number}" for number in (2, 3, 4, 5, 8)}
    with watching(daemon) as heard:
        said: list[tuple[str, str]] = []
        while not gone <= {topic for topic, text in said if text == "Offline"}:
            said.append(heard.get(timeout=PATIENCE_SECONDS))
    assert {topic for topic, text in retained(daemon).items() if text == "Offline"} == gone
    daemon.kill()
    daemon.start()
    last = Device(daemon, 1, offline(1))
    with watching(daemon) as heard:
        while said[-1] != ("state/1", "Online"):
            said.append(heard.get(timeout=PATIENCE_SECONDS))
    last.leave(DISCONNECT)
    assert sorted(topic for topic, text in said if text == "Offline") == sorted(gone)  # each once
    with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
        assert [message["data"] for message in Rest(client).last(9)] == [{"state": False}]


@in_ci
def test_a_will_outlives_a_kill_where_nothing_else_of_a_connection_does(tmp_path: Path) -> None:
    """The settings are the default ones."""
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=2)
    daemon.start()
    try:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", daemon.port("mqtt")), timeout=PATIENCE_SECONDS) as link:
                link.sendall(connect(device_id(0), device_token(0), will=Will(messages_of(0), OFF, 1, False)))
                assert link.recv(4) == b"\x20\x02\x00\x00"
                daemon.kill()
            daemon.start()
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
            assert [message["data"] for message in Rest(client).last(0)] == [{"state": False}] * 2
    finally:
        daemon.stop()
