"""What a stranger has sent is freed when its connection ends, without waiting for the collector of garbage."""

import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.services import Services
from tests.protocols.mqtt.peers import Server
from tests.protocols.websocket.peers import open_peers

CONNECTIONS = 20
BYTES = 60_000


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


async def grown(connect: Callable[[], Awaitable[None]]) -> int:
    """The bytes that connections leave behind, after one that pays for what is made once."""
    await connect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(CONNECTIONS):
        await connect()
    await wait_all_tasks_blocked()
    return tracemalloc.get_traced_memory()[0] - before


@pytest.mark.usefixtures("without_collector", "world")
async def test_of_a_packet_that_is_too_long_nothing_stays(services: Services) -> None:
    async def connect() -> None:
        async with trio.open_nursery() as nursery:
            peer = await Server(services, nursery).dial()
            await peer.send(b"\x10\xff\xff\x03" + bytes(BYTES))
            await peer.expect_end()

    assert await grown(connect) < CONNECTIONS * BYTES / 4


@pytest.mark.usefixtures("without_collector", "world")
async def test_of_a_frame_that_never_came_whole_nothing_stays(services: Services) -> None:
    async with open_peers(services) as peers:

        async def connect() -> None:
            peer = await peers.connect_plain("/v1.1/websocket")
            await peer.stream.send_all(b"\x81\xfe\xff\xff" + bytes(BYTES))
            await wait_all_tasks_blocked()
            await peer.stream.aclose()
            await wait_all_tasks_blocked()

        assert await grown(connect) < CONNECTIONS * BYTES / 4
