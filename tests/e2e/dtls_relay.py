"""A relay between a program that speaks plain CoAP and a DTLS server, with OpenSSL and a pre-shared key.

It changes nothing within the messages. The program is reached where its last datagram came from.
"""

import selectors
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from OpenSSL import SSL

from tests.protocols.coap.dtls.client import PSK, psk_context

_BYTES = 65_536


class DtlsRelay:
    """One DTLS connection, and a UDP socket for the program."""

    def __init__(self, server: tuple[str, int], identity: str, token: str) -> None:
        self._outside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._outside.connect(server)
        self._outside.settimeout(5)
        self._inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._inside.bind(("127.0.0.1", 0))
        self.port: int = self._inside.getsockname()[1]
        self._program: tuple[str, int] | None = None
        self._wake, self._woken = socket.socketpair()
        self._session = SSL.Connection(psk_context(identity, token, PSK), None)
        self._session.set_ciphertext_mtu(1400)
        self._session.set_connect_state()
        self.passed: list[bytes] = []  # what the program sent
        self._thread = threading.Thread(target=self._relay, daemon=True)

    def __enter__(self) -> Self:
        while True:
            try:
                self._session.do_handshake()
                break
            except SSL.WantReadError:
                self._flush()
                self._session.bio_write(self._outside.recv(_BYTES))
        self._flush()
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._wake.close()
        self._thread.join(5)
        for one in (self._outside, self._inside, self._woken):
            one.close()

    def _flush(self) -> None:
        with suppress(SSL.WantReadError):
            flight = self._session.bio_read(_BYTES)
            while flight:  # one record to a datagram
                end = 13 + int.from_bytes(flight[11:13], "big")
                self._outside.send(flight[:end])
                flight = flight[end:]

    def _relay(self) -> None:
        with selectors.DefaultSelector() as selector:
            for one in (self._outside, self._inside, self._woken):
                selector.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._inside:
                        message, self._program = self._inside.recvfrom(_BYTES)
                        self.passed.append(message)
                        self._session.write(message)
                        self._flush()
                    else:
                        self._session.bio_write(self._outside.recv(_BYTES))
                        self._pass_on()

    def _pass_on(self) -> None:
        with suppress(SSL.WantReadError, SSL.ZeroReturnError):
            message = self._session.read(_BYTES)
            if self._program is not None:
                self._inside.sendto(message, self._program)
