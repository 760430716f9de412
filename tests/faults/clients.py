"""Devices that count, on each protocol: each sends `{"intensity": n}`, one at a time, and notes the answers."""

import base64
import http.client
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import Final

from protocols.coap.messages import LINK_FORMAT, CoapMessage, Code, Option, encode_options, uint
from protocols.coap.reliable import CoapFrameReader, encode_frame
from tests.daemon import ADA, LIGHT_TYPE, USER_TOKEN, Daemon, device_id, device_token

Exchange = Callable[[int], bool]
_SECONDS: Final = 5.0
_SENML_JSON: Final = 110


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := link.recv(count - len(data))):
            raise ConnectionError("closed")
        data += more
    return data


def _text(value: str) -> bytes:
    return struct.pack("!H", len(value)) + value.encode()


def _body(number: int) -> str:
    return json.dumps({"intensity": number})


def mqtt(daemon: Daemon, device: int, held: ExitStack, seconds: float = _SECONDS) -> Exchange:
    link = held.enter_context(socket.create_connection(daemon.host_port("mqtt"), timeout=seconds))
    body = (
        _text("MQTT")
        + struct.pack("!BBH", 4, 0xC2, 0)
        + b"".join(map(_text, ("fault", device_id(device), device_token(device))))
    )
    link.sendall(b"\x10" + bytes((len(body) & 0x7F,)) + body)
    if _exactly(link, 4) != b"\x20\x02\x00\x00":
        raise ConnectionError("refused")
    topic = _text(f"/v1.1/messages/{device_id(device)}")

    def exchange(number: int) -> bool:
        packet_id = struct.pack("!H", (number & 0x7FFF) + 1)
        packet = topic + packet_id + _body(number).encode()
        link.sendall(bytes((0x32, len(packet))) + packet)
        return _exactly(link, 4) == b"\x40\x02" + packet_id

    return exchange


def rest(daemon: Daemon, device: int, held: ExitStack, seconds: float = _SECONDS) -> Exchange:
    link = held.enter_context(closing(http.client.HTTPConnection(*daemon.host_port("http"), timeout=seconds)))
    headers = {"Authorization": f"bearer {device_token(device)}", "Content-Type": "application/json"}

    def exchange(number: int) -> bool:
        body = json.dumps({"sdid": device_id(device), "data": {"intensity": number}})
        link.request("POST", "/v1.1/messages", body, headers)
        answer = link.getresponse()
        answer.read()
        return answer.status == 200

    return exchange


def websocket(daemon: Daemon, device: int, held: ExitStack, seconds: float = _SECONDS) -> Exchange:
    link = held.enter_context(socket.create_connection(daemon.host_port("http"), timeout=seconds))
    key = base64.b64encode(os.urandom(16)).decode()
    link.sendall(
        "GET /v1.1/websocket?ack=true HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += _exactly(link, 1)

    def ask(frame: dict[str, object]) -> dict[str, object]:
        text = json.dumps(frame).encode()
        # The mask is zero, so the text stays as it is.
        link.sendall(b"\x81\xfe" + struct.pack("!H", len(text)) + bytes(4) + text)
        while True:
            kind, size = _exactly(link, 2)
            if size == 126:
                (size,) = struct.unpack("!H", _exactly(link, 2))
            content = _exactly(link, size)
            if kind == 0x88:
                raise ConnectionError("closed")
            if kind == 0x81 and "data" in (answer := json.loads(content)):
                found: dict[str, object] = answer["data"]
                return found

    token = f"bearer {device_token(device)}"
    filler = "x" * 126  # so that each frame has the longer form of its size
    ask({"type": "register", "sdid": device_id(device), "Authorization": token, "filler": filler})

    def exchange(number: int) -> bool:
        answer = ask({"data": {"intensity": number}, "sdid": device_id(device), "cid": str(number), "filler": filler})
        return "mid" in answer

    return exchange


def coap(daemon: Daemon, device: int, held: ExitStack, seconds: float = _SECONDS) -> Exchange:
    peer = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    peer.connect(daemon.host_port("coap"))
    peer.settimeout(seconds)
    segments = (b"v1.1", b"messages", device_token(device).encode())
    options = b""
    for index, segment in enumerate(segments):
        delta = 11 if index == 0 else 0
        short = min(len(segment), 13)
        options += bytes((delta << 4 | short,)) + (bytes((len(segment) - 13,)) if short == 13 else b"") + segment
    options += b"\x11\x32"  # Content-Format: JSON
    # The socket before may have had this port, and its messages must not be taken for those (RFC 7252, 4.4).
    ids = count(int.from_bytes(os.urandom(2), "big"))

    def exchange(number: int) -> bool:
        head = struct.pack("!BBHH", 0x42, 2, next(ids) & 0xFFFF, number & 0xFFFF)
        peer.send(head + options + b"\xff" + json.dumps({"data": {"intensity": number}}).encode())
        while True:
            answer = peer.recv(2048)
            if answer[4:6] == head[4:6] and answer[1]:  # not an empty acknowledgement
                return answer[1] == 0x41

    return exchange


def lwm2m(daemon: Daemon, device: int, held: ExitStack, seconds: float = _SECONDS) -> Exchange:
    """A device over TCP, which sends its temperature (Send of LwM2M 1.1). What the daemon asks it is answered."""
    link = held.enter_context(socket.create_connection(daemon.host_port("lwm2m_tcp"), timeout=seconds))
    reader, tokens, came = CoapFrameReader(), count(1), list[CoapMessage]()

    def ask(path: str, *queries: str, kind: int, payload: bytes) -> int:
        """Send a POST and return the code of its answer."""
        token = next(tokens).to_bytes(4, "big")
        options = (
            (Option.URI_PATH, path.encode()),
            (Option.CONTENT_FORMAT, uint(kind)),
            *((Option.URI_QUERY, one.encode()) for one in queries),
        )
        link.sendall(encode_frame(Code.POST, token, encode_options(options), payload))
        while True:
            while came:
                message = came.pop(0)
                if message.is_request:
                    link.sendall(_answer(message))
                elif message.token == token:
                    return message.code
            if not (received := link.recv(65_536)):
                raise ConnectionError("closed")
            came.extend(reader.feed(received))

    queries = f"ep={device_id(device)}", f"token={device_token(device)}", "lt=300", "b=T"
    if ask("rd", *queries, kind=LINK_FORMAT, payload=b"</1/0>,</3/0>,</3303/0>") != Code.CREATED:
        raise ConnectionError("refused")

    def exchange(number: int) -> bool:
        payload = json.dumps([{"n": "/3303/0/5700", "v": number}]).encode()
        return ask("dp", kind=_SENML_JSON, payload=payload) == Code.CHANGED

    return exchange


def _answer(request: CoapMessage) -> bytes:
    """Values and observations are answered with a name, anything else is done."""
    if request.code != Code.GET:
        return encode_frame(Code.CHANGED, request.token)
    observe = [(Option.OBSERVE, b"\x01")] if dict(request.options).get(Option.OBSERVE) == b"" else []
    options = encode_options((*observe, (Option.CONTENT_FORMAT, uint(_SENML_JSON))))
    path = b"/".join(value for number, value in request.options if number == Option.URI_PATH)
    return encode_frame(Code.CONTENT, request.token, options, b'[{"bn":"/%b/","n":"0","vs":"Acme"}]' % path)


def making(daemon: Daemon, device: int, held: ExitStack, seconds: float = _SECONDS) -> Exchange:
    """Not a message but a work of the store: each number makes a device, whose name is of `made_name`."""
    link = held.enter_context(closing(http.client.HTTPConnection(*daemon.host_port("http"), timeout=seconds)))
    headers = {"Authorization": f"bearer {USER_TOKEN}", "Content-Type": "application/json"}

    def exchange(number: int) -> bool:
        body = {"uid": ADA, "dtid": LIGHT_TYPE, "name": made_name(device, number)}
        link.request("POST", "/v1.1/devices", json.dumps(body), headers)
        answer = link.getresponse()
        answer.read()
        return answer.status < 300

    return exchange


def made_name(device: int, number: int) -> str:
    return f"made {device} {number}"


#: Each connects a device and returns what sends one number; its sockets are closed with the stack.
PROTOCOLS: Final[tuple[Callable[..., Exchange], ...]] = (mqtt, rest, websocket, coap)


class Counting(threading.Thread):
    """Counts on until the daemon is away or has refused a message. `sent` and `acknowledged` grow."""

    def __init__(self, daemon: Daemon, device: int, first: int, *, noted: Callable[[int, int], None]) -> None:
        """`noted` is called with the device and the number of each acknowledged message."""
        super().__init__(name=f"device-{device}", daemon=True)
        self._daemon, self._device, self._noted = daemon, device, noted
        self.last = first
        self.sent: set[int] = set()
        self.acknowledged: set[int] = set()
        self.refused = 0
        self.stop = False

    def run(self) -> None:
        # The daemon goes away: that is the fault.
        with suppress(OSError, http.client.HTTPException), ExitStack() as held:
            exchange = PROTOCOLS[self._device % len(PROTOCOLS)](self._daemon, self._device, held)
            while not self.stop:
                self.last += 1
                self.sent.add(self.last)
                if not exchange(self.last):
                    self.refused += 1
                    return
                self.acknowledged.add(self.last)
                self._noted(self._device, self.last)


class Lasting(threading.Thread):
    """Counts on through every fault: after a failure with the next number, a new connection and the next daemon.

    `acknowledged` grows by the moment and the number of each answer.
    """

    def __init__(
        self,
        daemons: Sequence[Daemon],
        device: int,
        protocol: Callable[..., Exchange],
        first: int,
        *,
        seconds: float = _SECONDS,
    ) -> None:
        """`seconds`: how long an answer is waited for."""
        super().__init__(name=f"{protocol.__name__}-{device}", daemon=True)
        self._daemons, self._protocol, self._seconds = daemons, protocol, seconds
        self.device, self.last = device, first
        self.acknowledged: list[tuple[float, int]] = []
        self.refused = 0  # answered, but not by an acknowledgement
        self.stop = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self.stop.is_set():
            # A daemon that stands by has no addresses yet.
            with suppress(OSError, http.client.HTTPException, KeyError, ValueError), ExitStack() as held:
                daemon = self._daemons[turn % len(self._daemons)]
                self._count(self._protocol(daemon, self.device, held, self._seconds))
            turn += 1
            self.stop.wait(0.05)

    def _count(self, exchange: Exchange) -> None:
        while not self.stop.is_set():
            self.last += 1
            if not exchange(self.last):
                self.refused += 1
                return
            self.acknowledged.append((time.monotonic(), self.last))
