"""Meaning of `bind`, for TCP and UDP alike (reference 25.1)."""

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from config.settings import Address
from protocols.streams import binding
from protocols.streams.binding import bound_address, open_sockets, problem_of
from tests.rows import each_row

STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
KINDS = pytest.mark.parametrize("kind", [STREAM, DATAGRAM], ids=["tcp", "udp"])
Open = Callable[[Address, socket.SocketKind], "tuple[Address, ...]"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def opened(stack: ExitStack, bind: Address, kind: socket.SocketKind) -> tuple[Address, ...]:
    sockets = [stack.enter_context(sock) for sock in await open_sockets(bind, kind)]
    return bound_address(sockets).all


def is_free(host: str, port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as sock:
        return sock.connect_ex((host, port)) != 0 if kind is STREAM else _binds(sock, host, port)


def _binds(sock: socket.socket, host: str, port: int) -> bool:
    try:
        sock.bind((host, port))
    except OSError:
        return False
    return True


@KINDS
@each_row(
    ("host", "has_v4", "has_v6"),
    [("*", True, True), ("0.0.0.0", True, False), ("::", False, True)],  # noqa: S104
)
async def test_both_families_are_meant_by_a_star_alone(
    stack: ExitStack, kind: socket.SocketKind, host: str, has_v4: bool, has_v6: bool
) -> None:
    bound = await opened(stack, Address(host, 0), kind)
    (port,) = {address.port for address in bound}
    assert port
    assert [address.host for address in bound] == ["0.0.0.0"] * has_v4 + ["::"] * has_v6  # noqa: S104
    assert is_free("127.0.0.1", port, kind) is not has_v4
    assert is_free("::1", port, kind) is not has_v6


@KINDS
async def test_a_list_is_all_of_its_addresses(stack: ExitStack, kind: socket.SocketKind) -> None:
    listed = Address("127.83.12.1", 0, (Address("::1", 0), Address("127.83.12.2", 0)))
    bound = await opened(stack, listed, kind)
    assert [address.host for address in bound] == ["127.83.12.1", "::1", "127.83.12.2"]
    assert not any(is_free(address.host, address.port, kind) for address in bound)


@KINDS
async def test_a_name_is_all_of_its_addresses(
    stack: ExitStack, kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        v4, v6 = (socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0, 0, 0))
        return [(family, kind, 0, "", address) for family, address in (v6, v4, v6)]

    monkeypatch.setattr("trio.socket.getaddrinfo", found)
    bound = await opened(stack, Address("gateway.example.org", 0), kind)
    assert [address.host for address in bound] == ["::1", "127.0.0.1"]
    assert bound[0].port == bound[1].port


def without(monkeypatch: pytest.MonkeyPatch, *families: socket.AddressFamily, number: int, times: int = 1000) -> None:
    """Opening sockets of these families fails a number of times."""
    left = [times]
    really = binding._open

    def fail(family: socket.AddressFamily, *rest: object) -> socket.socket:
        if family in families and left[0]:
            left[0] -= 1
            raise OSError(number, "no")
        return really(family, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(binding, "_open", fail)


@KINDS
@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
async def test_a_machine_without_ipv6_has_ipv4_alone(
    stack: ExitStack, kind: socket.SocketKind, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, socket.AF_INET6, number=number)
    assert [one.host for one in await opened(stack, Address("*", 0), kind)] == ["0.0.0.0"]  # noqa: S104
    with pytest.raises(OSError, match="no"):  # who asks for it alone is told
        await opened(stack, Address("::1", 0), kind)
    without(monkeypatch, socket.AF_INET, socket.AF_INET6, number=number)
    with pytest.raises(OSError, match="no"):
        await opened(stack, Address("*", 0), kind)


@KINDS
async def test_a_free_port_is_free_in_both_families(
    stack: ExitStack, kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, socket.AF_INET6, number=errno.EADDRINUSE, times=3)
    assert len({one.port for one in await opened(stack, Address("*", 0), kind)}) == 1
    without(monkeypatch, socket.AF_INET6, number=errno.EADDRINUSE)
    with pytest.raises(OSError, match="no"):
        await opened(stack, Address("*", 0), kind)


@KINDS
async def test_one_that_is_taken_closes_them_all_and_is_named(stack: ExitStack, kind: socket.SocketKind) -> None:
    (first,) = await opened(stack, Address("127.83.12.3", 0), kind)
    (free,) = await opened(probe := ExitStack(), Address("127.83.12.4", 0), kind)
    probe.close()
    with pytest.raises(OSError, match="in use") as caught:
        await open_sockets(Address(free.host, free.port, (first,)), kind)
    assert (caught.value.errno, caught.value.filename) == (errno.EADDRINUSE, str(first))
    assert is_free(free.host, free.port, kind)


@KINDS
def test_an_address_that_this_machine_has_not_is_found_without_listening(kind: socket.SocketKind) -> None:
    assert problem_of(Address("*", 1), kind) == problem_of(Address("127.0.0.1", 1), kind) == ""
    assert "assign" in problem_of(Address("192.0.2.1", 0), kind)  # RFC 5737
    assert problem_of(Address("no.such.name.invalid", 0), kind)
