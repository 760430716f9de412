"""Contenders on REST, WebSocket and CoAP: the daemon, and servers of the same libraries that store nothing."""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks import coap_load, rest, websocket
from tests.benchmarks.suite.contest import Measure, Sample, using
from tests.benchmarks.websocket_load import Drive, Reader, connect, result_of
from tests.daemon import USER_TOKEN, Daemon, running_daemon

_DEVICES: Final = 50
_CALLERS: Final = 20
_SUBSCRIBERS: Final = 10
_FILL_SECONDS: Final = 1.0
_LIVE: Final = f"/v1.1/live?Authorization=bearer+{USER_TOKEN}"


@contextmanager
def _daemon(settings: str = "") -> Iterator[tuple[Daemon, int]]:
    with (
        TemporaryDirectory(dir="/var/tmp") as folder,
        running_daemon(Path(folder), devices=_DEVICES, settings=settings) as daemon,
    ):
        assert daemon.process is not None
        yield daemon, daemon.process.pid


def called(port: int, process: int, what: str, header: bytes = b"", *, database: int | None = None) -> Measure:
    """`header`: a line more in each request, with its end."""
    plain = [rest.REQUESTS[what](number) for number in range(_CALLERS)]
    requests = [one.replace(b"\r\n\r\n", b"\r\n" + header + b"\r\n", 1) for one in plain]

    def measure(seconds: float) -> Sample:
        with using(process, database=database) as used:
            found = rest.measure(port, process, requests, seconds)
        return used.of_each(found.rate, found.rate * seconds)

    return measure


@contextmanager
def rest_of_ours(what: str, *, header: bytes = b"") -> Iterator[Measure]:
    """POST /messages, durable before its answer, or a GET; 20 connections, one request in flight each."""
    with _daemon() as (daemon, process):
        called(daemon.port("http"), process, "post")(_FILL_SECONDS)
        yield called(daemon.port("http"), process, what, header)


@contextmanager
def rest_the_long_way(what: str) -> Iterator[Measure]:
    """The same requests with a header by which the daemon hands them to Hypercorn and Quart."""
    with rest_of_ours(what, header=b"Trailer: none\r\n") as measure:
        yield measure


@contextmanager
def bare_hypercorn(what: str) -> Iterator[Measure]:
    """A bare Quart application on Hypercorn that answers as many bytes."""
    with rest.bare_server() as (port, process):
        yield called(port, process, what)


@contextmanager
def websocket_of_ours() -> Iterator[Measure]:
    """The device channel: 50 devices, 20 in flight, each message durable before its acknowledgement."""
    with _daemon() as (daemon, process):

        def measure(seconds: float) -> Sample:
            talking = websocket.senders(daemon, window=20)
            drive = Drive(talking)
            drive.run(0.5)
            before = sum(one.acknowledged for one in talking)
            with using(process) as used:
                drive.run(seconds)
            result = result_of(talking, seconds, before)
            drive.settle(talking)
            drive.close()
            return used.of_each(result.rate, result.messages, p99_ms=result.percentile(0.99) * 1000)

        yield measure


@contextmanager
def fan_out() -> Iterator[Measure]:
    """Frames a second to each of ten subscribers of /live, while 50 devices send as fast as they can."""
    with _daemon() as (daemon, process):

        def measure(seconds: float) -> Sample:
            readers = [Reader(connect(daemon.port("http"), _LIVE)) for _ in range(_SUBSCRIBERS)]
            talking = websocket.senders(daemon, window=20)
            drive = Drive([*readers, *talking])
            drive.run(0.5)
            before = [one.frames.data for one in readers]
            with using(process) as used:
                drive.run(seconds)
            counts = [one.frames.data - known for one, known in zip(readers, before, strict=True)]
            drive.settle(talking)
            drive.close()
            return used.of_each(min(counts) / seconds, sum(counts))

        yield measure


@contextmanager
def trio_echo() -> Iterator[Measure]:
    """A trio server without any protocol that gives the same frames back."""
    yield lambda seconds: Sample(websocket.bare_echo(seconds))


@contextmanager
def coap_of_ours(window: int) -> Iterator[Measure]:
    """CoAP over UDP, 50 devices; each message is durable before its answer."""
    with _daemon('[coap]\nbind = "127.0.0.1:0"\n') as (daemon, process):
        yield _posted(daemon.port("coap"), process, window, is_aiocoap=False)


@contextmanager
def aiocoap_server(window: int) -> Iterator[Measure]:
    """aiocoap's server, which answers at once and stores nothing."""
    command = [sys.executable, "-m", "tests.benchmarks.coap_ingest", "--theirs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield _posted(15_683, process.pid, window, is_aiocoap=True)
        finally:
            process.kill()


def _posted(port: int, process: int, window: int, *, is_aiocoap: bool) -> Measure:
    def measure(seconds: float) -> Sample:
        options = Namespace(
            port=port, dtls=False, aiocoap=is_aiocoap, devices=_DEVICES, window=window, seconds=seconds, warmup=0.5
        )
        with using(process) as used:
            found = coap_load.posts(options)
        rate = float(str(found["rate"]))
        return used.of_each(rate, rate * (seconds + 0.5), p99_ms=float(str(found["p99_ms"])))

    return measure
