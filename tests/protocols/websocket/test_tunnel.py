"""MQTT at /mqtt: packets in binary frames, cut anywhere, and the end of both protocols together."""

from collections.abc import Sequence

import pytest
import trio.testing
from msgspec.structs import replace
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)

from broker.limits.overhead import Overhead
from broker.services import Services
from config.limits import MQTT_OPEN_PACKET_BYTES
from config.settings import Mqtt, Settings
from protocols.websocket.tunnel import Tunnel
from protocols.websocket.wire import encode_close_frame, encode_frame
from tests.factories import KITCHEN
from tests.protocols.mqtt.peers import ACCEPTED, DISCONNECT, PINGREQ, PINGRESP, connect, puback, publish
from tests.protocols.websocket.peers import Peers
from tests.rows import each_row


class Device:
    """A client of MQTT over WebSocket that sends what the test says."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._wire = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []
        self._unread = b""

    async def ask(self, path: str, subprotocols: Sequence[str], *frames: Event) -> Event:
        """The answer to a handshake, behind which `frames` come at once."""
        request = self._wire.send(Request(host="localhost", target=path, subprotocols=list(subprotocols)))
        await self._stream.send_all(request)
        answer = await self.event()
        await self.send(*frames)
        return answer

    async def send(self, *frames: Event) -> None:
        await self._stream.send_all(b"".join(self._wire.send(frame) for frame in frames))

    async def send_raw(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def event(self) -> Event:
        while not self._events:
            self._wire.receive_data(bytes(await self._stream.receive_some()))
            self._events.extend(self._wire.events())
        return self._events.pop(0)

    async def expect(self, *packets: bytes) -> None:
        expected = b"".join(packets)
        while len(self._unread) < len(expected):
            event = await self.event()
            assert isinstance(event, BytesMessage), event
            self._unread += event.data
        assert self._unread[: len(expected)] == expected
        self._unread = self._unread[len(expected) :]

    async def expect_close(self, code: int) -> None:
        event = await self.event()
        assert isinstance(event, CloseConnection), event
        assert event.code == code
        await self.send(event.response())
        with trio.fail_after(5):
            assert await self._stream.receive_some() == b""
        await self._stream.aclose()


async def dialled(peers: Peers, *first: bytes) -> Device:
    device = Device(peers.open_stream())
    answer = await device.ask("/mqtt", ["mqtt"], *map(BytesMessage, first))
    assert isinstance(answer, AcceptConnection)
    assert answer.subprotocol == "mqtt"
    return device


async def test_a_whole_session(peers: Peers) -> None:
    device = await dialled(peers, connect())
    await device.expect(ACCEPTED)
    await device.send(BytesMessage(publish(1) + publish(2)), BytesMessage(PINGREQ))
    await device.expect(PINGRESP, puback(1), puback(2))
    await device.send(BytesMessage(DISCONNECT))
    await device.expect_close(1000)


@each_row("size", [1, 2, 7])
async def test_packets_and_frames_need_not_begin_together(peers: Peers, size: int) -> None:
    """[MQTT-6.0.0-2]."""
    stream = connect() + publish(1) + PINGREQ
    device = await dialled(peers, *(stream[at : at + size] for at in range(0, len(stream), size)))
    await device.expect(ACCEPTED, PINGRESP, puback(1))


@pytest.mark.parametrize("given", [[], ["other"]])
async def test_a_client_names_the_subprotocol(peers: Peers, given: list[str]) -> None:
    """[MQTT-6.0.0-3]."""
    answer = await Device(peers.open_stream()).ask("/mqtt", given)
    assert isinstance(answer, RejectConnection)
    assert answer.status_code == 400


async def test_version_3_1_has_a_name_of_its_own(peers: Peers) -> None:
    device = Device(peers.open_stream())
    answer = await device.ask("/mqtt", ["mqttv3.1"], BytesMessage(connect(level=3)))
    assert isinstance(answer, AcceptConnection)
    assert answer.subprotocol == "mqttv3.1"
    await device.expect(ACCEPTED)


async def test_a_text_frame_ends_the_connection(peers: Peers, services: Services) -> None:
    """[MQTT-6.0.0-1]."""
    device = await dialled(peers, connect())
    await device.expect(ACCEPTED)
    await device.send(TextMessage("x"))
    await device.expect_close(1003)
    await trio.testing.wait_all_tasks_blocked()
    assert services.routing.connections.statistics().links == 0


async def test_a_fault_of_the_frames_ends_the_connection(peers: Peers) -> None:
    device = await dialled(peers, connect())
    await device.expect(ACCEPTED)
    await device.send_raw(b"\xc2\x80" + bytes(4))  # a reserved bit
    await device.expect_close(1002)


class TestOpen:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return replace(settings, mqtt=Mqtt(topics="open"))

    @pytest.mark.both_engines
    @each_row("cuts", [1, 5])
    async def test_a_packet_of_a_mebibyte_comes_in_one_frame_or_in_several(self, peers: Peers, cuts: int) -> None:
        """Issue 44, 15: as over TCP. paho and MQTT.js send a packet as one frame."""
        device = await dialled(peers, connect())
        await device.expect(ACCEPTED)
        packet = publish(1, bytes(MQTT_OPEN_PACKET_BYTES - 100), topic=b"zigbee2mqtt/bridge/devices")
        step = -(-len(packet) // cuts)
        parts = [packet[at : at + step] for at in range(0, len(packet), step)]
        await device.send(*(BytesMessage(part, message_finished=part is parts[-1]) for part in parts))
        await device.expect(puback(1))


async def test_a_stranger_makes_nobody_keep_a_long_frame(peers: Peers) -> None:
    """CONNECT is bounded, and what comes of a frame goes to MQTT at once."""
    device = await dialled(peers)
    await device.send(BytesMessage(b"\x10\xff\xff\x3f" + bytes(1_000), message_finished=False))
    await device.expect_close(1000)


async def test_a_fault_of_mqtt_has_its_reason_before_the_close_frame(peers: Peers) -> None:
    device = await dialled(peers, b"\x10\x0d\x00\x04MQTT\x05\x03\x00\x3c\x00\x00\x00")
    event = await device.event()
    assert isinstance(event, BytesMessage)
    assert event.data[:4:3] == b"\x20\x81"
    await device.expect_close(1000)


async def test_pings_of_both_protocols_are_answered(peers: Peers) -> None:
    device = await dialled(peers, connect())
    await device.expect(ACCEPTED)
    await device.send(Ping(b"1"))
    assert await device.event() == Pong(b"1")
    await device.send(BytesMessage(PINGREQ))
    await device.expect(PINGRESP)


async def test_a_connection_that_is_lost_takes_the_device_offline(peers: Peers, services: Services) -> None:
    stream = peers.open_stream()
    device = Device(stream)
    await device.ask("/mqtt", ["mqtt"], BytesMessage(connect()))
    await device.expect(ACCEPTED)
    kitchen = await services.devices.registry.find(KITCHEN)
    assert services.routing.connections.is_online(kitchen.key)
    await stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert not services.routing.connections.is_online(kitchen.key)


class SlowStream(trio.abc.Stream):
    """Takes what is sent when `opened` is set."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.opened = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.opened.wait()
        self.sent.append(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await self.opened.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        raise AssertionError(max_bytes)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_two_that_close_at_one_moment_send_one_close_frame() -> None:
    """RFC 6455, 5.5.1: nothing follows the close frame."""
    stream = SlowStream()
    tunnel = Tunnel(stream, b"", Overhead().pace())
    async with trio.open_nursery() as both:
        both.start_soon(tunnel.send_all, b"x")
        await trio.testing.wait_all_tasks_blocked()
        both.start_soon(tunnel.send_eof)
        both.start_soon(tunnel.send_eof)
        await trio.testing.wait_all_tasks_blocked()
        stream.opened.set()
    assert stream.sent == [encode_frame(b"x"), encode_close_frame(1000, "")]
