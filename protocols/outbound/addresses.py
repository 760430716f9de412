"""Which addresses requests to hosts that others choose may go to.

Names are looked up in threads of their own, few at once for each domain: a name server that never answers takes no
thread from the store, and holds up no other domain.
"""

import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import trio

_TRIED: Final = 4
_OF_A_DOMAIN: Final = 4  # lookups at once
_THREADS: Final = trio.CapacityLimiter(64)
#: IPv6 networks whose last 32 bits are an IPv4 address: NAT64 (RFC 6052), and what RFC 4291 2.5.5.1 calls compatible.
_WITH_IPV4: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))
#: Special networks (RFC 6890 and its registries) that `is_global` of some Python versions takes for public ones.
_NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments
            "192.88.99.0/24",  # 6to4 relays, withdrawn
            "fec0::/10",  # site-local, withdrawn
            "64:ff9b:1::/48",  # NAT64 of a local network (RFC 8215)
            "2001::/23",  # protocol assignments, Teredo among them
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
        ),
    )
)

IpAddress = IPv4Address | IPv6Address


class PrivateAddressError(Exception):
    """The name stands for an address that is not in the public Internet, and such addresses are not allowed."""


async def resolve(host: str, port: int, *, allow_private: bool) -> Sequence[IpAddress]:
    """The addresses of a host, at most four. Each address of the name is checked.

    Raises:
        PrivateAddressError: one of them is private and `allow_private` is not given.
        OSError: the name cannot be resolved.
    """
    found = await _looked_up(host, port)
    # Without the scope id, such as `%eth0`, which only link-local addresses have.
    addresses = list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))
    if not allow_private and not all(map(is_public, addresses)):
        raise PrivateAddressError("the address is private")
    return addresses[:_TRIED]


async def _looked_up(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """Look up a host by `socket.getaddrinfo`. Raises OSError, UnicodeError."""
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    except socket.gaierror:  # it is a name
        await trio.lowlevel.checkpoint()
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    async with _place_of(host):
        return await trio.to_thread.run_sync(look_up, limiter=_THREADS, abandon_on_cancel=True)


_places: dict[str, trio.CapacityLimiter] = {}
_users: Counter[str] = Counter()


@asynccontextmanager
async def _place_of(host: str) -> AsyncIterator[None]:
    domain = ".".join(host.lower().rstrip(".").split(".")[-2:])
    places = _places.setdefault(domain, trio.CapacityLimiter(_OF_A_DOMAIN))
    _users[domain] += 1
    try:
        async with places:
            yield
    finally:
        _users[domain] -= 1
        if not _users[domain]:
            del _users[domain], _places[domain]


def is_public(address: IpAddress) -> bool:
    """Whether the address is in the public Internet; IPv4 addresses within IPv6 ones are checked, too."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if any(address in network for network in _WITH_IPV4):
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    special = address.is_multicast or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not special
