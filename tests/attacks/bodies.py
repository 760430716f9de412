"""Bodies of strangers: many that are almost whole, and passwords that are hashed.

python -m tests.attacks.bodies [--seconds 5]
"""

import argparse
import socket
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from tests.attacks.measuring import damage_of
from tests.attacks.strangers import Target, connect_from
from tests.daemon import running_daemon

_CONNECTIONS = 400
_BODY = 1024 * 1024 - 100


def almost_whole(target: Target, addresses: int, path: str) -> None:
    """`_CONNECTIONS` requests, each with all of its body but the last byte; a connection that ends is opened again."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {_BODY}\r\n\r\n".encode()
    body = memoryview(b"a=" + b"x" * (_BODY - 3))
    opened: list[tuple[socket.socket, int]] = []
    number = 0
    while True:
        while len(opened) < _CONNECTIONS:
            number += 1
            with suppress(OSError):
                one = connect_from(1 + number % addresses, target)
                one.sendall(head)
                one.setblocking(False)
                opened.append((one, 0))
        kept = []
        for one, sent in opened:
            try:
                more = one.send(body[sent : sent + 65_536]) if sent < len(body) else 0
            except BlockingIOError:
                more = 0
            except OSError:
                one.close()
                continue
            kept.append((one, sent + more))
        opened = kept
        time.sleep(0.01)


def guess_passwords(target: Target, addresses: int) -> None:
    """Forms of the sign-in page for names without an account, on many connections at once."""
    connections, keys = [], []
    for number in range(addresses):
        one = connect_from(1 + number, target)
        one.sendall(b"GET /accounts/go HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = one.recv(65_536).decode()
        cookie = answer.partition("trunkline_form=")[2].partition(";")[0]
        connections.append(one)
        keys.append((cookie, answer.partition('name="csrf" value="')[2].partition('"')[0]))
    while True:
        for one, (cookie, csrf) in zip(connections, keys, strict=True):
            name = f"{time.time_ns()}@example.org"
            form = urlencode({"email": name, "password": "wrong", "csrf": csrf, "page": "go"})
            head = f"POST /accounts/login HTTP/1.1\r\nHost: a\r\nCookie: trunkline_form={cookie}\r\n"
            with suppress(OSError):
                one.sendall(f"{head}Content-Length: {len(form)}\r\n\r\n{form}".encode())
        for one in connections:
            with suppress(OSError):
                one.recv(65_536)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds: float = parser.parse_args().seconds
    attacks = {
        f"{_CONNECTIONS} bodies of 1 MiB to /token, one address": partial(
            almost_whole, addresses=1, path="/accounts/token"
        ),
        f"{_CONNECTIONS} bodies of 1 MiB to /token, 50 addresses": partial(
            almost_whole, addresses=50, path="/accounts/token"
        ),
        f"{_CONNECTIONS} bodies of 1 MiB to POST /devices, 50 addresses": partial(
            almost_whole, addresses=50, path="/v1.1/devices"
        ),
        "sign-ins, 40 at once": partial(guess_passwords, addresses=40),
    }
    for name, attack in attacks.items():
        with tempfile.TemporaryDirectory() as folder, running_daemon(Path(folder), devices=1) as daemon:
            damage_of(daemon, partial(attack, daemon.host_port("http")), seconds=seconds).show(name)


if __name__ == "__main__":
    main()
