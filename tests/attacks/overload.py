"""Eve's ten devices send as many messages as they can, on each protocol, while a device of Ada goes on.

    python -m tests.attacks.overload [--seconds 60] [protocol …]

First each of them has one message under way at a time: that rate is sustainable. Then they send without waiting: on a
stream what the operating system takes, over HTTP on 20 connections each, as datagrams ten times that rate. Ada's device
sends one message after the other on the same protocol, and waits for each answer.
"""

import argparse
import os
import select
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from tests.attacks.coap import post, posts_messages, posts_messages_encrypted
from tests.attacks.flooding import ask_each, flood_each
from tests.attacks.measuring import Damage, Exchange, damage_of, running
from tests.attacks.signed_in import EVES_DEVICES, World, eves_token, world
from tests.attacks.websocket import hello
from tests.benchmarks.coap_load import Plain, handshakes
from tests.daemon import Daemon, device_id, device_token
from tests.protocols.coap.dtls.client import make_certificate
from tests.protocols.mqtt.peers import connect, publish

DEVICES: Final = 10
ALLOWED_MS: Final = 50.0
_TIMES: Final = 10
_AT_ONCE: Final = 500  # messages in the bytes that a connection sends again and again
_CONNECTIONS: Final = 20  # of each device, where each has one request under way
_PAUSE_SECONDS: Final = 0.02  # of Ada's device
_DATA: Final = b'{"data":{"intensity":7}}'
_SENDERS: Final = list(zip(EVES_DEVICES[:DEVICES], map(eves_token, range(DEVICES)), strict=True))
_DATAGRAMS: Final = {"coap": "coap", "dtls": "coaps"}


def _published(device: str, number: int) -> bytes:
    return publish(number, b'{"intensity":7}', topic=f"/v1.1/messages/{device}".encode())


def _posted(token: str) -> bytes:
    head = f"POST /v1.1/messages HTTP/1.1\r\nHost: a\r\nAuthorization: bearer {token}\r\nContent-Length: {len(_DATA)}"
    return head.encode() + b"\r\n\r\n" + _DATA


def _frame(text: str) -> bytes:
    """A text frame with a mask of zeros."""
    payload = text.encode()
    size = bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + payload


def _said(device: str) -> bytes:
    return _frame(f'{{"sdid":"{device}","data":{{"intensity":7}}}}')


def _opening(device: str, token: str) -> bytes:
    """The handshake, and the registration of the device."""
    registration = f'{{"type":"register","sdid":"{device}","Authorization":"bearer {token}"}}'
    return hello("websocket?ack=true") + _frame(registration)


#: By protocol: what opens the connection of a device, and one message.
_STREAMS: Final[dict[str, tuple[str, Callable[[str, str], bytes], Callable[[str, str], bytes]]]] = {
    "mqtt": ("mqtt", connect, lambda device, _token: _published(device, 1)),
    "websocket": ("http", _opening, lambda device, _token: _said(device)),
    "http": ("http", lambda _device, token: _posted(token), lambda _device, token: _posted(token)),
}
PROTOCOLS: Final = (*_STREAMS, *_DATAGRAMS)


def _flood(protocol: str, daemon: Daemon) -> None:
    listener, opening, message = _STREAMS[protocol]
    if protocol == "http":  # pipelined requests would be slowed down (reference 21.5)
        ask_each(daemon.host_port(listener), [message(*one) for one in _SENDERS for _ in range(_CONNECTIONS)])
    flood_each(daemon.host_port(listener), [(opening(*one), message(*one) * _AT_ONCE) for one in _SENDERS])


def _datagrams(protocol: str, port: int, per_second: float) -> None:
    """Confirmable messages of each device in turn; answers are read and forgotten. Never returns."""
    os.nice(10)
    peers: Sequence[Plain] = [Plain(port) for _ in _SENDERS] if protocol == "coap" else handshakes(port, DEVICES)[0]
    began = time.perf_counter()
    for number in count(1):
        peer, (_, token) = peers[number % DEVICES], _SENDERS[number % DEVICES]
        with suppress(OSError):
            peer.send(post(number, token))
        if number % 100 == 0:
            for one in peers:
                with suppress(OSError):
                    while one.receive() is not None:
                        pass
            time.sleep(max(0.0, began + number / per_second - time.perf_counter()))


# --- Ada's device ---------------------------------------------------------------------------------------------------


def _says(protocol: str, daemon: Daemon) -> Exchange:
    """A message, and its answer."""
    if protocol in _DATAGRAMS:
        return (posts_messages if protocol == "coap" else posts_messages_encrypted)(daemon)
    listener, opening, message = _STREAMS[protocol]
    ada = device_id(0), device_token(0)
    connection = socket.create_connection(daemon.host_port(listener), timeout=60)
    connection.sendall(opening(*ada))
    assert connection.recv(65_536)
    expected = {"mqtt": b"\x40\x02", "websocket": b'"mid"', "http": b"HTTP/1.1 200"}[protocol]

    def exchange() -> None:
        connection.sendall(message(*ada))
        answer = b""
        while expected not in answer:
            received = connection.recv(65_536)
            assert received, "the daemon has closed the connection"
            answer = (answer + received)[-65_536:]

    return exchange


# --- What is shown --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overload:
    """Messages of each of Eve's devices in a second, and what Ada's device felt."""

    protocol: str
    sustainable: float
    rates: Sequence[float]
    damage: Damage

    @property
    def is_fair(self) -> bool:
        """Whether no device has got more than three times what another one has."""
        return 0 < max(self.rates) <= 3 * min(self.rates)

    def row(self) -> str:
        alone, during, after = (
            f"{one.percentile(0.99):.1f}" for one in (self.damage.alone, self.damage.during, self.damage.after)
        )
        return (
            f"| {self.protocol} | {self.sustainable:,.0f} | {sum(self.rates):,.0f} "
            f"| {min(self.rates):,.0f} to {max(self.rates):,.0f} | {alone}, {during}, {after} "
            f"| {self.damage.grown_mib:.0f} MiB, {self.damage.kept_mib:.0f} MiB |"
        )


def overload(protocol: str, opened: World, seconds: float) -> Overload:
    daemon = opened.daemon
    listener = _DATAGRAMS.get(protocol) or _STREAMS[protocol][0]
    counted = _Counted(daemon)
    if protocol in _DATAGRAMS:
        asks: Callable[[], None] = partial(_one_by_one, protocol, daemon.port(listener))
    else:
        asks = partial(_one_at_a_time, protocol, daemon)
    with running(asks, 1), counted.during() as steady:
        time.sleep(seconds / 8)
    sustainable = sum(steady)
    if protocol in _DATAGRAMS:
        attack: Callable[[], None] = partial(_datagrams, protocol, daemon.port(listener), _TIMES * sustainable)
    else:
        attack = partial(_flood, protocol, daemon)
    with counted.during() as stored:
        damage = damage_of(daemon, attack, seconds=seconds, innocent=partial(_says, protocol), pause=_PAUSE_SECONDS)
    lasted = seconds + 0.5  # the attack gathers pace for half a second
    rates = [rate * counted.seconds / lasted for rate in stored]
    return Overload(protocol, sustainable, rates, damage)


def _one_at_a_time(protocol: str, daemon: Daemon) -> None:
    listener, opening, message = _STREAMS[protocol]
    if protocol == "http":
        ask_each(daemon.host_port(listener), [message(*one) for one in _SENDERS])
    flood_each(daemon.host_port(listener), [(opening(*one), message(*one)) for one in _SENDERS], waits=True)


def _one_by_one(protocol: str, port: int) -> None:
    """Each device sends the next datagram when it has an answer. Never returns."""
    os.nice(10)
    peers: Sequence[Plain] = [Plain(port) for _ in _SENDERS] if protocol == "coap" else handshakes(port, DEVICES)[0]
    numbers = count(1)
    by_file = {peer.socket.fileno(): (peer, token) for peer, (_, token) in zip(peers, _SENDERS, strict=True)}
    for peer, token in by_file.values():
        peer.send(post(next(numbers), token))
    while True:
        ready = select.select(list(by_file), [], [], 1.0)[0]
        for file in ready or by_file:  # a datagram was lost
            peer, token = by_file[file]
            if not ready or peer.receive():
                peer.send(post(next(numbers), token))


class _Counted:
    """How many messages the log has of each of Eve's devices."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.seconds = 0.0

    @contextmanager
    def during(self) -> Iterator[list[float]]:
        """The messages of each device in a second while the block lasts; they are there behind it."""
        rates: list[float] = []
        before, began = self._now(), time.perf_counter()
        yield rates
        self.seconds = time.perf_counter() - began
        rates += [(now - then) / self.seconds for now, then in zip(self._now(), before, strict=True)]

    def _now(self) -> list[int]:
        with self._daemon.store() as connection:
            found = connection.execute(
                "SELECT d.id, (SELECT COUNT(*) FROM message m WHERE m.device = d.key) FROM device d"
            )
            counts: dict[str, int] = dict(map(tuple, found.tuples()))
        return [counts[device] for device, _ in _SENDERS]


@contextmanager
def opened_world(folder: Path) -> Iterator[World]:
    certificate, key = make_certificate(folder, "ecdsa")
    settings = (
        '[coap]\nbind = "127.0.0.1:0"\ndtls_bind = "127.0.0.1:0"\n'
        f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    )
    with world(folder, messages=1, settings=settings) as found:
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("protocols", nargs="*", default=PROTOCOLS)
    options = parser.parse_args()
    for protocol in options.protocols:
        with tempfile.TemporaryDirectory() as folder, opened_world(Path(folder)) as opened:
            found = overload(protocol, opened, options.seconds)
            found.damage.show(protocol)
            print(found.row(), flush=True)


if __name__ == "__main__":
    main()
