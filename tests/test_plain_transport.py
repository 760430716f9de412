"""The transport of the tests' clients: it keeps connections, and fails as httpx's own does."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import httpx
import pytest
import trio

from tests.plain_transport import PlainTransport

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Serve = Callable[[trio.SocketStream], Awaitable[None]]


@pytest.fixture
def transport() -> PlainTransport:
    return PlainTransport()


@pytest.fixture
async def client(transport: PlainTransport) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        yield client


async def server(nursery: trio.Nursery, serve: Serve) -> str:
    listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    return f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/"


async def head_from(stream: trio.SocketStream) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received and (more := await stream.receive_some()):
        received += more
    return received


async def test_a_connection_is_kept_and_one_that_the_server_closed_is_replaced(
    client: httpx.AsyncClient, transport: PlainTransport, nursery: trio.Nursery
) -> None:
    served: list[int] = []

    async def two_answers(stream: trio.SocketStream) -> None:
        served.append(0)
        for _ in range(2):
            await head_from(stream)
            served[-1] += 1
            await stream.send_all(ANSWER)
        await stream.aclose()

    url = await server(nursery, two_answers)
    for requests in range(1, 6):
        assert (await client.get(url)).text == "ok"
        if requests % 2 == 0:
            await transport.end_of_kept()
    assert served == [2, 2, 1]


async def test_requests_at_one_time_have_connections_of_their_own(
    client: httpx.AsyncClient, nursery: trio.Nursery
) -> None:
    both = trio.Event()
    streams = set()

    async def answer_both(stream: trio.SocketStream) -> None:
        while await head_from(stream):
            streams.add(stream)
            if len(streams) == 2:
                both.set()
            await both.wait()
            await stream.send_all(ANSWER)

    url = await server(nursery, answer_both)
    async with trio.open_nursery() as asking:
        asking.start_soon(client.get, url)
        asking.start_soon(client.get, url)
    assert len(streams) == 2


async def test_a_body_is_sent_and_an_answer_without_length_is_read_to_its_end(
    client: httpx.AsyncClient, nursery: trio.Nursery
) -> None:
    async def repeat(stream: trio.SocketStream) -> None:
        received = await head_from(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n" + received.partition(b"\r\n\r\n")[2])
        await stream.aclose()

    url = await server(nursery, repeat)
    for _ in range(2):
        assert (await client.post(url, content=b"a body")).content == b"a body"


async def test_failures_have_the_names_of_httpx(client: httpx.AsyncClient, nursery: trio.Nursery) -> None:
    async def close(stream: trio.SocketStream) -> None:
        await head_from(stream)
        await stream.aclose()

    async def break_off(stream: trio.SocketStream) -> None:
        await head_from(stream)
        await stream.send_all(ANSWER[:-1])
        await stream.aclose()

    for serve in (close, break_off):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(await server(nursery, serve))
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{unused.getsockname()[1]}/")


async def test_silence_ends_the_wait(client: httpx.AsyncClient, nursery: trio.Nursery) -> None:
    async def never(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    with pytest.raises(httpx.ReadTimeout):
        await client.get(await server(nursery, never), timeout=httpx.Timeout(60, read=0.01))
