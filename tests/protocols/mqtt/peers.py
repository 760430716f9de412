"""MQTT clients for tests that write and read single packets."""

import re
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from trio.testing import memory_stream_pair

from broker.services import Services
from config.settings import Settings
from protocols.mqtt.encoding import encode_publish
from protocols.mqtt.packets import Will
from protocols.mqtt.properties import encode_properties
from protocols.mqtt.server import serve_mqtt_connection
from protocols.mqtt.values import NO_PROPERTIES, Properties
from protocols.streams.hub import Hub
from storage.keys import Position
from tests.builders import ServicesOpener
from tests.factories import KITCHEN, KITCHEN_TOKEN, build_world
from tests.fakes import RunSync

ACCEPTED = b"\x20\x02\x00\x00"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
DISCONNECT = b"\xe0\x00"
MESSAGES = f"/v1.1/messages/{KITCHEN}".encode()
ACTIONS = f"/v1.1/actions/{KITCHEN}".encode()
ERRORS = f"/v1.1/errors/{KITCHEN}".encode()
ON = b'{"state":true}'

_PATIENCE_SECONDS = 45  # on the mock clock, or never


def refused(code: int) -> bytes:
    return bytes((0x20, 2, 0, code))


def connect(
    device_id: str | None = KITCHEN,
    token: str | None = KITCHEN_TOKEN,
    *,
    level: int = 4,
    keep_alive: int = 0,
    will: Will | None = None,
    client_id: bytes = b"",
    clean: bool = True,
    properties: Properties = NO_PROPERTIES,
) -> bytes:
    flags = 0x02 if clean else 0
    fields = [encode_properties(properties)] if level == 5 else []
    fields.append(_text(client_id))
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        fields += [encode_properties(will.properties)] if level == 5 else []
        fields += [_text(will.topic), _text(will.payload)]
    if device_id is not None:
        flags |= 0x80
        fields.append(_text(device_id.encode()))
    if token is not None:
        flags |= 0x40
        fields.append(_text(token.encode()))
    name = b"MQIsdp" if level == 3 else b"MQTT"
    return _packet(0x10, _text(name) + bytes((level, flags)) + struct.pack("!H", keep_alive) + b"".join(fields))


def publish(
    number: int = 1,
    payload: bytes = ON,
    *,
    qos: int = 1,
    topic: bytes = MESSAGES,
    dup: bool = False,
    retain: bool = False,
) -> bytes:
    packet_id = number.to_bytes(2) if qos else b""
    return encode_publish(topic, payload, qos=qos, packet_id=packet_id, dup=dup, retain=retain)


def subscribe(*topics: bytes, number: int = 1, qos: int = 0) -> bytes:
    return _packet(0x82, number.to_bytes(2) + b"".join(_text(topic) + bytes((qos,)) for topic in topics))


def unsubscribe(*topics: bytes, number: int = 1) -> bytes:
    return _packet(0xA2, number.to_bytes(2) + b"".join(map(_text, topics)))


def puback(number: int = 1) -> bytes:
    return b"\x40\x02" + number.to_bytes(2)


def pubrec(number: int = 1) -> bytes:
    return b"\x50\x02" + number.to_bytes(2)


def pubrel(number: int = 1) -> bytes:
    return b"\x62\x02" + number.to_bytes(2)


def pubcomp(number: int = 1) -> bytes:
    return b"\x70\x02" + number.to_bytes(2)


def suback(*codes: int, number: int = 1) -> bytes:
    return _packet(0x90, number.to_bytes(2) + bytes(codes))


def unsuback(number: int = 1) -> bytes:
    return b"\xb0\x02" + number.to_bytes(2)


def _text(value: bytes) -> bytes:
    return len(value).to_bytes(2) + value


def _packet(head: int, body: bytes) -> bytes:
    length = bytearray()
    rest = len(body)
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((head, *length, rest)) + body


def publish_5(
    number: int = 1,
    payload: bytes = ON,
    *,
    qos: int = 1,
    topic: bytes = MESSAGES,
    retain: bool = False,
    properties: Properties = NO_PROPERTIES,
) -> bytes:
    packet_id = number.to_bytes(2) if qos else b""
    encoded = encode_properties(properties)
    return encode_publish(topic, payload, qos=qos, packet_id=packet_id, retain=retain, properties=encoded)


def subscribe_5(*topics: bytes, number: int = 1, options: int = 0, properties: Properties = NO_PROPERTIES) -> bytes:
    filters = b"".join(_text(topic) + bytes((options,)) for topic in topics)
    return _packet(0x82, number.to_bytes(2) + encode_properties(properties) + filters)


def unsubscribe_5(*topics: bytes, number: int = 1) -> bytes:
    return _packet(0xA2, number.to_bytes(2) + b"\x00" + b"".join(map(_text, topics)))


def disconnect_5(reason: int = 0, properties: Properties = NO_PROPERTIES) -> bytes:
    return _packet(0xE0, bytes((reason,)) + encode_properties(properties))


class Peer:
    """The client's end of a stream to the server."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.stream = stream
        self._unread = b""

    async def send(self, *packets: bytes) -> None:
        await self.stream.send_all(b"".join(packets))

    async def expect(self, *packets: bytes) -> None:
        """Assert that these packets come next, in this order."""
        expected = b"".join(packets)
        assert await self._exactly(len(expected)) == expected

    async def expect_delivery(self) -> tuple[bytes, bytes]:
        """Topic and payload of the PUBLISH that comes next, with QoS 0, no RETAIN, no DUP."""
        head, body = await self.packet()
        assert head == 0x30
        end = 2 + int.from_bytes(body[:2])
        return body[2:end], body[end:]

    async def expect_error(self, code: int, message: str, *, topic: bytes = ERRORS) -> None:
        where, payload = await self.expect_delivery()
        assert where == topic
        text = re.escape(f'{{"error":{{"code":{code},"message":"{message}","id":"')
        assert re.fullmatch(text.encode() + rb'[0-9a-f]{32}"\}\}', payload), payload

    async def packet(self) -> tuple[int, bytes]:
        """The first byte and the body of the packet that comes next."""
        head = (await self._exactly(1))[0]
        length = shift = 0
        while (byte := (await self._exactly(1))[0]) > 0x7F:
            length |= (byte & 0x7F) << shift
            shift += 7
        return head, await self._exactly(length | byte << shift)

    async def expect_nothing(self) -> None:
        """Assert that no packet is due, by a ping whose answer comes next."""
        await self.send(PINGREQ)
        await self.expect(PINGRESP)

    async def expect_end(self) -> None:
        """Assert that the server closes the connection without another packet."""
        assert self._unread == b""
        with trio.fail_after(_PATIENCE_SECONDS):
            assert await self.stream.receive_some() == b""
        await self.stream.aclose()

    async def _exactly(self, count: int) -> bytes:
        with trio.fail_after(_PATIENCE_SECONDS):
            while len(self._unread) < count:
                received = bytes(await self.stream.receive_some())
                assert received, f"the server closed; unread: {self._unread!r}"
                self._unread += received
        data, self._unread = self._unread[:count], self._unread[count:]
        return data


def _socket_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    ours, theirs = trio.socket.socketpair()
    return trio.SocketStream(ours), trio.SocketStream(theirs)


@dataclass
class Server:
    """Serves connections on memory streams, or on sockets that a hub reads from, and contains their errors as a
    listener does."""

    services: Services
    nursery: trio.Nursery
    hub: Hub | None = None

    def __post_init__(self) -> None:
        self._alone = Hub(self.nursery, self.services.core.life)  # which parks no memory streams

    async def dial(self) -> Peer:
        ours, theirs = memory_stream_pair() if self.hub is None else _socket_pair()
        self.serve(theirs)
        return Peer(ours)

    def serve(self, stream: trio.abc.Stream) -> None:
        self.nursery.start_soon(self._converse, stream)

    async def _converse(self, stream: trio.abc.Stream) -> None:
        try:
            await serve_mqtt_connection(self.services, stream, hub=self.hub or self._alone)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def connected(
        self,
        device_id: str = KITCHEN,
        token: str = KITCHEN_TOKEN,
        *,
        keep_alive: int = 0,
        will: Will | None = None,
        topics: Sequence[bytes] = (),
    ) -> Peer:
        """A device that is connected, and subscribed to these topics."""
        peer = await self.dial()
        await peer.send(connect(device_id, token, keep_alive=keep_alive, will=will))
        await peer.expect(ACCEPTED)
        if topics:
            await peer.send(subscribe(*topics))
            await peer.expect(suback(*[0] * len(topics)))
        return peer

    async def stored(self) -> list[str]:
        """`data` of every stored message, in log order."""
        return await self.services.core.database.read(lambda tx: [row.data for row in tx.messages.after(Position(0))])


@asynccontextmanager
async def running(opener: ServicesOpener, run_sync: RunSync, settings: Settings | None = None) -> AsyncIterator[Server]:
    """A server on the opener's store; on an empty store, the world of tests is built first."""
    async with opener(run_sync=run_sync, settings=settings) as services, trio.open_nursery() as nursery:
        if await services.core.database.read(lambda tx: tx.devices.by_id(KITCHEN)) is None:
            await build_world(services.core.database, services.core.vault)
        yield Server(services, nursery)
        nursery.cancel_scope.cancel()
