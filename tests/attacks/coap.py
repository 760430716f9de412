"""Floods of datagrams from strangers and from one known device, over UDP and DTLS.

    python -m tests.attacks.coap [case …]

The innocent client is a device that posts messages; its source is new when it is measured. Then the same attack is
measured again with a client of the REST API.
"""

import os
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, cycle
from pathlib import Path

from tests.attacks.measuring import Exchange, damage_of, reads_a_device
from tests.benchmarks.coap_load import PAYLOAD, Dtls, Plain, client_context, handshakes, path
from tests.daemon import Daemon, device_token, running_daemon
from tests.protocols.coap.dtls.client import make_certificate

SECONDS = 4.0
SOCKETS = 400
#: An attacker is not on the daemon's machine. Without a pace it would take the processor from the daemon, so it has a
#: lower priority, too.
DATAGRAMS_PER_SECOND = 50_000
_ANSWER_SECONDS = (2, 4, 8, 16)  # as RFC 7252, 4.2 sends again


def post(number: int, token: str) -> bytes:
    """A confirmable POST of a message."""
    head = struct.pack("!BBH", 0x42, 2, number & 0xFFFF) + struct.pack("!H", number & 0xFFFF)
    return head + path(b"v1.1", b"messages", token.encode()) + b"\x11\x32\xff" + PAYLOAD


def ping(number: int) -> bytes:
    return struct.pack("!BBH", 0x40, 0, number & 0xFFFF)


def posts_messages(daemon: Daemon, token: str = device_token(0)) -> Exchange:
    """A device over UDP, from a source that the daemon has not seen."""
    return _posts(Plain(daemon.port("coap")), token)


def posts_messages_encrypted(daemon: Daemon, token: str = device_token(0)) -> Exchange:
    """A device over DTLS, whose handshake comes before what is measured."""
    peer = Dtls(daemon.port("coaps"), client_context())
    while not peer.step():
        if not select.select([peer.socket], [], [], 1)[0]:
            peer.send_again()
    return _posts(peer, token)


def _posts(peer: Plain, token: str) -> Exchange:
    numbers = count(1)

    def exchange() -> None:
        request = post(next(numbers), token)
        for seconds in _ANSWER_SECONDS:
            peer.send(request)
            while select.select([peer.socket], [], [], seconds)[0]:
                answer = peer.receive()
                if answer and answer[4:6] == request[4:6]:
                    assert answer[1] == 0x41, f"answered with {answer[1]:#x}"
                    return
        raise AssertionError("no answer")

    return exchange


def flood_from_strangers(address: tuple[str, int], datagram: Callable[[int], bytes]) -> None:
    """Send from many sources in turn. Never returns."""
    sources = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(SOCKETS)]
    for source in sources:
        source.connect(address)
        source.setblocking(False)
    for number, source in zip(_paced(), cycle(sources), strict=False):
        with suppress(OSError):
            source.send(datagram(number))


def flood_from_a_device(address: tuple[str, int], datagram: Callable[[int], bytes]) -> None:
    """Post one valid message, then send from the same source. Never returns."""
    source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    source.connect(address)
    source.send(post(0, device_token(1)))
    source.recv(2048)
    source.setblocking(False)
    for number in _paced():
        with suppress(OSError):
            source.send(datagram(number))


def _paced() -> Iterator[int]:
    """Numbers, at the pace of the attack."""
    os.nice(10)
    began = time.perf_counter()
    for number in count(1):
        yield number
        if number % 100 == 0:
            time.sleep(max(0.0, began + number / DATAGRAMS_PER_SECOND - time.perf_counter()))


def flood_with_handshakes(address: tuple[str, int]) -> None:
    """Complete one handshake after the other. Never returns."""
    os.nice(10)
    while True:
        handshakes(address[1], 1_000, at_once=64)


def hello(_number: int) -> bytes:
    """A ClientHello without a cookie."""
    return b"\x16\xfe\xfd" + bytes(8) + b"\0\x36" + b"\x01" + bytes(53)


def wrong_post(number: int) -> bytes:
    return post(number, f"{number:032x}")


#: Attack, listener and innocent device.
CASES: dict[str, tuple[Callable[[tuple[str, int]], None], str, Callable[[Daemon], Exchange]]] = {
    "strangers-post": (partial(flood_from_strangers, datagram=wrong_post), "coap", posts_messages),
    "strangers-ping": (partial(flood_from_strangers, datagram=ping), "coap", posts_messages),
    "device-pings": (partial(flood_from_a_device, datagram=ping), "coap", posts_messages),
    "strangers-say-hello": (partial(flood_from_strangers, datagram=hello), "coaps", posts_messages_encrypted),
    "strangers-shake-hands": (flood_with_handshakes, "coaps", posts_messages_encrypted),
}


@contextmanager
def _coap_daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = make_certificate(Path(folder), "ecdsa")
        settings = (
            '[coap]\nbind = "127.0.0.1:0"\ndtls_bind = "127.0.0.1:0"\n'
            f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
        )
        with running_daemon(Path(folder), devices=2, settings=settings) as daemon:
            yield daemon


def main() -> None:
    for name in sys.argv[1:] or CASES:
        attack, listener, device = CASES[name]
        for innocent in (device, reads_a_device):
            with _coap_daemon() as daemon:
                flood = partial(attack, daemon.host_port(listener))
                damage = damage_of(daemon, flood, seconds=SECONDS, innocent=innocent)
                damage.show(f"{name}, and a client that {innocent.__name__.replace('_', ' ')}")


if __name__ == "__main__":
    main()
