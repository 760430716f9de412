"""Sockets that systemd has opened: by name, checked, and not passed on to child processes (reference 27.18)."""

import os
import signal
import socket
from collections.abc import Iterator, Sequence

import pytest
import trio
import trio.testing

from config.settings import Address
from protocols.coap.sockets import DatagramSockets
from protocols.daemon import _cancel_at_interrupt
from protocols.streams.inherited import InheritedError, inherited_sockets, open_tcp, pass_sockets

LISTENERS = ("http", "mqtt", "coap")
ELSEWHERE = Address("127.0.0.1", 1)  # nobody may listen there: an inherited socket must be used instead


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def datagrams() -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind(("127.0.0.1", 0))
    return found


@pytest.fixture
def first() -> Iterator[int]:
    """Free descriptors above those in use, so that the test can choose their numbers."""
    yield 900
    for descriptor in range(900, 910):
        try:
            os.close(descriptor)
        except OSError:
            continue


def passed(sockets: Sequence[socket.socket], names: str, first: int) -> dict[str, str]:
    for number, sock in enumerate(sockets, first):
        os.dup2(sock.detach(), number)
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": names, "OTHER": "1"}


async def test_a_listener_takes_the_sockets_of_its_name(first: int) -> None:
    http, other, coap, also = listening(), listening(), datagrams(), datagrams()
    ports = [sock.getsockname()[1] for sock in (http, other, coap, also)]
    environ = passed((http, other, coap, also), "http:http:coap:coap", first)
    found = inherited_sockets(LISTENERS, environ, first=first)
    assert environ == {"OTHER": "1"}
    assert not any(os.get_inheritable(number) for number in range(first, first + 4))

    pass_sockets(found["http"])
    listeners = await open_tcp(ELSEWHERE, backlog=10)
    assert [listener.socket.getsockname()[1] for listener in listeners] == ports[:2]
    async with await trio.open_tcp_stream("127.0.0.1", ports[1]), await listeners[1].accept():
        pass

    pass_sockets(found["coap"])
    with await DatagramSockets.bound(ELSEWHERE) as sock:
        assert sock.address.all == (Address("127.0.0.1", ports[2]), Address("127.0.0.1", ports[3]))
    for listener in listeners:
        await listener.aclose()


async def test_without_them_the_address_of_the_configuration_counts() -> None:
    pass_sockets(())
    (listener,) = await open_tcp(Address("127.0.0.1", 0), backlog=10)
    assert listener.socket.getsockname()[1] > 0
    await listener.aclose()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"},  # for another process
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "http"},
    ],
)
def test_what_is_not_for_this_process_is_left_alone(environ: dict[str, str]) -> None:
    assert inherited_sockets(LISTENERS, environ) == {}


@pytest.mark.parametrize(
    ("names", "count", "reason"),
    [
        ("unknown", "1", "'unknown'.*http, mqtt, coap"),
        ("http:mqtt", "1", "do not fit together"),
        ("http", "one", "do not fit together"),
    ],
)
def test_what_does_not_fit_the_configuration_is_refused(names: str, count: str, reason: str, first: int) -> None:
    environ = passed([listening()], names, first) | {"LISTEN_FDS": count}
    with pytest.raises(InheritedError, match=reason):
        inherited_sockets(LISTENERS, environ, first=first)


def test_a_descriptor_that_is_not_there_is_named(first: int) -> None:
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "mqtt"}
    with pytest.raises(InheritedError, match=f"descriptor {first}, mqtt"):
        inherited_sockets(LISTENERS, environ, first=first)


async def test_a_socket_of_the_other_kind_is_refused() -> None:
    stream, datagram, idle = listening(), datagrams(), socket.socket()
    with stream, datagram, idle:
        for wrong in (datagram, idle):
            pass_sockets((wrong,))
            with pytest.raises(InheritedError, match="ListenStream"):
                await open_tcp(ELSEWHERE, backlog=10)
        for wrong in (stream, idle):
            pass_sockets((datagram, wrong))
            with pytest.raises(InheritedError, match="ListenDatagram"):
                await DatagramSockets.bound(ELSEWHERE)


async def test_only_an_interrupt_ends_the_grace_period() -> None:
    send, signals = trio.open_memory_channel[int](2)
    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_at_interrupt, signals, scope)
        for number in (signal.SIGTERM, signal.SIGTERM):
            await send.send(number)
            await trio.testing.wait_all_tasks_blocked()
        assert not scope.cancel_called
        await send.send(signal.SIGINT)
        await send.aclose()
    assert scope.cancel_called
    await signals.aclose()
