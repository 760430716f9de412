"""The real daemon on a socket that somebody else has opened, as systemd does (reference 27.18)."""

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

import httpx

from tests.daemon import TRUNKLINE, USER_TOKEN, Daemon, bearer
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


def test_who_connects_while_the_daemon_restarts_waits_and_is_served(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=1)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        for _ in range(2):
            with socket.create_connection(sock.getsockname()) as waiting:  # before anybody accepts
                waiting.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                with started(daemon, sock, names="http") as process:
                    assert process.stdout is not None
                    assert f" http={address} " in process.stdout.readline()
                    assert waiting.recv(100).startswith(b"HTTP/1.1 200 ")
                    answer = httpx.get(f"http://{address}/v1.1/users/self", headers=bearer(USER_TOKEN))
                    assert answer.status_code == 200
                    process.terminate()
                    assert process.wait(timeout=60) == 0


def test_a_socket_of_no_listener_is_an_error_that_says_so(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=1)
    with socket.create_server(("127.0.0.1", 0)) as sock, started(daemon, sock, names="trunkline.socket") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "'trunkline.socket': FileDescriptorName must name a listener of the configuration (http, mqtt)" in said


def test_while_the_database_is_away_http_answers_and_devices_are_sent_on(tmp_path: Path) -> None:
    """As on the machine that stands by; the same sockets serve when the database is there."""
    own = Server(Path(mkdtemp(prefix="late-", dir=server().folder)))
    own.make()
    config = f'[coap]\nbind = "127.0.0.1:0"\n[storage]\nurl = "{own.url("postgres")}"\n'
    daemon = Daemon(tmp_path / "state", config)
    daemon.write_config()
    with ExitStack() as held:
        http, mqtt = (held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        coap = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        coap.bind(("127.0.0.1", 0))
        process = held.enter_context(started(daemon, http, mqtt, coap, names="http:mqtt:coap"))
        held.callback(process.kill)
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
