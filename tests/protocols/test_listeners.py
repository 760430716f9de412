"""The TCP listener: an error ends only its own connection."""

import ssl
from collections.abc import Awaitable, Callable

import pytest
import trio

from config.settings import Address
from protocols.listeners import Stream, end_gently, sender_at_once, serve_tcp
from tests.fakes import new_refusals

Handle = Callable[[Stream], Awaitable[None]]


async def listening(nursery: trio.Nursery, handle: Handle) -> Address:
    bound: Address = await nursery.start(
        lambda task_status: serve_tcp(
            Address("127.0.0.1", 0),
            handle,
            protocol="test",
            refusals=new_refusals(),
            connections=nursery,
            task_status=task_status,
        )
    )
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
        await serve_tcp(address, answer, protocol="test", refusals=new_refusals(), connections=nursery)


async def test_sending_at_once_takes_what_the_socket_takes(nursery: trio.Nursery) -> None:
    taken: list[int] = []
    done = trio.Event()

    async def flood(stream: Stream) -> None:
        send_now = sender_at_once(stream)
        assert send_now is not None
        chunk = b"x" * 1_000_000
        while (sent := send_now(chunk)) > 0:
            taken.append(sent)
        await stream.aclose()
        assert send_now(b"y") == 0  # and the one that waits says why
        done.set()

    address = await listening(nursery, flood)
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await done.wait()
        received = 0
        while data := await stream.receive_some():
            received += len(data)
    assert received == sum(taken) > 0
    assert taken[-1] <= 1_000_000


async def test_only_a_plain_socket_can_send_at_once() -> None:
    here, _there = trio.testing.memory_stream_pair()
    assert sender_at_once(here) is None
    assert sender_at_once(trio.SSLStream(here, ssl.create_default_context(), server_hostname="x")) is None


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
