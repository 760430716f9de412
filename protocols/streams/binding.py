"""Opens the addresses of a listener: what a `bind` means, for TCP and UDP alike (reference 25.1).

`*` is every address of the machine, IPv4 and IPv6; `0.0.0.0` is IPv4 alone, `::` IPv6 alone. A name is every address
that it has. All addresses of one entry have one port, also if the port is 0. A machine without IPv6 has IPv4 alone.
"""

import errno
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from config.settings import ANY_HOST, Address

_MISSING: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
#: How often a free port of one family is looked for that the other one has free, too.
_ATTEMPTS: Final = 16

#: Family and address of a socket.
Place = tuple[socket.AddressFamily, tuple[Any, ...]]


def any_address(port: int) -> list[Place]:
    return [(socket.AF_INET, ("0.0.0.0", port)), (socket.AF_INET6, ("::", port, 0, 0))]  # noqa: S104 - what `*` means


async def places(bind: Address, kind: socket.SocketKind) -> list[Place]:
    """The addresses of one entry. Raises OSError."""
    if bind.host == ANY_HOST:
        return any_address(bind.port)
    found = await trio.socket.getaddrinfo(bind.host, bind.port, type=kind, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


async def open_sockets(bind: Address, kind: socket.SocketKind, *, backlog: int = 0) -> list[socket.socket]:
    """Non-blocking sockets bound to all addresses of a listener. TCP sockets listen with this backlog.

    Raises:
        OSError: one cannot be bound; its `filename` is the entry.
    """
    opened: list[socket.socket] = []
    try:
        for one in bind.all:
            try:
                opened += _bound(await places(one, kind), kind, backlog)
            except OSError as error:
                raise OSError(error.errno, error.strerror or str(error), str(one)) from error
    except OSError:
        for sock in opened:
            sock.close()
        raise
    return opened


def _bound(wanted: Sequence[Place], kind: socket.SocketKind, backlog: int) -> list[socket.socket]:
    for attempt in range(_ATTEMPTS):
        opened: list[socket.socket] = []
        missing: OSError | None = None
        try:
            for family, address in wanted:
                # A free port is chosen with the first address.
                port = opened[0].getsockname()[1] if opened else address[1]
                try:
                    opened.append(_open(family, kind, (address[0], port, *address[2:]), backlog))
                except OSError as error:
                    if error.errno not in _MISSING:
                        raise
                    missing = error
            if not opened and missing is not None:
                raise missing
            return opened
        except OSError as error:
            for sock in opened:
                sock.close()
            if error.errno != errno.EADDRINUSE or not opened or wanted[0][1][1] or attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _open(
    family: socket.AddressFamily, kind: socket.SocketKind, address: tuple[Any, ...], backlog: int
) -> socket.socket:
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        if kind is socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        if kind is socket.SOCK_STREAM:
            sock.listen(backlog)  # only now a port of another listener is in use
    except OSError:
        sock.close()
        raise
    return sock


def bound_address(sockets: Sequence[socket.socket | trio.socket.SocketType]) -> Address:
    """The address of these sockets."""
    first, *others = (Address(*sock.getsockname()[:2]) for sock in sockets)
    return Address(first.host, first.port, tuple(others))


def problem_of(bind: Address, kind: socket.SocketKind) -> str:
    """Why this machine cannot listen on an entry at all; empty if it can. Ports in use do not count."""
    try:
        if bind.host == ANY_HOST:
            wanted = any_address(0)
        else:
            found = socket.getaddrinfo(bind.host, 0, type=kind, flags=socket.AI_PASSIVE)
            wanted = [(family, address) for family, _, _, _, address in found]
        for sock in _bound(wanted, kind, 0):
            with suppress(OSError):
                sock.close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
