"""A crowd of live subscribers, all of whom must get every message once and in order.

    python -m tests.benchmarks.websocket_crowd [--subscribers 1000] [--rate 100] [--seconds 10]

Ten devices together send at a given rate. All subscribers watch all of them, so each must get the same bytes:
one is read frame by frame, of the others a checksum is compared with it. Runs end before the first ping.
"""

import argparse
import json
import resource
import select
import socket
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.websocket import cpu_seconds
from tests.benchmarks.websocket_load import Frames, connect, masked
from tests.daemon import MANY_CONNECTIONS, USER_TOKEN, Daemon, device_id, device_token, running_daemon

DEVICES = 10
_LIVE = f"/v1.1/live?Authorization=bearer+{USER_TOKEN}"
_RECEIVE = 1 << 18
_PATIENCE_SECONDS = 15.0
_SECONDS_MAX = 20.0
_TEXT = 1


class _Subscriber:
    """Messages of one subscriber. `numbers`: the messages' numbers, of a subscriber whose frames are read."""

    def __init__(self, opened: socket.socket, *, reads: bool) -> None:
        self.socket = opened
        self.bytes = self.checksum = 0
        self.received: bytearray | None = bytearray() if reads else None
        opened.setblocking(False)

    def readable(self) -> None:
        try:
            received = self.socket.recv(_RECEIVE)
        except BlockingIOError:
            return
        if not received:
            raise RuntimeError("a subscriber was closed")
        self.bytes += len(received)
        self.checksum = zlib.crc32(received, self.checksum)
        if self.received is not None:
            self.received += received

    def numbers(self) -> list[int]:
        """The numbers of the messages, in the order of their frames."""
        found, rest = [], bytes(self.received or b"")
        while rest:
            size, head = rest[1], 2
            if size == 126:
                size, head = int.from_bytes(rest[2:4], "big"), 4
            found.append(int(json.loads(rest[head : head + size])["data"]["intensity"]))
            rest = rest[head + size :]
        return found


class _Device:
    """Sends when it is told to, and counts acknowledgements."""

    def __init__(self, port: int, number: int) -> None:
        self.socket = connect(port, "/v1.1/websocket?ack=true")
        self.frames, self._id = Frames(), device_id(number)
        register = {"type": "register", "sdid": self._id, "Authorization": f"bearer {device_token(number)}"}
        self.socket.sendall(masked(_TEXT, json.dumps(register).encode()))
        while not self.frames.data:
            self.frames.feed(self.socket.recv(_RECEIVE))
        self.frames = Frames()
        self.socket.setblocking(False)

    def send(self, number: int) -> None:
        data = {"sdid": self._id, "cid": str(number), "data": {"intensity": number, "text": "ok"}}
        self.socket.setblocking(True)
        self.socket.sendall(masked(_TEXT, json.dumps(data).encode()))
        self.socket.setblocking(False)

    def readable(self) -> None:
        self.frames.feed(self.socket.recv(_RECEIVE))


@dataclass(frozen=True, slots=True)
class Crowd:
    """`gaps`: subscribers that did not get every message once and in order."""

    sent: int
    acknowledged: int
    gaps: int
    seconds_behind: float  # from the last message sent until the last subscriber had it
    cpu_seconds: float


def crowd(daemon: Daemon, *, subscribers: int, rate: float, seconds: float) -> Crowd:
    port = daemon.port("http")
    assert daemon.process is not None
    watching = [_Subscriber(connect(port, _LIVE), reads=not number) for number in range(subscribers)]
    devices = [_Device(port, number) for number in range(DEVICES)]
    everyone: list[_Subscriber | _Device] = [*watching, *devices]
    peers = {one.socket.fileno(): one for one in everyone}
    poll = select.epoll()
    for descriptor in peers:
        poll.register(descriptor, select.EPOLLIN)
    used, begin, sent = cpu_seconds(daemon.process.pid), time.perf_counter(), 0
    while (now := time.perf_counter() - begin) < seconds:
        while sent < now * rate:
            devices[sent % DEVICES].send(sent)
            sent += 1
        for descriptor, _ in poll.poll(0.002, 256):
            peers[descriptor].readable()
    ended = time.perf_counter()
    while time.perf_counter() - ended < _PATIENCE_SECONDS:
        for descriptor, _ in poll.poll(0.01, 4096):
            peers[descriptor].readable()
        first, acknowledged = watching[0], sum(one.frames.data for one in devices)
        is_level = len({one.bytes for one in watching}) == 1
        if acknowledged == sent and is_level and len(first.numbers()) == sent:
            break
    behind = time.perf_counter() - ended
    used = cpu_seconds(daemon.process.pid) - used
    poll.close()
    for one in peers.values():
        one.socket.close()
    acknowledged = sum(one.frames.data for one in devices)
    numbers = watching[0].numbers()
    is_whole = sorted(numbers) == list(range(sent)) and all(
        mine == sorted(mine) for mine in ([n for n in numbers if n % DEVICES == k] for k in range(DEVICES))
    )
    expected = (watching[0].bytes, watching[0].checksum)
    gaps = sum((one.bytes, one.checksum) != expected for one in watching) if is_whole else subscribers
    return Crowd(sent, acknowledged, gaps, behind, used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    if options.seconds > _SECONDS_MAX:
        parser.error(f"at most {_SECONDS_MAX:g} seconds: pings would come between the messages")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with (
        tempfile.TemporaryDirectory() as folder,
        running_daemon(Path(folder), devices=DEVICES, settings=MANY_CONNECTIONS) as daemon,
    ):
        found = crowd(daemon, subscribers=options.subscribers, rate=options.rate, seconds=options.seconds)
    frames = found.sent * options.subscribers
    print(
        f"crowd   {options.subscribers:,} subscribers, {found.sent:,} messages in {options.seconds:g} s,"
        f" {found.acknowledged:,} acknowledged: {found.gaps} subscribers with gaps;"
        f" all had all {found.seconds_behind:.2f} s after the last was sent;"
        f" {found.cpu_seconds / frames * 1e6:.1f} µs of the daemon a frame"
    )


if __name__ == "__main__":
    main()
