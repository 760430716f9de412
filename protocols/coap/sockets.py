"""UDP sockets of listeners: many datagrams at each wake-up, and answers from the address that was asked.

A socket that is bound to the unspecified address (0.0.0.0, ::) answers from the address that the route to the peer
suggests, and a client drops a response from an address that it did not ask (RFC 7252, 5.3.2). So on such a socket the
kernel reports the local address of each datagram (RFC 3542, 6; ip(7), IP_PKTINFO), and gets it back with the answer.
The local address is the last part of a peer's address here: a client that asks two local addresses is two peers.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from socket import (
    AF_INET,
    IPPROTO_IP,
    IPPROTO_IPV6,
    IPV6_PKTINFO,
    IPV6_RECVPKTINFO,
    SO_RCVBUF,
    SO_SNDBUF,
    SOL_SOCKET,
    socket,
)
from typing import Final, Self

import trio

from broker.messages.ingest import Ingest
from config.settings import Address
from protocols.coap.recvmmsg import AT_ONCE, DatagramReceiver, PeerAddress
from protocols.streams.binding import bound_address
from protocols.streams.inherited import open_udp

DATAGRAMS_PER_WAKE_UP: Final = 256
#: For how many datagrams one of a stranger counts: a session is opened for it, and its token may be looked up.
STRANGER_WEIGHT: Final = 8
#: Short enough for the kernel's buffer, which holds 270 short datagrams where net.core.rmem_max has its usual value.
_FLOODED_SECONDS: Final = 0.001
_BUFFER_BYTES: Final = 4 * 1024 * 1024
_IP_PKTINFO: Final = 8  # linux/in.h; socket.IP_PKTINFO exists from Python 3.14 on


class DatagramSocket:
    """A bound UDP socket that does not block. `mark` is for one of several sockets: its number."""

    def __init__(self, sock: socket, mark: tuple[int, ...] = ()) -> None:
        self.socket = sock
        self._is_v4 = sock.family == AF_INET
        for option in (SO_RCVBUF, SO_SNDBUF):
            with suppress(OSError):  # a smaller buffer only loses more datagrams of a burst
                sock.setsockopt(SOL_SOCKET, option, _BUFFER_BYTES)
        #: Raises OSError when the datagram cannot be sent.
        self.send: Callable[[bytes, PeerAddress], int] = sock.sendto
        if is_unspecified := ip_address(sock.getsockname()[0]).is_unspecified:
            level, option = (IPPROTO_IP, _IP_PKTINFO) if self._is_v4 else (IPPROTO_IPV6, IPV6_RECVPKTINFO)
            sock.setsockopt(level, option, 1)
            self.send = self._send_from
        self.receive = DatagramReceiver(sock, with_local=is_unspecified, mark=mark).receive

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


class DatagramSockets:
    """The UDP sockets of a listener."""

    def __init__(self, sockets: Sequence[socket]) -> None:
        self._sockets = sockets
        if len(sockets) == 1:
            self.each = [DatagramSocket(sockets[0])]
            self.send = self.each[0].send
        else:
            self.each = [DatagramSocket(sock, (number,)) for number, sock in enumerate(sockets)]
            self.send = self._send

    @classmethod
    async def bound(cls, bind: Address) -> Self:
        """Sockets bound to these addresses, or those from systemd. Raises OSError when one cannot be bound."""
        sockets = await open_udp(bind)
        try:
            return cls(sockets)
        except OSError:
            for sock in sockets:
                sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._sockets:
            sock.close()

    @property
    def address(self) -> Address:
        return bound_address(self._sockets)

    def _send(self, datagram: bytes, address: PeerAddress) -> int:
        *peer, number = address
        return self.each[number].send(datagram, tuple(peer))


async def read_forever(
    sockets: DatagramSockets, ingest: Ingest, take: Callable[[PeerAddress, bytes], int], taken: Callable[[], None]
) -> None:
    """Read datagrams until cancelled; see `_read_forever`."""
    first, *others = sockets.each
    async with trio.open_nursery() as nursery:
        for sock in others:
            nursery.start_soon(_read_forever, sock, ingest, take, taken)
        await _read_forever(first, ingest, take, taken)


async def _read_forever(
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
