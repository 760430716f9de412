"""The real daemon on a socket that somebody else has opened, as systemd does (reference 27.18)."""

import socket
import subprocess
import sys
from pathlib import Path

import httpx

from tests.daemon import TRUNKLINE, USER_TOKEN, Daemon, bearer

#: The process stays the same, so that LISTEN_PID is the daemon's.
_START = """
import os, sys
name, number, program, config = sys.argv[1:]
os.dup2(int(number), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES=name)
os.execv(program, [program, "serve", "--config", config])
"""


def started(daemon: Daemon, sock: socket.socket, name: str) -> subprocess.Popen[str]:
    number = sock.fileno()
    words: list[str | Path] = [sys.executable, "-Ic", _START, name, str(number), TRUNKLINE, daemon.config]
    return subprocess.Popen(words, pass_fds=[number], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_who_connects_while_the_daemon_restarts_waits_and_is_served(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "state")
    daemon.configure(devices=1)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        for _ in range(2):
            with socket.create_connection(sock.getsockname()) as waiting:  # before anybody accepts
                waiting.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                with started(daemon, sock, "http") as process:
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
    with socket.create_server(("127.0.0.1", 0)) as sock, started(daemon, sock, "trunkline.socket") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "'trunkline.socket': FileDescriptorName must name a listener of the configuration (http, mqtt)" in said
