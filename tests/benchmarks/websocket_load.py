"""Load over WebSocket: pre-encoded frames, one thread, epoll, so that it costs little beside the daemon.

A sender is one registered device that keeps at most `window` messages without an acknowledgement. A reader counts what
it is sent, or never reads. The caller ends the load after the time that it measures.
"""

import base64
import json
import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterable

from tests.benchmarks.load import Result

_MASK = b"\x37\xfa\x21\x3d"
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
_RECEIVE = 1 << 16  # with 1 << 20, Python asks for new memory at each read: 5.6 instead of 1.9 us for each message
_PING_BEGINS = b'{"type":"ping"'


def connect(port: int, path: str, *, receive_buffer: int | None = None) -> socket.socket:
    """An open WebSocket. A small receive buffer makes a reader that stops noticed sooner."""
    opened = socket.socket()
    if receive_buffer is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    opened.settimeout(20)
    opened.connect(("127.0.0.1", port))
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    key = base64.b64encode(os.urandom(16)).decode()
    opened.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += opened.recv(1)
        if len(head) > 8192 or not head:
            break
    if not head.startswith(b"HTTP/1.1 101"):
        raise RuntimeError(f"refused: {head[:200]!r}")
    return opened


def masked(opcode: int, payload: bytes) -> bytes:
    """One frame as a client sends it."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + _MASK + bytes(x ^ _MASK[i & 3] for i, x in enumerate(payload))


class Frames:
    """Counts the frames of a stream of bytes: text frames that are no pings of the service, and a close code."""

    __slots__ = ("_rest", "closed", "data", "pings")

    def __init__(self) -> None:
        self._rest = b""
        self.data = 0
        self.pings = 0
        self.closed: int | None = None

    def feed(self, received: bytes) -> int:
        """Gives how many data frames came."""
        data = self._rest + received if self._rest else received
        place, end, before = 0, len(data), self.data
        while end - place >= 2:
            size, head = data[place + 1], 2
            if size == 126:
                if end - place < 4:
                    break
                size, head = data[place + 2] << 8 | data[place + 3], 4
            if place + head + size > end:
                break
            opcode = data[place] & 15
            step = head + size
            if opcode == _TEXT and place + 2 * step <= end and (count := _equal_frames(data, place, head, step)):
                self.data += count
                place += count * step
                continue
            if opcode == _TEXT:
                if data.startswith(_PING_BEGINS, place + head):
                    self.pings += 1
                else:
                    self.data += 1
            elif opcode == _CLOSE:
                self.closed = int.from_bytes(data[place + head : place + head + 2], "big")
            place += step
        self._rest = data[place:]
        return self.data - before


def _equal_frames(data: bytes, place: int, head: int, step: int) -> int:
    """How many data frames of `step` bytes follow each other; 0 when there may be a ping among them.

    Ten subscribers are sent ten times what is ingested, and a loop over all frames cost as much as half of the daemon.
    A frame that begins like the one before it is as long, so the heads of all are compared column by column.
    """
    count = (len(data) - place) // step
    for column in range(place, place + head):
        heads = data[column : place + count * step : step]
        count = len(heads) - len(heads.lstrip(heads[:1]))
    is_short = head == 2  # as pings are
    return 0 if is_short and data.find(_PING_BEGINS, place, place + count * step) >= 0 else count


class Reader:
    """A subscriber."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.frames = Frames()
        opened.setblocking(False)

    def readable(self, _now: float) -> None:
        try:
            received = self.socket.recv(_RECEIVE)
        except BlockingIOError:
            return
        if not received:
            raise RuntimeError(f"a reader was closed: {self.frames.closed}")
        self.frames.feed(received)

    def writable(self) -> None: ...


class Sender:
    """A registered device with `ack=true`."""

    def __init__(self, port: int, device: str, token: str, data: str, *, window: int) -> None:
        self.socket = connect(port, "/v1.1/websocket?ack=true")
        self._say({"type": "register", "sdid": device, "Authorization": f"bearer {token}"})
        self.frames = Frames()
        while not self.frames.data:
            self.frames.feed(self.socket.recv(_RECEIVE))
        self.frames = Frames()
        self.socket.setblocking(False)
        message = masked(_TEXT, f'{{"sdid":"{device}","cid":"7","data":{data}}}'.encode())
        self._size = len(message)
        self._ring = memoryview(message * max(1000, 2 * window))
        self._window = window
        self._sent = 0  # bytes
        self._sent_at: deque[tuple[int, float]] = deque()  # messages, when
        self.latencies: list[tuple[float, int]] = []
        self.is_sending = True
        self.blocked = False

    def _say(self, frame: dict[str, str]) -> None:
        self.socket.sendall(masked(_TEXT, json.dumps(frame).encode()))

    @property
    def acknowledged(self) -> int:
        return self.frames.data

    @property
    def is_settled(self) -> bool:
        return self.acknowledged * self._size == self._sent

    def readable(self, now: float) -> None:
        received = self.socket.recv(_RECEIVE)
        if not received:
            raise RuntimeError(f"a sender was closed: {self.frames.closed}")
        before = self.acknowledged
        self.frames.feed(received)
        while self._sent_at and self._sent_at[0][0] <= self.acknowledged:
            place, sent_at = self._sent_at.popleft()
            self.latencies.append((now - sent_at, max(1, place - before)))
            before = max(before, place)
        self.writable()

    def writable(self) -> None:
        goal = (self.acknowledged + self._window) * self._size if self.is_sending else self._ends_at
        self.blocked = False
        while self._sent < goal:
            offset = self._sent % len(self._ring)
            wanted = min(goal - self._sent, len(self._ring) - offset)
            try:
                written = self.socket.send(self._ring[offset : offset + wanted])
            except BlockingIOError:
                self.blocked = True
                return
            self._sent += written
            self._sent_at.append((self._sent // self._size, time.perf_counter()))

    @property
    def _ends_at(self) -> int:
        """Half a message is sent to its end."""
        return -(-self._sent // self._size) * self._size


class Drive:
    """Moves senders and readers until a moment in time."""

    def __init__(self, peers: Iterable[Reader | Sender]) -> None:
        self._peers = {peer.socket.fileno(): peer for peer in peers}
        self._poll = select.epoll()
        self._events: dict[int, int] = {}
        for descriptor, peer in self._peers.items():
            self._poll.register(descriptor, select.EPOLLIN)
            peer.writable()

    def run(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            for descriptor, event in self._poll.poll(0.1, 256):
                peer = self._peers[descriptor]
                if event & select.EPOLLIN:
                    peer.readable(now)
                else:
                    peer.writable()
                if isinstance(peer, Sender):
                    self._watch(descriptor, select.EPOLLIN | (select.EPOLLOUT if peer.blocked else 0))

    def settle(self, senders: Iterable[Sender], *, seconds: float = 30.0) -> None:
        """Send nothing new; wait until everything that was sent is acknowledged."""
        senders = list(senders)
        for sender in senders:
            sender.is_sending = False
            sender.writable()
        end = time.perf_counter() + seconds
        while not all(sender.is_settled for sender in senders):
            if time.perf_counter() > end:
                raise RuntimeError("not everything was acknowledged")
            self.run(0.05)

    def _watch(self, descriptor: int, events: int) -> None:
        if self._events.get(descriptor, select.EPOLLIN) != events:
            self._events[descriptor] = events
            self._poll.modify(descriptor, events)

    def close(self) -> None:
        self._poll.close()
        for peer in self._peers.values():
            peer.socket.close()


def result_of(senders: Iterable[Sender], seconds: float, before: int) -> Result:
    senders = list(senders)
    latencies = [latency for sender in senders for latency in sender.latencies]
    return Result(seconds, sum(sender.acknowledged for sender in senders) - before, latencies)
