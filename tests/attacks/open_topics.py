"""Attacks of devices on the open topic space (reference 16.6), and an innocent client of the REST API.

    python -m tests.attacks.open_topics [case …]

In each case ten devices with valid credentials attack at once; together they have a thousand subscriptions at most.
"""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

from protocols.mqtt.packets import Will
from protocols.mqtt.values import Properties
from tests.attacks.flooding import flood
from tests.attacks.measuring import damage_of
from tests.daemon import device_id, device_token, running_daemon
from tests.protocols.mqtt.peers import connect, pubcomp, publish_5, subscribe_5

SECONDS = 4.0
SOCKETS = 10
_SETTINGS = {"TRUNKLINE_MQTT_TOPICS": "open", "TRUNKLINE_MQTT_PERSISTENT_SESSIONS": "on"}
_LASTING = Properties(session_expiry=3600)
_LONGEST = 60_000
_PAUSE_SECONDS = 0.002  # between two connections of one attacker that comes and goes


def _hellos(properties: Properties = Properties(), *, then: bytes = b"") -> list[bytes]:  # noqa: B008 - frozen
    return [
        connect(device_id(number), device_token(number), level=5, client_id=b"c", properties=properties) + then
        for number in range(SOCKETS)
    ]


def _deep_filters() -> Iterator[bytes]:
    """A hundred filters that all match the same topic of seven levels."""
    for number in range(100):
        levels = [b"+" if number >> place & 1 else b"a" for place in range(7)]
        yield b"/".join(levels)


def _in_packets(filters: list[bytes], *, options: int = 0) -> bytes:
    return b"".join(subscribe_5(*filters[at : at + 50], options=options) for at in range(0, len(filters), 50))


_ALL = _in_packets(list(_deep_filters()))
_ALL_QOS_1 = _in_packets(list(_deep_filters()), options=1)
_GROUPS = _in_packets([b"$share/g%d/#" % number for number in range(100)])
_SHARED = subscribe_5(*[b"$share/g/" + one for one in _deep_filters()][:50])
_MATCHED = b"a/a/a/a/a/a/a"

Attack = Callable[[tuple[str, int]], None]


def _flooding(hellos: list[bytes], data: bytes) -> Attack:
    return partial(_flood, hellos=hellos, data=data)


def _flood(address: tuple[str, int], hellos: list[bytes], data: bytes) -> None:
    flood(address, hellos, data)


def comes_and_goes(address: tuple[str, int], hello: Callable[[int], bytes], last: bytes) -> None:
    """Connect, send, and leave without a word, again and again. Never returns."""
    os.nice(10)
    for number in count():
        with suppress(OSError), socket.create_connection(address, timeout=10) as one:
            one.sendall(hello(number) + last)
            one.recv(65_536)
        time.sleep(_PAUSE_SECONDS)


def _churn(number: int) -> bytes:
    device = number % SOCKETS
    properties = Properties(session_expiry=3600)
    id_ = b"client-%d" % number
    return connect(device_id(device), device_token(device), level=5, client_id=id_, clean=False, properties=properties)


def _with_will(number: int) -> bytes:
    device = number % SOCKETS
    will = Will(_MATCHED, b"x" * 1000, 1, True)
    return connect(device_id(device), device_token(device), level=5, client_id=b"c", will=will)


def _retained(payload: bytes, number: int) -> bytes:
    return b"".join(
        publish_5(topic=b"r/%d/%d" % (number, one), payload=payload, qos=0, retain=True) for one in range(2_000)
    )


CASES: dict[str, Attack] = {
    "retained-flood": _flooding(_hellos(), b"".join(_retained(b"x", number) for number in range(10))),
    "retained-large": _flooding(_hellos(), _retained(b"x" * 50_000, 0)[: 50_000 * 400]),
    "retained-read-again": _flooding(
        _hellos(then=_retained(b"x", 0)), subscribe_5(*[b"+/" * number + b"#" for number in range(20)]) * 100
    ),
    "overlapping-filters": _flooding(_hellos(then=_ALL), publish_5(topic=_MATCHED, qos=0) * 5_000),
    "overlapping-filters-qos-1": _flooding(_hellos(_LASTING, then=_ALL_QOS_1), publish_5(topic=_MATCHED) * 5_000),
    "a-hundred-groups": _flooding(_hellos(then=_GROUPS), publish_5(topic=_MATCHED, qos=0) * 5_000),
    "shared-subscriptions": _flooding(_hellos(then=_SHARED), publish_5(topic=_MATCHED, qos=0) * 5_000),
    "nobody-acknowledges": _flooding(
        _hellos(_LASTING, then=subscribe_5(b"#", options=1)), publish_5(topic=b"t", payload=b"") * 5_000
    ),
    "topics-of-60-kb": _flooding(
        _hellos(_LASTING, then=subscribe_5(b"#", options=1)), publish_5(topic=b"t" * _LONGEST, payload=b"") * 100
    ),
    "properties-of-60-kb": _flooding(
        _hellos(_LASTING, then=subscribe_5(b"#", options=1)),
        publish_5(topic=b"t", payload=b"", properties=Properties(content_type="text", correlation_data=b"x" * _LONGEST))
        * 100,
    ),
    "filters-of-60-kb": _flooding(
        _hellos(_LASTING), b"".join(subscribe_5(b"%d/" % one + b"f" * _LONGEST) for one in range(100))
    ),
    "aliases-of-60-kb": _flooding(
        _hellos(),
        b"".join(
            publish_5(topic=b"t" * _LONGEST, qos=0, properties=Properties(topic_alias=one)) for one in range(1, 17)
        ),
    ),
    "topics-of-servers": _flooding(_hellos(), publish_5(topic=b"$SYS/broker/uptime", qos=0, retain=True) * 5_000),
    "releases-of-nothing": _flooding(_hellos(_LASTING), pubcomp(7) * 10_000),
    "wills": partial(comes_and_goes, hello=_with_will, last=_ALL_QOS_1),
    "client-ids": partial(comes_and_goes, hello=_churn, last=_ALL_QOS_1),
}


def main() -> None:
    os.environ.update(_SETTINGS)
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder, running_daemon(Path(folder), devices=SOCKETS) as daemon:
            damage = damage_of(daemon, partial(CASES[name], daemon.host_port("mqtt")), seconds=SECONDS)
            damage.show(f"{name}: {SOCKETS} devices")


if __name__ == "__main__":
    main()
