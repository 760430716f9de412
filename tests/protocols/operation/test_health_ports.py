"""The ports of HTTP of a daemon that does not serve yet. tests/e2e/test_standby.py has whole daemons."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from config.settings import Address
from protocols.operation import health_ports
from protocols.operation.health_ports import DATABASE_AWAY, STANDS_BY, Places, StartingAnswers, serve_health
from tests.free_port import free_port
from tests.rows import each_row

BUSY = b'{"error":{"code":503,"message":"This machine stands by: another one serves"}}'
PROXY = b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n"
Ask = Callable[..., Any]


@pytest.fixture
def said() -> list[StartingAnswers]:
    """The last one is what the daemon says."""
    return [STANDS_BY]


@pytest.fixture
async def opened(nursery: trio.Nursery, said: list[StartingAnswers]) -> AsyncIterator[Callable[..., Any]]:
    async def open_one(*, context: ssl.SSLContext | None = None, is_proxied: bool = False, places: int = 10) -> int:
        port = free_port()
        serve = partial(serve_health, is_proxied=is_proxied, places=Places(places), answers=lambda: said[-1])
        await nursery.start(serve, Address("127.0.0.1", port), context)
        return port

    yield open_one
    nursery.cancel_scope.cancel()


async def ask(port: int, data: bytes) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(data)
        answer = b""
        with suppress(trio.BrokenResourceError):
            while part := await stream.receive_some():
                answer += part
        return answer


@each_row(
    ("line", "status", "body"),
    [
        (b"GET /healthz", b"200 OK", b"ok\n"),
        (b"GET /readyz", b"503 Service Unavailable", b"stands by: another node serves\n"),
        (b"GET /readyz?x=1", b"503 Service Unavailable", b"stands by: another node serves\n"),
        (b"HEAD /healthz", b"200 OK", b""),
        (b"POST /v1.1/messages", b"503 Service Unavailable", BUSY),
        (b"nonsense", b"503 Service Unavailable", BUSY),
    ],
)
async def test_health_is_answered_and_all_else_refused(opened: Ask, line: bytes, status: bytes, body: bytes) -> None:
    more = b"x" * 100_000 if line.startswith(b"POST") else b""  # which must not reset the connection before the answer
    answer = await ask(await opened(), line + b" HTTP/1.1\r\nHost: x\r\n\r\n" + more)
    head, _, found = answer.partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], found) == (b"HTTP/1.1 " + status, body)
    assert (b"Retry-After: 5" in head) == (b"503" in status)


async def test_health_says_that_the_database_is_away(opened: Ask, said: list[StartingAnswers]) -> None:
    port = await opened()
    said.append(DATABASE_AWAY)
    assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    for path, body in (
        (b"/readyz", b"waits: the database does not answer\n"),
        (b"/v1.1/messages", b'{"error":{"code":503,"message":"The database does not answer"}}'),
    ):
        answer = await ask(port, b"GET %b HTTP/1.1\r\n\r\n" % path)
        assert answer.startswith(b"HTTP/1.1 503")
        assert answer.endswith(b"\r\n\r\n" + body)


async def test_a_balancer_may_send_the_header_of_the_proxy_protocol(opened: Ask) -> None:
    port = await opened(is_proxied=True)
    assert (await ask(port, PROXY + b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n") == b""


async def test_health_is_answered_with_tls(opened: Ask, tmp_path: Path) -> None:
    from tests.protocols.http.certificates import contexts

    server, client = contexts(tmp_path)[:2]
    port = await opened(context=server)
    stream = trio.SSLStream(
        await trio.open_tcp_stream("127.0.0.1", port), client, server_hostname="127.0.0.1", https_compatible=True
    )
    await stream.send_all(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
    await trio.aclose_forcefully(stream)


async def silent(port: int, address: str, stack: AsyncExitStack) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=address)
    await stack.enter_async_context(stream)
    await stream.send_all(b"GET ")
    await trio.testing.wait_all_tasks_blocked(0.05)
    return stream


async def test_silent_connections_keep_nobody_from_the_answer(opened: Ask) -> None:
    """Also from the address of the balancer: all places are taken by others, and the oldest one makes room."""
    port = await opened(places=3)
    async with AsyncExitStack() as stack:
        streams = [await silent(port, "127.0.0.1", stack) for _ in range(3)]
        assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await streams[0].receive_some() == b""
        await streams[1].send_all(b"/healthz HTTP/1.1\r\n\r\n")
        assert (await streams[1].receive_some()).startswith(b"HTTP/1.1 200")


async def test_the_address_with_the_most_connections_makes_room(opened: Ask) -> None:
    port = await opened(places=4)
    async with AsyncExitStack() as stack:
        honest = await silent(port, "127.0.0.2", stack)
        others = [await silent(port, "127.0.0.1", stack) for _ in range(9)]
        for ended in others[:6]:
            assert await ended.receive_some() == b""
        await honest.send_all(b"/healthz HTTP/1.1\r\n\r\n")
        assert (await honest.receive_some()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("is_proxied", [True, False])
async def test_a_request_whose_head_does_not_end_is_cut(
    opened: Ask, monkeypatch: pytest.MonkeyPatch, is_proxied: bool
) -> None:
    monkeypatch.setattr(health_ports, "_HEAD_SECONDS", 0.1)
    monkeypatch.setattr(health_ports, "_SECONDS", 60.0)
    port = await opened(is_proxied=is_proxied)
    with trio.fail_after(30):
        assert await ask(port, b"PROXY" if is_proxied else b"GET /healthz HTTP/1.1\r\n") == b""
