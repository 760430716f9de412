"""LWM2M devices over TCP that register again and again, and answer each Read with much TLV."""

import os
import selectors
import socket
import time
from contextlib import suppress
from typing import Final

from protocols.coap.messages import LINK_FORMAT, Code, Option, encode_options, uint
from protocols.coap.reliable import CoapFrameReader, encode_coap_frame

_TLV: Final = 11_542
_VALUES: Final = 2_000
_EACH_BYTES: Final = 24
_PAUSE_SECONDS: Final = 0.05
#: A device registers again when nobody has asked it for so long.
_QUIET_SECONDS: Final = 0.2
#: Resources with an identifier of two bytes and a length of one (LwM2M 1.0, 6.4.3).
_ANSWER: Final = b"".join(
    bytes((0b11101000,)) + (1_000 + number).to_bytes(2, "big") + bytes((_EACH_BYTES,)) + b"x" * _EACH_BYTES
    for number in range(_VALUES)
)


class _Device:
    def __init__(self, address: tuple[str, int], device: str, token: str) -> None:
        queries = (f"ep={device}", f"token={token}", "lt=300", "b=T")
        options = (
            (Option.URI_PATH, b"rd"),
            (Option.CONTENT_FORMAT, uint(LINK_FORMAT)),
            *((Option.URI_QUERY, one.encode()) for one in queries),
        )
        self._registration = encode_coap_frame(Code.POST, b"r", encode_options(options), b"</1/0>,</3/0>,</5/0>")
        self._answer = encode_options(((Option.CONTENT_FORMAT, uint(_TLV)),))
        self._reader = CoapFrameReader()
        self.socket = socket.create_connection(address, timeout=10)
        self.register()

    def register(self) -> None:
        self.asked_at = time.monotonic()
        self.socket.sendall(self._registration)

    def read(self) -> None:
        """Raises OSError when the daemon has closed the connection."""
        if not (received := self.socket.recv(65_536)):
            raise ConnectionResetError
        for message in self._reader.feed(received):
            if message.is_request:
                self.asked_at = time.monotonic()
                is_read = message.code == Code.GET
                answer = (
                    (Code.CONTENT, message.token, self._answer, _ANSWER) if is_read else (Code.CHANGED, message.token)
                )
                self.socket.sendall(encode_coap_frame(*answer))


def answer_with_tlv(address: tuple[str, int], devices: list[tuple[str, str]]) -> None:
    """Never returns. `devices` are ids and tokens."""
    os.nice(10)
    chosen = selectors.DefaultSelector()
    missing = list(devices)
    while True:
        for one in missing:
            opened = _Device(address, *one)
            chosen.register(opened.socket, selectors.EVENT_READ, (opened, one))
        missing = []
        for key, _ in chosen.select(_PAUSE_SECONDS):
            device, one = key.data
            try:
                device.read()
            except OSError:
                chosen.unregister(device.socket)
                with suppress(OSError):
                    device.socket.close()
                missing.append(one)
        for key in chosen.get_map().values():
            if time.monotonic() - key.data[0].asked_at > _QUIET_SECONDS:
                key.data[0].register()
