"""Many datagrams in one system call (recvmmsg(2)).

The call is made without giving the interpreter lock back: it never waits, takes less than a microsecond for each
datagram, and a task that gives the lock back for each of them waits for the writer's thread each time.
"""

import ctypes
import os
from socket import AF_INET, AF_INET6, CMSG_LEN, CMSG_SPACE, MSG_DONTWAIT, inet_ntop, socket
from struct import unpack_from
from typing import Any, Final

from protocols.coap.messages import DATAGRAM_BYTES

#: The address as the operating system gives it. On an unspecified address, the local address in bytes comes
#: behind it; of several sockets, the number of the socket comes last.
PeerAddress = tuple[Any, ...]

AT_ONCE: Final = 32
_BYTES: Final = DATAGRAM_BYTES + 1  # one more, so that a longer datagram is seen to be one
_NAME_BYTES: Final = 28  # struct sockaddr_in6, linux/in6.h
_V4_NAME_BYTES: Final = 8  # of struct sockaddr_in: family, port and address; the rest is padding
_CONTROL_BYTES: Final = CMSG_SPACE(20)  # struct in6_pktinfo
_KNOWN_MAX: Final = 4_096


class _Buffer(ctypes.Structure):  # struct iovec, readv(2)
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Message(ctypes.Structure):  # struct msghdr, recvmsg(2)
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_size", ctypes.c_uint32),
        ("buffers", ctypes.c_void_p),
        ("buffer_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Header(ctypes.Structure):  # struct mmsghdr, recvmmsg(2)
    _fields_ = (("message", _Message), ("size", ctypes.c_uint))


_WORDS: Final = ctypes.sizeof(_Header) // ctypes.sizeof(ctypes.c_size_t)


def _recvmmsg() -> Any:
    function = ctypes.PyDLL(None, use_errno=True).recvmmsg
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
    return function


class DatagramReceiver:
    """Receives from one socket, which may report the local address of each datagram (IP_PKTINFO, IPV6_RECVPKTINFO)."""

    def __init__(self, sock: socket, *, with_local: bool, mark: tuple[int, ...] = ()) -> None:
        """`mark` comes last in each peer's address."""
        self._socket = sock
        self._mark = mark
        self._is_v4 = sock.family == AF_INET
        self._with_local = with_local
        self._call = _recvmmsg()
        self._known: dict[bytes, PeerAddress] = {}
        self._data, self._names = (ctypes.c_char * (_BYTES * AT_ONCE))(), (ctypes.c_char * (_NAME_BYTES * AT_ONCE))()
        self._controls = (ctypes.c_char * (_CONTROL_BYTES * AT_ONCE))()
        self._buffers, self._headers = (_Buffer * AT_ONCE)(), (_Header * AT_ONCE)()
        for index in range(AT_ONCE):
            self._buffers[index] = _Buffer(ctypes.addressof(self._data) + index * _BYTES, _BYTES)
            self._headers[index].message = _Message(
                name=ctypes.addressof(self._names) + index * _NAME_BYTES,
                name_size=_NAME_BYTES,
                buffers=ctypes.addressof(self._buffers) + index * ctypes.sizeof(_Buffer),
                buffer_count=1,
                control=ctypes.addressof(self._controls) + index * _CONTROL_BYTES if with_local else None,
                control_size=_CONTROL_BYTES if with_local else 0,
            )
        self._views = tuple(memoryview(part).cast("B") for part in (self._data, self._names, self._controls))
        self._header_view = memoryview(self._headers).cast("B")
        self._unused_headers = bytes(self._header_view)  # the kernel changes sizes and flags
        self._sizes = self._header_view.cast("I")[_Header.size.offset // 4 :: ctypes.sizeof(_Header) // 4]
        words = self._header_view.cast("L")  # on Linux, as large as size_t
        self._control_sizes = words[_Message.control_size.offset // words.itemsize :: _WORDS]

    def receive(self, most: int) -> list[tuple[bytes, PeerAddress]]:
        """The next datagrams and their senders, at most `AT_ONCE`. Fewer than `most`: there are no more now.

        A longer datagram is cut after DATAGRAM_BYTES + 1 bytes.

        Raises:
            BlockingIOError: there is none.
            OSError: an ICMP error about an earlier datagram.
        """
        count = min(most, AT_ONCE)
        received = self._call(self._socket.fileno(), ctypes.addressof(self._headers), count, MSG_DONTWAIT, None)
        if received < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        data, names, controls = self._views
        known, with_local = self._known, self._with_local
        name_bytes = _V4_NAME_BYTES if self._is_v4 else _NAME_BYTES
        found: list[tuple[bytes, PeerAddress]] = []
        for index, size in enumerate(self._sizes[:received].tolist()):
            at, name_at = index * _BYTES, index * _NAME_BYTES
            name = bytes(names[name_at : name_at + name_bytes])
            if with_local:
                control_at = index * _CONTROL_BYTES
                name += bytes(controls[control_at : control_at + self._control_sizes[index]])
            if (address := known.get(name)) is None:
                if len(known) >= _KNOWN_MAX:
                    known.clear()
                address = known[name] = self._address(name, name_bytes)
            found.append((bytes(data[at : at + size]), address))
        used = received * ctypes.sizeof(_Header)
        self._header_view[:used] = self._unused_headers[:used]
        return found

    def _address(self, name: bytes, name_bytes: int) -> PeerAddress:
        """`name` is a struct sockaddr_in or sockaddr_in6; behind it may be a control message with the local address."""
        (port,) = unpack_from("!H", name, 2)
        if self._is_v4:
            peer: PeerAddress = (inet_ntop(AF_INET, name[4:8]), port)
        else:
            (flow,), (scope,) = unpack_from("!I", name, 4), unpack_from("=I", name, 24)
            peer = (inet_ntop(AF_INET6, name[8:24]), port, flow, scope)
        if not self._with_local:
            return peer + self._mark
        # in_pktinfo is interface, local address, destination; in6_pktinfo is local address, interface.
        info = name[name_bytes + CMSG_LEN(0) :]
        return (*peer, info[4:8] if self._is_v4 else info[:16], *self._mark)
