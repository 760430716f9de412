"""Connections of strangers that say nothing more: on HTTP, WebSocket, MQTT and TLS, from one address and from many.

python -m tests.attacks.connections [--seconds 5]
"""

import argparse
import socket
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.attacks.measuring import damage_of
from tests.attacks.strangers import Target, connect_from, decoy
from tests.daemon import running_daemon
from tests.protocols.http.certificates import contexts

_CONNECTIONS = 2000
# A few at a time: with 20 at once, the kernel works on their bytes for milliseconds, and the client, whose answer has
# been sent, waits for one of the two processors that it shares with the attacker.
_OPENED_AT_ONCE = 2
_PAUSE_SECONDS = 0.0015

_UPGRADE = (
    "GET /v1.1/websocket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
#: Bytes that each connection sends: the beginning of something that the daemon has to remember.
BEGINNINGS = {
    "http": b"GET / HTTP/1.1\r\nX-Padding: " + b"x" * 16_000,
    "websocket": _UPGRADE.encode() + b"\x81\xfe\xff\xff" + b"x" * 65_000,
    "mqtt": b"\x10\xff\xff\x03\0\x04MQTT\x04\xc2\0\x3c" + b"x" * 65_000,
    "https": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 300,
}


def occupy(target: Target, beginning: bytes, addresses: int) -> None:
    """Keep `_CONNECTIONS` connections open; one that ends is opened again."""
    opened: list[socket.socket] = []
    number = 0
    while True:
        for _ in range(min(_OPENED_AT_ONCE, _CONNECTIONS - len(opened))):
            number += 1
            with suppress(OSError):
                one = connect_from(1 + number % addresses, target)
                one.setblocking(False)
                one.send(beginning)
                opened.append(one)
        if number % 100 < _OPENED_AT_ONCE:
            opened = [one for one in opened if _is_open(one)]
        time.sleep(_PAUSE_SECONDS)


def _is_open(one: socket.socket) -> bool:
    try:
        ended = one.recv(65_536, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return True
    except OSError:
        ended = True
    if ended:
        one.close()
    return not ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds: float = parser.parse_args().seconds
    for kind, beginning in BEGINNINGS.items():
        for addresses in (1, 200):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                contexts(folder)
                tls = f'[tls]\ncertificate = "{folder}/cert.pem"\nkey = "{folder}/key.pem"\n[secure]\n'
                settings = f'{tls}tls_bind = "127.0.0.1:0"\n'
                with decoy() as other, running_daemon(folder, devices=1, settings=settings) as daemon:
                    target = daemon.host_port({"websocket": "http", "https": "secure"}.get(kind, kind))
                    damage = damage_of(
                        daemon,
                        partial(occupy, target, beginning, addresses),
                        seconds=seconds,
                        on_another=partial(occupy, other, beginning, addresses),
                    )
                    damage.show(f"{kind}, {addresses} addresses")


if __name__ == "__main__":
    main()
