"""The real daemon on a socket that somebody else has opened, as systemd does (reference 27.18)."""

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

import httpx

from tests.daemon import TRUNKLINE, Daemon
from tests.postgresql import Server, server

#: The process stays the same, so that LISTEN_PID is the daemon's.
_START = """
import os, sys
names, numbers, program, config = sys.argv[1:]
high = [os.dup(os.dup(os.dup(int(number)))) for number in numbers.split()]
for at, number in enumerate(high, 3):
    os.dup2(number, at)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(high)), LISTEN_FDNAMES=names)
os.execv(program, [program, "serve", "--config", config])
"""


def started(daemon: Daemon, *sockets: socket.socket, names: str) -> subprocess.Popen[str]:
    numbers = [sock.fileno() for sock in sockets]
    words: list[str | Path] = [sys.executable, "-Ic", _START, names, " ".join(map(str, numbers)), TRUNKLINE]
    return subprocess.Popen(
        [*words, daemon.config], pass_fds=numbers, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_while_the_database_is_away_http_answers_and_devices_are_sent_on(tmp_path: Path) -> None:
    """As on the machine that stands by; the same sockets serve when the database is there. Who has connected before the
    daemon began waits, and is served."""
    own = Server(Path(mkdtemp(prefix="late-", dir=server().folder)))
    own.make()
    config = f'[coap]\nbind = "127.0.0.1:0"\n[storage]\nurl = "{own.url("postgres")}"\n'
    daemon = Daemon(tmp_path / "state", config)
    daemon.write_config()
    with ExitStack() as held:
        http, mqtt = (held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        coap = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        coap.bind(("127.0.0.1", 0))
        waiting = held.enter_context(socket.create_connection(http.getsockname(), timeout=60))
        waiting.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        process = held.enter_context(started(daemon, http, mqtt, coap, names="http:mqtt:coap"))
        held.callback(process.kill)
        assert waiting.recv(100).startswith(b"HTTP/1.1 200 ")
        base = f"http://127.0.0.1:{http.getsockname()[1]}"
        answer = httpx.get(f"{base}/readyz", timeout=60)
        assert (answer.status_code, answer.text) == (503, "waits: the database does not answer\n")
        assert httpx.get(f"{base}/healthz", timeout=60).status_code == 200
        with socket.create_connection(mqtt.getsockname(), timeout=60) as device:
            assert device.recv(1) == b""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
            device.sendto(b"\x40\x00\x00\x01", coap.getsockname())  # a ping, of which nothing is left
        own.start()
        held.callback(own.stop, "immediate")
        assert process.stdout is not None
        assert f" http=127.0.0.1:{http.getsockname()[1]} " in process.stdout.readline()
        assert httpx.get(f"{base}/readyz", timeout=60).status_code == 200
        with socket.create_connection(mqtt.getsockname(), timeout=60) as device:
            device.sendall(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04none")
            assert device.recv(4)[:1] == b" "  # CONNACK
        process.terminate()
        assert process.wait(timeout=60) == 0
        socket.create_connection(http.getsockname(), timeout=60).close()  # the stop has not shut it: who comes waits
