"""Connections that end gently, without a task for each of them."""

import fcntl
import socket
import sys
import termios
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.life import Life
from broker.limits.strangers import Strangers
from config.limits import LINGERING_CONNECTIONS, LINGERING_PER_TURN, LINGERING_SECONDS
from protocols.streams.lingering import LINGERING_BYTES, Lingering


@pytest.fixture
async def life() -> AsyncIterator[Life]:
    life = Life()
    async with life.running():
        yield life


@pytest.fixture
def lingering(nursery: trio.Nursery, life: Life) -> Lingering:
    return Lingering(nursery, life)


def ending(lingering: Lingering) -> socket.socket:
    """The peer's end of a connection whose other end was taken, and closed by its owner."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ours.setblocking(False)
    owned = trio.socket.from_stdlib_socket(theirs)
    assert lingering.take(owned)
    owned.close()
    return ours


def is_closed(ours: socket.socket) -> bool:
    """Whether nobody reads any more what the peer sends."""
    try:
        ours.send(b"x")
    except BrokenPipeError:
        return True
    return False


async def test_the_peer_gets_the_end_and_may_go_on_sending_until_it_closes(
    lingering: Lingering, mock_clock: MockClock
) -> None:
    with ending(lingering) as ours:
        assert ours.recv(1) == b""
        for _ in range(3):
            ours.sendall(b"x" * 10_000)
            await wait_all_tasks_blocked()
        assert lingering.ending == 1
    await wait_all_tasks_blocked()
    assert lingering.ending == 0


async def test_its_owner_may_close_later(lingering: Lingering, mock_clock: MockClock) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    owned = trio.socket.from_stdlib_socket(theirs)
    assert lingering.take(owned)
    ours.close()
    await wait_all_tasks_blocked()
    assert lingering.ending == 0
    owned.close()
    with ending(lingering) as again:  # a new task, perhaps with the same numbers
        assert not is_closed(again)
    await wait_all_tasks_blocked()
    assert lingering.ending == 0


async def test_a_peer_that_does_not_close_has_a_second(lingering: Lingering, autojump_clock: MockClock) -> None:
    with ending(lingering) as ours:
        await trio.sleep(LINGERING_SECONDS - 0.1)
        assert not is_closed(ours)
        await trio.sleep(0.2)
        assert is_closed(ours)
        assert lingering.ending == 0


async def test_a_peer_that_sends_without_end_is_closed(lingering: Lingering, mock_clock: MockClock) -> None:
    sent = 0
    with ending(lingering) as ours:
        while True:
            try:
                sent += ours.send(b"x" * 65_536)
            except BlockingIOError:
                await wait_all_tasks_blocked()
            except BrokenPipeError:
                break
    assert LINGERING_BYTES <= sent <= 2 * LINGERING_BYTES


async def test_between_many_bytes_there_are_pauses(lingering: Lingering, mock_clock: MockClock) -> None:
    pairs = [socket.socketpair() for _ in range(LINGERING_PER_TURN)]
    for ours, theirs in pairs:
        ours.sendall(b"x" * 65_536)
        theirs.setblocking(False)
        assert lingering.take(trio.socket.from_stdlib_socket(theirs))
    left = [len(pairs) * 65_536]
    for _ in range(3):
        await wait_all_tasks_blocked()
        left.append(sum(waiting(theirs) for _, theirs in pairs))
        mock_clock.jump(LINGERING_SECONDS / 100)
    assert left == sorted(set(left), reverse=True)
    assert left[-1] > 0
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def waiting(theirs: socket.socket) -> int:
    """How many bytes have come that nobody has read."""
    return int.from_bytes(fcntl.ioctl(theirs, termios.FIONREAD, bytes(4)), sys.byteorder)


async def test_many_that_close_at_one_moment_are_closed_a_few_in_each_turn(
    lingering: Lingering, mock_clock: MockClock
) -> None:
    peers = [ending(lingering) for _ in range(10 * LINGERING_PER_TURN)]
    await wait_all_tasks_blocked()
    for ours in peers:
        ours.close()
    left = lingering.ending
    assert left == len(peers)
    while left:
        await trio.lowlevel.checkpoint()
        left, before = lingering.ending, left
        assert before - left <= 2 * LINGERING_PER_TURN  # trio runs ready tasks in any order


async def test_many_whose_second_is_over_are_closed_a_few_in_each_turn(
    lingering: Lingering, mock_clock: MockClock
) -> None:
    peers = [ending(lingering) for _ in range(10 * LINGERING_PER_TURN)]
    await wait_all_tasks_blocked()
    mock_clock.jump(LINGERING_SECONDS)
    left = lingering.ending
    while left:
        await trio.lowlevel.checkpoint()
        left, before = lingering.ending, left
        assert before - left <= 2 * LINGERING_PER_TURN
    for ours in peers:
        assert is_closed(ours)
        ours.close()


async def test_with_too_many_the_oldest_is_closed(lingering: Lingering, mock_clock: MockClock) -> None:
    peers = [ending(lingering) for _ in range(LINGERING_CONNECTIONS + 1)]
    assert [is_closed(ours) for ours in peers[:2]] == [True, False]
    assert lingering.ending == LINGERING_CONNECTIONS
    for ours in peers:
        ours.close()


async def test_a_stranger_keeps_its_place_to_the_end(lingering: Lingering, mock_clock: MockClock) -> None:
    strangers = Strangers(in_all=10, of_one_address=10)
    connections = [socket.socketpair() for _ in range(3)]
    places = []
    for _, theirs in connections:
        theirs.setblocking(False)
        owned = trio.socket.from_stdlib_socket(theirs)
        places.append(strangers.enter("192.0.2.1", owned.close))
        assert lingering.take(owned, places[-1])
        owned.close()
    place = places[-1]
    assert place is not None
    await wait_all_tasks_blocked()
    assert strangers.statistics().connections == 3
    connections[0][0].close()
    await wait_all_tasks_blocked()
    assert strangers.statistics().connections == 2
    place.end_connection()  # another connection needs it
    assert is_closed(connections[2][0])
    assert (strangers.statistics().connections, lingering.ending) == (1, 1)
    place.end_connection()
    assert lingering.ending == 1
    for ours, _ in connections:
        ours.close()


async def test_a_broken_connection_is_not_taken(lingering: Lingering, mock_clock: MockClock) -> None:
    unconnected = trio.socket.socket()
    assert not lingering.take(unconnected)
    unconnected.close()
    assert not lingering.take(unconnected)
    assert lingering.ending == 0


async def test_without_a_free_descriptor_it_is_not_taken(lingering: Lingering, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_number: int) -> int:
        raise OSError(24, "Too many open files")

    ours, theirs = socket.socketpair()
    monkeypatch.setattr("os.dup", fails)
    with ours, theirs:
        assert not lingering.take(trio.socket.from_stdlib_socket(theirs))
        assert lingering.ending == 0


async def test_when_the_daemon_ends_all_are_closed(mock_clock: MockClock) -> None:
    async with trio.open_nursery() as connections:
        lingering = Lingering(connections, Life())
        peers = [ending(lingering) for _ in range(3)]
        await wait_all_tasks_blocked()
        connections.cancel_scope.cancel()
    for ours in peers:
        assert is_closed(ours)
        ours.close()
    assert lingering.ending == 0


async def test_its_task_waits_for_the_next_connection_until_the_daemon_stops(
    lingering: Lingering, life: Life, autojump_clock: MockClock
) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    for _ in range(3):
        ending(lingering).close()
        await wait_all_tasks_blocked()
        assert (lingering.ending, trio.lowlevel.current_statistics().tasks_living) == (0, before + 1)
    silent = ending(lingering)  # the task waits without a time limit, and now has one
    await trio.sleep(LINGERING_SECONDS + 0.1)
    assert (lingering.ending, is_closed(silent)) == (0, True)
    silent.close()
    last = ending(lingering)
    life.stop()
    await wait_all_tasks_blocked()
    assert (lingering.ending, is_closed(last)) == (1, False)
    last.close()
    await wait_all_tasks_blocked()
    # Without the task that has waited for the stop.
    assert (lingering.ending, trio.lowlevel.current_statistics().tasks_living) == (0, before - 1)


async def test_a_connection_that_ends_when_the_daemon_stops_has_its_second(
    lingering: Lingering, life: Life, autojump_clock: MockClock
) -> None:
    ending(lingering).close()
    await wait_all_tasks_blocked()
    life.stop()
    await wait_all_tasks_blocked()
    with ending(lingering) as ours:
        await wait_all_tasks_blocked()
        assert (lingering.ending, is_closed(ours)) == (1, False)
        await trio.sleep(LINGERING_SECONDS + 0.1)
        assert (lingering.ending, is_closed(ours)) == (0, True)
