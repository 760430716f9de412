"""Subscriptions under load: how soon callbacks get messages, and what bad callbacks do to the others.

    .venv/bin/python -m tests.benchmarks.subscriptions [--subscriptions 1000] [--rate 1000] [--seconds 3] [--rounds 12]

Two daemons take turns, each with a receiver in a process of its own that answers at once. On one of them all
subscriptions work; on the other one hangs and one answers 500. Prints the time from sending a message to its
notification, deliveries per second, and the ratio of the two 99th percentiles: that of a single round says little, when
nothing fails it is 0.6 to 1.6. Messages come over MQTT with QoS 1, one
subscription for each device.
"""

import argparse
import json
import multiprocessing
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h11
import httpx
import trio

from tests.daemon import (
    ADA,
    DASHBOARD_WITH_SECRET,
    TRUNKLINE,
    USER_TOKEN,
    Daemon,
    bearer,
    device_id,
    device_token,
    running_daemon,
)

SETTINGS = "[outbound]\nallow_private_addresses = true\n"
_OK, _ERROR = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"


def receive(port: int, service: str, results: Any) -> None:
    """The receiver: validates handshakes, and reports (address, delay in seconds) of each message."""
    trio.run(_receive, port, service, results)


async def _receive(port: int, service: str, results: Any) -> None:
    bad: set[str] = set()
    delays: list[tuple[str, float]] = []
    client = httpx.AsyncClient(timeout=30)

    async def converse(stream: trio.SocketStream) -> None:
        state, head, body = h11.Connection(h11.SERVER), None, b""
        try:
            while True:
                event = state.next_event()
                if event is h11.NEED_DATA:
                    state.receive_data(bytes(await stream.receive_some()))
                elif isinstance(event, h11.Request):
                    head, body = event, b""
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage) and head is not None:
                    now, target = time.time(), head.target.decode()
                    if target == "/results":
                        results.put(list(delays))
                        delays.clear()
                    elif target.startswith("/bad"):
                        bad.add(target.removeprefix("/bad"))
                    elif target in bad and target.endswith("/0"):
                        await trio.sleep_forever()
                    members = json.loads(body or b"{}")
                    await stream.send_all(_ERROR if target in bad else _OK)
                    state = h11.Connection(h11.SERVER)
                    if "nonce" in members:
                        nonce = {"aid": members["aid"], "nonce": members["nonce"]}
                        await client.post(f"{service}/subscriptions/{members['subscriptionId']}/validate", json=nonce)
                    delays.extend((target, now - one["ts"] / 1000) for one in members.get("data", ()))
                else:
                    return
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            return

    await trio.serve_tcp(converse, port, host="127.0.0.1")


def publish(port: int, devices: int, rate: float, seconds: float) -> None:
    """Send messages over MQTT, each device in its turn, and wait for the acknowledgement of the last ones."""
    trio.run(_publish, port, devices, rate, seconds)


async def _publish(port: int, devices: int, rate: float, seconds: float) -> None:
    streams = [await _connected(port, number) for number in range(devices)]
    begin, sent, end = time.monotonic(), 0, time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        while sent < (now - begin) * rate:
            number = sent % devices
            data = json.dumps({"intensity": sent % 100}).encode()
            payload = _text(f"/v1.1/messages/{device_id(number)}") + b"\x00\x01" + data
            await streams[number].send_all(b"\x32" + _length(len(payload)) + payload)
            sent += 1
        await trio.sleep(0.002)
    await trio.sleep(1)
    for stream in streams:
        await stream.aclose()


async def _connected(port: int, number: int) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    body = (
        _text("MQTT")
        + b"\x04\xc2\x00\x00"
        + _text(f"c{number}")
        + _text(device_id(number))
        + _text(device_token(number))
    )
    await stream.send_all(b"\x10" + _length(len(body)) + body)
    await stream.receive_some(4)
    return stream


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def _length(size: int) -> bytes:
    return bytes([size]) if size < 128 else bytes([size % 128 | 128, size // 128])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subscriptions", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    chosen = parser.parse_args()
    count, rate, seconds = chosen.subscriptions, chosen.rate, chosen.seconds
    with _subscribed(count) as working, _subscribed(count) as failing:
        for side in (working, failing):
            side.deliver(rate, seconds)  # connections are opened
        for number in (0, 1):
            failing.let_fail(number)
        good: list[list[float]] = []
        mixed: list[list[float]] = []
        for number in range(chosen.rounds):
            turns = ((working, good), (failing, mixed))
            for side, delays in turns if number % 2 else reversed(turns):
                delays.append(side.deliver(rate, seconds))
    _print("all work", list(chain.from_iterable(good)), chosen.rounds * seconds)
    _print("one hangs, one answers 500", list(chain.from_iterable(mixed)), chosen.rounds * seconds)
    ratios = sorted(_percentile(after, 99) / _percentile(before, 99) for before, after in zip(good, mixed, strict=True))
    middle = statistics.median(ratios)
    print(f"ratio of the 99th percentiles: {middle:.2f}, the rounds' median of {ratios[0]:.2f} to {ratios[-1]:.2f}")


class _Side:
    """A daemon whose devices have a subscription each, and the receiver of the notifications."""

    def __init__(self, daemon: Daemon, count: int, port: int, results: Any) -> None:
        self._daemon, self._count, self._port, self._results = daemon, count, port, results

    def let_fail(self, number: int) -> None:
        """From now on callback 0 hangs, and each other one that is named answers 500."""
        httpx.post(f"http://127.0.0.1:{self._port}/bad/{number}", timeout=30)

    def deliver(self, rate: float, seconds: float) -> list[float]:
        """The delays, in seconds, of the messages to all callbacks except the first two."""
        publisher = multiprocessing.Process(
            target=publish, args=(self._daemon.port("mqtt"), self._count, rate, seconds)
        )
        publisher.start()
        publisher.join()
        time.sleep(1)
        httpx.post(f"http://127.0.0.1:{self._port}/results", timeout=30)
        return [delay for target, delay in self._results.get(timeout=30) if target not in {"/0", "/1"}]


@contextmanager
def _subscribed(count: int) -> Iterator[_Side]:
    with (
        TemporaryDirectory() as folder,
        running_daemon(Path(folder), devices=count, settings=SETTINGS) as daemon,
    ):
        file = daemon.state.parent / "local.toml"
        file.write_text(DASHBOARD_WITH_SECRET, encoding="utf-8")
        command: list[str | Path] = [TRUNKLINE, "provision", file, "--config", daemon.config]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        results: Any = multiprocessing.Queue()
        receiver = multiprocessing.Process(target=receive, args=(port, daemon.base_url, results), daemon=True)
        receiver.start()
        time.sleep(1)
        begin = time.monotonic()
        with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
            for number in range(count):
                body = {
                    "messageType": "message",
                    "uid": ADA,
                    "sdid": device_id(number),
                    "callbackUrl": f"http://localhost:{port}/{number}",
                }
                client.post("/subscriptions", json=body).raise_for_status()
        print(f"{count} subscriptions created in {time.monotonic() - begin:.1f} s")
        time.sleep(3)
        yield _Side(daemon, count, port, results)
        receiver.kill()


def _percentile(delays: list[float], percent: int) -> float:
    delays = sorted(delays)
    return delays[min(len(delays) * percent // 100, len(delays) - 1)] if delays else float("nan")


def _print(name: str, delays: list[float], seconds: float) -> None:
    shown = ", ".join(f"p{percent} {_percentile(delays, percent) * 1000:.0f} ms" for percent in (50, 95, 99))
    print(f"{name}: {len(delays)} messages, {len(delays) / seconds:.0f}/s, {shown}")


if __name__ == "__main__":
    main()
