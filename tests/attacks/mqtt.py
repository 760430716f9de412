"""Floods of MQTT packets that carry no message, from devices with valid credentials and from strangers.

python -m tests.attacks.mqtt [case …]
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

from protocols.mqtt.values import Properties
from tests.attacks.flooding import flood
from tests.attacks.measuring import damage_of
from tests.daemon import Daemon, device_id, device_token, running_daemon
from tests.protocols.mqtt.peers import PINGREQ, connect, publish, publish_5, pubrel, subscribe

SECONDS = 4.0
SOCKETS = 10
_FOREIGN = [b"a"] * 50

DEVICES = [connect(device_id(number), device_token(number)) for number in range(SOCKETS)]
DEVICES_5 = [connect(device_id(number), device_token(number), level=5) for number in range(SOCKETS)]
STRANGERS = [connect(device_id(0), "00" * 16)] * SOCKETS

#: Attacks: the CONNECT of each connection, and the bytes that follow.
CASES: dict[str, tuple[list[bytes], bytes]] = {
    "one-device-pings": (DEVICES[:1], PINGREQ * 30_000),
    "devices-ping": (DEVICES, PINGREQ * 30_000),
    "devices-subscribe": (DEVICES, subscribe(*_FOREIGN) * 300),
    "devices-subscribe-to-thousands": (DEVICES, subscribe(*[b"a"] * 13_000)),
    "devices-publish-elsewhere": (DEVICES, publish(topic=b"a", payload=b"{}", qos=0) * 10_000),
    "devices-publish-properties": (
        DEVICES_5,
        publish_5(payload=b"{}", qos=0, topic=b"a", properties=Properties(user_properties=(("a", "b"),) * 50)) * 1_000,
    ),
    "devices-release-nothing": (DEVICES, pubrel(1) * 10_000),
    "strangers-send-with-connect": ([hello + PINGREQ * 30_000 for hello in STRANGERS], PINGREQ * 30_000),
}


def main() -> None:
    for name in sys.argv[1:] or CASES:
        hellos, data = CASES[name]
        with tempfile.TemporaryDirectory() as folder, running_daemon(Path(folder), devices=SOCKETS) as daemon:
            attack(daemon, name, hellos, data)


def attack(daemon: Daemon, name: str, hellos: list[bytes], data: bytes) -> None:
    damage = damage_of(daemon, partial(flood, daemon.host_port("mqtt"), hellos, data), seconds=SECONDS)
    damage.show(f"{name}: {len(hellos)} connections")


if __name__ == "__main__":
    main()
