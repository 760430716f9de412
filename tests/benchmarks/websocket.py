"""The device channel, the live feed and many idle sockets, beside a bare trio echo in the same minute.

    python -m tests.benchmarks.websocket [--seconds 5] [ack] [fanout] [idle] [soak]

`ack`: 50 registered devices, 20 messages in flight each, every one durable before its acknowledgement. `fanout`: the
same, with 10 subscribers of /live; then with messages that come over MQTT. `idle`: memory of 5,000 sockets that do
nothing. `soak`: 2,000 sockets, 50 devices sending, 20 subscribers of which 5 stop reading; memory is printed as it
goes, and who missed how much at the end.
"""

import argparse
import multiprocessing
import os
import resource
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from tests.benchmarks.load import publish_qos1
from tests.benchmarks.websocket_load import Drive, Frames, Reader, Sender, connect, masked, result_of
from tests.daemon import MANY_CONNECTIONS, USER_TOKEN, Daemon, device_id, device_token, running_daemon

DATA = '{"temperature":21.53,"intensity":48,"state":true,"text":"ok"}'
LIVE = f"/v1.1/live?Authorization=bearer+{USER_TOKEN}"
_DEVICES = 50
_ENOUGH = 30_000  # messages of 250 bytes


def resident_kib(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0])


def cpu_seconds(process: int) -> float:
    """Processor seconds of a process so far, user and system; on a shared machine this says more than rates."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds_of_family(process: int) -> float:
    """As `cpu_seconds`, with the children of the process: those that live, and those that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    found = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    for child in Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split():
        with suppress(OSError):  # it has ended just now
            found += cpu_seconds(int(child))
    return found


def senders(daemon: Daemon, *, window: int) -> list[Sender]:
    port = daemon.port("http")
    return [Sender(port, device_id(n), device_token(n), DATA, window=window) for n in range(_DEVICES)]


# --- The yardstick ---


async def _echo(port: "multiprocessing.Queue[int]") -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async for received in stream:
            await stream.send_all(received)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        port.put(listener.socket.getsockname()[1])


def _serve_echo(port: "multiprocessing.Queue[int]") -> None:
    trio.run(_echo, port)


@contextmanager
def echo_server() -> Iterator[int]:
    port: multiprocessing.Queue[int] = multiprocessing.Queue()
    process = multiprocessing.Process(target=_serve_echo, args=(port,), daemon=True)
    process.start()
    try:
        yield port.get(timeout=10)
    finally:
        process.terminate()
        process.join()


def bare_echo(seconds: float) -> float:
    """Frames per second that a trio server without any protocol gives back, 50 connections with 20 in flight."""
    frame = masked(1, f'{{"sdid":"{device_id(0)}","cid":"7","data":{DATA}}}'.encode())
    with echo_server() as port:
        opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(_DEVICES)]
        for one in opened:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.sendall(frame * 20)
        poll = select.epoll()
        by_descriptor = {one.fileno(): one for one in opened}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for descriptor, _ in poll.poll(0.1, 256):
                received = by_descriptor[descriptor].recv(1 << 16)
                count += len(received)
                by_descriptor[descriptor].sendall(received)
        rate = count / len(frame) / (time.perf_counter() - begin)
        poll.close()
        for one in opened:
            one.close()
    return rate


# --- What is measured ---


def ack(daemon: Daemon, seconds: float, yardstick: float) -> None:
    talking = senders(daemon, window=20)
    drive = Drive(talking)
    drive.run(1.0)
    assert daemon.process is not None
    before, begin = sum(one.acknowledged for one in talking), time.perf_counter()
    used = cpu_seconds(daemon.process.pid)
    drive.run(seconds)
    result = result_of(talking, time.perf_counter() - begin, before)
    used = cpu_seconds(daemon.process.pid) - used
    drive.settle(talking)
    drive.close()
    print(
        f"ack     {_DEVICES} devices, 20 in flight  {result.rate:>9,.0f} msg/s   ratio {result.rate / yardstick:.2f}"
        f"   p50 {result.percentile(0.5) * 1000:.1f} ms, p99 {result.percentile(0.99) * 1000:.1f} ms"
        f"   {used / result.messages * 1e6:.1f} µs of the daemon each"
    )


def fanout(daemon: Daemon, seconds: float, yardstick: float, *, subscribers: int = 10) -> None:
    readers = [Reader(connect(daemon.port("http"), LIVE)) for _ in range(subscribers)]
    talking = senders(daemon, window=20)
    drive = Drive([*readers, *talking])
    drive.run(1.0)
    assert daemon.process is not None
    before = [one.frames.data for one in readers]
    sent, begin = sum(one.acknowledged for one in talking), time.perf_counter()
    used = cpu_seconds(daemon.process.pid)
    drive.run(seconds)
    elapsed = time.perf_counter() - begin
    used = cpu_seconds(daemon.process.pid) - used
    rates = [(one.frames.data - count) / elapsed for one, count in zip(readers, before, strict=True)]
    taken = sum(one.acknowledged for one in talking) - sent
    ingest = taken / elapsed
    drive.settle(talking)
    drive.close()
    print(
        f"fanout  {subscribers} subscribers         {min(rates):>9,.0f} frames/s each at {ingest:,.0f} msg/s"
        f"   ratio {min(rates) * subscribers / yardstick:.2f} (all frames to the yardstick)"
        f"   {used / taken * 1e6:.1f} µs of the daemon for each message"
    )


def _publish(port: int, seconds: float, rate: "multiprocessing.Queue[float]") -> None:
    credentials = [(device_id(n), device_token(n)) for n in range(_DEVICES)]
    rate.put(publish_qos1(port, credentials, DATA.encode(), window=20, seconds=seconds, warmup=1.0).rate)


def fanout_of_mqtt(daemon: Daemon, seconds: float, *, subscribers: int = 10) -> None:
    """The same for messages that come over MQTT, from a process of their own."""
    readers = [Reader(connect(daemon.port("http"), LIVE)) for _ in range(subscribers)]
    sent: multiprocessing.Queue[float] = multiprocessing.Queue()
    process = multiprocessing.Process(target=_publish, args=(daemon.port("mqtt"), seconds + 2, sent))
    process.start()
    drive = Drive(readers)
    drive.run(2.0)
    before, begin = [one.frames.data for one in readers], time.perf_counter()
    drive.run(seconds)
    elapsed = time.perf_counter() - begin
    rates = [(one.frames.data - count) / elapsed for one, count in zip(readers, before, strict=True)]
    drive.run(2.0)
    ingest = sent.get(timeout=30)
    process.join()
    drive.close()
    print(f"        the same of MQTT     {min(rates):>9,.0f} frames/s each at {ingest:,.0f} msg/s")


def idle_kib(daemon: Daemon, *, sockets: int) -> float:
    """Resident memory of one socket of /live that does nothing."""
    assert daemon.process is not None
    before = resident_kib(daemon.process.pid)
    opened = [connect(daemon.port("http"), LIVE) for _ in range(sockets)]
    grown = resident_kib(daemon.process.pid) - before
    for one in opened:
        one.close()
    return grown / sockets


def idle(daemon: Daemon, *, sockets: int = 5000) -> None:
    print(f"idle    {sockets} sockets       {idle_kib(daemon, sockets=sockets):>9,.1f} KiB each   (goal 15)")


@dataclass(frozen=True, slots=True)
class Soak:
    acknowledged: int
    received: list[int]
    ends: list[str]
    resident_kib: list[int]


def soak(
    daemon: Daemon, seconds: float, *, sockets: int = 2000, window: int = 4, steps: int = 10, enough: int = _ENOUGH
) -> Soak:
    """Messages of the readers, ends of the connections that stopped reading, and the daemon's memory over time."""
    port = daemon.port("http")
    assert daemon.process is not None
    parked = [connect(port, LIVE + f"&sdids={device_id(_DEVICES + n % 10)}") for n in range(sockets - _DEVICES - 20)]
    readers = [Reader(connect(port, LIVE)) for _ in range(15)]
    stopped = [connect(port, LIVE, receive_buffer=4096) for _ in range(5)]
    talking = senders(daemon, window=window)
    drive = Drive([*readers, *talking])
    memory: list[int] = []
    while len(memory) < steps or sum(one.acknowledged for one in talking) < enough:
        drive.run(seconds / steps)
        memory.append(resident_kib(daemon.process.pid))
    drive.settle(talking)
    total = sum(one.acknowledged for one in talking)
    end = time.perf_counter() + 30
    while any(one.frames.data < total for one in readers) and time.perf_counter() < end:
        drive.run(0.05)
    received = [one.frames.data for one in readers]
    drive.close()
    ends = [_end_of(one) for one in stopped]
    for one in parked:
        one.close()
    return Soak(total, received, ends, memory)


def _end_of(opened: socket.socket) -> str:
    """How the daemon ended the connection of a reader that stopped. A close frame after unread bytes may be late."""
    frames = Frames()
    opened.settimeout(10)
    with opened, suppress(ConnectionResetError):
        while received := opened.recv(1 << 20):
            frames.feed(received)
    return f"closed with {frames.closed}" if frames.closed else "hung up"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["ack", "fanout", "idle", "soak"])
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    folder = Path(tempfile.mkdtemp())
    try:
        yardstick = bare_echo(options.seconds)
        print(f"bare trio echo               {yardstick:>9,.0f} frames/s")
        with running_daemon(folder, devices=_DEVICES + 10, settings=MANY_CONNECTIONS) as daemon:
            if "ack" in options.what:
                ack(daemon, options.seconds, yardstick)
            if "fanout" in options.what:
                fanout(daemon, options.seconds, yardstick)
                fanout_of_mqtt(daemon, options.seconds)
            if "idle" in options.what:
                idle(daemon)
            if "soak" in options.what:
                found = soak(daemon, max(options.seconds, 10.0))
                missed = [found.acknowledged - got for got in found.received]
                print(f"soak    {found.acknowledged:,} messages; missed by the 15 readers: {max(missed)}")
                print(f"        connections that stopped reading: {', '.join(found.ends)}")
                print("        memory " + ", ".join(f"{kib / 1024:,.0f}" for kib in found.resident_kib) + " MiB")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
