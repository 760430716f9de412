"""Datagrams that are received together, beside what the socket module receives of the same senders."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from protocols.coap.messages import DATAGRAM_BYTES
from protocols.coap.recvmmsg import AT_ONCE, DatagramReceiver


@pytest.fixture(params=["127.0.0.1", "::1"])
def sock(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as bound:
        bound.bind((request.param, 0))
        yield bound


@pytest.fixture
def senders(sock: socket.socket) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket(sock.family, socket.SOCK_DGRAM)) for _ in range(3)]
        for one in opened:
            one.connect(sock.getsockname())
        yield opened


def test_datagrams_come_in_order_with_the_addresses_that_the_socket_module_gives(
    sock: socket.socket, senders: list[socket.socket]
) -> None:
    receiver = DatagramReceiver(sock, with_local=False)
    sent = [b"%d" % number * (number + 1) for number in range(AT_ONCE + 8)]
    for number, datagram in enumerate(sent):
        senders[number % 3].send(datagram)
    received = receiver.receive(AT_ONCE + 8)
    assert len(received) == AT_ONCE
    received += receiver.receive(AT_ONCE)
    assert [datagram for datagram, _ in received] == sent
    for one in senders:
        one.send(b"once more")
    plain = [sock.recvfrom(100)[1] for _ in senders]
    assert [address for _, address in received] == [plain[number % 3] for number in range(len(sent))]


def test_no_more_than_asked_for(sock: socket.socket, senders: list[socket.socket]) -> None:
    receiver = DatagramReceiver(sock, with_local=False)
    for number in range(5):
        senders[0].send(b"%d" % number)
    assert [[datagram for datagram, _ in receiver.receive(most)] for most in (1, 3, 3)] == [
        [b"0"],
        [b"1", b"2", b"3"],
        [b"4"],
    ]
    with pytest.raises(BlockingIOError):
        receiver.receive(1)


def test_a_long_datagram_is_cut_and_harms_no_other(sock: socket.socket, senders: list[socket.socket]) -> None:
    receiver = DatagramReceiver(sock, with_local=False)
    for datagram in (b"a", b"l" * 9_000, b"", b"z" * DATAGRAM_BYTES, b"e"):
        senders[0].send(datagram)
    sizes = [len(datagram) for datagram, _ in receiver.receive(9)]
    assert sizes == [1, DATAGRAM_BYTES + 1, 0, DATAGRAM_BYTES, 1]


def test_an_icmp_error_about_an_earlier_datagram_is_raised_once(sock: socket.socket) -> None:
    with socket.socket(sock.family, socket.SOCK_DGRAM) as gone:
        gone.bind((sock.getsockname()[0], 0))
        nowhere = gone.getsockname()
    sock.connect(nowhere)  # only a connected socket is told
    sock.send(b"to nobody")
    receiver = DatagramReceiver(sock, with_local=False)
    with pytest.raises(ConnectionRefusedError):
        receiver.receive(1)
    with pytest.raises(BlockingIOError):
        receiver.receive(1)


def test_the_addresses_of_many_senders_are_not_all_kept(
    sock: socket.socket, senders: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocols.coap.recvmmsg._KNOWN_MAX", 2)
    receiver = DatagramReceiver(sock, with_local=False)
    for _ in range(2):
        for one in senders:
            one.send(b"x")
        assert [address[1] for _, address in receiver.receive(9)] == [one.getsockname()[1] for one in senders]
        assert len(receiver._known) <= 2
