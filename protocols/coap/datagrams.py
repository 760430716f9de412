"""Datagrams on their way to the DTLS sessions, and nothing that could end trio's reader.

- **Sessions.** What they say goes to them at once; trio's channels, at a task switch for each datagram, are left to
  handshakes and alerts.
- **Floods.** First hellos are cheap but not free: only so many are looked at for each wake-up, so that the datagrams of
  sessions are not starved.
- **Pre-shared keys.** OpenSSL asks for a key in the middle of a handshake and does not wait, while ours lie in the
  store. So the flight with a peer's identity, which is not encrypted, is held back until its key was read.
- **Failure.** What a socket raises would end trio's receiving task, and with it the process. Here a datagram is lost.
"""

import re
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import partial
from socket import SOCK_DGRAM, AddressFamily, SocketKind
from typing import Any, Final

import trio

from protocols.coap.sockets import DatagramSocket, PeerAddress

HELLOS_PER_WAKE_UP: Final = 64
_MAX_HELD_DATAGRAMS = 8
_MAX_LOOKUPS = 512
_IDENTITY: Final = re.compile(rb"[0-9a-f]{32}")

_RECORD_BYTES = 13
_HANDSHAKE_BYTES = 12
_HANDSHAKE = 22
_APPLICATION_DATA = 23
_CLIENT_HELLO = 1
_CLIENT_KEY_EXCHANGE = b"\x10"
_IN_CLEAR = b"\0\0"  # epoch 0


class DtlsDatagrams:
    """What trio takes for its socket. It raises nothing but that it is closed."""

    def __init__(self, sock: DatagramSocket, half_open: Container[PeerAddress]) -> None:
        """`half_open` has the addresses whose handshake is under way."""
        self._socket = sock
        self._half_open = half_open
        #: Who takes the records of application data, by the address that they come from.
        self.sessions: dict[PeerAddress, Callable[[bytes], None]] = {}
        self._ready: deque[tuple[bytes, Any]] = deque()
        self._arrived = trio.Event()
        self._held: dict[Any, list[bytes]] = {}
        self._lookups, self.held = trio.open_memory_channel[tuple[Any, bytes]](_MAX_LOOKUPS)
        self._is_closed = False
        self._hellos = 0  # since the last wake-up
        self.hellos_dropped = 0
        self.lost = 0

    @property
    def type(self) -> SocketKind:
        return SOCK_DGRAM

    @property
    def family(self) -> AddressFamily:
        return AddressFamily(self._socket.socket.family)

    def getsockname(self) -> Any:
        return self._socket.socket.getsockname()

    def close(self) -> None:
        self._is_closed = True
        self._arrived.set()

    async def recvfrom(self, _size: int) -> tuple[bytes, Any]:
        while not self._ready:
            if self._is_closed:
                raise trio.ClosedResourceError
            await self._arrived.wait()
            self._arrived = trio.Event()
        return self._ready.popleft()

    async def sendto(self, data: bytes, address: PeerAddress) -> int:
        self.send(data, address)
        return len(data)

    def send(self, data: bytes, address: PeerAddress) -> None:
        """Sent or lost, at once: DTLS and CoAP both send again."""
        try:
            self._socket.send(data, address)
        except OSError:
            self.lost += 1

    def take(self, datagram: bytes, address: PeerAddress) -> None:
        """A datagram from the network."""
        if len(datagram) < _RECORD_BYTES:
            return  # no record; OpenSSL takes an empty one for a failure of the session
        if datagram[0] == _APPLICATION_DATA:
            take = self.sessions.get(address) or partial(self._pass_on, address)
            for record in _records(datagram):  # trio would join the messages of several into one
                take(record)
        elif is_client_hello(datagram) and self._is_flood():
            self.hellos_dropped += 1
        else:
            self._take_of_handshake(datagram, address)

    def _is_flood(self) -> bool:
        self._hellos += 1
        return self._hellos > HELLOS_PER_WAKE_UP

    def taken(self) -> None:
        """All datagrams of one wake-up have been taken."""
        self._hellos = 0
        self._arrived.set()

    def _pass_on(self, address: PeerAddress, datagram: bytes) -> None:
        self._ready.append((datagram, address))

    def _take_of_handshake(self, datagram: bytes, address: PeerAddress) -> None:
        if address in self._half_open:
            waiting = self._held.get(address)
            if waiting is not None:
                if len(waiting) < _MAX_HELD_DATAGRAMS:
                    waiting.append(datagram)
                return
            identity = _psk_identity(datagram)
            if identity is not None:
                with suppress(trio.WouldBlock):
                    self._lookups.send_nowait((address, identity))
                    self._held[address] = [datagram]
                return  # without a place in the queue it is lost, and will be sent again
        self._pass_on(address, datagram)

    def release(self, address: PeerAddress) -> None:
        for datagram in self._held.pop(address, ()):
            self._pass_on(address, datagram)
        self._arrived.set()


def _records(datagram: bytes) -> Iterator[bytes]:
    """The DTLS records of a datagram; the last may be cut short."""
    at = 0
    while at < len(datagram):
        end = at + _RECORD_BYTES + int.from_bytes(datagram[at + 11 : at + 13], "big")
        yield datagram[at:end]
        at = end


def is_client_hello(packet: bytes) -> bool:
    """Cannot fail. The epoch counts: what is encrypted may look like anything."""
    return (
        len(packet) > _RECORD_BYTES
        and packet[0] == _HANDSHAKE
        and packet[3:5] == _IN_CLEAR
        and packet[_RECORD_BYTES] == _CLIENT_HELLO
    )


def _psk_identity(datagram: bytes) -> bytes | None:
    """The identity in a ClientKeyExchange, if it can be one of our devices (RFC 4279 section 2, RFC 5489 section 2)."""
    for record in _records(datagram):
        kind = record[_RECORD_BYTES : _RECORD_BYTES + 1]
        if record[0] == _HANDSHAKE and record[3:5] == _IN_CLEAR and kind == _CLIENT_KEY_EXCHANGE:
            body = record[_RECORD_BYTES + _HANDSHAKE_BYTES :]
            identity = body[2 : 2 + int.from_bytes(body[:2], "big")]
            return identity if _IDENTITY.fullmatch(identity) else None
    return None
