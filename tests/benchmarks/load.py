"""A load generator, of MQTT QoS 1: pre-encoded packets, one thread, epoll, so that it costs little beside the daemon.

Every connection keeps at most `window` packets without an acknowledgement. It is bounded in time and stops by itself.
"""

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PUBACK_BYTES = 4
#: Packets of equal length that a connection sends again and again, at least.
RING_PACKETS = 2000


@dataclass
class Result:
    seconds: float
    messages: int
    latencies: list[tuple[float, int]] = field(default_factory=list)  # seconds, messages acknowledged by then

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    def percentile(self, share: float) -> float:
        """Latency in seconds that this share of the messages stayed under."""
        self.latencies.sort()
        wanted = share * sum(number for _, number in self.latencies)
        seen = 0
        for latency, number in self.latencies:
            seen += number
            if seen >= wanted:
                return latency
        return 0.0


class Publisher:
    """One device: a ring of encoded packets, how far it is sent, how far acknowledged. All counts are bytes."""

    def __init__(
        self, connected: socket.socket, packets: Sequence[bytes], window: int, acknowledgements: Callable[[bytes], int]
    ) -> None:
        """`acknowledgements` counts the acknowledgements that received bytes complete. All packets are equally long."""
        self.socket = connected
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.acknowledgements = acknowledgements
        self.ring = memoryview(b"".join(packets))
        self.packet = len(self.ring) // len(packets)
        self.window = window * self.packet
        self.sent = self.acknowledged = 0
        self.waiting: deque[tuple[int, float]] = deque()
        self.blocked = False


class _PubAcks:
    def __init__(self) -> None:
        self._remainder = 0

    def __call__(self, data: bytes) -> int:
        number, self._remainder = divmod(self._remainder + len(data), PUBACK_BYTES)
        return number


def mqtt_publisher(port: int, user: str, password: str, payload: bytes, window: int) -> Publisher:
    """A device that is connected: the user is its id."""
    connected = socket.create_connection(("127.0.0.1", port), timeout=10)
    body = _text("MQTT") + struct.pack("!BBH", 4, 0xC2, 0) + _text(user) + _text(user) + _text(password)
    connected.sendall(b"\x10" + _length(len(body)) + body)
    answer = connected.recv(4)
    if answer != b"\x20\x02\x00\x00":
        raise RuntimeError(f"connection refused: {answer!r}")
    numbers = range(1, 1 + max(RING_PACKETS, window * 4))
    packets = [_publish(f"/v1.1/messages/{user}", payload, number) for number in numbers]
    return Publisher(connected, packets, window, _PubAcks())


def publish_qos1(
    port: int,
    credentials: list[tuple[str, str]],
    payload: bytes,
    *,
    window: int,
    seconds: float,
    warmup: float = 1.0,
) -> Result:
    """Publish on `/v1.1/messages/<user>` from one connection per (user, password) for a bounded time."""
    connections = [mqtt_publisher(port, user, password, payload, window) for user, password in credentials]
    return publish(connections, seconds=seconds, warmup=warmup)


def publish(connections: Sequence[Publisher], *, seconds: float, warmup: float = 1.0) -> Result:
    """Have all of them publish for a bounded time, and close them."""
    by_fd = {one.socket.fileno(): one for one in connections}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    for one in connections:
        _push(one, poll)
    begin = time.perf_counter() + warmup
    end = begin + seconds
    result = Result(seconds, 0)
    while (now := time.perf_counter()) < end:
        for fd, event in poll.poll(0.2, 256):
            one = by_fd[fd]
            if event & select.EPOLLIN:
                _receive(one, result if now >= begin else None)
            _push(one, poll)
    for one in connections:
        one.socket.close()
    poll.close()
    return result


def _receive(one: Publisher, result: Result | None) -> None:
    data = one.socket.recv(1 << 16)
    if not data:
        raise RuntimeError("the daemon closed a connection")
    number = one.acknowledgements(data)
    before = one.acknowledged
    one.acknowledged += number * one.packet
    now = time.perf_counter()
    if result is not None:
        result.messages += number
    while one.waiting and one.waiting[0][0] <= one.acknowledged:
        place, sent_at = one.waiting.popleft()
        if result is not None:
            result.latencies.append((now - sent_at, max(1, (place - before) // one.packet)))
        before = max(before, place)


def _push(one: Publisher, poll: select.epoll) -> None:
    limit = one.acknowledged + one.window
    while one.sent < limit:
        offset = one.sent % len(one.ring)
        wanted = min(limit - one.sent, len(one.ring) - offset, 262_144)
        try:
            written = one.socket.send(one.ring[offset : offset + wanted])
        except BlockingIOError:
            written = 0
        if written:
            one.sent += written
            one.waiting.append((one.sent - one.sent % one.packet, time.perf_counter()))
        if written < wanted:
            _watch(one, poll, writable=True)
            return
    _watch(one, poll, writable=False)


def _watch(one: Publisher, poll: select.epoll, *, writable: bool) -> None:
    if one.blocked is not writable:
        one.blocked = writable
        poll.modify(one.socket, select.EPOLLIN | (select.EPOLLOUT if writable else 0))


def _text(value: str) -> bytes:
    return struct.pack("!H", len(value)) + value.encode()


def _publish(topic: str, payload: bytes, packet_id: int) -> bytes:
    body = _text(topic) + struct.pack("!H", packet_id) + payload
    return b"\x32" + _length(len(body)) + body


def _length(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, digit = divmod(value, 128)
        encoded.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(encoded)
