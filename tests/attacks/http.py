"""Floods of pipelined HTTP requests: many requests in one segment, without waiting for answers.

python -m tests.attacks.http [case …]
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.attacks.flooding import flood
from tests.attacks.measuring import damage_of
from tests.daemon import running_daemon

SECONDS = 4.0
SOCKETS = 10


def request(path: str, token: str = "") -> bytes:
    authorization = f"Authorization: bearer {token}\r\n" if token else ""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n".encode()


CASES = {
    "unknown-paths": request("/nowhere"),
    "no-tokens": request("/v1.1/users/self"),
    "wrong-tokens": request("/v1.1/users/self", "00" * 16),
}


def main() -> None:
    for name in sys.argv[1:] or CASES:
        one = CASES[name]
        with tempfile.TemporaryDirectory() as folder, running_daemon(Path(folder), devices=1) as daemon:
            attack = partial(flood, daemon.host_port("http"), [one] * SOCKETS, one * 500)
            damage_of(daemon, attack, seconds=SECONDS).show(f"{name}: {SOCKETS} connections")


if __name__ == "__main__":
    main()
