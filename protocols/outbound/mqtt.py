"""A client of MQTT 5 and 3.1.1 for upstreams: publishes with QoS 1, and takes commands with QoS 1.

It reads what a broker sends, so everything is bounded: a packet of the broker has at most `_MOST_BYTES`.
"""

import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from broker.forwarding.port import BrokerMessage, Command, UpstreamError

_MOST_BYTES: Final = 64 * 1024
_WINDOW: Final = 100  # messages under way
_ANSWER_SECONDS: Final = 30.0
#: Of a CONNECT with version 5. A broker of 3.1.1 may take it for a longer packet, and wait for the rest.
_ANSWER_OF_5_SECONDS: Final = 10.0
_KEEP_ALIVE_SECONDS: Final = 30
_SESSION_SECONDS: Final = 7 * 86_400
_CONNACK, _PUBLISH, _PUBACK, _SUBACK, _PINGRESP, _DISCONNECT = 0x20, 0x30, 0x40, 0x90, 0xD0, 0xE0
_PINGREQ: Final = b"\xc0\x00"
_RECEIVE_MAXIMUM: Final = 0x21
_MAXIMUM_PACKET_SIZE: Final = 0x27
_UNSUPPORTED: Final = {0x84, 1}
_REASONS: Final = {
    4: "it refuses user and password",
    5: "it does not allow this client",
    0x86: "it refuses user and password",
    0x87: "it does not allow this",
    0x8A: "it has banned this client",
    0x8E: "another client has the same id: two copies of this store forward",
    0x95: "the packet is too large",
    0x97: "a quota is exceeded",
}
#: Sizes of the values of MQTT 5's properties: bytes, 0 for a variable number, -1 for text or bytes, -2 for a pair.
_SIZES: Final = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4),
    0x0B: 0,
    **dict.fromkeys((0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F), -1),
    0x26: -2,
}


class VersionRefusedError(Exception):
    """The broker does not speak this version."""


class MqttClient:
    """One connection, whose `run` reads until it ends."""

    def __init__(self, stream: trio.abc.Stream, level: int, command: Command) -> None:
        self._stream, self._level, self._command = stream, level, command
        self._buffer = bytearray()
        self._sending = trio.Lock()
        self._next_id = 1
        self._waiting: dict[int, trio.Event] = {}
        self._refused = ""
        self._window = _WINDOW
        self._most_bytes = 0x0FFF_FFFF
        self._heard = trio.current_time()
        self._subscribed = trio.Event()
        self._subscription = 0

    async def connect(self, client_id: str, user: str, password: str) -> None:
        """Raises UpstreamError, VersionRefusedError."""
        flags = (0x80 if user else 0) | (0x40 if password and (user or self._level == 5) else 0)
        body = _text("MQTT") + bytes((self._level, flags)) + _KEEP_ALIVE_SECONDS.to_bytes(2)
        if self._level == 5:
            properties = b"\x11" + _SESSION_SECONDS.to_bytes(4) + b"\x27" + _MOST_BYTES.to_bytes(4) + b"\x21\x00\x0a"
            body += _variable(len(properties)) + properties
        body += _text(client_id) + (_text(user) if flags & 0x80 else b"") + (_text(password) if flags & 0x40 else b"")
        await self._send(_packet(0x10, body))
        with trio.move_on_after(_ANSWER_OF_5_SECONDS if self._level == 5 else _ANSWER_SECONDS):
            head, answer = await self._packet()
            if head != _CONNACK or len(answer) < 2:
                raise UpstreamError("The address answers, but not as a broker of MQTT.")
            reason = answer[1]
            if reason in _UNSUPPORTED:
                raise VersionRefusedError
            if reason:
                raise UpstreamError(f"The broker refuses the connection: {_said(reason)}.")
            if self._level == 5:
                self._take_limits(answer[2:])
            return
        if self._level == 5:
            raise VersionRefusedError
        raise UpstreamError(f"The broker has not answered within {_ANSWER_SECONDS:.0f} s.")

    def _take_limits(self, encoded: bytes) -> None:
        for name, value in _properties(encoded)[0]:
            if name == _RECEIVE_MAXIMUM:
                self._window = max(min(int.from_bytes(value), _WINDOW), 1)
            elif name == _MAXIMUM_PACKET_SIZE:
                self._most_bytes = int.from_bytes(value)

    async def subscribe(self, filter_: str) -> None:
        """Return when the broker has subscribed this client, while `run` reads. Raises UpstreamError."""
        self._subscription = self._new_id()
        properties = b"\x00" if self._level == 5 else b""
        await self._send(_packet(0x82, self._subscription.to_bytes(2) + properties + _text(filter_) + b"\x01"))
        with trio.move_on_after(_ANSWER_SECONDS):
            await self._subscribed.wait()
            if self._refused:
                raise UpstreamError(self._refused)
            return
        raise UpstreamError("The broker has not answered a subscription.")

    async def publish(self, messages: Sequence[BrokerMessage]) -> None:
        """As `Broker.publish`, while `run` reads."""
        for first in range(0, len(messages), self._window):
            waiting, packets = list[tuple[int, trio.Event]](), bytearray()
            for one in messages[first : first + self._window]:
                number, event = self._new_id(), trio.Event()
                packet = self._encoded(one, number)
                if len(packet) > self._most_bytes:
                    raise UpstreamError(f"The broker takes packets of {self._most_bytes} bytes at most.")
                self._waiting[number] = event
                waiting.append((number, event))
                packets += packet
            try:
                await self._send(bytes(packets))
                with trio.move_on_after(_ANSWER_SECONDS) as scope:
                    for _, event in waiting:
                        await event.wait()
                if scope.cancelled_caught:
                    raise UpstreamError(f"The broker has not acknowledged messages within {_ANSWER_SECONDS:.0f} s.")
                if self._refused:
                    raise UpstreamError(self._refused)
            finally:
                for number, _ in waiting:
                    self._waiting.pop(number, None)

    def _encoded(self, one: BrokerMessage, number: int) -> bytes:
        body = _text(one.topic) + number.to_bytes(2)
        if self._level == 5:
            properties = b"".join(b"\x26" + _text(name) + _text(value) for name, value in one.properties)
            body += _variable(len(properties)) + properties
        return _packet(0x32, body + one.payload)

    def _new_id(self) -> int:
        while True:
            number, self._next_id = self._next_id, self._next_id % 0xFFFF + 1
            if number not in self._waiting:
                return number

    # The connection

    async def run(self) -> None:
        """Read until the connection ends, which is an UpstreamError."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ping_forever)
            while True:
                await self._take(*await self._packet())

    async def _ping_forever(self) -> None:
        while True:
            await trio.sleep(_KEEP_ALIVE_SECONDS / 2)
            if trio.current_time() - self._heard > 2 * _KEEP_ALIVE_SECONDS:
                raise UpstreamError("The broker does not answer any more.")
            await self._send(_PINGREQ)

    async def _take(self, head: int, body: bytes) -> None:
        kind = head & 0xF0
        if kind == _PUBACK and len(body) >= 2:
            if len(body) > 2 and body[2] >= 0x80:
                self._refused = f"The broker does not take a message: {_said(body[2])}."
            if (event := self._waiting.get(int.from_bytes(body[:2]))) is not None:
                event.set()
        elif kind == _SUBACK and len(body) >= 3:
            if body[-1] >= 0x80:
                self._refused = f"The broker does not allow the subscription to commands: {_said(body[-1])}."
            self._subscribed.set()
        elif kind == _PUBLISH:
            await self._take_command(head, body)
        elif kind == _DISCONNECT:
            raise UpstreamError(f"The broker has ended the connection: {_said(body[0] if body else 0)}.")
        elif kind != _PINGRESP:
            raise UpstreamError("The broker sends what is no packet for a client.")

    async def _take_command(self, head: int, body: bytes) -> None:
        qos = head >> 1 & 3
        try:
            length = int.from_bytes(body[:2])
            topic, rest = body[2 : 2 + length].decode(), body[2 + length :]
            number = b""
            if qos:
                number, rest = rest[:2], rest[2:]
            if qos > 1 or (qos and len(number) != 2):
                raise ValueError("QoS")
            payload = _properties(rest)[1] if self._level == 5 else rest
        except (ValueError, IndexError, struct.error) as error:
            raise UpstreamError("The broker sends what is no message.") from error
        await self._command(topic, bytes(payload))
        if qos:
            await self._send(b"\x40\x02" + number)

    async def _send(self, data: bytes) -> None:
        try:
            async with self._sending:
                with trio.move_on_after(_ANSWER_SECONDS) as scope:
                    await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            raise UpstreamError("The connection to the broker is broken.") from error
        if scope.cancelled_caught:
            raise UpstreamError(f"The broker has not read for {_ANSWER_SECONDS:.0f} s.")

    async def _packet(self) -> tuple[int, bytes]:
        """The next packet: its first byte and what follows the length. Raises UpstreamError."""
        while True:
            if (found := self._cut()) is not None:
                return found
            try:
                data = await self._stream.receive_some(_MOST_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
                raise UpstreamError("The connection to the broker is broken.") from error
            if not data:
                raise UpstreamError("The broker has closed the connection.")
            self._heard = trio.current_time()
            self._buffer += data

    def _cut(self) -> tuple[int, bytes] | None:
        length, at = 0, 1
        while True:
            if at >= len(self._buffer):
                return None
            byte = self._buffer[at]
            length |= (byte & 0x7F) << 7 * (at - 1)
            at += 1
            if not byte & 0x80:
                break
            if at > 4:
                raise UpstreamError("The address answers, but not as a broker of MQTT.")
        if length > _MOST_BYTES:
            raise UpstreamError(f"The broker sends a packet of {length} bytes, which is too much.")
        if len(self._buffer) < at + length:
            return None
        head, body = self._buffer[0], bytes(self._buffer[at : at + length])
        del self._buffer[: at + length]
        return head, body

    async def close(self) -> None:
        with trio.move_on_after(1) as scope:
            scope.shield = True
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError, OSError):
                await self._stream.send_all(b"\xe0\x00")
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)


Opened = Callable[[], Awaitable[trio.abc.Stream]]


async def connected(open_stream: Opened, client_id: str, user: str, password: str, command: Command) -> MqttClient:
    """A client that is connected with version 5, or with 3.1.1 where the broker does not speak 5.

    Raises UpstreamError.
    """
    for level in (5, 4):
        client = MqttClient(await open_stream(), level, command)
        try:
            await client.connect(client_id, user, password)
        except VersionRefusedError:
            await client.close()
            continue
        except UpstreamError as error:
            await client.close()
            # Some brokers of 3.1.1 end the connection, with or without CONNACK.
            if level == 5 and "closed" in str(error):
                continue
            raise
        except BaseException:  # whatever it is, a cancellation, too: the connection must not stay open; raised again
            await client.close()
            raise
        return client
    raise UpstreamError("The broker speaks neither MQTT 5 nor MQTT 3.1.1.")


def _said(reason: int) -> str:
    return _REASONS.get(reason, f"reason code {reason}")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return len(encoded).to_bytes(2) + encoded


def _variable(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        encoded.append(low | 0x80 if value else low)
        if not value:
            return bytes(encoded)


def _packet(head: int, body: bytes) -> bytes:
    return bytes((head,)) + _variable(len(body)) + body


def _properties(encoded: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """The properties at the beginning, and what follows them. Raises ValueError."""
    length, at = _number(encoded, 0)
    end = at + length
    if end > len(encoded):
        raise ValueError("properties")
    found = list[tuple[int, bytes]]()
    while at < end:
        name, size = encoded[at], _SIZES.get(encoded[at])
        at += 1
        if size is None:
            raise ValueError("property")
        if size == 0:
            _, after = _number(encoded, at)
        elif size > 0:
            after = at + size
        else:
            after = at
            for _ in range(-size):
                after += 2 + int.from_bytes(encoded[after : after + 2])
        if after > end:
            raise ValueError("property")
        found.append((name, encoded[at:after]))
        at = after
    return found, encoded[end:]


def _number(encoded: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 28, 7):
        if at >= len(encoded):
            raise ValueError("number")
        byte = encoded[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value, at
    raise ValueError("number")
