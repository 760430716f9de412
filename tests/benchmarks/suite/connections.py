"""Costs of connections: idle WebSockets and DTLS sessions, and a crowd of live subscribers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks import mqtt_qos, websocket, websocket_crowd
from tests.benchmarks.suite.contest import Measure, Row, Sample, UnavailableError, running
from tests.daemon import MANY_CONNECTIONS, running_daemon
from tests.protocols.coap.dtls.client import make_certificate

_IDLE_SOCKETS: Final = 2_000
_DTLS_SESSIONS: Final = 10_000
#: A generator ends after a minute of handshakes.
_DTLS_GENERATORS: Final = 4
_CROWD: Final = 1_000
_CROWD_RATE: Final = 100.0


def rows() -> Iterator[Row]:
    yield from mqtt_qos.connection_rows()
    # Once only: what is freed of the first connections, the next ones get.
    yield Row("KiB of an idle WebSocket", {"Trunkline": idle_sockets}, "15 KiB", rounds=1)
    yield Row(f"MiB of {_DTLS_SESSIONS:,} DTLS sessions", {"Trunkline": dtls_sessions}, "200 MiB", rounds=1)
    name = f"subscribers without a gap, of {_CROWD:,} at {_CROWD_RATE:g} messages a second"
    yield Row(name, {"Trunkline": crowd}, f"{_CROWD:,}", rounds=1)


@contextmanager
def idle_sockets() -> Iterator[Measure]:
    with (
        TemporaryDirectory(dir="/var/tmp") as folder,
        running_daemon(Path(folder), devices=1, settings=MANY_CONNECTIONS) as daemon,
    ):
        yield lambda _seconds: Sample(websocket.idle_kib(daemon, sockets=_IDLE_SOCKETS))


@contextmanager
def dtls_sessions() -> Iterator[Measure]:
    """Growth of the daemon's resident memory by the sessions of a certificate that wait for their devices."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        certificate, key = make_certificate(Path(folder), "ecdsa")
        settings = f'[coap]\ndtls_bind = "127.0.0.1:0"\n[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
        with running_daemon(Path(folder), devices=1, settings=settings) as daemon:
            assert daemon.process is not None
            if "coaps" not in daemon.addresses:
                raise UnavailableError("this machine's GnuTLS is missing, or has a known flaw")
            yield partial(_open_sessions, daemon.port("coaps"), daemon.process.pid)


def _open_sessions(port: int, process: int, _seconds: float) -> Sample:
    each = str(_DTLS_SESSIONS // _DTLS_GENERATORS)
    command = [sys.executable, "-m", "tests.benchmarks.coap_load", "idle", "--port", str(port), "--devices", each]
    before = websocket.resident_kib(process)
    with ExitStack() as stack:
        generators = [
            stack.enter_context(running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(_DTLS_GENERATORS)
        ]
        opened = 0
        for one in generators:
            assert one.stdout is not None
            if not (line := one.stdout.readline()):
                raise RuntimeError("a generator of DTLS sessions has failed")
            opened += json.loads(line)["sessions"]
        resident = websocket.resident_kib(process)
    if opened < _DTLS_SESSIONS * 0.99:
        raise RuntimeError(f"only {opened:,} sessions were opened")
    return Sample((resident - before) / 1024, resident_mib=resident / 1024)


@contextmanager
def crowd() -> Iterator[Measure]:
    """The subscribers of the same devices that get every message once and in order."""
    devices = websocket_crowd.DEVICES
    with (
        TemporaryDirectory(dir="/var/tmp") as folder,
        running_daemon(Path(folder), devices=devices, settings=MANY_CONNECTIONS) as daemon,
    ):
        assert daemon.process is not None
        process = daemon.process.pid

        def measure(seconds: float) -> Sample:
            found = websocket_crowd.crowd(daemon, subscribers=_CROWD, rate=_CROWD_RATE, seconds=seconds)
            frames = max(1, found.sent * _CROWD)
            resident = websocket.resident_kib(process) / 1024
            return Sample(_CROWD - found.gaps, cpu_us=found.cpu_seconds / frames * 1e6, resident_mib=resident)

        yield measure
