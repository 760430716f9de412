"""The TCP listener: an error ends only its own connection, and who may have one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import ip_network

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.life import Life
from broker.limits.strangers import Strangers
from config.limits import STRANGERS_PER_TURN, UNAUTHENTICATED_SECONDS
from config.settings import Address
from protocols.streams.listeners import PROXY_HEADER_SECONDS, Entrance, Stream, end_gently, serve_tcp
from protocols.streams.peers import authenticated, current_peer, turn_of_strangers
from protocols.streams.proxies import TrustedProxies
from tests.fakes import new_refusals

Handle = Callable[[Stream], Awaitable[None]]


async def listening(nursery: trio.Nursery, handle: Handle, entrance: Entrance | None = None) -> Address:
    serve = partial(
        serve_tcp,
        Address("127.0.0.1", 0),
        handle,
        protocol="test",
        refusals=new_refusals(),
        life=Life(),
        entrance=entrance,
    )
    bound: Address = await nursery.start(partial(serve, connections=nursery))
    return bound


async def answer(stream: Stream) -> None:
    question = await stream.receive_some()
    if question == b"bug":
        raise RuntimeError("a bug of ours")
    if question == b"gone":
        raise trio.BrokenResourceError
    await stream.send_all(question)


async def ask(address: Address, question: bytes) -> bytes:
    with trio.fail_after(10):
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(question)
            try:
                return bytes(await stream.receive_some())
            except trio.BrokenResourceError:
                return b""


async def test_an_exception_in_one_connection_is_logged_and_ends_no_other(
    nursery: trio.Nursery, capsys: pytest.CaptureFixture[str]
) -> None:
    address = await listening(nursery, answer)
    assert await ask(address, b"gone") == b""
    assert "connection_failed" not in capsys.readouterr().out
    assert await ask(address, b"bug") == b""
    logged = capsys.readouterr().out
    assert "connection_failed" in logged
    assert "a bug of ours" in logged
    assert await ask(address, b"hello") == b"hello"


async def test_an_address_that_is_taken_is_an_error(nursery: trio.Nursery) -> None:
    address = await listening(nursery, answer)
    with pytest.raises(OSError, match="in use"):
        await serve_tcp(address, answer, protocol="test", refusals=new_refusals(), life=Life(), connections=nursery)


async def test_end_gently_lets_a_peer_that_still_sends_read_the_last_bytes(nursery: trio.Nursery) -> None:
    answered = b"a" * 100_000

    async def leave(stream: Stream) -> None:
        await stream.send_all(answered)
        await end_gently(stream)

    address = await listening(nursery, leave)
    received = b""
    async with await trio.open_tcp_stream(address.host, address.port) as stream, trio.open_nursery() as sending:
        sending.start_soon(stream.send_all, b"x" * 500_000)
        while data := await stream.receive_some():
            received += data
    assert received == answered


async def test_a_connection_that_ends_gently_has_no_task(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    """Its place is kept until the peer has closed."""
    over = trio.Event()

    async def leave(stream: Stream) -> None:
        await stream.send_all(b"bye")
        await end_gently(stream)
        over.set()

    door = entrance()
    address = await listening(nursery, leave, door)
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await over.wait()
        assert await stream.receive_some() == b"bye"
        assert await stream.receive_some() == b""
        await wait_all_tasks_blocked()
        assert door.strangers.statistics().connections == 1
    await wait_all_tasks_blocked(0.01)
    assert door.strangers.statistics().connections == 0


async def test_strangers_who_leave_at_one_moment_end_a_few_in_each_turn(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    ended = 0

    async def read(stream: Stream) -> None:
        nonlocal ended
        try:
            await stream.receive_some(1)
            await turn_of_strangers()
        finally:
            ended += 1

    count = 8 * STRANGERS_PER_TURN
    strangers = Strangers(in_all=count, of_one_address=count)
    address = await listening(nursery, read, Entrance(strangers, TrustedProxies()))
    peers = [await trio.open_tcp_stream(address.host, address.port) for _ in range(count)]
    await wait_all_tasks_blocked(0.01)
    assert strangers.statistics().connections == count
    for peer in peers:
        peer.socket.close()
    left, most = 0, 0
    while ended < count:
        await trio.lowlevel.checkpoint()
        left, most = ended, max(most, ended - left)
    assert most <= 2 * STRANGERS_PER_TURN  # trio runs ready tasks in any order


# Admission


async def name_peer(stream: Stream) -> None:
    """Say who the peer is; at the word `token` it is authenticated."""
    while question := await stream.receive_some():
        if question == b"token":
            authenticated()
        await stream.send_all(current_peer().address.encode())


def entrance(*networks: str, send_header: bool = False, of_one_address: int = 2, waiting: int = 100) -> Entrance:
    strangers = Strangers(in_all=10, of_one_address=of_one_address, waiting=waiting)
    return Entrance(strangers, TrustedProxies(tuple(map(ip_network, networks)), send_header))


Connect = Callable[[Address], Awaitable[trio.SocketStream]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens connections, waits until the listener has admitted or refused each, and closes them after the test."""
    async with AsyncExitStack() as streams:

        async def open_one(address: Address) -> trio.SocketStream:
            stream = await streams.enter_async_context(await trio.open_tcp_stream(address.host, address.port))
            await wait_all_tasks_blocked()
            return stream

        yield open_one


async def answers(stream: trio.SocketStream, question: bytes) -> bytes:
    try:
        with trio.fail_after(10):
            await stream.send_all(question)
            return bytes(await stream.receive_some())
    except trio.BrokenResourceError:
        return b""


async def test_an_address_has_so_many_connections_without_authentication(
    nursery: trio.Nursery, connect: Connect
) -> None:
    admitting = entrance()
    address = await listening(nursery, name_peer, admitting)
    first, second, third, fourth = [await connect(address) for _ in range(4)]
    assert await answers(first, b"who") == await answers(second, b"who") == b"127.0.0.1"
    assert admitting.strangers.statistics().waiting == 2
    assert await answers(first, b"token") == b"127.0.0.1"  # its place is free now
    assert await answers(third, b"who") == b"127.0.0.1"
    assert (admitting.strangers.statistics().connections, admitting.strangers.statistics().waiting) == (2, 1)
    await second.aclose()
    assert await answers(fourth, b"token") == b"127.0.0.1"
    assert (admitting.strangers.statistics().connections, admitting.strangers.statistics().waiting) == (1, 0)


async def test_the_oldest_stranger_makes_room_and_those_who_are_known_stay(
    nursery: trio.Nursery, connect: Connect, autojump_clock: MockClock
) -> None:
    address = await listening(nursery, name_peer, entrance())
    known = await connect(address)
    assert await answers(known, b"token") == b"127.0.0.1"
    silent = await connect(address)
    other = await connect(address)
    await trio.sleep(UNAUTHENTICATED_SECONDS)
    newcomer = await connect(address)
    assert await answers(newcomer, b"who") == b"127.0.0.1"
    assert await answers(silent, b"who") == b""
    assert await answers(other, b"who") == await answers(known, b"who") == b"127.0.0.1"


async def test_a_storm_of_devices_behind_one_address_gets_through(nursery: trio.Nursery) -> None:
    """They all connect at once, and each says who it is when it is served."""
    address = await listening(nursery, name_peer, entrance())
    told = []

    async def device() -> None:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            told.append(await answers(stream, b"token"))

    async with trio.open_nursery() as devices:
        for _ in range(100):
            devices.start_soon(device)
    assert told == [b"127.0.0.1"] * 100


async def test_a_flood_of_strangers_is_one_log_entry(nursery: trio.Nursery, connect: Connect) -> None:
    address = await listening(nursery, name_peer, entrance(waiting=1))
    with capture_logs() as logs:
        for _ in range(10):
            await connect(address)
    assert [(entry["event"], entry["peer"]) for entry in logs] == [("connections_refused", "127.0.0.1")]


async def test_connections_of_a_trusted_proxy_are_not_limited_by_its_address(
    nursery: trio.Nursery, connect: Connect
) -> None:
    address = await listening(nursery, name_peer, entrance("127.0.0.0/8"))
    streams = [await connect(address) for _ in range(5)]
    assert {await answers(stream, b"who") for stream in streams} == {b"127.0.0.1"}


# The PROXY protocol


HEADER = b"PROXY TCP4 203.0.113.7 192.0.2.1 54321 1883\r\n"


async def test_a_trusted_proxy_names_the_client(nursery: trio.Nursery, connect: Connect) -> None:
    admitting = entrance("127.0.0.0/8", send_header=True, of_one_address=1)
    address = await listening(nursery, name_peer, admitting)
    stream = await connect(address)
    assert await answers(stream, HEADER + b"who") == b"203.0.113.7"
    second = await connect(address)
    await second.send_all(HEADER + b"who")
    check = await connect(address)
    assert await answers(check, b"PROXY UNKNOWN\r\nwho") == b"127.0.0.1"
    assert admitting.strangers.statistics().waiting == 1  # the limit is that of the client


@pytest.mark.parametrize("sent", [b"who", HEADER[:-1] + b"x" * 100])
async def test_a_trusted_proxy_must_send_a_header(nursery: trio.Nursery, sent: bytes) -> None:
    address = await listening(nursery, name_peer, entrance("127.0.0.0/8", send_header=True))
    with capture_logs() as logs:
        assert await ask(address, sent * 10) == b""
    assert [entry["event"] for entry in logs] == ["connections_refused"]


async def test_a_header_has_little_time(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    address = await listening(nursery, name_peer, entrance("127.0.0.0/8", send_header=True))
    assert await ask(address, HEADER[:10]) == b""
    assert trio.current_time() == pytest.approx(PROXY_HEADER_SECONDS, abs=0.5)


async def test_nobody_else_may_send_a_header(nursery: trio.Nursery) -> None:
    address = await listening(nursery, name_peer, entrance("192.0.2.0/24", send_header=True))
    with capture_logs() as logs:
        assert await ask(address, HEADER + b"who") == b""
    assert [(entry["reason"], entry["peer"]) for entry in logs] == [("the peer is no trusted proxy", "127.0.0.1")]
