"""Floods of frames that carry no message, on the device channel and the feeds.

python -m tests.attacks.websocket [case …]
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.attacks.flooding import flood
from tests.attacks.measuring import damage_of
from tests.daemon import USER_TOKEN, Daemon, device_token, running_daemon

SECONDS = 4.0
SOCKETS = 10
_MASK = bytes(4)
PING = b"\x89\x80" + _MASK
EMPTY_TEXT = b"\x81\x80" + _MASK
FIRST_FRAGMENT, EMPTY_FRAGMENT = b"\x01\x80" + _MASK, b"\x00\x80" + _MASK
NO_JSON = b"\x81\x84" + _MASK + b"nope"


def hello(path: str) -> bytes:
    return (
        f"GET /v1.1/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    ).encode()


STRANGER = [hello("websocket")] * SOCKETS
DEVICE = [hello(f"websocket?ack=true&authorization={device_token(number)}") for number in range(SOCKETS)]
LIVE = [hello(f"live?authorization={USER_TOKEN}")] * SOCKETS

#: Attacks: the opening of each connection, and the bytes that follow.
CASES: dict[str, tuple[list[bytes], bytes]] = {
    "strangers-ping": (STRANGER, PING * 10_000),
    "strangers-say-nothing": (STRANGER, EMPTY_TEXT * 10_000),
    "devices-ping": (DEVICE, PING * 10_000),
    "devices-say-nonsense": (DEVICE, NO_JSON * 10_000),
    "feeds-ping": (LIVE, PING * 10_000),
    "feeds-fragment": (LIVE, FIRST_FRAGMENT + EMPTY_FRAGMENT * 10_000_000),
}


def main() -> None:
    for name in sys.argv[1:] or CASES:
        hellos, data = CASES[name]
        with tempfile.TemporaryDirectory() as folder, running_daemon(Path(folder), devices=SOCKETS) as daemon:
            attack(daemon, name, hellos, data)


def attack(daemon: Daemon, name: str, hellos: list[bytes], data: bytes) -> None:
    damage = damage_of(daemon, partial(flood, daemon.host_port("http"), hellos, data), seconds=SECONDS)
    damage.show(f"{name}: {len(hellos)} sockets")


if __name__ == "__main__":
    main()
