"""Devices that speak MQTT with paho, beside an application that speaks REST."""

import json
import queue
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.daemon import ADA, LIGHT_TYPE, Daemon, device_id, device_token
from tests.e2e.conftest import Rest

PATIENCE_SECONDS = 60
VERSIONS = [MQTTProtocolVersion.MQTTv31, MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5]
NewDevice = Callable[[], int]


class PahoDevice:
    """A device on paho, with paho's network thread; received packets wait in queues."""

    def __init__(
        self,
        number: int,
        version: MQTTProtocolVersion,
        *,
        token: str | None = None,
        transport: Literal["tcp", "websockets"] = "tcp",
    ) -> None:
        self.number = number
        self.id = device_id(number)
        self.connacks: queue.Queue[int] = queue.Queue()
        self.ends: queue.Queue[int] = queue.Queue()
        self.heard: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._subacks: queue.Queue[list[int]] = queue.Queue()
        self.client = Client(
            CallbackAPIVersion.VERSION2, protocol=version, transport=transport, reconnect_on_failure=False
        )
        self.client.username_pw_set(self.id, device_token(number) if token is None else token)
        self.client.on_connect = lambda _client, _data, _flags, reason, _properties: self.connacks.put(reason.value)
        self.client.on_disconnect = lambda _client, _data, _flags, reason, _properties: self.ends.put(reason.value)
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_subscribe

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        assert (message.qos, message.retain, message.dup) == (0, False, False)
        self.heard.put((message.topic, bytes(message.payload)))

    def _on_subscribe(self, _client: Client, _data: object, _mid: int, reasons: list[Any], _properties: object) -> None:
        self._subacks.put([reason.value for reason in reasons])

    def topic(self, kind: str) -> str:
        return f"/v1.1/{kind}/{self.id}"

    def subscribe(self, *topics: str) -> list[int]:
        self.client.subscribe([(topic, 0) for topic in topics])
        return self._subacks.get(timeout=PATIENCE_SECONDS)

    def publish(self, payload: object, *, qos: int = 1, topic: str | None = None) -> None:
        """Returns when the whole handshake is done; for QoS 0 when it is sent."""
        data = payload if isinstance(payload, str | bytes) else json.dumps(payload)
        published = self.client.publish(topic or self.topic("messages"), data, qos)
        published.wait_for_publish(PATIENCE_SECONDS)
        assert published.is_published()

    def hear(self) -> tuple[str, Any]:
        topic, payload = self.heard.get(timeout=PATIENCE_SECONDS)
        return topic, json.loads(payload)

    def hear_error(self) -> tuple[int, str]:
        topic, body = self.hear()
        assert topic == self.topic("errors")
        error = body["error"]
        assert set(error) == {"code", "message", "id"}
        return error["code"], error["message"]


def test_mqtt_over_websocket(daemon: Daemon, rest: Rest, new_device: NewDevice) -> None:
    for version in VERSIONS[1:]:
        device = PahoDevice(new_device(), version, transport="websockets")
        device.client.ws_set_options("/mqtt")
        device.client.connect(*daemon.host_port("http"), keepalive=60)
        device.client.loop_start()
        assert device.connacks.get(timeout=PATIENCE_SECONDS) == 0
        assert device.subscribe(device.topic("actions")) == [0]
        for qos in (0, 1, 2):
            device.publish({"intensity": qos}, qos=qos)
        rest.act(device.number, {"name": "setOn"})
        assert device.hear()[1] == {"actions": [{"name": "setOn"}]}
        device.client.disconnect()
        device.client.loop_stop()
        assert [message["data"]["intensity"] for message in rest.last(device.number)] == [2, 1, 0]


@contextmanager
def dialling(
    daemon: Daemon,
    number: int,
    version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv311,
    *,
    token: str | None = None,
    context: ssl.SSLContext | None = None,
) -> Iterator[PahoDevice]:
    device = PahoDevice(number, version, token=token)
    if context is not None:
        device.client.tls_set_context(context)
    host, port = daemon.host_port("mqtt" if context is None else "mqtts")
    device.client.connect(host, port, keepalive=60)
    device.client.loop_start()
    try:
        yield device
    finally:
        device.client.disconnect()
        device.client.loop_stop()


@contextmanager
def connected(
    daemon: Daemon,
    number: int,
    version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv311,
    *,
    context: ssl.SSLContext | None = None,
) -> Iterator[PahoDevice]:
    with dialling(daemon, number, version, context=context) as device:
        assert device.connacks.get(timeout=PATIENCE_SECONDS) == 0
        yield device


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_is_read_back_as_it_was_sent(
    daemon: Daemon, rest: Rest, new_device: NewDevice, version: MQTTProtocolVersion, qos: int
) -> None:
    number = new_device()
    with connected(daemon, number, version) as device:
        device.publish({"state": True, "intensity": 7, "unknown": 1}, qos=qos)
        device.publish({"intensity": 8}, qos=1)  # with QoS 0 there is no acknowledgement that it is stored
    newer, older = rest.last(number)
    assert newer["data"] == {"intensity": 8}
    assert older["data"] == {"state": True, "intensity": 7}
    assert {"sdid": device_id(number), "sdtid": LIGHT_TYPE, "uid": ADA, "mv": 1}.items() <= older.items()
    assert older["ts"] == older["cts"] <= newer["cts"]
    assert rest.by_mid(older["mid"]) == older


@pytest.mark.parametrize("version", VERSIONS)
def test_refusals_are_published_on_the_errors_topic(
    daemon: Daemon, rest: Rest, new_device: NewDevice, version: MQTTProtocolVersion
) -> None:
    number = new_device()
    with connected(daemon, number, version) as device:
        device.publish("{")  # before the subscription
        assert device.subscribe(device.topic("errors")) == [0]
        device.publish("[1]")
        assert device.hear_error() == (400, "Bad Request")
        device.publish({"text": "x" * 1024}, qos=2)
        reason = f"Plan quota exceeded for device {device.id}. Reason: Max payload Size limit"
        assert device.hear_error() == (413, reason)
        device.publish({"state": True}, topic=f"/v1.1/messages/{device_id(0)}x")
        assert device.hear_error() == (403, "You do not have publish permission to topic")
        assert device.subscribe("/v1.1/actions/#") == [0xA2 if version is MQTTProtocolVersion.MQTTv5 else 0x80]
        assert device.hear_error() == (403, "You do not have subscribe permission to topic")
        device.publish({"state": True})
        assert device.heard.empty()
    assert [message["data"] for message in rest.last(number)] == [{"state": True}]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("slash", ["/", ""])
def test_actions_arrive(
    daemon: Daemon, rest: Rest, new_device: NewDevice, version: MQTTProtocolVersion, slash: str
) -> None:
    number = new_device()
    with connected(daemon, number, version) as device:
        topic = f"{slash}v1.1/actions/{device.id}"
        assert device.subscribe(topic) == [0]
        rest.act(number, {"name": "setOn"})
        assert device.hear() == (topic, {"actions": [{"name": "setOn"}]})
        actions: list[dict[str, Any]] = [
            {"name": "setColor", "parameters": {"colorRGB": {"r": 1, "g": 2}}},
            {"name": "setOff"},
        ]
        rest.act(number, *actions)
        assert device.hear() == (topic, {"actions": actions})


def test_the_newer_connection_takes_over(daemon: Daemon, rest: Rest, new_device: NewDevice) -> None:
    number = new_device()
    with connected(daemon, number) as older:
        older.subscribe(older.topic("actions"))
        with connected(daemon, number) as newer:
            assert older.ends.get(timeout=PATIENCE_SECONDS) != 0
            newer.subscribe(newer.topic("actions"))
            rest.act(number, {"name": "setOn"})
            assert newer.hear() == (newer.topic("actions"), {"actions": [{"name": "setOn"}]})
            newer.publish({"state": True})
            assert older.heard.empty()


def test_a_wrong_token_is_refused_and_does_not_disturb_the_device(daemon: Daemon, new_device: NewDevice) -> None:
    number = new_device()
    with connected(daemon, number) as device:
        with dialling(daemon, number, token="9" * 32) as stranger:
            assert stranger.connacks.get(timeout=PATIENCE_SECONDS) == 134  # paho's name for return code 4
            assert stranger.ends.get(timeout=PATIENCE_SECONDS) != 0
        device.publish({"state": True})
        assert device.ends.empty()


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_everything_works_over_tls(
    daemon: Daemon, rest: Rest, new_device: NewDevice, certificate: Path, maximum: ssl.TLSVersion
) -> None:
    number = new_device()
    context = ssl.create_default_context(cafile=certificate)
    context.maximum_version = maximum
    with connected(daemon, number, context=context) as device:
        device.subscribe(device.topic("actions"))
        for qos in (0, 1, 2):
            device.publish({"intensity": qos}, qos=qos)
        rest.act(number, {"name": "setOn"})
        assert device.hear() == (device.topic("actions"), {"actions": [{"name": "setOn"}]})
    assert [message["data"]["intensity"] for message in rest.last(number)] == [2, 1, 0]


def test_many_messages_at_once_are_all_stored_in_order(daemon: Daemon, rest: Rest, new_device: NewDevice) -> None:
    number = new_device()
    with connected(daemon, number) as device:
        sent = [device.client.publish(device.topic("messages"), f'{{"intensity":{n}}}', 1 + n % 2) for n in range(100)]
        for published in sent:
            published.wait_for_publish(PATIENCE_SECONDS)
    assert [message["data"]["intensity"] for message in rest.last(number)] == list(reversed(range(100)))
