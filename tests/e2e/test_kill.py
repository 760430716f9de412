"""Acknowledged means stored: after a kill at any moment, every acknowledged message is stored exactly once."""

import random
import socket
import struct
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.daemon import USER_TOKEN, Daemon, bearer, device_id, device_token

pytestmark = pytest.mark.both_engines


ROUNDS = 4  # tests/faults kills a daemon hundreds of times
CLIENTS = 4
#: Unacknowledged messages of a device. With the long one, rows wait for the next commit, which then begins before the
#: acknowledgements of the last one are sent.
WINDOWS = (10, 200)
# Rounds are counted in acknowledgements, not in seconds, so that a slow machine kills at as interesting a moment.
ACKNOWLEDGED_BEFORE_KILL = (50, 600)


class CountingDevice(threading.Thread):
    """A device that counts: `{"intensity": n}` with QoS 1. It notes what was acknowledged, in order."""

    def __init__(self, port: int, number: int, first: int, enough: threading.Semaphore) -> None:
        super().__init__(name=f"device-{number}", daemon=True)
        self._port, self._number, self._first, self._enough = port, number, first, enough
        self.sent = self.acknowledged = first

    def run(self) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=20) as link:
                self._publish(link)
        except OSError:
            return  # the daemon was killed: that is the test

    def _publish(self, link: socket.socket) -> None:
        device = device_id(self._number)
        credentials = b"".join(map(_text, ("kill", device, device_token(self._number))))
        body = _text("MQTT") + struct.pack("!BBH", 4, 0xC2, 0) + credentials
        link.sendall(b"\x10" + bytes((len(body) | 0x80, len(body) >> 7) if len(body) > 127 else (len(body),)) + body)
        assert _exactly(link, 4) == b"\x20\x02\x00\x00"
        topic = _text(f"/v1.1/messages/{device}")
        while True:
            while self.sent - self.acknowledged < WINDOWS[self._number % 2]:
                self.sent += 1
                payload = f'{{"intensity":{self.sent}}}'.encode()
                packet = topic + struct.pack("!H", (self.sent & 0x7FFF) + 1) + payload
                link.sendall(bytes((0x32, len(packet))) + packet)
            answer = _exactly(link, 4)
            assert answer[:2] == b"\x40\x02"
            self.acknowledged += 1
            assert struct.unpack("!H", answer[2:])[0] == (self.acknowledged & 0x7FFF) + 1
            self._enough.release()


def _text(value: str) -> bytes:
    return struct.pack("!H", len(value)) + value.encode()


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := link.recv(count - len(data))):
            raise ConnectionError("closed")
        data += more
    return data


def stored_counts(daemon: Daemon, number: int) -> Counter[int]:
    """Every counter value of a device, read back page by page as an application would."""
    found: Counter[int] = Counter()
    parameters = {"sdid": device_id(number), "startDate": "0", "endDate": str(1 << 60), "count": "100"}
    with httpx.Client(base_url=daemon.base_url, headers=bearer(USER_TOKEN), timeout=30) as client:
        while True:
            page = client.get("/messages", params=parameters).raise_for_status().json()
            found.update(message["data"]["intensity"] for message in page["data"])
            if "next" not in page:
                return found
            parameters["offset"] = page["next"]


def test_every_acknowledged_message_is_stored_exactly_once_after_a_kill(tmp_path: Path) -> None:
    chance = random.Random(20_260_101)  # noqa: S311 - the moments are random, and the same in every run
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=CLIENTS)
    reached = [0] * CLIENTS
    acknowledged: list[set[int]] = [set() for _ in range(CLIENTS)]
    sent: list[set[int]] = [set() for _ in range(CLIENTS)]
    for _ in range(ROUNDS):
        daemon.start()
        enough = threading.Semaphore(0)
        clients = [CountingDevice(daemon.port("mqtt"), number, reached[number], enough) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for _ in range(chance.randint(*ACKNOWLEDGED_BEFORE_KILL)):
            assert enough.acquire(timeout=30), "no acknowledgements"
        daemon.kill()
        for number, client in enumerate(clients):
            client.join(timeout=30)
            assert not client.is_alive()
            acknowledged[number].update(range(reached[number] + 1, client.acknowledged + 1))
            sent[number].update(range(reached[number] + 1, client.sent + 1))
            reached[number] = client.sent
    daemon.start()
    try:
        for number in range(CLIENTS):
            stored = stored_counts(daemon, number)
            assert acknowledged[number] <= stored.keys(), "acknowledged and lost"
            assert stored.keys() <= sent[number], "stored and never sent"
            assert max(stored.values()) == 1, "stored twice"
    finally:
        assert daemon.stop() == 0
