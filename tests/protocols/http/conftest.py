"""The real application behind the real listener, on a free port of loopback."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import httpx
import pytest
import trio

from broker.services import Services
from config.settings import Address
from protocols.http.server import serve_http
from tests.factories import World
from tests.protocols.http.direct_client import DirectClient
from tests.protocols.http.routes import shared_routes

Raw = Callable[[bytes], Awaitable[bytes]]


@pytest.fixture(scope="session", autouse=True)
def _routes_are_shared() -> Iterator[None]:
    with shared_routes():
        yield


async def repeat_head(head: bytes, early: bytes, stream: trio.abc.Stream) -> None:
    """Stands for the WebSocket server: answers with what it was handed."""
    await stream.send_all(b"websocket: " + head + early)
    await stream.aclose()


@pytest.fixture
async def door(services: Services, world: World, nursery: trio.Nursery) -> Address:
    """The address of a listener whose store has `world`."""
    bound: Address = await nursery.start(
        partial(serve_http, services, Address("127.0.0.1", 0), nursery, websocket=repeat_head)
    )
    return bound


@pytest.fixture
async def api(door: Address) -> AsyncIterator[httpx.AsyncClient]:
    async with DirectClient(door) as client:
        yield client


@pytest.fixture
def raw(door: Address) -> Raw:
    """Sends bytes as they are, and gives everything that comes back until the server closes."""

    async def send(request: bytes) -> bytes:
        async with await trio.open_tcp_stream(door.host, door.port) as stream:
            await stream.send_all(request)
            return await receive_all(stream)

    return send


async def receive_all(stream: trio.abc.ReceiveStream) -> bytes:
    received = b""
    while chunk := await stream.receive_some():
        received += chunk
    return received


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"bearer {token}"}
