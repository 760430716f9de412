"""Eve's ten devices send ten times what they can send one by one, on each protocol, while two others go on.

    python -m tests.attacks.overload [--seconds 60] [--times 10] [--sync-ms 20] [protocol …]

First each of Eve's ten has one message under way at a time: that rate, of all together, is sustainable. Then they send
ten times that rate without waiting for answers: on a stream as far as the operating system takes it, over HTTP on 20
connections each. Over LWM2M half of the messages are Sends and half notifications. A device of Ada and an eleventh one
of Eve send one message after the other on the same protocol, and each waits for its answer. On a slow disk
(`--sync-ms`) what they can send one by one is little: `--times 500` has them send more than the daemon takes.
"""

import argparse
import os
import re
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import Array
from pathlib import Path
from typing import Any, Final

import httpx

from protocols.coap.messages import LINK_FORMAT, CoapMessage, Code, Option, encode_options, uint
from protocols.coap.reliable import CoapFrameReader, encode_coap_frame
from tests.attacks.coap import post, posts_messages, posts_messages_encrypted
from tests.attacks.flooding import ask_each, flood_each
from tests.attacks.measuring import RECOVERY_SECONDS, Exchange, Memory, Waits, running, waits_of
from tests.attacks.signed_in import EVES_DEVICES, World, eves_token, world
from tests.attacks.websocket import hello
from tests.benchmarks.coap_load import Plain, handshakes
from tests.daemon import ADA_EMAIL, USER_TOKEN, Daemon, bearer, command_output, device_id, device_token
from tests.faults import clients
from tests.faults.shim import Shim
from tests.protocols.coap.dtls.client import make_certificate
from tests.protocols.mqtt.peers import connect, publish

DEVICES: Final = 10
ALLOWED_MS: Final = 50.0
_TIMES: Final = 10
_AT_ONCE: Final = 100  # messages that are handed to the operating system together at most
_CONNECTIONS: Final = 20  # over HTTP, of each device
_TURN_SECONDS: Final = 0.002
_ALONE_SECONDS: Final = 8.0
_DATA: Final = b'{"data":{"intensity":7}}'
_DATAGRAMS: Final = {"coap": "coap", "dtls": "coaps"}
_SENML_JSON: Final = uint(110)
#: Devices of LWM2M are of a type whose Manifest has what they report.
_SENSORS: Final = range(0x9200, 0x9200 + DEVICES + 1)  # Eve's; the last one is polite
_ADAS_SENSOR: Final = 0x9300
_SENSOR_MANIFEST: Final = """{"fields": [
  {"name": "temperature", "children": [{"name": "sensorValue", "valueClass": "Double"}]},
  {"name": "device", "children": [{"name": "batteryLevel", "valueClass": "Integer"}]}], "actions": []}"""
_SENSOR_TYPE: Final = """
[[device_types]]
unique_name = "example.sensor"
name = "Sensor"
organization = "Acme"
published = true
manifest = "sensor.json"
"""
_SENSOR: Final = """
[[devices]]
id = "{id}"
owner = "{owner}"
type = "example.sensor"
name = "Sensor {n}"
token = "{token}"
"""

#: Id and token of a device.
Identity = tuple[str, str]


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


#: By protocol: its listener, what opens the connection of a device, and one message.
_STREAMS: Final[dict[str, tuple[str, Callable[[str, str], bytes], Callable[[str, str], bytes]]]] = {
    "mqtt": ("mqtt", connect, lambda device, _token: _published(device, 1)),
    "websocket": ("http", _opening, lambda device, _token: _said(device)),
    "http": ("http", lambda _device, token: _posted(token), lambda _device, token: _posted(token)),
}
PROTOCOLS: Final = (*_STREAMS, *_DATAGRAMS, "lwm2m")


def _eve(protocol: str) -> Sequence[Identity]:
    """The devices that flood, and behind them the one that does not."""
    if protocol == "lwm2m":
        return [(device_id(number), device_token(number)) for number in _SENSORS]
    return [(EVES_DEVICES[number], eves_token(number)) for number in range(DEVICES + 1)]


def _ada(protocol: str) -> Identity:
    number = _ADAS_SENSOR if protocol == "lwm2m" else 0
    return device_id(number), device_token(number)


# --- What floods ----------------------------------------------------------------------------------------------------


class Tally:
    """What the flooding process did and got, in memory that it shares with the one that measures it."""

    _OFFERED, _TAKEN, _CLOSED = 1000, 1001, 1002

    def __init__(self) -> None:
        self._counts = Array("q", 1003, lock=False)  # below 1000: answers by HTTP status or CoAP code

    def answered(self, code: int) -> None:
        self._counts[code] += 1

    def offered(self, messages: float) -> None:
        self._counts[self._OFFERED] = int(messages)

    def taken(self, messages: float) -> None:
        self._counts[self._TAKEN] = int(messages)

    def closed(self) -> None:
        self._counts[self._CLOSED] += 1

    def __str__(self) -> str:
        offered, taken, closed = (self._counts[at] for at in (self._OFFERED, self._TAKEN, self._CLOSED))
        answers = [(code, self._counts[code]) for code in range(1000) if self._counts[code]]
        named = [(str(code) if code >= 200 else f"{code >> 5}.{code & 31:02}", times) for code, times in answers]
        parts = [f"{taken / max(offered, 1):.1%} of {offered:,} taken", *(f"{name}: {n:,}" for name, n in named)]
        return ", ".join([*parts, f"{closed} connections closed"] if closed else parts)


class _Flooder:
    """A connection that sends the same message again and again, and reads what comes."""

    def __init__(self, address: tuple[str, int], opening: bytes, message: bytes, answered: Callable[[bytes], None]):
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.sendall(opening)
        self._answered = answered
        self._begin()
        self.socket.setblocking(False)
        self._size, self._flood = len(message), message * _AT_ONCE
        self._sent = 0  # bytes

    def _begin(self) -> None:
        """Wait for the answer to what opens the connection."""
        self.socket.recv(65_536)

    def turn(self, due: float) -> None:
        """Read, and send until `due` messages have been sent. Raises OSError when the connection is closed."""
        with suppress(BlockingIOError):
            while received := self.socket.recv(262_144):
                self.read(received)
            raise ConnectionResetError
        with suppress(BlockingIOError):
            while (wanted := int(due) * self._size - self._sent) > 0:
                at = self._sent % self._size
                self._sent += self.socket.send(self._flood[at : at + min(wanted, len(self._flood) - at)])

    def read(self, received: bytes) -> None:
        self._answered(received)

    @property
    def taken(self) -> float:
        return self._sent / self._size


class _Sensor(_Flooder):
    """A device of LWM2M over TCP. One of its messages is a Send and a notification."""

    def __init__(self, address: tuple[str, int], identity: Identity, answered: Callable[[int], None]) -> None:
        self._reader, self._observed = CoapFrameReader(), b""
        self._coded = answered
        super().__init__(address, _registration(*identity), b"", lambda _: None)
        kind = (Option.CONTENT_FORMAT, _SENML_JSON)
        sent = encode_options(((Option.URI_PATH, b"dp"), kind))
        notified = encode_options(((Option.OBSERVE, b"\x02"), kind))
        message = encode_coap_frame(Code.POST, b"s", sent, b'[{"n":"/3303/0/5700","v":7}]')
        message += encode_coap_frame(Code.CONTENT, self._observed, notified, b'[{"n":"/3/0/9","v":7}]')
        self._size, self._flood = len(message), message * _AT_ONCE

    def _begin(self) -> None:
        while not self._observed:
            if not (received := self.socket.recv(65_536)):
                raise ConnectionResetError
            self.read(received)

    def read(self, received: bytes) -> None:
        for message in self._reader.feed(received):
            if not message.is_request:
                self._coded(message.code)
                continue
            self.socket.sendall(clients.answer_as_sensor(message))
            options = dict(message.options)
            if options.get(Option.OBSERVE) == b"" and _path(message) == [b"3", b"0"]:
                self._observed = message.token


def _path(message: CoapMessage) -> list[bytes]:
    return [value for number, value in message.options if number == Option.URI_PATH]


def _registration(device: str, token: str) -> bytes:
    options = (
        (Option.URI_PATH, b"rd"),
        (Option.CONTENT_FORMAT, uint(LINK_FORMAT)),
        *((Option.URI_QUERY, one.encode()) for one in (f"ep={device}", f"token={token}", "lt=300", "b=T")),
    )
    return encode_coap_frame(Code.POST, b"r", encode_options(options), b"</1/0>,</3/0>")


def _flood(protocol: str, daemon: Daemon, per_second: float, tally: Tally) -> None:
    """Send so many messages a second from all devices together, as far as the daemon takes them. Never returns."""
    os.nice(10)
    senders = _eve(protocol)[:DEVICES]

    def statuses(received: bytes) -> None:
        for status in re.findall(rb"HTTP/1\.1 ([0-9]{3})", received):
            tally.answered(int(status))

    def opened(identity: Identity) -> _Flooder:
        if protocol == "lwm2m":
            return _Sensor(daemon.host_port("lwm2m_tcp"), identity, tally.answered)
        listener, opening, message = _STREAMS[protocol]
        answered = statuses if protocol == "http" else lambda _: None
        return _Flooder(daemon.host_port(listener), opening(*identity), message(*identity), answered)

    identities = [one for one in senders for _ in range(_CONNECTIONS if protocol == "http" else 1)]
    flooders = [opened(one) for one in identities]
    in_one = 2 if protocol == "lwm2m" else 1
    began, gone = time.perf_counter(), 0.0
    while True:
        due = per_second * (time.perf_counter() - began)
        for at, flooder in enumerate(flooders):
            try:
                flooder.turn(due / len(flooders) / in_one)
            except OSError:
                tally.closed()
                gone += flooder.taken
                with suppress(OSError):
                    flooders[at] = opened(identities[at])
        tally.offered(due)
        tally.taken((gone + sum(flooder.taken for flooder in flooders)) * in_one)
        time.sleep(_TURN_SECONDS)


def _datagrams(protocol: str, port: int, per_second: float, tally: Tally) -> None:
    """Confirmable messages of each device in turn; answers are counted. Never returns."""
    os.nice(10)
    peers: Sequence[Plain] = (
        [Plain(port) for _ in range(DEVICES)] if protocol == "coap" else handshakes(port, DEVICES)[0]
    )
    tokens = [token for _, token in _eve(protocol)]
    began = time.perf_counter()
    for number in count(1):
        at = number % DEVICES
        with suppress(OSError):
            peers[at].send(post(number, tokens[at]))
        if number % 100 == 0:
            for one in peers:
                with suppress(OSError):
                    while (answer := one.receive()) is not None:
                        if len(answer) > 1 and answer[1]:
                            tally.answered(answer[1])
            tally.offered(number)
            tally.taken(number)
            time.sleep(max(0.0, began + number / per_second - time.perf_counter()))


# --- What is sustainable --------------------------------------------------------------------------------------------


def _one_at_a_time(protocol: str, daemon: Daemon) -> None:
    """Each device sends the next message when it has an answer. Never returns."""
    senders = _eve(protocol)[:DEVICES]
    if protocol in _DATAGRAMS:
        _one_by_one(protocol, daemon.port(_DATAGRAMS[protocol]))
    if protocol == "lwm2m":
        os.nice(10)
        exchanges = [_says(protocol, one, daemon) for one in senders]
        threads = [threading.Thread(target=_again_and_again, args=(one,)) for one in exchanges]
        for thread in threads:
            thread.start()
        threads[0].join()
    listener, opening, message = _STREAMS[protocol]
    if protocol == "http":
        ask_each(daemon.host_port(listener), [message(*one) for one in senders])
    flood_each(daemon.host_port(listener), [(opening(*one), message(*one)) for one in senders], waits=True)


def _again_and_again(exchange: Exchange) -> None:
    while True:
        exchange()


def _one_by_one(protocol: str, port: int) -> None:
    os.nice(10)
    peers: Sequence[Plain] = (
        [Plain(port) for _ in range(DEVICES)] if protocol == "coap" else handshakes(port, DEVICES)[0]
    )
    numbers = count(1)
    by_file = {peer.socket.fileno(): (peer, token) for peer, (_, token) in zip(peers, _eve(protocol), strict=False)}
    for peer, token in by_file.values():
        peer.send(post(next(numbers), token))
    while True:
        ready = select.select(list(by_file), [], [], 1.0)[0]
        for file in ready or by_file:  # a datagram was lost
            peer, token = by_file[file]
            if not ready or peer.receive():
                peer.send(post(next(numbers), token))


# --- Polite devices -------------------------------------------------------------------------------------------------


def _says(protocol: str, identity: Identity, daemon: Daemon) -> Exchange:
    """A message, and its answer."""
    if protocol in _DATAGRAMS:
        return (posts_messages if protocol == "coap" else posts_messages_encrypted)(daemon, identity[1])
    if protocol == "lwm2m":
        sends, numbers = clients.lwm2m(daemon, int(identity[0], 16) - int(device_id(0), 16), ExitStack(), 60), count(1)

        def sent() -> None:
            sends(next(numbers))

        return sent
    listener, opening, message = _STREAMS[protocol]
    connection = socket.create_connection(daemon.host_port(listener), timeout=60)
    connection.sendall(opening(*identity))
    assert connection.recv(65_536)
    expected = {"mqtt": b"\x40\x02", "websocket": b'"mid"', "http": b"HTTP/1.1 200"}[protocol]

    def exchange() -> None:
        connection.sendall(message(*identity))
        answer = b""
        while expected not in answer:
            received = connection.recv(65_536)
            assert received, "the daemon has closed the connection"
            answer = (answer + received)[-65_536:]

    return exchange


#: Between an answer and the next message. LWM2M requests beyond 10 a second of a peer wait (reference 21.5).
def _pause(protocol: str) -> float:
    return 0.15 if protocol == "lwm2m" else 0.02


def _both(protocol: str, daemon: Daemon, seconds: float) -> tuple[Waits, Waits]:
    """What Ada's device and Eve's polite one wait for their answers, at the same time."""
    found: dict[int, Waits] = {}

    def measure(at: int, identity: Identity) -> None:
        found[at] = waits_of(partial(_says, protocol, identity), daemon, seconds, _pause(protocol))

    threads = [
        threading.Thread(target=measure, args=(at, identity))
        for at, identity in enumerate((_ada(protocol), _eve(protocol)[-1]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[0], found[1]


# --- What is shown --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overload:
    """Messages of each of Eve's devices in a second, what they got, and what polite devices waited for."""

    protocol: str
    sustainable: float
    rates: Sequence[float]
    tally: str
    alone: tuple[Waits, Waits]  # Ada's device, and Eve's
    during: tuple[Waits, Waits]
    after: tuple[Waits, Waits]
    grown_mib: float
    kept_mib: float

    @property
    def is_fair(self) -> bool:
        """Whether no device has got more than three times what another one has."""
        return 0 < max(self.rates) <= 3 * min(self.rates)

    def row(self) -> str:
        waits = (
            ", ".join(f"{one[at].percentile(0.5):.0f} / {one[at].percentile(0.99):.0f}" for one in moments)
            for at in (0, 1)
            for moments in ((self.alone, self.during, self.after),)
        )
        return (
            f"| {self.protocol} | {self.sustainable:,.0f} | {sum(self.rates):,.0f}"
            f" | {min(self.rates):,.0f} to {max(self.rates):,.0f} | {self.tally} | {' | '.join(waits)}"
            f" | {self.grown_mib:.0f}, {self.kept_mib:.0f} |"
        )


def overload(protocol: str, opened: World, seconds: float, *, times: float = _TIMES) -> Overload:
    daemon = opened.daemon
    counted = _Counted(daemon, [device for device, _ in _eve(protocol)[:DEVICES]])
    with running(partial(_one_at_a_time, protocol, daemon), 1), counted.during() as steady:
        time.sleep(seconds / 8)
    sustainable, tally = sum(steady), Tally()
    if protocol in _DATAGRAMS:
        port = daemon.port(_DATAGRAMS[protocol])
        attack: Callable[[], None] = partial(_datagrams, protocol, port, times * sustainable, tally)
    else:
        attack = partial(_flood, protocol, daemon, times * sustainable, tally)
    alone = _both(protocol, daemon, min(seconds, _ALONE_SECONDS))
    memory = Memory(daemon)
    with memory.watched():
        with counted.during() as rates, running(attack, 1):
            during = _both(protocol, daemon, seconds)
        time.sleep(RECOVERY_SECONDS)
    kept = memory.now_mib() - memory.first_mib
    after = _both(protocol, daemon, min(seconds, _ALONE_SECONDS))
    grown = memory.highest_mib - memory.first_mib
    return Overload(protocol, sustainable, rates, str(tally), alone, during, after, grown, kept)


class _Counted:
    """How many messages the log has of each of some devices."""

    def __init__(self, daemon: Daemon, devices: Sequence[str]) -> None:
        self._daemon, self._devices = daemon, devices

    @contextmanager
    def during(self) -> Iterator[list[float]]:
        """The messages of each device in a second while the block lasts; they are there behind it."""
        rates: list[float] = []
        before, began = self._now(), time.perf_counter()
        yield rates
        seconds = time.perf_counter() - began
        rates += [(now - then) / seconds for now, then in zip(self._now(), before, strict=True)]

    def _now(self) -> list[int]:
        with self._daemon.store(read_only=True) as connection:
            found = connection.execute(
                "SELECT d.id, (SELECT COUNT(*) FROM message m WHERE m.device = d.key) FROM device d"
            )
            counts: dict[str, int] = dict(map(tuple, found.tuples()))
        return [counts[device] for device in self._devices]


@contextmanager
def opened_world(folder: Path, *, sync_ms: int = 0) -> Iterator[World]:
    """`sync_ms`: how late each sync of the store is."""
    certificate, key = make_certificate(folder, "ecdsa")
    settings = (
        '[coap]\nbind = "127.0.0.1:0"\ndtls_bind = "127.0.0.1:0"\n'
        f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    )
    with ExitStack() as held:
        if sync_ms:
            shim = Shim(folder, folder / "state")
            held.enter_context(shim.loaded())
        found = held.enter_context(world(folder, messages=1, settings=settings))
        _add_sensors(found.daemon)
        if sync_ms:
            shim.arm("s", delay=sync_ms)
        yield found


def _add_sensors(daemon: Daemon) -> None:
    folder = daemon.state.parent
    folder.joinpath("sensor.json").write_text(_SENSOR_MANIFEST, encoding="utf-8")
    owners: list[tuple[int, str]] = [(number, "eve@example.org") for number in _SENSORS]
    sensors = (
        _SENSOR.format(id=device_id(number), owner=owner, n=number, token=device_token(number))
        for number, owner in (*owners, (_ADAS_SENSOR, ADA_EMAIL))
    )
    file = folder / "sensors.toml"
    file.write_text(_SENSOR_TYPE + "".join(sensors), encoding="utf-8")
    command_output("provision", file, "--config", daemon.config)
    options: dict[str, Any] = {"headers": bearer(USER_TOKEN), "timeout": 60}
    sensor = httpx.get(f"{daemon.base_url}/devices/{device_id(_ADAS_SENSOR)}", **options).raise_for_status().json()
    path = f"{daemon.base_url}/devicemgmt/devicetypes/{sensor['data']['dtid']}"
    httpx.put(path, json={"devicePropertiesEnabled": True}, **options).raise_for_status()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--times", type=float, default=_TIMES, help="of the sustainable rate")
    parser.add_argument("--sync-ms", type=int, default=0, help="how late each sync of the store is (SQLite)")
    parser.add_argument("protocols", nargs="*", default=PROTOCOLS)
    options = parser.parse_args()
    for protocol in options.protocols:
        with tempfile.TemporaryDirectory() as folder, opened_world(Path(folder), sync_ms=options.sync_ms) as opened:
            print(overload(protocol, opened, options.seconds, times=options.times).row(), flush=True)


if __name__ == "__main__":
    main()
