"""UDP sockets of listeners: many datagrams at each wake-up, and answers from the address that was asked.

A socket that is bound to the unspecified address (0.0.0.0, ::) answers from the address that the route to the peer
suggests, and a client drops a response from an address that it did not ask (RFC 7252, 5.3.2). So on such a socket the
kernel reports the local address of each datagram (RFC 3542, 6; ip(7), IP_PKTINFO), and gets it back with the answer.
The local address is the last part of a peer's address here: a client that asks two local addresses is two peers.
"""

from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from socket import (
    AF_INET,
    AI_PASSIVE,
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
from typing import Final, Self

import trio

from broker.messages.ingest import Ingest
from config.settings import Address
from protocols.coap.recvmmsg import AT_ONCE, DatagramReceiver, PeerAddress
from protocols.inherited import given_datagrams

DATAGRAMS_PER_WAKE_UP: Final = 256
#: For how many datagrams one of a stranger counts: a session is opened for it, and its token may be looked up.
STRANGER_WEIGHT: Final = 8
#: Short enough for the kernel's buffer, which holds 270 short datagrams where net.core.rmem_max has its usual value.
_FLOODED_SECONDS: Final = 0.001
_BUFFER_BYTES: Final = 4 * 1024 * 1024
_IP_PKTINFO: Final = 8  # linux/in.h; socket.IP_PKTINFO exists from Python 3.14 on


class DatagramSocket:
    """A bound UDP socket that does not block."""

    def __init__(self, sock: socket) -> None:
        self.socket = sock
        self._is_v4 = sock.family == AF_INET
        #: Raises OSError when the datagram cannot be sent.
        self.send: Callable[[bytes, PeerAddress], int] = sock.sendto
        if is_unspecified := ip_address(sock.getsockname()[0]).is_unspecified:
            level, option = (IPPROTO_IP, _IP_PKTINFO) if self._is_v4 else (IPPROTO_IPV6, IPV6_RECVPKTINFO)
            sock.setsockopt(level, option, 1)
            self.send = self._send_from
        self.receive = DatagramReceiver(sock, with_local=is_unspecified).receive

    @classmethod
    async def bound(cls, bind: Address) -> Self:
        """A socket bound to this address, or the one from systemd. Raises OSError when it cannot be bound."""
        if (given := given_datagrams()) is not None:
            return cls(given)
        found = await trio.socket.getaddrinfo(bind.host, bind.port, type=SOCK_DGRAM, flags=AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            for option in (SO_RCVBUF, SO_SNDBUF):
                with suppress(OSError):  # a smaller buffer only loses more datagrams of a burst
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

    def _send_from(self, datagram: bytes, address: PeerAddress) -> int:
        """Send from the local address in `address`; the route chooses the interface."""
        *peer, local = address
        if not local:
            return self.socket.sendto(datagram, tuple(peer))
        if self._is_v4:
            ancillary = (IPPROTO_IP, _IP_PKTINFO, bytes(4) + local + bytes(4))
        else:
            ancillary = (IPPROTO_IPV6, IPV6_PKTINFO, local + bytes(4))
        return self.socket.sendmsg((datagram,), (ancillary,), 0, tuple(peer))


async def read_forever(
    sock: DatagramSocket, ingest: Ingest, take: Callable[[PeerAddress, bytes], int], taken: Callable[[], None]
) -> None:
    """Read datagrams until cancelled.

    Args:
        sock: what to read from.
        ingest: nothing is read while it has no room. Datagrams then wait in the kernel, which drops what exceeds its
            buffer.
        take: called with the sender and each datagram; a longer datagram is cut after DATAGRAM_BYTES + 1 bytes. Returns
            for how many of the wake-up's datagrams this one counts; 0 when it was dropped.
        taken: called after all datagrams of one wake-up.
    """
    receive = sock.receive
    while True:
        await trio.lowlevel.wait_readable(sock.socket)
        left, is_flooded = DATAGRAMS_PER_WAKE_UP, False
        while left > 0:
            most = max(min(left // STRANGER_WEIGHT, AT_ONCE), 1)  # all of them may be of strangers
            try:
                received = receive(most)
            except BlockingIOError:
                break
            except OSError:  # an ICMP error about an earlier datagram
                left -= 1
                continue
            for datagram, address in received:
                weight = take(address, datagram)
                if not weight:
                    is_flooded = True
                left -= weight or 1
            if len(received) < most:
                break
        taken()
        if is_flooded:  # a few wake-ups for many datagrams cost less than a wake-up for each
            await trio.sleep(_FLOODED_SECONDS)
        if not ingest.has_room:
            await ingest.wait_room()
