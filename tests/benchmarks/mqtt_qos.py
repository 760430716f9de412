"""MQTT by quality of service, connects, and idle connections, beside aedes and mosquitto in the same run.

    python -m tests.benchmarks.mqtt_qos [--rounds 3] [--seconds 3] [--only WORD]

One generator for all: it publishes with QoS 0, 1 and 2 on 1 and 50 connections, 1 and 20 messages in flight on each. A
message of QoS 2 counts when its PUBCOMP has come. QoS 0 has no acknowledgement: there a tenth message has QoS 1, whose
PUBACK counts for ten, and the window counts tens. The daemon and aedes acknowledge behind their commit; mosquitto
stores nothing.
"""

import argparse
import os
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks.load import Result
from tests.benchmarks.mqtt_ingest import PAYLOAD
from tests.benchmarks.suite import mqtt
from tests.benchmarks.suite.contest import Contender, Measure, Row, Sample, compete, table, using
from tests.benchmarks.websocket import resident_kib
from tests.daemon import device_id, device_token, running_daemon
from tests.protocols.mqtt.peers import ACCEPTED, DISCONNECT, connect, publish

_WARM_UP_SECONDS: Final = 0.5
_IDLE: Final = 1_000
_CONNECTING: Final = 20  # at once
_PACKET_IDS: Final = 1_000
_TOGETHER: Final = 10  # messages that one acknowledgement counts for where the others have QoS 0
_PUBREC: Final = 0x50

Server = Callable[[], AbstractContextManager[tuple[int, int]]]  # port and process


@contextmanager
def _ours() -> Iterator[tuple[int, int]]:
    with TemporaryDirectory(dir="/var/tmp") as folder, running_daemon(Path(folder), devices=_IDLE) as daemon:
        assert daemon.process is not None
        yield daemon.port("mqtt"), daemon.process.pid


_SERVERS: Final[dict[str, Server]] = {
    "Trunkline": _ours,
    "aedes and better-sqlite3": mqtt.aedes_server,
    "mosquitto (stores nothing)": mqtt.mosquitto_server,
}


def _hello(number: int) -> bytes:
    return connect(device_id(number), device_token(number), client_id=device_id(number).encode())


def _connected(port: int, number: int) -> socket.socket:
    one = _dialled(port)
    one.sendall(_hello(number))
    answer = one.recv(4)
    if answer != ACCEPTED:
        raise RuntimeError(f"connection refused: {answer!r}")
    return one


def _dialled(port: int) -> socket.socket:
    for _ in range(100):  # a server may just be starting
        with suppress(ConnectionRefusedError):
            one = socket.create_connection(("127.0.0.1", port), timeout=10)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return one
        time.sleep(0.05)
    raise RuntimeError("nobody listens")


# --- Publishing ---


class _Publisher:
    """One device that keeps a number of messages, or tens of them, in flight."""

    def __init__(self, port: int, number: int, qos: int, window: int) -> None:
        self.socket = _connected(port, number)
        self.socket.setblocking(False)
        topic = f"/v1.1/messages/{device_id(number)}".encode()
        before = publish(payload=PAYLOAD, qos=0, topic=topic) * (_TOGETHER - 1) if qos == 0 else b""
        self._units = [
            before + publish(packet_id, PAYLOAD, qos=max(qos, 1), topic=topic)
            for packet_id in range(1, _PACKET_IDS + 1)
        ]
        self._each = _TOGETHER if qos == 0 else 1
        self._is_twofold = qos == 2
        self._window = window
        self._next = 0
        self._out = b""
        self._unread = b""
        self._begun: deque[float] = deque()

    def push(self) -> bool:
        """Send what is due; whether all of it was taken."""
        now = time.perf_counter()
        units = [self._out]
        while len(self._begun) < self._window:
            units.append(self._units[self._next % _PACKET_IDS])
            self._next += 1
            self._begun.append(now)
        self._out = b"".join(units)
        if self._out:
            with suppress(BlockingIOError):
                self._out = self._out[self.socket.send(self._out) :]
        return not self._out

    def receive(self, result: Result | None) -> None:
        received = self.socket.recv(1 << 18)
        if not received:
            raise RuntimeError("the server closed a connection")
        data = self._unread + received
        whole = len(data) - len(data) % 4
        self._unread = data[whole:]
        count = whole // 4
        if self._is_twofold:
            releases = [b"\x62" + data[at + 1 : at + 4] for at in range(0, whole, 4) if data[at] == _PUBREC]
            self._out += b"".join(releases)
            count -= len(releases)
        now = time.perf_counter()
        for _ in range(count):
            begun = self._begun.popleft()
            if result is not None:
                result.latencies.append((now - begun, self._each))
        if result is not None:
            result.messages += count * self._each


def _publish(port: int, *, qos: int, devices: int, window: int, seconds: float) -> Result:
    publishers = [_Publisher(port, number, qos, window) for number in range(devices)]
    by_descriptor = {one.socket.fileno(): one for one in publishers}
    result = Result(seconds, 0)
    with select.epoll() as poll:
        for descriptor, one in by_descriptor.items():
            poll.register(descriptor, select.EPOLLIN if one.push() else select.EPOLLIN | select.EPOLLOUT)
        begin = time.perf_counter() + _WARM_UP_SECONDS
        while (now := time.perf_counter()) < begin + seconds:
            for descriptor, event in poll.poll(0.2, 256):
                one = by_descriptor[descriptor]
                if event & select.EPOLLIN:
                    one.receive(result if now >= begin else None)
                poll.modify(descriptor, select.EPOLLIN if one.push() else select.EPOLLIN | select.EPOLLOUT)
    for one in publishers:
        one.socket.close()
    return result


def _publishing(port: int, process: int, *, qos: int, devices: int, window: int) -> Measure:
    def measure(seconds: float) -> Sample:
        with using(process) as used:
            found = _publish(port, qos=qos, devices=devices, window=window, seconds=seconds)
        taken = found.rate * (seconds + _WARM_UP_SECONDS)
        return used.of_each(found.rate, taken, p99_ms=found.percentile(0.99) * 1000)

    return measure


# --- Connecting ---


def connecting(port: int, process: int, *, database: int | None = None) -> Measure:
    """Connections that are made, accepted and left with DISCONNECT, twenty at once."""

    def measure(seconds: float) -> Sample:
        _connected(port, 0).close()
        count, waits = 0, Result(seconds, 0)
        with using(process, database=database) as used:
            end = time.perf_counter() + seconds
            while (begin := time.perf_counter()) < end:
                opened = [_dialled(port) for _ in range(_CONNECTING)]
                for number, one in enumerate(opened):
                    one.sendall(_hello(number))
                for one in opened:
                    answer = one.recv(4)
                    assert answer == ACCEPTED, answer
                    waits.latencies.append((time.perf_counter() - begin, 1))
                    one.sendall(DISCONNECT)
                    one.close()
                count += len(opened)
        return used.of_each(count / seconds, count, p99_ms=waits.percentile(0.99) * 1000)

    return measure


def _idle(port: int, process: int) -> Measure:
    """The memory of connections that do nothing, in KiB each."""

    def measure(_seconds: float) -> Sample:
        _connected(port, 0).close()
        before = resident_kib(process)
        opened = [_connected(port, number) for number in range(_IDLE)]
        grown = resident_kib(process) - before
        for one in opened:
            one.close()
        return Sample(grown / _IDLE, resident_mib=(before + grown) / 1024)

    return measure


def _contenders(what: Callable[[int, int], Measure]) -> dict[str, Contender]:
    return {name: partial(_measuring, server, what) for name, server in _SERVERS.items()}


@contextmanager
def _measuring(server: Server, what: Callable[[int, int], Measure]) -> Iterator[Measure]:
    with server() as (port, process):
        yield what(port, process)


def rows() -> Iterator[Row]:
    for qos in (0, 1, 2):
        for devices in (1, 50):
            for window in (1, 20):
                what = partial(_publishing, qos=qos, devices=devices, window=window)
                yield Row(f"QoS {qos}, {devices} x {window}", _contenders(what))
    yield from connection_rows()


def connection_rows() -> Iterator[Row]:
    yield Row("MQTT connects", _contenders(connecting), "3 k/s")
    # Once only: what is freed of the first thousand connections, the next thousand gets.
    yield Row("KiB of an idle MQTT connection", _contenders(_idle), "12 KiB", rounds=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--only", default="", help="only rows whose names have this text")
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    load = os.getloadavg()[0]
    measured = partial(compete, rounds=options.rounds, seconds=options.seconds, told=partial(print, flush=True))
    outcomes = [measured(row) for row in rows() if options.only.lower() in row.name.lower()]
    print(f"load {load:.1f} at the start; {options.rounds} rounds of {options.seconds:g} s\n\n{table(outcomes)}")


if __name__ == "__main__":
    main()
