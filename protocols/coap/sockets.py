"""UDP sockets of listeners: many datagrams for each wake-up, and answers that come from where the question went.

A socket that is bound to any address would answer from whichever one the route to the peer suggests, and a client drops
what does not come from whom it has asked (RFC 7252 section 5.3.2). So there the kernel tells for each datagram where it
was sent to (RFC 3542 section 6, ip(7) on IP_PKTINFO), and is told so with the answer. That place is the last part of a
peer's address here: one peer that speaks to two of our addresses is two.
"""

from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from socket import (
    AF_INET,
    AI_PASSIVE,
    CMSG_SPACE,
    IPPROTO_IP,
    IPPROTO_IPV6,
    IPV6_PKTINFO,
    IPV6_RECVPKTINFO,
    SO_RCVBUF,
    SO_SNDBUF,
    SOCK_DGRAM,
    SOL_SOCKET,
    socket,
)
from typing import Any, Final, Self

import trio

from broker.messages.ingest import Ingest
from config.settings import Address
from protocols.coap.messages import DATAGRAM_BYTES

DATAGRAMS_PER_WAKE_UP: Final = 256
_BUFFER_BYTES: Final = 4 * 1024 * 1024
_IP_PKTINFO: Final = 8  # linux/in.h; Python has a name for it from 3.14 on
_PLACE_BYTES: Final = CMSG_SPACE(20)

#: As the operating system has it, and behind it the place that a datagram was sent to, if the socket has several.
PeerAddress = tuple[Any, ...]


class DatagramSocket:
    """A bound UDP socket that never blocks."""

    def __init__(self, sock: socket) -> None:
        self.socket = sock
        self._is_v4 = sock.family == AF_INET
        #: One datagram and its sender. Raises BlockingIOError when there is none, OSError for what an ICMP error told.
        self.receive: Callable[[], tuple[bytes, PeerAddress]] = self._receive
        #: Raises OSError when it cannot leave.
        self.send: Callable[[bytes, PeerAddress], int] = sock.sendto
        if ip_address(sock.getsockname()[0]).is_unspecified:
            level, option = (IPPROTO_IP, _IP_PKTINFO) if self._is_v4 else (IPPROTO_IPV6, IPV6_RECVPKTINFO)
            sock.setsockopt(level, option, 1)
            self.receive, self.send = self._receive_at, self._send_from

    @classmethod
    async def bound(cls, bind: Address) -> Self:
        """Raises OSError when the address cannot be bound."""
        found = await trio.socket.getaddrinfo(bind.host, bind.port, type=SOCK_DGRAM, flags=AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            for option in (SO_RCVBUF, SO_SNDBUF):
                with suppress(OSError):  # a smaller one only loses more in a burst
                    sock.setsockopt(SOL_SOCKET, option, _BUFFER_BYTES)
            sock.bind(address)
            return cls(sock)
        except OSError:
            sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def address(self) -> Address:
        host, port = self.socket.getsockname()[:2]
        return Address(host, port)

    def _receive(self) -> tuple[bytes, PeerAddress]:
        return self.socket.recvfrom(DATAGRAM_BYTES + 1)

    def _receive_at(self) -> tuple[bytes, PeerAddress]:
        datagram, ancillary, _, address = self.socket.recvmsg(DATAGRAM_BYTES + 1, _PLACE_BYTES)
        place = ancillary[0][2] if ancillary else b""
        # in_pktinfo is interface, our address, address in the datagram; in6_pktinfo is our address, interface.
        return datagram, (*address, place[4:8] if self._is_v4 else place[:16])

    def _send_from(self, datagram: bytes, address: PeerAddress) -> int:
        """From our address of `address`, through the interface that the route has."""
        *peer, place = address
        if not place:
            return self.socket.sendto(datagram, tuple(peer))
        if self._is_v4:
            ancillary = (IPPROTO_IP, _IP_PKTINFO, bytes(4) + place + bytes(4))
        else:
            ancillary = (IPPROTO_IPV6, IPV6_PKTINFO, place + bytes(4))
        return self.socket.sendmsg((datagram,), (ancillary,), 0, tuple(peer))


async def read_forever(
    sock: DatagramSocket, ingest: Ingest, take: Callable[[bytes, PeerAddress], None], taken: Callable[[], None]
) -> None:
    """Hand over every datagram that comes.

    Args:
        sock: where they come.
        ingest: nothing is read while it has no room; so the pressure reaches the network, which loses.
        take: called with each datagram and its sender; of one that is too long come DATAGRAM_BYTES and one more.
        taken: called when everything that was there has been handed over.
    """
    receive = sock.receive
    while True:
        await trio.lowlevel.wait_readable(sock.socket)
        for _ in range(DATAGRAMS_PER_WAKE_UP):
            try:
                datagram, address = receive()
            except BlockingIOError:
                break
            except OSError:  # an ICMP error about something sent earlier
                continue
            take(datagram, address)
        taken()
        if not ingest.has_room:
            await ingest.wait_room()
