"""Devices that count, on each protocol: each sends `{"intensity": n}`, one at a time, and notes the answers."""

import base64
import http.client
import json
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import Final

from protocols.coap.messages import LINK_FORMAT, CoapMessage, Code, Option, encode_options, uint
from protocols.coap.reliable import CoapFrameReader, encode_coap_frame
from tests.daemon import ADA, LIGHT_TYPE, USER_TOKEN, Daemon, device_id, device_token

#: Sends a number and waits for its acknowledgement. Raises RefusedError, OSError, HTTPException.
Exchange = Callable[[int], None]
_SECONDS: Final = 5.0
_SENML_JSON: Final = 110


class RefusedError(Exception):
    """Answered, but not by an acknowledgement: the status or code of the answer."""


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


def mqtt_link(daemon: Daemon, device: int, held: ExitStack, seconds: float) -> socket.socket:
    """A connection of MQTT that is open."""
    link = held.enter_context(socket.create_connection(daemon.host_port("mqtt"), timeout=seconds))
    body = (
        _text("MQTT")
        + struct.pack("!BBH", 4, 0xC2, 0)
        + b"".join(map(_text, ("fault", device_id(device), device_token(device))))
    )
    link.sendall(b"\x10" + bytes((len(body) & 0x7F,)) + body)
    if _exactly(link, 4) != b"\x20\x02\x00\x00":
        raise RefusedError("CONNACK")
    return link


def mqtt(daemon: Daemon, device: int, held: ExitStack, seconds: float = _SECONDS) -> Exchange:
    link = mqtt_link(daemon, device, held, seconds)
    topic = _text(f"/v1.1/messages/{device_id(device)}")

    def exchange(number: int) -> None:
        packet_id = struct.pack("!H", (number & 0x7FFF) + 1)
        packet = topic + packet_id + _body(number).encode()
        link.sendall(bytes((0x32, len(packet))) + packet)
        if _exactly(link, 4) != b"\x40\x02" + packet_id:
            raise RefusedError("another packet")

    return exchange


def rest(daemon: Daemon, device: int, held: ExitStack, seconds: float = _SECONDS) -> Exchange:
    link = held.enter_context(closing(http.client.HTTPConnection(*daemon.host_port("http"), timeout=seconds)))
    headers = {"Authorization": f"bearer {device_token(device)}", "Content-Type": "application/json"}

    def exchange(number: int) -> None:
        body = json.dumps({"sdid": device_id(device), "data": {"intensity": number}})
        link.request("POST", "/v1.1/messages", body, headers)
        answer = link.getresponse()
        answer.read()
        if answer.status != 200:
            raise RefusedError(str(answer.status))

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
            answer = json.loads(content) if kind == 0x81 else {}
            if "error" in answer:
                raise RefusedError(str(answer["error"].get("code")))
            if "data" in answer:
                found: dict[str, object] = answer["data"]
                return found

    token = f"bearer {device_token(device)}"
    filler = "x" * 126  # so that each frame has the longer form of its size
    ask({"type": "register", "sdid": device_id(device), "Authorization": token, "filler": filler})

    def exchange(number: int) -> None:
        answer = ask({"data": {"intensity": number}, "sdid": device_id(device), "cid": str(number), "filler": filler})
        if "mid" not in answer:
            raise RefusedError(str(answer.get("code", answer)))

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

    def exchange(number: int) -> None:
        head = struct.pack("!BBHH", 0x42, 2, next(ids) & 0xFFFF, number & 0xFFFF)
        peer.send(head + options + b"\xff" + json.dumps({"data": {"intensity": number}}).encode())
        while True:
            answer = peer.recv(2048)
            if answer[0] & 0x30 == 0:  # a response of its own, which is acknowledged: the next one waits for that
                peer.send(b"\x60\x00" + answer[2:4])
            if answer[4:6] == head[4:6] and answer[1]:  # not an empty acknowledgement
                if answer[1] != 0x41:
                    raise RefusedError(f"{answer[1] >> 5}.{answer[1] & 31:02}")
                return

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
        link.sendall(encode_coap_frame(Code.POST, token, encode_options(options), payload))
        while True:
            while came:
                message = came.pop(0)
                if message.is_request:
                    link.sendall(answer_as_sensor(message))
                elif message.token == token:
                    return message.code
            if not (received := link.recv(65_536)):
                raise ConnectionError("closed")
            came.extend(reader.feed(received))

    queries = f"ep={device_id(device)}", f"token={device_token(device)}", "lt=300", "b=T"
    if ask("rd", *queries, kind=LINK_FORMAT, payload=b"</1/0>,</3/0>,</3303/0>") != Code.CREATED:
        raise ConnectionError("refused")

    def exchange(number: int) -> None:
        payload = json.dumps([{"n": "/3303/0/5700", "v": number}]).encode()
        if (code := ask("dp", kind=_SENML_JSON, payload=payload)) != Code.CHANGED:
            raise RefusedError(f"{code >> 5}.{code & 31:02}")

    return exchange


def answer_as_sensor(request: CoapMessage) -> bytes:
    """Values and observations are answered with a name, anything else is done."""
    if request.code != Code.GET:
        return encode_coap_frame(Code.CHANGED, request.token)
    observe = [(Option.OBSERVE, b"\x01")] if dict(request.options).get(Option.OBSERVE) == b"" else []
    options = encode_options((*observe, (Option.CONTENT_FORMAT, uint(_SENML_JSON))))
    path = b"/".join(value for number, value in request.options if number == Option.URI_PATH)
    return encode_coap_frame(Code.CONTENT, request.token, options, b'[{"bn":"/%b/","n":"0","vs":"Acme"}]' % path)


def making(daemon: Daemon, device: int, held: ExitStack, seconds: float = _SECONDS) -> Exchange:
    """Not a message but a work of the store: each number makes a device, whose name is of `made_name`."""
    link = held.enter_context(closing(http.client.HTTPConnection(*daemon.host_port("http"), timeout=seconds)))
    headers = {"Authorization": f"bearer {USER_TOKEN}", "Content-Type": "application/json"}

    def exchange(number: int) -> None:
        body = {"uid": ADA, "dtid": LIGHT_TYPE, "name": made_name(device, number)}
        link.request("POST", "/v1.1/devices", json.dumps(body), headers)
        answer = link.getresponse()
        answer.read()
        if answer.status >= 300:
            raise RefusedError(str(answer.status))

    return exchange


def made_name(device: int, number: int) -> str:
    return f"made {device} {number}"


#: Each connects a device and returns what sends one number; its sockets are closed with the stack.
PROTOCOLS: Final[tuple[Callable[..., Exchange], ...]] = (mqtt, rest, websocket, coap)


class Lasting(threading.Thread):
    """Counts on through every fault: after a failure with the next number, a new connection and the next daemon.

    `acknowledged` grows by the moment and the number of each answer, `seen` by what came instead.
    """

    def __init__(
        self,
        daemons: Sequence[Daemon],
        device: int,
        protocol: Callable[..., Exchange],
        first: int,
        *,
        seconds: float = _SECONDS,
        noted: Callable[[int, int], None] | None = None,
    ) -> None:
        """`seconds`: how long an answer is waited for. `noted` is called with the device and the number of each
        acknowledged message."""
        super().__init__(name=f"{protocol.__name__}-{device}", daemon=True)
        self._daemons, self._protocol, self._seconds, self._noted = daemons, protocol, seconds, noted
        self.device, self.last = device, first
        self.acknowledged: list[tuple[float, int]] = []
        self.refused = 0  # answered, but not by an acknowledgement
        self.seen: Counter[str] = Counter()
        self.stop = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self.stop.is_set():
            # A daemon that stands by has no addresses yet.
            with suppress(KeyError, ValueError), ExitStack() as held:
                daemon = self._daemons[turn % len(self._daemons)]
                try:
                    self._count(self._protocol(daemon, self.device, held, self._seconds))
                except RefusedError as error:
                    self.refused += 1
                    self._see(str(error))
                except TimeoutError:
                    self._see(f"no answer within {self._seconds:.0f} s")
                except ConnectionRefusedError:
                    self._see("nobody listens")
                except (OSError, http.client.HTTPException):
                    self._see("the connection ends")
            turn += 1
            self.stop.wait(0.05)

    def _see(self, what: str) -> None:
        self.seen[f"{self._protocol.__name__}: {what}"] += 1

    def _count(self, exchange: Exchange) -> None:
        while not self.stop.is_set():
            self.last += 1
            exchange(self.last)
            self.acknowledged.append((time.monotonic(), self.last))
            if self._noted is not None:
                self._noted(self.device, self.last)
