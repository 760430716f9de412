"""Wrong credentials on MQTT and HTTP as fast as they are answered: how much log a flood of refusals makes.

Run as `python -m tests.attacks.refusal_flood`.
"""

import socket
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from tests.attacks.measuring import damage_of
from tests.daemon import Daemon, device_id

SECONDS = 8.0
LOG_ALLOWED_KIB = 64.0


def guess_on_mqtt(address: tuple[str, int]) -> None:
    """CONNECT after CONNECT, each with another token."""
    while True:
        name, token = device_id(0).encode(), token_hex(16).encode()
        about = b"\0\4MQTT\4\xc2\0\0\0\1c\0\x20" + name + b"\0\x20" + token
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(bytes([0x10, len(about)]) + about)
            connection.recv(4)


def guess_on_http(address: tuple[str, int]) -> None:
    """Requests on one connection, each with another token."""
    with socket.create_connection(address, timeout=30) as connection:
        while True:
            head = f"GET /v1.1/users/self HTTP/1.1\r\nHost: x\r\nAuthorization: bearer {token_hex(16)}\r\n\r\n"
            connection.sendall(head.encode())
            connection.recv(65_536)


def main() -> None:
    with TemporaryDirectory(prefix="trunkline-attack-") as folder:
        path = Path(folder) / "log"
        for name, attack, listener in (
            ("wrong tokens on MQTT", guess_on_mqtt, "mqtt"),
            ("wrong tokens on HTTP", guess_on_http, "http"),
        ):
            with path.open("w") as log:
                daemon = Daemon(Path(folder) / name.replace(" ", "-") / "state", log=log)
                daemon.config.parent.mkdir()
                daemon.configure(devices=1)
                daemon.start()
                try:
                    damage = damage_of(daemon, partial(attack, daemon.host_port(listener)), seconds=SECONDS)
                finally:
                    daemon.stop()
            kib = path.stat().st_size / 1024
            damage.show(name)
            verdict = "within bounds" if kib <= LOG_ALLOWED_KIB else "OUT OF BOUNDS"
            print(f"  log {kib:.1f} KiB in {len(path.read_text().splitlines())} lines: {verdict}", flush=True)


if __name__ == "__main__":
    main()
